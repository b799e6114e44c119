"""The compiled function of :mod:`regmax.kernels.cpu.support`."""

from __future__ import annotations

from typing import Any

from . import common, memory


def forward(job: Any, like: Any) -> None:
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
