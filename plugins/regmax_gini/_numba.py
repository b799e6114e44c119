"""Sparsemax and its derivative on the CPU. Short float32 rows are computed sixteen at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, projection, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def _threshold(z: Any, d: int, rough: Any) -> Any:
    """τ with Σ (z − τ)₊ = 1: Michelot's iteration, first in float32 on the copy ``rough``."""
    none = simd.spread(simd.load(rough, 0), 0.0)
    below = none - 1.0
    for _ in range(4):
        sums, size = none, none
        for i in range(d):
            t = simd.load(rough, LANES * i)
            on = t > below
            sums = sums + simd.select(on, t, 0.0)
            size = size + simd.select(on, none + 1.0, 0.0)
        below = (sums - 1.0) / size
    zero = simd.spread(simd.load(z, 0), 0.0)
    tau = simd.larger(simd.wide(below) - 4e-6, -1.0)
    before = zero
    for _ in range(d + 1):
        wide, count = zero, zero
        for i in range(d):
            v = simd.load(z, LANES * i)
            inside = v > tau
            wide = wide + simd.select(inside, v, 0.0)
            count = count + simd.select(inside, zero + 1.0, 0.0)
        moved = (count > before) | (before > count)
        if simd.count(moved) == 0:
            break
        tau = simd.select(moved, (wide - 1.0) / count, tau)
        before = count
    return tau


@njit
def _tile(job: Any, like: Any, first: int, n: int, room: Any, own: Any) -> None:
    """Rows first … first + n − 1; unused lanes of the tile repeat row ``first``."""
    d = job[common.WIDTH]
    where, numbers = memory.empty(2, LANES, np.int64), memory.empty(1, LANES, np.float64)
    z, part = memory.row(room, 0), memory.row(own, LANES)
    for k in range(LANES):
        r = first + k if k < n else first
        row = common.participants(job, r, 2, like, memory.row(own, k))
        where[0, k] = memory.address_of(row)
        where[1, k] = memory.address_of(common.rows_at(job, 3, r, like))
        numbers[0, k] = common.number_at(job, 1, r)
    gamma = simd.load(memory.row(numbers, 0), 0)
    scale = simd.spread(gamma, 1.0) / gamma
    rough = memory.pointer(memory.address_of(memory.row(room, 1)), 0, part)
    tiles.gather(memory.row(where, 0), d, -np.inf, like, part, z)
    top, bad = tiles.top_of(z, d)
    for i in range(d):
        t = (simd.load(z, LANES * i) - top) * scale
        simd.store(z, LANES * i, t)
        simd.store(rough, LANES * i, simd.like(simd.load(rough, LANES * i), t))
    tau = _threshold(z, d, rough)
    for i in range(d):
        simd.store(z, LANES * i, simd.larger(simd.load(z, LANES * i) - tau, 0.0))
    bad = bad | simd.not_below(simd.spread(gamma, 0.0), gamma)
    tiles.finish(z, d, top, bad)
    tiles.scatter(z, d, memory.row(where, 1), like, part)


def forward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(1, d), common.scratch_like(2, d, like)
    short = d <= tiles.SHORT and memory.size(like) == 4
    room = common.scratch(2, LANES * (d + LANES) if short else 1)
    lanes = common.scratch_like(LANES + 1, max(d, LANES * LANES) if short else 1, like)
    first, last = common.take(job)
    while first < last:
        if short:
            for r in range(first, last, LANES):
                _tile(job, like, r, min(LANES, last - r), room, lanes)
        for r in range(last if short else first, last):
            row = common.participants(job, r, 2, like, memory.row(own, 1))
            gamma, y = common.number_at(job, 1, r), common.rows_at(job, 3, r, like)
            projection.forward(row, d, gamma, memory.row(wide, 0), memory.row(own, 0), y, blank)
        first, last = common.take(job)


def backward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
            out = common.rows_at(job, 3, r, like)
            projection.backward(y, v, d, 1.0 / common.number_at(job, 2, r), out, blank)
        first, last = common.take(job)
