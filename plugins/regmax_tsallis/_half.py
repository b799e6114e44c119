"""1.5-entmax and its derivative on the CPU, without the code of other α: short float32 rows sixteen
at a time, others one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from . import _rows, _tiles


@njit
def is_short(d: int, like: Any) -> bool:
    """Whether rows are computed sixteen at a time."""
    return d <= tiles.SHORT and memory.size(like) == 4


@njit
def forward_tile(job: Any, like: Any, rows: Any, n: int, room: Any, own: Any) -> None:
    """Rows ``rows[:n]``; unused lanes of the tile repeat the first."""
    d = job[common.WIDTH]
    where = memory.empty(2, LANES, np.int64)
    z, y = memory.row(room, 0), memory.row(room, 1)
    part = memory.row(own, LANES)
    for k in range(LANES):
        if k >= n:
            rows[k] = rows[0]
        row = common.participants(job, rows[k], 3, like, memory.row(own, k))
        where[0, k] = memory.address_of(row)
        where[1, k] = memory.address_of(common.rows_at(job, 4, rows[k], like))
    for k in range(LANES):
        y[k] = 1.0 / common.number_at(job, 1, rows[k])
    scale = simd.load(y, 0)
    tiles.gather(memory.row(where, 0), d, -np.inf, like, part, z)
    top, bad = tiles.top_of(z, d)
    rough = memory.pointer(memory.address_of(y), 0, part)
    _tiles.solve15(z, d, top, scale, rough)
    tiles.finish(z, d, top, bad)
    tiles.scatter(z, d, memory.row(where, 1), like, part)


def forward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    short = is_short(d, like)
    wide, own = common.scratch(3, d), common.scratch_like(2, d, like)
    room = common.scratch(2, LANES * (d + LANES) if short else 1)
    lanes = common.scratch_like(LANES + 1, max(d, LANES * LANES) if short else 1, like)
    waiting, count = memory.empty(1, LANES, np.int64), 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            if not (short and common.number_at(job, 1, r) > 0.0):
                _rows.forward15(job, r, like, wide, own)
                continue
            waiting[0, count] = r
            count += 1
            if count == LANES:
                forward_tile(job, like, waiting[0], LANES, room, lanes)
                count = 0
        first, last = common.take(job)
    if count > 0:
        forward_tile(job, like, waiting[0], count, room, lanes)


def backward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    wide, own = common.scratch(3, d), common.scratch_like(2, d, like)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            _rows.backward15(job, r, like, wide, own)
        first, last = common.take(job)
