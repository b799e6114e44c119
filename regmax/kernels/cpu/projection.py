"""One row of P_Δ, the projection on the simplex, and of its derivative, for CPU kernels.

    y = max(z − τ, 0),  Σ y = 1,  z = x/γ;          J v = v − mean(v) on the support of y, else 0.

Only entries of z within 1 of the largest can be in the support; sixteen entries give a better bound
on τ. Michelot's iteration runs on the remaining entries: τ from all entries above the last τ, until
the support does not change (Michelot 1986; for the derivative Martins & Astudillo 2016).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, simd
from .jit import njit
from .simd import LANES


@njit
def bound(z: Any) -> float:
    """A lower bound on τ, from sixteen entries."""
    tau = -1.0
    for _ in range(2):
        on = z > tau
        tau = (simd.total(simd.select(on, z, 0.0)) - 1.0) / simd.count(on)
    return tau


@njit
def _above(z: Any, n: int, tau: float) -> tuple[int, Any]:
    """The number of entries of z[:n] above τ, and their sum in sixteen parts."""
    sums, inside = simd.spread(simd.load(z, 0), 0.0), 0
    for i in range(0, n, LANES):
        v = simd.load(z, i)
        on = v > tau
        sums = sums + simd.select(on, v, 0.0)
        inside += simd.count(on)
    return inside, sums


@njit
def threshold(z: Any, n: int, tau: float) -> tuple[float, int]:
    """τ of z[:n] from a lower bound, and how many entries are above it; z is −inf beyond n."""
    size = n + 1
    inside, sums = _above(z, n, tau)
    # ends: the size decreases; entries that come back do so by the rounding of τ
    while 0 < inside < size:
        size = inside
        tau = (simd.total(sums) - 1.0) / size
        inside, sums = _above(z, n, tau)
    return tau, inside


@njit
def missing(z: Any, n: int, tau: float) -> float:
    """What τ lacks, so that y = (z − τ) − missing has the sum 1 up to the rounding of y: Newton's
    steps, of which the second and later ones start below the root. z − τ is exact where y is
    small."""
    zero = simd.spread(simd.load(z, 0), 0.0)
    rest = 0.0
    for _ in range(4):
        sums, lost, size = zero, zero, 0
        for i in range(0, n, LANES):
            y = (simd.load(z, i) - tau) - rest
            size += simd.count(y > 0.0)
            sums, lost = common.added(sums, lost, simd.larger(y, 0.0))
        off = simd.total(sums) - 1.0
        if not off * off > common.EPS * common.EPS * size or size == 0:
            break
        rest += off / size
    return rest


@njit
def forward(row: Any, d: int, gamma: float, z: Any, kept: Any, out: Any, blank: bool) -> None:
    """out = P_Δ(row / γ)."""
    best, bad = common.scan(row, d)
    top = np.float64(simd.largest(best))
    if common.without_answer(bad or not gamma > 0.0, top, d, out):
        return
    scale = 1.0 / gamma
    tau = bound((simd.wide(best) - top) * scale)
    low = common.floor(row, top, -tau * gamma)
    n = common.pack(row, d, low, top, scale, kept, z)
    tau, inside = threshold(z, n, tau)
    rest = 0.0
    # of small sums, and of float32 rows, the rounding of τ is below that of y
    if simd.resolution(row) <= common.EPS and -tau * inside > 4.0:
        rest = missing(z, n, tau)
    write(row, d, low, top, scale, tau, rest, out, blank)


special = njit(forward.function, apart=True)
"""``forward`` for mappings of which it is a special case."""


@njit
def write(
    row: Any,
    d: int,
    low: float,
    top: float,
    scale: float,
    tau: float,
    rest: float,
    out: Any,
    blank: bool,
) -> None:
    """out = max((row − top)·scale − τ − rest, 0), which is 0 below ``low``."""
    full = d - d % LANES
    zero = simd.spread(simd.load_part(row, full, simd.first(0), 0.0), 0.0)
    for i in range(0, full, LANES):
        v = simd.load(row, i)
        if d <= common.DENSE or simd.count(v >= low) > 0:
            y = simd.larger(((simd.wide(v) - top) * scale - tau) - rest, 0.0)
            simd.store(out, i, simd.like(v, y))
        elif not blank:
            simd.store(out, i, zero)
    if full < d:
        on = simd.first(d - full)
        v = simd.load_part(row, full, on, -np.inf)
        y = simd.larger(((simd.wide(v) - top) * scale - tau) - rest, 0.0)
        simd.store_part(out, full, on, simd.like(v, y))


@njit
def backward(y: Any, v: Any, d: int, scale: float, out: Any, blank: bool) -> None:
    """out = Jv·scale."""
    full = d - d % LANES
    rest = simd.first(d - full)
    size = 0
    sums = simd.wide(simd.load_part(y, full, simd.first(0), 0.0))
    if full < d:
        a, b = simd.load_part(y, full, rest, 0.0), simd.load_part(v, full, rest, 0.0)
        on = a > 0.0
        size += simd.count(on)
        sums = sums + simd.wide(simd.select(on, b, 0.0))
    for i in range(0, full, LANES):
        on = simd.load(y, i) > 0.0
        here = simd.count(on)
        if here > 0 or not blank:
            size += here
            sums = sums + simd.wide(simd.select(on, simd.load(v, i), 0.0))
    mean = simd.total(sums) / size
    for i in range(0, full, LANES):
        on = simd.load(y, i) > 0.0
        if simd.count(on) > 0 or not blank:
            b = simd.load(v, i)
            t = simd.like(b, (simd.wide(b) - mean) * scale)
            simd.store(out, i, simd.select(on, t, 0.0))
    if full < d:
        a, b = simd.load_part(y, full, rest, 0.0), simd.load_part(v, full, rest, 0.0)
        t = simd.like(b, (simd.wide(b) - mean) * scale)
        simd.store_part(out, full, rest, simd.select(a > 0.0, t, 0.0))
