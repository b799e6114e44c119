"""Oscarmax on the CPU: sorting by comparison for few entries, by radix for many."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from regmax.kernels.cpu import memory, simd
from regmax.kernels.cpu.jit import intrinsic, njit
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


@intrinsic
def _key(typingctx: Any, kept: Any, i: Any) -> Any:
    """An integer that decreases where the number kept[i] increases."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width = kept.dtype.bitwidth
        kind = ir.IntType(width)
        at = builder.bitcast(builder.gep(args[0], [args[1]]), kind.as_pointer())
        bits = builder.load(at, typ=kind)
        # the bits of numbers of one sign are in their order, or in the reverse
        turn = builder.or_(builder.ashr(bits, kind(width - 1)), kind(1 << (width - 1)))
        key = builder.not_(builder.xor(bits, turn))
        return builder.zext(key, ir.IntType(64)) if width < 64 else key

    return types.uint64(kept, types.int64), code


@njit(apart=True)
def _by_digits(
    kept: Any, index: Any, n: int, top: float, values: Any, order: Any, scratch: Any
) -> None:
    """As ``by_comparison`` with at = 0, by a radix sort of bytes: O(n), whatever the entries."""
    keys, sorted_keys, places, sorted_places, counts = scratch
    bytes_ = memory.size(kept)
    for k in range(256 * bytes_):
        counts[k] = 0
    for i in range(n):
        key = _key(kept, i)
        keys[i] = key
        places[i] = i
        for k in range(bytes_):
            counts[256 * k + int((key >> np.uint64(8 * k)) & np.uint64(255))] += 1
    for k in range(bytes_):
        base, shift = 256 * k, np.uint64(8 * k)
        if counts[base + int((keys[0] >> shift) & np.uint64(255))] == n:
            continue  # all have this byte
        before = 0
        for c in range(base, base + 256):
            before, counts[c] = before + counts[c], before
        for i in range(n):
            key = keys[i]
            c = base + int((key >> shift) & np.uint64(255))
            to = counts[c]
            counts[c] = to + 1
            sorted_keys[to] = key
            sorted_places[to] = places[i]
        keys, sorted_keys = sorted_keys, keys
        places, sorted_places = sorted_places, places
    for i in range(n):
        j = places[i]
        values[i] = np.float64(kept[j]) - top
        order[i] = index[j]


@njit
def sort(kept: Any, index: Any, n: int, top: float, values: Any, order: Any, scratch: Any) -> None:
    """As ``by_comparison`` with at = 0. ``scratch``: two rows of uint64, two of int32, and 2048
    counts."""
    if n <= FEW:
        by_comparison(kept, index, n, top, values, order, 0)
    else:
        _by_digits(kept, index, n, top, values, order, scratch)
