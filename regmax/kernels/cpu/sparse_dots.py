"""A compiled function of :mod:`regmax.kernels.cpu.sparse`: dot products with few vectors."""

from __future__ import annotations

from typing import Any

from . import common, memory, simd
from .jit import njit
from .simd import LANES


@njit
def dot(a: Any, b: Any, at: int, width: int) -> float:
    """⟨a, b[at : at + width]⟩."""
    full = width - width % LANES
    on = simd.first(width - full)
    sums = simd.load_part(a, full, on, 0.0) * simd.load_part(b, at + full, on, 0.0)
    for e in range(0, full, LANES):
        sums = sums + simd.load(a, e) * simd.load(b, at + e)
    return simd.total(sums)


def forward(job: Any, like: Any) -> None:
    """⟨a_r, b[columns_p]⟩ (array 4) for rows a (0), columns (1), their numbers (2) and b (3)."""
    width, each, keys = job[common.WIDTH], common.whole_at(job, 5), common.whole_at(job, 6)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            a, columns = common.rows_at(job, 0, r, like), common.ints_at(job, 1, r)
            b = memory.pointer(common.whole_at(job, 3), r // each * keys * width, like)
            out = common.rows_at(job, 4, r, like)
            for p in range(common.ints_at(job, 2, r)[0]):
                out[p] = dot(a, b, columns[p] * width, width)
        first, last = common.take(job)
