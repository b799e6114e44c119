"""The pages keep their word: code runs and prints what it says, the README's plugin is a plugin."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/theorem.md")


def blocks(language: str, page: str = "README.md") -> list[str]:
    """The fenced blocks of a language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_there_are_blocks_of_each_kind():
    assert len(blocks("python")) >= 6
    assert len(blocks("python", "docs/theorem.md")) == 2
    assert len(blocks("toml")) == 1


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_in_order_and_print_what_they_say(page, capsys):
    namespace = {"__name__": "readme"}
    for block in blocks("python", page):
        exec(compile(block, page, "exec"), namespace)
        printed = iter(capsys.readouterr().out.splitlines())
        for said in re.findall(r"^print\(.*\)\s+# (.*)$", block, flags=re.MULTILINE):
            assert said in printed, f"{said!r} is not printed, or not in this order, by\n{block}"


@pytest.mark.parametrize("page", PAGES)
def test_each_python_block_stands_alone(page):
    for block in blocks("python", page):
        exec(compile(block, page, "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("page", [*PAGES, "docs/experiments.md"])
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_figure_of_the_theorem_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "theorem.py"))
    script["draw"](tmp_path / "theorem.svg")
    assert "clustered softmax" in (tmp_path / "theorem.svg").read_text(encoding="utf-8")


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
