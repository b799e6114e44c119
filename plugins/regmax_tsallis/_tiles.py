"""α-entmax of short float32 rows, sixteen at a time: α = 1.5, and the derivatives for 1.1 ≤ α < 2.

The formulas are those of :mod:`regmax_tsallis._rows`, with one row in each lane. Powers are in
float32, sums of the derivative in float64.
"""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import common, elementary, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from ._rows import PHI_SLOPE, TERMS


@njit
def _below15(h: Any, d: int) -> Any:
    """A lower bound on τ, up to rounding: Newton from below, h in float32."""
    none = simd.spread(simd.load(h, 0), 0.0)
    tau = none - 1.0
    for _ in range(5):
        first, second = none, none
        for i in range(d):
            t = simd.larger(simd.load(h, LANES * i) - tau, 0.0)
            first = first + t
            second = second + t * t
        tau = tau + (second - 1.0) / (first * 2.0)
    return simd.larger(simd.wide(tau) - 4e-6, -1.0)


@njit
def threshold15(h: Any, d: int, tau: Any) -> Any:
    """τ with Σ (h − τ)₊² = 1, from a lower bound: as for one row, until all lanes are done."""
    zero = simd.spread(tau, 0.0)
    safe, aim = tau, zero - 1.0
    rest = zero
    for _ in range(100):
        first, second, size = zero, zero, zero
        for i in range(d):
            t = simd.larger(simd.load(h, LANES * i) - tau, 0.0)
            size = size + simd.select(t > 0.0, zero + 1.0, 0.0)
            first = first + t
            second = second + t * t
        off = second - 1.0
        half = off / (first * 2.0)
        rest = simd.select(off * off > size * (common.EPS * common.EPS), half, 0.0)
        open_ = (size > aim) | (aim > size)
        if simd.count(open_) == 0:
            break
        room = first * first - size * off
        root = tau + off / (first + simd.sqrt(simd.larger(room, 0.0)))
        below = off >= 0.0
        safe = simd.select(below, tau + half, safe)
        usable = (below & (room >= 0.0)) | ((off < 0.0) & (root > safe))
        tau = simd.select(open_, simd.select(usable, root, safe), tau)
        aim = simd.select(open_, simd.select(usable, size, -1.0), aim)
    return tau + rest


@njit
def solve15(z: Any, d: int, top: Any, scale: Any, rough: Any) -> None:
    """z ← 1.5-entmax of (z − top)·scale; ``rough`` is scratch of float32."""
    for i in range(d):
        t = (simd.load(z, LANES * i) - top) * (scale * 0.5)
        simd.store(z, LANES * i, t)
        simd.store(rough, LANES * i, simd.narrow(t))
    tau = threshold15(z, d, _below15(rough, d))
    for i in range(d):
        t = simd.larger(simd.load(z, LANES * i) - tau, 0.0)
        simd.store(z, LANES * i, t * t)


@njit
def _weight(y: Any, a: Any, half: bool) -> Any:
    """y^(2−α), and 0 where y = 0."""
    on = y > 0.0
    y = simd.larger(y, 1.2e-38)
    if half:
        t = simd.sqrt(y)
    else:
        t = simd.wide(elementary.exp32(elementary.log32(simd.narrow(y)) * simd.narrow(1.0 - a)))
    return simd.select(on, t, 0.0)


@njit
def _slope(y: Any, weight: Any, a: Any) -> Any:
    """∂∇Ω(y)/∂α in float32, from y^(2−α)."""
    y = simd.larger(simd.narrow(y), 1.2e-38)
    log = elementary.log32(y)
    u = log * a
    one = simd.spread(u, 1.0)
    power = y / simd.select(weight > 0.0, simd.narrow(weight), 1.0)  # y^a
    near = u > -0.5
    small = simd.select(near, u, 0.0)
    large = simd.select(near, one, u)
    series = simd.spread(u, PHI_SLOPE[TERMS - 7])
    for k in range(TERMS - 6, TERMS):
        series = series * small + PHI_SLOPE[k]
    far = (large * power - power + 1.0) / (large * large)
    return log * log * simd.select(near, series, far)


@njit
def product(y: Any, v: Any, d: int, a: Any, scale: Any, half: bool, hyper: bool, s: Any) -> Any:
    """v ← Jv·scale; returns the derivative in α if ``hyper``. ``half``: α = 1.5."""
    zero = simd.spread(a, 0.0)
    best, origin = zero, zero
    for i in range(d):
        t = simd.load(y, LANES * i)
        above = t > best
        best = simd.select(above, t, best)
        origin = simd.select(above, simd.load(v, LANES * i), origin)
    weights, products = zero, zero
    for i in range(d):
        t = _weight(simd.load(y, LANES * i), a, half)
        weights = weights + t
        products = products + t * simd.select(t > 0.0, simd.load(v, LANES * i) - origin, 0.0)
        simd.store(s, LANES * i, t)
    mean = products / simd.larger(weights, 1e-300)
    alpha = zero
    rate = simd.narrow(a)
    for i in range(d):
        t = simd.load(s, LANES * i)
        w = ((simd.load(v, LANES * i) - origin) - mean) * t
        w = simd.select(t > 0.0, w, 0.0)
        simd.store(v, LANES * i, w * scale)
        if hyper:
            alpha = alpha - w * simd.wide(_slope(simd.load(y, LANES * i), t, rate))
    return alpha
