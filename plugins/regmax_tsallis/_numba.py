"""α-entmax and its derivatives on the CPU: short float32 rows sixteen at a time, others one by
one."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from . import _powers, _rows, _tiles
from ._half import forward_tile, is_short

EACH, HALF, POWER = 0, 1, 2
"""The kinds of rows: computed alone; α = 1.5 and short; 1.05 < α < 2."""


@njit
def _kind(d: int, gamma: float, a: float, like: Any) -> int:
    """The kind of a row, which does not depend on the other rows of the batch."""
    if not gamma > 0.0:
        return EACH
    if a == 0.5:
        return HALF if is_short(d, like) else EACH
    return POWER if 0.05 < a < 1.0 else EACH


@njit
def _lanes(job: Any, rows: Any, gamma: int, tile: Any) -> Any:
    """1/γ and a of a tile's rows; ``tile`` is scratch."""
    for k in range(LANES):
        tile[k] = 1.0 / common.number_at(job, gamma, rows[k])
        tile[LANES + k] = common.number_at(job, gamma + 1, rows[k]) - 1.0
    return simd.load(tile, 0), simd.load(tile, LANES)


@njit
def _backward_tile(job: Any, like: Any, kind: int, rows: Any, n: int, room: Any, own: Any) -> None:
    d, hyper = job[common.WIDTH], common.given(job, 5)
    where = memory.empty(3, LANES, np.int64)
    y, v, s = memory.row(room, 0), memory.row(room, 1), memory.row(room, 2)
    part = memory.row(own, LANES)
    for k in range(LANES):
        if k >= n:
            rows[k] = rows[0]
        where[0, k] = memory.address_of(common.rows_at(job, 0, rows[k], like))
        where[1, k] = memory.address_of(common.rows_at(job, 1, rows[k], like))
        where[2, k] = memory.address_of(common.rows_at(job, 4, rows[k], like))
    scale, a = _lanes(job, rows, 2, s)
    tiles.gather(memory.row(where, 0), d, 0.0, like, part, y)
    tiles.gather(memory.row(where, 1), d, 0.0, like, part, v)
    dalpha = _tiles.product(y, v, d, a, scale, kind == HALF, hyper, s)
    tiles.scatter(v, d, memory.row(where, 2), like, part)
    if hyper:
        simd.store(s, 0, dalpha)
        for k in range(n):
            common.set_number(job, 5, rows[k], s[k])


@njit
def _queues() -> Any:
    """Rows that wait for others of their kind, and how many of each kind do."""
    waiting, count = memory.empty(3, LANES, np.int64), memory.empty(1, 3, np.int64)
    for kind in range(3):
        count[0, kind] = 0
    return waiting, count


def forward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    short = is_short(d, like)
    wide, own = common.scratch(3, d), common.scratch_like(2, d, like)
    room = common.scratch(2, LANES * (d + LANES) if short else 1)
    lanes = common.scratch_like(LANES + 1, max(d, LANES * LANES) if short else 1, like)
    group = _powers.GROUP if d <= 2048 else 1
    many, few = common.scratch(group + 2, d), common.scratch_like(2 * group, d, like)
    waiting, count = _queues()
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            kind = _kind(d, common.number_at(job, 1, r), common.number_at(job, 2, r) - 1.0, like)
            if kind == EACH:
                _rows.forward(job, r, like, wide, own)
                continue
            waiting[kind, count[0, kind]] = r
            count[0, kind] += 1
            if count[0, kind] == (LANES if kind == HALF else group):
                if kind == HALF:
                    forward_tile(job, like, waiting[HALF], LANES, room, lanes)
                else:
                    _powers.forward_power(job, like, waiting[POWER], group, many, few)
                count[0, kind] = 0
        first, last = common.take(job)
    if count[0, HALF] > 0:
        forward_tile(job, like, waiting[HALF], count[0, HALF], room, lanes)
    if count[0, POWER] > 0:
        _powers.forward_power(job, like, waiting[POWER], count[0, POWER], many, few)


def backward(job: Any, like: Any) -> None:
    d, hyper = job[common.WIDTH], common.given(job, 5)
    short = is_short(d, like)
    wide, own = common.scratch(3, d), common.scratch_like(2, d, like)
    room = common.scratch(3, LANES * (d + LANES) if short else 1)
    lanes = common.scratch_like(LANES + 1, max(d, LANES * LANES) if short else 1, like)
    waiting, count = _queues()
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            kind = _kind(d, common.number_at(job, 2, r), common.number_at(job, 3, r) - 1.0, like)
            if not short or kind == EACH or (kind == HALF and not hyper):
                _rows.backward(job, r, like, wide, own)
                continue
            waiting[kind, count[0, kind]] = r
            count[0, kind] += 1
            if count[0, kind] == LANES:
                _backward_tile(job, like, kind, waiting[kind], LANES, room, lanes)
                count[0, kind] = 0
        first, last = common.take(job)
    for kind in (HALF, POWER):
        if count[0, kind] > 0:
            _backward_tile(job, like, kind, waiting[kind], count[0, kind], room, lanes)
