"""Morphological inflection, end to end on a language of our own, alone and under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

from examples import inflection

ROOT = Path(inflection.__file__).parents[1]
SMALL = ["--smoke", "--epochs", "4", "--output", "sparsemax", "--attention", "softmax"]


@pytest.mark.slow
def test_smoke(tmp_path, capsys):
    argv = ["--smoke", "--output", "sparsemax", "--attention", "softmax", "--seeds", "0,1"]
    inflection.main([*argv, "--out", str(tmp_path)])
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert len(runs) == 2
    for run in runs:
        result = run["result"]
        assert set(result["languages"]) == {"prefixing", "suffixing"}
        assert result["accuracy"] > 50
        assert 0 <= result["all"]["alone"] <= result["all"]["covered"] <= result["all"]["optimal"]
        assert result["all"]["covered"] > 10
        assert 1 <= result["output_nonzeros"] < 3
        for tree in result["trees"]:
            assert len(tree["hypotheses"]) > 2
    shown = capsys.readouterr().out
    assert "| sparsemax | softmax |" in shown
    assert " ± " in shown
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert {"trees.png", "attention-1.png"} <= drawn
    table = (tmp_path / "inflection.md").read_text("utf-8")
    (tmp_path / "inflection.md").unlink()
    inflection.main(["--report-only", "--out", str(tmp_path)])
    assert (tmp_path / "inflection.md").read_text("utf-8") == table


def test_timing(tmp_path, capsys):
    argv = ["--smoke", "--out", str(tmp_path), "--timing", "2", "--output", "softmax"]
    inflection.main(argv)
    timed = json.loads((tmp_path / "timing.json").read_text())
    assert list(timed) == ["softmax+softmax", "softmax+sparsemax"]
    assert "| softmax+sparsemax |" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Without dropout two processes take the steps of one, up to rounding, which grows with them;
    what each searched is put together in order, or no answer would be right."""
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m examples.inflection"
    done = subprocess.run(
        [
            sys.executable,
            *launch.split(),
            *SMALL,
            "--device",
            "cpu",
            "--out",
            str(tmp_path / "two"),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| sparsemax | softmax |") == 1
    inflection.main([*SMALL, "--device", "cpu", "--out", str(tmp_path / "one")])
    one, two = (
        json.loads((tmp_path / n / "sparsemax+softmax-0" / "result.json").read_text())
        for n in ("one", "two")
    )
    for key in ("loss", "held"):
        assert two["history"][0][key] == pytest.approx(one["history"][0][key], rel=1e-3)
    for run in (one, two):
        assert run["result"]["accuracy"] > 10
