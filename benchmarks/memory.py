"""The memory of a pass: warm while its time is taken, and its peak.

On the CPU (Linux with glibc) large blocks are new memory of the system, which takes longer to fill
the first time than softmax takes to compute: so times depend on who allocated what before. While
times are taken, memory that one candidate gives back is kept for the next, so all find the same
warm memory. A peak is that of the resident set beyond what was resident before, with blocks of 64
KiB or more mapped one by one, so that memory freed earlier does not hide what a pass takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

import torch

from .timing import Step

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
WARM = 1 << 29
"""More than the candidates of a case hold at one time."""


def keep() -> None:
    """Fill ``WARM`` bytes, and from now on keep what is freed. Only for the malloc of glibc."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)
        torch.ones(WARM, dtype=torch.uint8)


def peak(step: Step, device: str) -> tuple[float, float]:
    """The peak of a step that has run once, forward and both, over the size of its first leaf."""
    gc.collect()
    gc.freeze()  # the next collection is quick
    before = _reset(device)
    step.forward()
    forward = _peak(device) - before
    step.backward()
    both = max(forward, _peak(device) - before)
    step.reset()
    size = step.leaves[0].nbytes
    return max(0, forward) / size, max(0, both) / size


def _reset(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_MAX, 65536)
    library.mallopt(M_MMAP_THRESHOLD, 65536)
    library.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    return _status("VmRSS")


def _peak(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return _status("VmHWM")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(s for s in lines if s.startswith(f"{key}:")).split()[1])
