"""DTensors on 2 and 4 processes, each case against one process. The cases are those of
:mod:`sharded_cases`; all of them run in one launch of the processes. On 4 run those that take a
mesh of two dimensions or draw their shapes: devices may have nothing of a row. Heads run on both:
a device has two heads, or one."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sharded_cases
import torch

HELPERS = Path(sharded_cases.__file__).parent
ON_FOUR = ("mappings", "losses", "linear", "wrong_targets")
RUNS = [(name, 4 if name in ON_FOUR else 2) for name in sharded_cases.CASES]
RUNS.append(("heads_in_dtensors", 4))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="torch.distributed with gloo is not available",
    ),
]


@functools.cache
def found(size):
    """What went wrong in each case."""
    chosen = [name for name, ranks in RUNS if ranks == size]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, HELPERS / "ranks.py", str(size), results, *chosen],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not results.exists():
            return {"": done.stderr[-8000:]}
        return json.loads(results.read_text())


@pytest.mark.parametrize(("name", "size"), RUNS)
def test_sharded_against_whole(name, size):
    results = found(size)
    assert name in results, results.get("")
    if (results[name] or "").startswith("skipped: "):
        pytest.skip(results[name].removeprefix("skipped: "))
    assert results[name] is None, results[name]


def test_the_example_learns_the_same_on_two_processes():
    script = Path(__file__).parents[2] / "examples" / "sharded_output.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = []
    for command in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        done = subprocess.run(
            [sys.executable, *command, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout.strip().splitlines()[-1])
    one, two = (line.partition(", {")[0] for line in printed)
    assert one == two
    assert "'all_reduce': 9" in printed[1]
