"""What needs a process of its own: peak memory, and first calls.

Memory on the CPU is the peak of the resident set during a pass, minus the resident set before it:
allocations of compiled code count, as those of PyTorch do. Every block of 64 KiB or more is mapped
on its own (glibc's MALLOC_MMAP_THRESHOLD_), so that nothing freed earlier hides what a pass takes,
and the kernel resets the peak before each pass (/proc/self/clear_refs; Linux only). On CUDA it is
``torch.cuda.max_memory_allocated``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a child imports torch first, and times regmax's import
    from .peers import Step

ROOT = Path(__file__).parents[1]
WARM = 64
"""Rows of the pass that compiles, before memory is looked at."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Failed(Exception):
    """A child that gave no figures; ``ours`` if the code at fault is regmax's."""

    def __init__(self, message: str, *, ours: bool) -> None:
        super().__init__(message)
        self.ours = ours


def memory(
    device: str, threads: int, kinds: Sequence[str], rows: int, d: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Peak memory of each candidate, forward and both, in units of the scores' size."""
    if device == "cpu":
        _can_reset()
    task = {"device": device, "threads": threads, "rows": rows, "d": d}
    named = {"kinds": list(kinds), "names": list(names)}
    found: list[dict[str, Any]] = _call("memory", {**task, **named}, {})
    return found


def _can_reset() -> None:
    """Whether there is a peak of the resident set to read."""
    if not CLEAR.exists():
        raise Failed("needs Linux: /proc/self/clear_refs resets the peak", ours=False)


def first(device: str, threads: int, mapping: str, rows: int, d: int) -> dict[str, Any]:
    """Seconds of the first pass with an empty cache, with a full one, and of a later pass."""
    task = {"device": device, "threads": threads, "mapping": mapping, "rows": rows, "d": d}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"NUMBA_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        cold = _call("first", task, caches)
        warm = _call("first", task, caches)
    return {
        "mapping": mapping,
        "rows": rows,
        "d": d,
        "import": warm["import"],
        "cold": cold["first"],
        "warm": warm["first"],
        "later": warm["later"],
    }


def losses(
    device: str, threads: int, rows: int, d: int, package: bool
) -> dict[str, dict[str, float]]:
    """Peak memory of each loss, by name: forward and both, in units of the logits' size."""
    if device == "cpu":
        _can_reset()
    task = {"device": device, "threads": threads, "rows": rows, "d": d, "package": package}
    found: dict[str, dict[str, float]] = _call("losses", task, {})
    return found


def generic(threads: int, name: str, rows: int, d: int, limit: float) -> dict[str, Any]:
    """The row of figures of an Ω given by its value, if it takes no longer than ``limit``."""
    task = {"threads": threads, "name": name, "rows": rows, "d": d, "limit": limit}
    found: dict[str, Any] = _call("generic", task, {}, limit)
    return found


def _call(
    what: str, task: dict[str, Any], extra: dict[str, str], limit: float | None = None
) -> Any:
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", **extra}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.child", what, json.dumps(task)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"stopped after {limit:g} seconds", ours=False) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed(lines[-1], ours=True)
    return json.loads(done.stdout.splitlines()[-1])


def _first(task: dict[str, Any]) -> dict[str, float]:
    import torch

    torch.set_num_threads(task["threads"])
    begin = time.perf_counter()
    import regmax.functional  # noqa: F401

    imported = time.perf_counter() - begin
    from .inputs import case
    from .peers import Task, regmax_candidate

    def once() -> float:
        begin = time.perf_counter()
        run.forward()
        run.backward()
        if task["device"] == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    scores = case("normal", task["rows"], task["d"], device=task["device"])
    if task["device"] == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run = Task(regmax_candidate(task["mapping"]), scores)
    made = time.perf_counter() - begin
    took = made + once()
    run.reset()
    later = []
    for _ in range(5):
        later.append(once())
        run.reset()
    return {"import": imported, "first": took, "later": sorted(later)[2]}


