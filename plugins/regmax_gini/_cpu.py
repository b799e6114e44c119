"""Sparsemax and its derivative, compiled with numba."""

from __future__ import annotations

from typing import Any

from regmax.kernels import cpu, memory, projection


def _forward(job: Any, like: Any) -> None:
    d, blank = job[cpu.WIDTH], job[cpu.BLANK] != 0
    wide, own = cpu.scratch(1, d), cpu.scratch_like(2, d, like)
    first, last = cpu.take(job)
    while first < last:
        for r in range(first, last):
            row = cpu.participants(job, r, 2, like, memory.row(own, 1))
            gamma, y = cpu.number_at(job, 1, r), cpu.rows_at(job, 3, r, like)
            projection.forward(row, d, gamma, memory.row(wide, 0), memory.row(own, 0), y, blank)
        first, last = cpu.take(job)


def _backward(job: Any, like: Any) -> None:
    d, blank = job[cpu.WIDTH], job[cpu.BLANK] != 0
    first, last = cpu.take(job)
    while first < last:
        for r in range(first, last):
            y, v = cpu.rows_at(job, 0, r, like), cpu.rows_at(job, 1, r, like)
            out = cpu.rows_at(job, 3, r, like)
            projection.backward(y, v, d, 1.0 / cpu.number_at(job, 2, r), out, blank)
        first, last = cpu.take(job)


KERNEL = cpu.CompiledRows(_forward, _backward)
