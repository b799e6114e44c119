"""Compiled code over the rows of a tensor, on as many threads as PyTorch uses.

A task is a C function of one pointer, to a job of int64 numbers (:mod:`.job`). Every thread that
runs the task takes rows from the job's counter until none is left. So any number of threads, one
included, completes the job.

PyTorch's own OpenMP threads run it if possible (``GOMP_parallel`` of the library that PyTorch is
linked with): after each operation they occupy the cores for some milliseconds, and other threads
would have to wait. Elsewhere, and in forked children, where OpenMP's threads do not exist, a pool
of plain threads runs it. No setting of the process is changed.

Python hears signals, as of Ctrl-C, only between calls. So a long job is done in slices of its rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from .job import ROWS, STEP, STOPPED

GRAIN = 1 << 14
"""Below this many entries a second thread costs more than it saves."""
SLICE, LARGEST = 1 << 17, 1 << 23
"""A call of no more entries than the first is not divided, which takes .3 s at most. A slice has
no more than the second."""
PAUSE = 0.1
"""The seconds that a slice should take."""
_sizes: dict[int, int] = {}
"""The entries of the next slice of a task, by its address."""
Task = Callable[[int], None]


class _Pool:
    """Plain threads that wait for a task and its job."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[tuple[Task, int, threading.Lock]] = SimpleQueue()
        self.size = 0
        self.lock = threading.Lock()

    def run(self, task: Task, job: int, threads: int) -> None:
        with self.lock, contextlib.suppress(RuntimeError):  # no thread can be started
            # ends: the pool grows, or no thread can be started
            while self.size < threads - 1:
                threading.Thread(target=self._wait, daemon=True, name=f"regmax-{self.size}").start()
                self.size += 1
        waits = [threading.Lock() for _ in range(min(threads - 1, self.size))]
        for done in waits:
            done.acquire()
            self.tasks.put((task, job, done))
        signal: BaseException | None = None
        try:
            task(job)
        except BaseException as error:
            signal = error
        while any(done.locked() for done in waits):  # the others write to the tensors of the job
            try:
                for done in waits:
                    with done:
                        pass
            except BaseException as error:
                signal = error
        if signal is not None:
            raise signal

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
    """GOMP_parallel(task, job, threads, flags) of PyTorch's OpenMP library, or None. Where no
    thread can be started, that would end the process."""
    try:
        threading.Thread(target=int, daemon=True).start()
    except RuntimeError:
        return None
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
    threads = min(torch.get_num_threads(), rows, rows * width // grain)
    if rows * width <= SLICE:
        _run(task, code, job, rows, threads)
        return
    start = 0
    while start < rows:
        size = max(_sizes.get(code, SLICE) // width, threads, 1)
        job[0], job[ROWS] = start, min(start + size, rows)
        since = time.perf_counter()
        _run(task, code, job, job[ROWS] - start, threads)
        pace = width * (job[ROWS] - start) / (time.perf_counter() - since + 1e-9)
        if len(_sizes) >= 512:  # also of functions that are no more
            _sizes.clear()
        _sizes[code] = min(int(PAUSE * pace) + 1, LARGEST)
        start += size


def _run(task: Task, code: int, job: Any, rows: int, threads: int) -> None:
    """Run a task on the next rows of its job."""
    address = ctypes.addressof(job)
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
