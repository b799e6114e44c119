"""The few positive entries of long rows, packed side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import common, memory
from .common import CompiledRows

ROOM = 512
"""The first allocation, in entries of a row; rows with more entries are packed again."""


def _pack(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    room = int(common.number_at(job, 5, 0))
    wide, kept = common.scratch(2, d), common.scratch_like(2, d, like)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y, x = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
            ys, xs = memory.row(wide, 0), memory.row(wide, 1)
            own = memory.row(kept, 0), memory.row(kept, 1)
            n = common.pack_support(y, x, d, own[0], own[1], ys, xs, blank)
            common.set_number(job, 4, r, n)
            common.write(job, 2, r, ys, min(n, room))
            common.write(job, 3, r, xs, min(n, room))
        first, last = common.take(job)


_ROWS = CompiledRows(_pack, _pack)


def packed(y: Tensor, x: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """For rows (R, d): the y_i > 0 and their x_i, in order, (R, k) in float64, padded with zeros.
    k ≥ 1 is the size of the largest support; None if k > ``most``."""
    count, room = y.new_zeros(len(y), dtype=torch.float64), min(most, ROOM)
    while True:
        ys, xs = (y.new_zeros(len(y), room, dtype=torch.float64) for _ in range(2))
        _ROWS.run(0, y, x, ys, xs, count, y.new_full((1,), room, dtype=torch.float64))
        k = max(1, int(count.max())) if len(y) else 1
        if k > most:
            return None
        if k <= room:
            return ys[:, :k], xs[:, :k]
        room = k
