"""The README keeps its word: its code runs, prints what it says, and its plugin is a plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_there_are_blocks_of_each_kind():
    assert len(blocks("python")) >= 6
    assert len(blocks("toml")) == 1


def test_python_blocks_run_in_order_and_print_what_they_say(capsys):
    namespace = {"__name__": "readme"}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)
        printed = iter(capsys.readouterr().out.splitlines())
        for said in re.findall(r"^print\(.*\)\s+# (.*)$", block, flags=re.MULTILINE):
            assert said in printed, f"{said!r} is not printed, or not in this order, by\n{block}"


def test_each_python_block_stands_alone():
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.fixture
def installed_plugin(tmp_path):
    """The README's plugin as an installer lays it out, on the path of a new process."""
    (metadata,) = map(tomllib.loads, blocks("toml"))
    (source,) = [block for block in blocks("python") if "hookimpl" in block]
    (module,) = metadata["project"]["entry-points"]["regmax"].values()
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    name, version = metadata["project"]["name"], metadata["project"]["version"]
    info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = metadata["project"]["entry-points"]["regmax"]
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[regmax]", *lines]) + "\n")
    return tmp_path


def test_the_plugin_appears_everywhere(installed_plugin):
    def run(*arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(installed_plugin)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    (line,) = [ln for ln in run("-m", "regmax", "list").splitlines() if ln.startswith("  elastic ")]
    assert "elasticmax" in line
    assert "mu=1.0" in line
    assert "regmax-elastic 0.1.0" in line
    assert "1 of 1 agree" in run("-m", "regmax", "validate", "elastic")
    program = (
        "import torch; from regmax.functional import elasticmax; "
        "mu = torch.tensor(0.5, requires_grad=True); "
        "y = elasticmax(torch.tensor([1.0, 2.0, 0.0]), mu=mu); y[0].backward(); "
        "assert y.sum().isclose(torch.ones(())) and mu.grad != 0"
    )
    run("-W", "error", "-c", program)
