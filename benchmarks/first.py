"""The first call of a mapping in a fresh process; this file is also the program of that process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = ("import regmax", "first call, empty cache", "first call, full cache", "later call")


def first(*task: str | int) -> list[float]:
    """The seconds of ``HEAD``; ``task``: the arguments of ``main``."""
    command = [sys.executable, "-m", "benchmarks.first", *map(str, task)]
    root, found = Path(__file__).parents[1], []
    with tempfile.TemporaryDirectory() as folder:
        caches = {**os.environ, "NUMBA_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        for _ in range(2):
            done = subprocess.run(command, cwd=root, env=caches, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
            found.append(json.loads(done.stdout))
    cold, warm = found
    return [warm["import"], cold["first"], warm["first"], warm["later"]]


def main(device: str, threads: str, mapping: str, rows: str, d: str) -> None:
    """Print the seconds of the import, of the first pass and of later ones, as JSON."""
    import torch

    torch.set_num_threads(int(threads))
    x = torch.randn(int(rows), int(d), device=device, requires_grad=True)
    marks = [time.perf_counter()]
    import regmax.functional

    marks.append(time.perf_counter())
    for _ in range(6):
        y = getattr(regmax.functional, mapping)(x)
        y.backward(torch.ones_like(y))
        if device == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
    took = [end - begin for begin, end in itertools.pairwise(marks)]
    print(json.dumps({"import": took[0], "first": took[1], "later": sorted(took[2:])[2]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
