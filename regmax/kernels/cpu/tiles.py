"""Rows sixteen at a time, one in each lane; memory for those of float32 where a kernel is by hand.

With one row at a time, vector units are idle while each step waits for a sum. Here lane k of
a vector belongs to row k. Sums over a row are sums of vectors, and every operation serves sixteen
rows. Lanes do not mix, and a lane that is done does not change, so a row's result does not depend
on the other rows.

The entries of a row that may be positive are packed first, so that the cost depends on their number
and not on d. A tile holds vectors; entry i of the sixteen rows is ``simd.load(tile, 16 * i)``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from . import common, memory, simd
from .jit import Function, intrinsic, njit
from .simd import LANES

LONGEST = 128
"""The longest row that fits in a tile, and how many packed entries of a longer one do."""
WIDEST = 8192
"""The longest row that is packed into a tile: sixteen of them stay in the cache meanwhile."""
ROW, SIZE, TOP, SCALE, LOW, RATE, TAU = range(7)
"""The numbers of a lane: the row, how many entries are packed, the largest entry, 1/γ, the bound of
the packed entries, one of the mapping, and the threshold."""
NUMBERS = 7


class only(Function):
    """Marks a function of (job, like, …) for one dtype; for the other it does nothing."""

    def __init__(self, dtype: Any, function: Any) -> None:
        super().__init__(function)
        self.dtype = dtype

    def typed(self, context: Any, kinds: Any) -> Any:
        if kinds[1].dtype == self.dtype:
            return super().typed(context, kinds)

        def nothing(context: Any, *_: Any) -> Any:
            return context.get_dummy_value()

        found = types.void(*map(types.unliteral, kinds))
        context.unit.target.define(nothing, found.args, nothing)
        return found, nothing


short = functools.partial(only, types.float32)


@njit
def room(d: int, like: Any) -> Any:
    """Memory for sixteen rows; ``memory.row(room, 0)`` is the ``room`` of the other functions.

    It holds the numbers of the lanes, a tile of float64, one of float32, and of each row the packed
    entries and a masked copy.
    """
    entries = LANES * (min(d, LONGEST) + LANES)
    size = LANES * (NUMBERS + LANES) + 2 * entries + (rows_of(d) // 2 + 2) * (d + 2 * LANES)
    return memory.empty(1, size if memory.size(like) == 4 else 1, np.float64)


@njit
def rows_of(d: int) -> int:
    """How many rows are computed together."""
    return LANES if d <= WIDEST else 1


@njit
def numbers(room: Any, which: int) -> Any:
    """One of the numbers of all lanes."""
    return memory.pointer(memory.address_of(room), LANES * which, room)


@njit
def wide(room: Any) -> Any:
    """The tile of float64."""
    return memory.pointer(memory.address_of(room), LANES * NUMBERS, room)


@njit
def tile(room: Any, d: int, like: Any) -> Any:
    """The tile of float32."""
    entries = LANES * (min(d, LONGEST) + LANES)
    return memory.pointer(memory.address_of(wide(room)) + 8 * entries, 0, like)


@njit
def packed(room: Any, d: int, like: Any, k: int) -> Any:
    """The packed entries of a lane."""
    width = min(d, LONGEST)
    start = memory.address_of(tile(room, d, like)) + 4 * LANES * (width + LANES)
    return memory.pointer(start, k * (width + 2 * LANES), like)


@njit
def copy(room: Any, d: int, like: Any, k: int) -> Any:
    """The masked copy of a lane's row."""
    start = memory.address_of(packed(room, d, like, LANES))
    return memory.pointer(start, k * (d + 2 * LANES), like)


@intrinsic
def transpose(
    typingctx: Any, source: Any, at: Any, apart: Any, target: Any, to: Any, between: Any
) -> Any:
    """16 × 16 entries: row k from source[at + k·apart], column k to target[to + k·between]."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, at, apart, target, to, between = args
        kind = ir.VectorType(context.get_value_type(signature.args[0]).pointee, LANES)
        index = ir.VectorType(ir.IntType(32), LANES)

        def place(pointer: Any, start: Any, step: Any, k: int) -> Any:
            offset = builder.add(start, builder.mul(step, ir.IntType(64)(k)))
            return builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer())

        rows = [builder.load(place(source, at, apart, k), align=1, typ=kind) for k in range(LANES)]
        for s in (8, 4, 2, 1):  # smaller and smaller blocks
            upper = [k if not k & s else LANES + k - s for k in range(LANES)]
            lower = [k + s if not k & s else LANES + k for k in range(LANES)]
            for i in range(LANES):
                if not i & s:
                    a, b = rows[i], rows[i | s]
                    rows[i] = builder.shuffle_vector(a, b, ir.Constant(index, upper))
                    rows[i | s] = builder.shuffle_vector(a, b, ir.Constant(index, lower))
        for k, v in enumerate(rows):
            builder.store(v, place(target, to, between, k), align=1)
        return context.get_dummy_value()

    number = types.int64
    return types.void(source, number, number, target, number, number), code


@njit
def fill(room: Any, d: int, like: Any, count: int) -> int:
    """The tile of float32 ← the packed entries of ``count`` rows, padded with −inf; returns 16
    times the number of its vectors. The other lanes hold the largest entry of the first row."""
    for k in range(count, LANES):
        for j in range(NUMBERS):
            room[LANES * j + k] = room[LANES * j]
        packed(room, d, like, k)[0] = room[LANES * TOP]
        room[LANES * SIZE + k] = 1
    rows, apart = packed(room, d, like, 0), min(d, LONGEST) + 2 * LANES
    return columns(room, rows, apart, -np.inf, tile(room, d, like))


@njit
def columns(room: Any, rows: Any, apart: int, rest: float, to: Any) -> int:
    """The vectors of a tile ← the packed entries of sixteen rows, ``apart`` entries from each
    other and padded with ``rest``; returns 16 times the number of vectors."""
    most = int(simd.largest(simd.load(numbers(room, SIZE), 0)))
    for k in range(LANES):
        for i in range(int(room[LANES * SIZE + k]), most, LANES):
            simd.store(rows, k * apart + i, simd.spread(simd.load(rows, 0), rest))
    for i in range(0, most, LANES):
        transpose(rows, i, apart, to, i * LANES, LANES)
    return most * LANES


@njit
def uncolumns(source: Any, m: int, rows: Any, apart: int) -> None:
    """The inverse of :func:`columns`."""
    for i in range(0, m // LANES, LANES):
        transpose(source, i * LANES, LANES, rows, i, apart)


@njit
def row_of(job: Any, k: int, mask: int, like: Any, room: Any) -> Any:
    """The scores of a lane's row."""
    if common.given(job, mask):
        return copy(room, job[common.WIDTH], like, k)
    return common.rows_at(job, 0, int(room[LANES * ROW + k]), like)
