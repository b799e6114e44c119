"""The few positive entries of long rows, packed side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import cpu, memory, simd
from .cpu import CompiledRows
from .simd import LANES


def _count(job: Any, like: Any) -> None:
    d = job[cpu.WIDTH]
    full = d - d % LANES
    first, last = cpu.take(job)
    while first < last:
        for r in range(first, last):
            y = cpu.rows_at(job, 0, r, like)
            n = simd.count(simd.load_part(y, full, simd.first(d - full), 0.0) > 0.0)
            for i in range(0, full, LANES):
                n += simd.count(simd.load(y, i) > 0.0)
            cpu.set_number(job, 1, r, n)
        first, last = cpu.take(job)


def _pack(job: Any, like: Any) -> None:
    d = job[cpu.WIDTH]
    wide, kept = cpu.scratch(2, d), cpu.scratch_like(2, d, like)
    first, last = cpu.take(job)
    while first < last:
        for r in range(first, last):
            y, x = cpu.rows_at(job, 0, r, like), cpu.rows_at(job, 1, r, like)
            ys, xs = memory.row(wide, 0), memory.row(wide, 1)
            n = cpu.pack_support(
                y, x, d, memory.row(kept, 0), memory.row(kept, 1), ys, xs, job[cpu.BLANK] != 0
            )
            cpu.write(job, 2, r, ys, n)
            cpu.write(job, 3, r, xs, n)
        first, last = cpu.take(job)


_ROWS = CompiledRows(_count, _pack)


def packed(y: Tensor, x: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """For rows (R, d): the y_i > 0 and their x_i, in order, (R, k) in float64 with zeros behind,
    k ≥ 1 the largest number of them; None where k > ``most``."""
    count = torch.empty(len(y), dtype=torch.float64)
    _ROWS.run(0, y, count)
    k = max(1, int(count.max())) if len(y) else 1
    if k > most:
        return None
    ys, xs = (torch.zeros(len(y), k, dtype=torch.float64) for _ in range(2))
    _ROWS.run(1, y, x, ys, xs)
    return ys, xs
