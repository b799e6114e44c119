"""The tests of the ``entmax`` package pass on regmax."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PLUGIN = TESTS.parent / "examples" / "regmax-normmax"


@pytest.mark.slow
def test_the_tests_in_its_wheel_pass(tmp_path):
    """All but one, which gives normmax numbers α ≤ 1, where it is not defined."""
    pytest.importorskip("entmax")
    modules = [f"entmax.test_{name}" for name in ("root_finding", "topk", "mask", "losses")]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "-p", "entmax_adapter"]
    command += ["-k", "not test_budget_grad_multiple_k"]
    done = subprocess.run(
        [*command, "--pyargs", *modules],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(TESTS / "helpers"), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
            ),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^126 passed, 1 deselected", done.stdout, re.MULTILINE), done.stdout[-300:]
