"""Oscarmax on the CPU: sorting by comparison for few entries, by radix for many."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

FEW = 128
"""Up to this many entries, each is compared with all others, sixteen at a time."""


@njit
def by_comparison(
    kept: Any, index: Any, n: int, top: float, values: Any, order: Any, at: int
) -> None:
    """Write kept[:n] − top in descending order to values[at:], and index[:n] to order[at:]; stable.

    The rank of an entry is the number of those that come before it: n²/16 steps, no branches.
    """
    simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
    for i in range(n):
        t = kept[i]
        rank = at
        for j in range(0, n, LANES):
            others = simd.load(kept, j)
            rank += simd.count((others > t) | ((others >= t) & simd.first(i - j)))
        values[rank] = np.float64(t) - top
        order[rank] = index[i]


@njit
def _key(x: Any, single: bool) -> Any:
    """An integer that decreases where x, of float32 if ``single``, increases."""
    if single:
        short = np.float32(x).view(np.uint32)
        turn = np.uint32(0xFFFFFFFF) if short >> np.uint32(31) else np.uint32(0x80000000)
        return np.uint64(np.uint32(~(short ^ turn)))
    bits = np.float64(x).view(np.uint64)
    flip = np.uint64(0xFFFFFFFFFFFFFFFF) if bits >> np.uint64(63) else np.uint64(1 << 63)
    return np.uint64(~(bits ^ flip))


@njit
def by_digits(
    kept: Any,
    index: Any,
    n: int,
    top: float,
    values: Any,
    order: Any,
    keys: Any,
    places: Any,
    counts: Any,
) -> None:
    """As ``by_comparison`` with at = 0, by a radix sort of bytes: O(n), whatever the entries."""
    single = simd.resolution(kept) > 1e-10
    bytes_ = 4 if single else 8
    for k in range(256 * bytes_):
        counts[k] = 0
    for i in range(n):
        key = _key(kept[i], single)
        keys[0, i] = key
        places[0, i] = i
        for k in range(bytes_):
            counts[256 * k + int((key >> np.uint64(8 * k)) & np.uint64(255))] += 1
    now = 0
    for k in range(bytes_):
        base, shift = 256 * k, np.uint64(8 * k)
        if counts[base + int((keys[now, 0] >> shift) & np.uint64(255))] == n:
            continue  # all have this byte
        before = 0
        for c in range(base, base + 256):
            before, counts[c] = before + counts[c], before
        for i in range(n):
            key = keys[now, i]
            c = base + int((key >> shift) & np.uint64(255))
            to = counts[c]
            counts[c] = to + 1
            keys[1 - now, to] = key
            places[1 - now, to] = places[now, i]
        now = 1 - now
    for i in range(n):
        j = places[now, i]
        values[i] = np.float64(kept[j]) - top
        order[i] = index[j]
