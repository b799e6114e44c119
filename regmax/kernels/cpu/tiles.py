"""Sixteen short rows at a time, one in each lane.

With one short row at a time, vector units are idle while each step waits for a sum. Here lane k of
a vector belongs to row k. Sums over a row are sums of vectors, and every operation serves sixteen
rows. Lanes do not mix, and a lane that is done does not change, so a row's result does not depend
on the other rows.

A tile holds d vectors of float64: entry i of the sixteen rows is ``simd.load(tile, 16 * i)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from . import memory, simd
from .jit import intrinsic, njit
from .simd import LANES

SHORT = 128
"""The longest row for tiles, as their cost grows with d and not with the support."""


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of sixteen rows, by transposing smaller and smaller blocks."""
    rows = list(rows)
    index = ir.VectorType(ir.IntType(32), LANES)
    for s in (8, 4, 2, 1):
        upper = [k if not k & s else LANES + k - s for k in range(LANES)]
        lower = [k + s if not k & s else LANES + k for k in range(LANES)]
        for i in range(LANES):
            if not i & s:
                a, b = rows[i], rows[i | s]
                rows[i] = builder.shuffle_vector(a, b, ir.Constant(index, upper))
                rows[i | s] = builder.shuffle_vector(a, b, ir.Constant(index, lower))
    return rows


@intrinsic
def _gather(typingctx: Any, rows: Any, column: Any, like: Any, tile: Any) -> Any:
    """tile[16 j + k] = entry column + j of row k, for 16 columns; ``rows`` are addresses."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, column, _, tile = args
        pointer = context.get_value_type(signature.args[2])
        kind = ir.VectorType(pointer.pointee, LANES)
        wide = ir.VectorType(ir.DoubleType(), LANES)
        found = []
        for k in range(LANES):
            address = builder.load(builder.gep(rows, [ir.IntType(64)(k)]))
            start = builder.gep(builder.inttoptr(address, pointer), [column])
            start = builder.bitcast(start, kind.as_pointer())
            found.append(builder.load(start, align=1, typ=kind))
        for j, v in enumerate(_transposed(builder, found)):
            v = v if kind == wide else builder.fpext(v, wide)
            at = builder.gep(tile, [ir.IntType(64)(LANES * j)])
            builder.store(v, builder.bitcast(at, wide.as_pointer()), align=1)
        return context.get_dummy_value()

    addresses, doubles = types.CPointer(types.int64), types.CPointer(types.float64)
    return types.void(addresses, types.int64, like, doubles), code


@intrinsic
def _scatter(typingctx: Any, tile: Any, column: Any, like: Any, rows: Any) -> Any:
    """The inverse of ``_gather``."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, column, _, rows = args
        pointer = context.get_value_type(signature.args[2])
        kind = ir.VectorType(pointer.pointee, LANES)
        wide = ir.VectorType(ir.DoubleType(), LANES)
        found = []
        for j in range(LANES):
            at = builder.gep(tile, [ir.IntType(64)(LANES * j)])
            v = builder.load(builder.bitcast(at, wide.as_pointer()), align=1, typ=wide)
            found.append(v if kind == wide else builder.fptrunc(v, kind))
        for k, v in enumerate(_transposed(builder, found)):
            address = builder.load(builder.gep(rows, [ir.IntType(64)(k)]))
            start = builder.gep(builder.inttoptr(address, pointer), [column])
            builder.store(v, builder.bitcast(start, kind.as_pointer()), align=1)
        return context.get_dummy_value()

    addresses, doubles = types.CPointer(types.int64), types.CPointer(types.float64)
    return types.void(doubles, types.int64, like, addresses), code


@njit
def addresses() -> Any:
    """Memory for the addresses of sixteen rows; see ``cpu.scratch``."""
    return memory.empty(1, LANES, np.int64)


@njit
def gather(rows: Any, d: int, fill: float, like: Any, part: Any, tile: Any) -> None:
    """tile ← sixteen rows of d entries; ``part`` is scratch for 16 · 16 entries like them."""
    full = d - d % LANES
    for i in range(0, full, LANES):
        _gather(rows, i, like, memory.doubles(memory.address_of(tile) + 8 * LANES * i))
    if full < d:
        ends = addresses()
        for k in range(LANES):
            row = memory.pointer(rows[k], full, like)
            for j in range(LANES):
                part[LANES * k + j] = row[j] if j < d - full else fill
            ends[0, k] = memory.address_of(part) + k * LANES * memory.size(part)
        _gather(
            memory.row(ends, 0), 0, like, memory.doubles(memory.address_of(tile) + 8 * LANES * full)
        )


@njit
def scatter(tile: Any, d: int, rows: Any, like: Any, part: Any) -> None:
    """The rows ← tile."""
    full = d - d % LANES
    for i in range(0, full, LANES):
        _scatter(memory.doubles(memory.address_of(tile) + 8 * LANES * i), i, like, rows)
    if full < d:
        ends = addresses()
        for k in range(LANES):
            ends[0, k] = memory.address_of(part) + k * LANES * memory.size(part)
        _scatter(
            memory.doubles(memory.address_of(tile) + 8 * LANES * full), 0, like, memory.row(ends, 0)
        )
        for k in range(LANES):
            row = memory.pointer(rows[k], full, like)
            for j in range(d - full):
                row[j] = part[LANES * k + j]


@njit
def top_of(tile: Any, d: int) -> Any:
    """The largest entry of each row, and which rows hold a NaN or +inf."""
    top = simd.spread(simd.load(tile, 0), -np.inf)
    bad = simd.not_below(top, np.inf)
    for i in range(d):
        v = simd.load(tile, LANES * i)
        top = simd.larger(v, top)
        bad = bad | simd.not_below(v, np.inf)
    return top, bad


@njit
def finish(tile: Any, d: int, top: Any, bad: Any) -> None:
    """Set rows without participants to 0, and rows in ``bad`` to NaN."""
    empty = top < -1.7976931348623157e308
    if simd.count(bad | empty) == 0:
        return
    for i in range(d):
        v = simd.select(empty, simd.spread(top, 0.0), simd.load(tile, LANES * i))
        simd.store(tile, LANES * i, simd.select(bad, simd.spread(top, np.nan), v))
