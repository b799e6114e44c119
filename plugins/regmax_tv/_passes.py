"""Fusedmax on the CPU: passes over a row, sixteen entries at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def pack(row: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> int:
    """The n entries x_i > low, in their order, to kept[:n], and their i to index[:n]."""
    n = 0
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v > low
        simd.compress(kept, n, v, on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    return n


@njit
def pack_where(row: Any, mask: Any, d: int, lanes: Any, kept: Any, index: Any) -> int:
    """As ``pack``, the entries where mask is not 0."""
    full = d - d % LANES
    n = 0
    for i in range(0, full, LANES):
        on = simd.differ(simd.load(mask, i), 0)
        simd.compress(kept, n, simd.load(row, i), on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    for i in range(full, d):
        kept[n] = row[i]
        index[n] = i
        n += mask[i] != 0
    return n


@njit
def keep(row: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> tuple[int, bool]:
    """As ``common.keep``, and their i to index[:n]; and whether any entry is −inf."""
    n, gaps, least = 0, -(-d % LANES), -simd.greatest(row)  # beyond the end are −inf too
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v >= low
        gaps += simd.count(v < least)
        simd.compress(kept, n, v, on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    return n, gaps > 0
