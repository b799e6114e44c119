"""Sparsemax and its derivative on the CPU. Short float32 rows are computed sixteen at a time."""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import common, memory, projection, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def _threshold(rough: Any, z: Any, m: int) -> Any:
    """τ with Σ (z − τ)₊ = 1: Michelot's iteration, first in float32 on the copy ``rough``."""
    none = simd.spread(simd.load(rough, 0), 0.0)
    below = none - 1.0
    for _ in range(3):
        sums, size = none, none
        for i in range(0, m, LANES):
            t = simd.load(rough, i)
            on = t > below
            sums = sums + simd.select(on, t, 0.0)
            size = size + simd.select(on, none + 1.0, 0.0)
        below = (sums - 1.0) / size
    zero = simd.spread(simd.load(z, 0), 0.0)
    tau = simd.larger(simd.wide(below) - 4e-6, -1.0)
    before = zero + m
    for _ in range(m // LANES + 1):
        wide, count = zero, zero
        for i in range(0, m, LANES):
            v = simd.load(z, i)
            inside = v > tau
            wide = wide + simd.select(inside, v, 0.0)
            count = count + simd.select(inside, zero + 1.0, 0.0)
        fewer = before > count  # entries that come back do so by the rounding of τ
        if simd.count(fewer) == 0:
            break
        tau = simd.select(fewer, (wide - 1.0) / count, tau)
        before = simd.select(fewer, count, 0.0)
    return tau


@tiles.short
def _together(job: Any, like: Any, n: int, room: Any) -> None:
    d = job[common.WIDTH]
    tile, exact = tiles.tile(room, d, like), tiles.wide(room)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    found = _threshold(tile, exact, m)
    for i in range(0, m, LANES):
        y = simd.larger(simd.load(exact, i) - found, 0.0)
        simd.store(tile, i, simd.narrow(y))
    tiles.finish(job, like, n, m, 2, 3, room)


def forward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(1, d), common.scratch_like(2, d, like)
    short = tiles.fits(d, like)
    rooms, count = tiles.room(d if short else 0, like), 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            room = memory.row(rooms, 0)
            if short and tiles.enter(job, r, count, 2, like, room):
                tiles.pack(job, count, 2, 1.0, like, room)
                count += 1
                if count == LANES:
                    _together(job, like, count, room)
                    count = 0
                continue
            row = common.participants(job, r, 2, like, memory.row(own, 1))
            gamma, y = common.number_at(job, 1, r), common.rows_at(job, 3, r, like)
            projection.forward(row, d, gamma, memory.row(wide, 0), memory.row(own, 0), y, blank)
        first, last = common.take(job)
    if count > 0:
        _together(job, like, count, memory.row(rooms, 0))


def backward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
            out = common.rows_at(job, 3, r, like)
            projection.backward(y, v, d, 1.0 / common.number_at(job, 2, r), out, blank)
        first, last = common.take(job)
