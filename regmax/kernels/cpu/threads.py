"""Compiled code over the rows of a tensor, on as many threads as PyTorch uses.

A task is a C function of one pointer, to a job of int64 numbers (:mod:`.job`). Every thread that
runs the task takes rows from the job's counter until none is left. So any number of threads, one
included, completes the job.

PyTorch's own OpenMP threads run it if possible (``GOMP_parallel`` of the library that PyTorch is
linked with): after each operation they occupy the cores for some milliseconds, and other threads
would have to wait. Elsewhere, and in forked children, where OpenMP's threads do not exist, a pool
of plain threads runs it. No setting of the process is changed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from .job import ROWS, STEP, STOPPED

GRAIN = 1 << 14
"""Below this many entries a second thread costs more than it saves."""
Task = Callable[[int], None]


class _Pool:
    """Plain threads that wait for a task and its job."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[tuple[Task, int, threading.Lock]] = SimpleQueue()
        self.size = 0
        self.lock = threading.Lock()

    def run(self, task: Task, job: int, threads: int) -> None:
        with self.lock:
            # ends: the pool grows
            while self.size < threads - 1:
                threading.Thread(target=self._wait, daemon=True, name=f"regmax-{self.size}").start()
                self.size += 1
        waits = [threading.Lock() for _ in range(threads - 1)]
        for done in waits:
            done.acquire()
            self.tasks.put((task, job, done))
        task(job)
        for done in waits:
            done.acquire()

    def _wait(self) -> None:
        while True:
            task, job, done = self.tasks.get()
            task(job)
            done.release()


_pool = _Pool()
_forked = False


def _in_child() -> None:
    global _pool, _forked
    _pool, _forked = _Pool(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@functools.cache
def _openmp() -> Any:
    """GOMP_parallel(task, job, threads, flags) of PyTorch's OpenMP library, or None."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            found = ctypes.CDLL(str(folder / name)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        found.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint)
        found.restype = None
        return found
    return None


def over_rows(task: Task, code: int, job: Any, grain: int = GRAIN) -> None:
    """Run ``task``, a ctypes function at the address ``code``, until the rows of ``job``, an array
    of c_int64, are done. Each thread gets ``grain`` entries or more.

    The GIL is released meanwhile. Safe from several threads at once.
    """
    rows, width = job[ROWS], job[ROWS + 2]
    address = ctypes.addressof(job)
    threads = min(torch.get_num_threads(), rows, rows * width // grain)
    if threads <= 1:
        job[STEP] = rows
        task(address)
    else:
        job[STEP] = max(1, rows // (8 * threads))
        parallel = None if _forked else _openmp()
        if parallel is None:
            _pool.run(task, address, threads)
        else:
            parallel(code, address, threads, 0)
    if job[0] >= STOPPED:
        raise MemoryError("no memory for the work space of a compiled kernel")
