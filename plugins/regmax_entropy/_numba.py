"""Softmax of long rows of float32. PyTorch sums a row in float32 one after another, which loses
digits; here 64 terms are summed in float32, and these sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, elementary, memory, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

BLOCK = 64 * LANES


@njit
def _exp(u: Any, row: Any) -> Any:
    """e^u for u ≤ 0; in float32 subnormal numbers included."""
    if memory.size(row) == 8:
        return simd.like(u, elementary.exp(simd.wide(u)))
    rough = simd.like(u, simd.wide(elementary.exp32(simd.narrow(u))))
    y = simd.select(u >= -87.0, rough, 0.0)
    tiny = (u < -87.0) & (u > -104.0)
    if simd.count(tiny) > 0:
        y = simd.select(tiny, simd.like(u, elementary.exp(simd.wide(u))), y)
    return y


@njit
def _row(row: Any, d: int, gamma: float, out: Any) -> None:
    """out = softmax(row / γ)."""
    best, bad = common.scan(row, d)
    top = np.float64(simd.largest(best))
    if common.without_answer(bad or not gamma > 0.0, top, d, out):
        return
    # a product of 0 and ∞ is NaN
    scale, full = min(1.0 / gamma, simd.greatest(row)), d - d % LANES
    rest = simd.first(d - full)
    y = _exp((simd.load_part(row, full, rest, -np.inf) - top) * scale, row)
    simd.store_part(out, full, rest, y)
    sums = simd.wide(y)
    for start in range(0, full, BLOCK):
        some = simd.spread(y, 0.0)
        for i in range(start, min(start + BLOCK, full), LANES):
            v = _exp((simd.load(row, i) - top) * scale, row)
            simd.store(out, i, v)
            some = some + v
        sums = sums + simd.wide(some)
    factor = 1.0 / simd.total(sums)
    for i in range(0, full, LANES):
        simd.store(out, i, simd.load(out, i) * factor)
    simd.store_part(out, full, rest, y * factor)


def forward(job: Any, like: Any) -> None:
    d = job[common.WIDTH]
    own = common.scratch_like(1, d, like)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            row = common.participants(job, r, 2, like, memory.row(own, 0))
            _row(row, d, common.number_at(job, 1, r), common.rows_at(job, 3, r, like))
        first, last = common.take(job)
