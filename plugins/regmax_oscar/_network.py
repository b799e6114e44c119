"""Sixteen sequences in lanes, sorted in descending order by the same comparisons.

Blocks of sixteen vectors are sorted in registers by Batcher's merge exchange (Knuth, "The Art of
Computer Programming" 3, 5.2.2, Algorithm M), and merged by Batcher's bitonic merge, which compares
the first entry of one block with the last one of the other, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from llvmlite import ir
from numba import types

from regmax.kernels.cpu import simd
from regmax.kernels.cpu.jit import intrinsic, njit
from regmax.kernels.cpu.simd import LANES

BLOCK = LANES * LANES
HALF = LANES // 2


def _network(pairs: Iterable[tuple[int, int]]) -> Any:
    """An intrinsic of (a, at): of the vectors a[at + 16 k : at + 16 k + 8], k < 16, the larger
    numbers of each pair move to the first one."""
    pairs = tuple(pairs)

    @intrinsic
    def network(typingctx: Any, array: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.VectorType(ir.DoubleType(), HALF)
            start = builder.gep(args[0], [args[1]])
            places = [
                builder.bitcast(builder.gep(start, [ir.IntType(64)(k * LANES)]), kind.as_pointer())
                for k in range(LANES)
            ]
            rows = [builder.load(place, align=1, typ=kind) for place in places]
            for i, j in pairs:
                a, b = rows[i], rows[j]
                rows[i] = builder.select(builder.fcmp_ordered(">", a, b), a, b)
                rows[j] = builder.select(builder.fcmp_ordered("<", a, b), a, b)
            for row, place in zip(rows, places, strict=True):
                builder.store(row, place, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64), code

    return network


def _exchanges() -> Iterator[tuple[int, int]]:
    """The comparisons of Algorithm M for sixteen numbers."""
    p = LANES // 2
    # ends: p is halved
    while p:
        q, r, apart = LANES // 2, 0, p
        # ends: q is halved until it is p
        while apart:
            yield from ((i, i + apart) for i in range(LANES - apart) if i & p == r)
            apart, q, r = q - p, q // 2, p
        p //= 2


_sorted = _network(_exchanges())
_merged = _network((i, i + q) for q in (8, 4, 2, 1) for i in range(LANES) if not i & q)


@njit
def _exchange(keys: Any, i: int, j: int) -> None:
    a, b = simd.load(keys, i), simd.load(keys, j)
    simd.store(keys, i, simd.larger(a, b))
    simd.store(keys, j, simd.smaller(a, b))


@njit
def sort(keys: Any, m: int) -> None:
    """Sort the m/16 vectors of ``keys``, float64 without NaN; m is a multiple of ``BLOCK``."""
    for i in range(0, m, BLOCK):
        _sorted(keys, i)
        _sorted(keys, i + HALF)
    size = BLOCK
    # ends: the size doubles
    while size < m:
        for start in range(0, m, 2 * size):
            last = start + 2 * size - LANES
            for i in range(0, size, LANES):
                if last - i < m:
                    _exchange(keys, start + i, last - i)
        apart = size // 2
        # ends: it is halved
        while apart >= BLOCK:
            for start in range(0, m - apart, 2 * apart):
                for i in range(start, min(start + apart, m - apart), LANES):
                    _exchange(keys, i, i + apart)
            apart //= 2
        for i in range(0, m, BLOCK):
            _merged(keys, i)
            _merged(keys, i + HALF)
        size *= 2
