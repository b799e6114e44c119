"""Scans of Triton's interpreter by doubling.

It combines entries one by one, from the first to the last. That is slow, and right where the
operator is not associative too. Here every combination is of two halves of a segment, as on a GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np


def used() -> AbstractContextManager[Any]:
    """Within this context."""
    from triton.runtime.interpreter import ScanOps

    return mock.patch.object(ScanOps, "generic_scan", doubled)


def doubled(scan: Any, given: list[Any]) -> list[Any]:
    """In place of ``ScanOps.generic_scan``."""
    items = [np.moveaxis(t.handle.data, scan.axis, 0) for t in given]
    step = 1
    while step < len(items[0]):
        pairs = [np.roll(a, step, 0) for a in items] + items
        types = [t.dtype for t in given] * 2
        tensors = [scan.to_tensor(a, d) for a, d in zip(pairs, types, strict=True)]
        found = scan.combine_fn.fn(*tensors)  # the first ``step`` have nothing before them
        found = found if isinstance(found, tuple) else (found,)
        items = [
            np.concatenate([a[:step], f.handle.data[step:].astype(a.dtype)])
            for a, f in zip(items, found, strict=True)
        ]
        step *= 2
    return [
        scan.to_tensor(np.moveaxis(a, 0, scan.axis), t.dtype)
        for a, t in zip(items, given, strict=True)
    ]
