"""Peak memory of a pass.

On the CPU (Linux with glibc) it is the peak of the resident set beyond what was resident before.
Blocks of 64 KiB or more are mapped one by one, so that memory freed earlier does not hide what a
pass takes. That makes later passes slower: measure memory last.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

from .timing import Step

M_MMAP_THRESHOLD = -3


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
