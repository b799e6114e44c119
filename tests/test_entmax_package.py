"""The tests of the ``entmax`` package that concern sparsemax and entmax pass on regmax."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = str(Path(__file__).parent / "helpers")


@pytest.mark.slow
def test_the_tests_in_its_wheel_pass(tmp_path):
    pytest.importorskip("entmax")
    tests = ("root_finding", "topk", "mask", "losses")
    modules = [f"entmax.test_{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "-p", "entmax_adapter"]
    command += ["-k", "not normmax and not budget"]
    done = subprocess.run(
        [*command, "--pyargs", *modules],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^105 passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout[-300:]
