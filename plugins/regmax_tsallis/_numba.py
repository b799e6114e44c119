"""α-entmax and its derivatives on the CPU: float32 rows sixteen at a time, others in small groups
or one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from . import _powers, _rows, _short

HALF, POWER, EACH = 0, 1, 2
"""The kinds of rows: α = 1.5; 1.05 < α < 2; computed alone."""


@njit
def _kind(d: int, gamma: float, a: float, like: Any) -> int:
    """The kind of a row, which does not depend on the other rows of the batch."""
    if a == 0.5:
        return HALF if tiles.fits(d, like) else EACH
    return POWER if 0.05 < a < 1.0 and gamma > 0.0 else EACH


@njit
def _solve(job: Any, kind: int, like: Any, n: int, room: Any, wide: Any) -> None:
    """The n rows of a kind that wait in ``room``."""
    if kind == HALF:
        _short.together15(job, like, n, room)
    else:
        _short.together(job, like, n, room, memory.row(wide, 0))


def forward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    short, most = memory.size(like) == 4, tiles.rows_of(d)
    wide, own = common.scratch(3, d), common.scratch_like(2, d, like)
    rooms = tiles.room(d if tiles.fits(d, like) else 0, like), tiles.room(d, like)
    group = 0 if short else _powers.GROUP if d <= 2048 else 1
    many, few = common.scratch(group + 2, d), common.scratch_like(2 * group, d, like)
    waiting, count = memory.empty(1, LANES, np.int64)[0], memory.empty(1, 2, np.int64)[0]
    count[HALF], count[POWER] = 0, 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            a = common.number_at(job, 2, r) - 1.0
            kind = _kind(d, common.number_at(job, 1, r), a, like)
            if kind == EACH:
                _rows.forward(job, r, like, wide, own)
            elif short:
                k, room = count[kind], memory.row(rooms[kind], 0)
                if not tiles.enter(job, r, k, 3, like, room):
                    _rows.forward(job, r, like, wide, own)
                    continue
                if kind == HALF:
                    tiles.pack(job, k, 3, 2.0, like, room)
                else:
                    room[LANES * tiles.RATE + k] = a
                count[kind] += 1
                if count[kind] == most:
                    _solve(job, kind, like, most, room, wide)
                    count[kind] = 0
            else:
                waiting[count[POWER]] = r
                count[POWER] += 1
                if count[POWER] == group:
                    _powers.forward_power(job, like, waiting, group, many, few)
                    count[POWER] = 0
        first, last = common.take(job)
    if count[POWER] > 0 and not short:
        _powers.forward_power(job, like, waiting, count[POWER], many, few)
    for kind in range(2):
        if count[kind] > 0 and short:
            _solve(job, kind, like, count[kind], memory.row(rooms[kind], 0), wide)


def backward(job: Any, like: Any) -> None:
    d, hyper = job[common.WIDTH], common.given(job, 5)
    wide, own = common.scratch(3, d), common.scratch_like(3, d, like)
    rooms, count = tiles.room(d, like), 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            a, room = common.number_at(job, 3, r) - 1.0, memory.row(rooms, 0)
            if a == 0.5 and not hyper:
                _rows.backward15(job, r, like, wide, own)
            elif 0.05 < a < 1.0 and memory.size(like) == 4:
                _short.backward(job, like, r, count, a, hyper, room)
                count += d <= tiles.LONGEST
                if count == LANES:
                    _short.backward_together(job, like, count, hyper, room)
                    count = 0
            else:
                _rows.backward(job, r, like, wide, own)
        first, last = common.take(job)
    if count > 0:
        _short.backward_together(job, like, count, hyper, memory.row(rooms, 0))
