"""1.5-entmax and its derivative on the CPU, without the code of other α: short float32 rows sixteen
at a time, others one by one."""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import common, memory, tiles
from regmax.kernels.cpu.simd import LANES

from . import _rows, _short


def forward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    wide, own = common.scratch(1, d), common.scratch_like(2, d, like)
    short = tiles.fits(d, like)
    rooms, count = tiles.room(d if short else 0, like), 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            room = memory.row(rooms, 0)
            if not (short and tiles.enter(job, r, count, 3, like, room)):
                _rows.forward15(job, r, like, wide, own)
                continue
            tiles.pack(job, count, 3, 2.0, like, room)
            count += 1
            if count == LANES:
                _short.together15(job, like, count, room)
                count = 0
        first, last = common.take(job)
    if count > 0:
        _short.together15(job, like, count, memory.row(rooms, 0))


def backward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    wide, own = common.scratch(3, d), common.scratch_like(3, d, like)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            _rows.backward15(job, r, like, wide, own)
        first, last = common.take(job)