def _generic(task: dict[str, Any]) -> dict[str, Any]:
    import dataclasses

    import torch

    from .inputs import case
    from .own import certified, own_candidate
    from .peers import Task
    from .timing import CpuWatch, interleave, timing

    begin = time.perf_counter()
    torch.set_num_threads(task["threads"])
    name, rows, d = task["name"], task["rows"], task["d"]
    scores = case("normal", rows, d, torch.float64)
    few = case("normal", 1, 2, torch.float64)
    candidate = own_candidate(name, d)
    warm = Task(own_candidate(name, 2), few)
    warm.forward()
    warm.backward()
    facts = certified(name, scores)
    spent = time.perf_counter() - begin  # a pass takes less than this: two of them and one more
    run, watch = Task(candidate, scores), CpuWatch()
    if 6 * spent < task["limit"]:
        times = interleave([run], watch, budget=task["limit"] / 4, rounds=5, at_least=1)[run.name]
    else:
        times = timing([watch.read(watch.start(run))])
    return {
        **scores.describe(),
        **candidate.describe(),
        "zeros": 0.0,
        "error": 0.0,
        **facts,
        **dataclasses.asdict(times),
    }


def _memory(task: dict[str, Any]) -> list[dict[str, Any]]:
    import torch

    from .inputs import case
    from .peers import Task, candidates
    from .plan import MAPPINGS

    torch.set_num_threads(task["threads"])
    rows, d, device = task["rows"], task["d"], task["device"]
    peak = _peak(device)
    found = []
    wanted = [c for c in candidates(device, MAPPINGS)[0] if c.name in task["names"]]
    scores = [case(kind, rows, d, device=device) for kind in task["kinds"]]
    few = case("normal", min(rows, WARM), d, device=device)
    for candidate, given in itertools.product(wanted, scores):
        with contextlib.suppress(Exception):  # the timed sections say what fails
            figures = _used(peak, Task(candidate, few), Task(candidate, given))
            found.append(
                {
                    "rows": rows,
                    "d": d,
                    "input": given.kind,
                    "name": candidate.name,
                    "family": candidate.family,
                    "mapping": candidate.mapping,
                    **figures,
                }
            )
    return found


def _losses(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    import torch

    from .inputs import case
    from .loss_steps import batch, steps

    torch.set_num_threads(task["threads"])
    rows, d, device = task["rows"], task["d"], task["device"]
    peak = _peak(device)
    few, given = (
        steps(batch(case("normal", n, d, device=device)), package=task["package"])
        for n in (min(rows, WARM), rows)
    )
    found = {}
    for warm, step in zip(few, given, strict=True):
        with contextlib.suppress(Exception):  # the timed section says what fails
            found[step.name] = _used(peak, warm, step)
    return found


def _used(peak: _CpuPeak | _CudaPeak, warm: Step, step: Step) -> dict[str, float]:
    """The peak of a step, forward and both, in units of what it is given; ``warm`` compiles."""
    warm.forward()
    warm.backward()
    warm.reset()
    peak.reset()
    step.forward()
    forward = peak.read()
    step.backward()
    both = max(forward, peak.read())
    step.reset()
    size = step.leaves[0].nbytes
    return {"forward": forward / size, "both": both / size}


def _peak(device: str) -> _CpuPeak | _CudaPeak:
    return _CudaPeak() if device == "cuda" else _CpuPeak()


class _CpuPeak:
    def __init__(self) -> None:
        self.before = 0
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def reset(self) -> None:
        gc.collect()
        gc.freeze()  # the next collection is quick
        if self.trim is not None:
            self.trim(0)
        CLEAR.write_text("5")
        self.before = self._status("VmRSS")

    def read(self) -> int:
        return max(0, self._status("VmHWM") - self.before)

    @staticmethod
    def _status(key: str) -> int:
        line = next(s for s in STATUS.read_text().splitlines() if s.startswith(f"{key}:"))
        return 1024 * int(line.split()[1])


class _CudaPeak:
    def reset(self) -> None:
        import torch

        gc.collect()
        gc.freeze()  # the next collection is quick
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()

    def read(self) -> int:
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self.before


TASKS: dict[str, Any] = {
    "first": _first,
    "generic": _generic,
    "memory": _memory,
    "losses": _losses,
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](json.loads(sys.argv[2]))))
