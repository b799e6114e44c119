"""The model of a separable Ω through a point of a row, and where its entries sum to 1.

e'' is replaced by the power of y_i that has its value and slope at the point,
e''(t) ≈ e''(y_i) (t/y_i)^(b−1) with b = 1 + y_i e'''/e''. It is exact for Σ y^α and Σ y log y, and
an error of y becomes one of the third order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, elementary, memory, simd
from ..cpu.jit import njit
from ..cpu.simd import LANES
from .rows import FLOOR

EPS = common.EPS
Z, Y, G, H, C, S, B, AT, G0, S0, B0, AT0, T, ENDS = range(14)
"""The work space of a row. At the point y of the model: e', e'', e''', 1/(y e''), the power b and
z − e'; the same at 0; arguments and results."""
POWERS, RATIONAL, NEAR = 97.0, 98.0, 99.0
"""Kinds of the model that are no power. The rational function has the value and two derivatives of
the power, and needs no logarithm: t_i = y_i (1 + (1 + b) u/2)/(1 − (1 − b) u/2)."""


@njit
def powers(y: Any, c: Any, stiff: Any) -> Any:
    """b of the power model at y, ``stiff`` = 1/e''; 0 for an exponential, ½, and 1 for a straight
    line where it is one of them but for rounding, and between −3 and 20."""
    none = simd.spread(y, 0.0)
    b = y * c * stiff + 1.0
    b = simd.select((b > -20.0) & (b < 20.0), b, simd.select(b > 0.0, none + 20.0, 1.0))
    b = simd.select((b > -1e-7) & (b < 1e-7), none, b)
    b = simd.select((b > 0.5 - 1e-9) & (b < 0.5 + 1e-9), none + 0.5, b)
    b = simd.select((b > 1.0 - 1e-9) & (b < 1.0 + 1e-9), none + 1.0, b)
    return simd.larger(b, -3.0)


@njit
def exponent(y: Any, h: Any, c: Any) -> Any:
    """The same, and 1 near it."""
    b = powers(y, c, 1.0 / h)
    return simd.select((b > 0.8) & (b < 1.3), simd.spread(b, 1.0), b)


@njit
def largest(a: Any, m: int) -> float:
    """The largest of a[:m]."""
    most = simd.spread(simd.load(a, 0), -np.inf)
    for i in range(0, m, LANES):
        most = simd.larger(most, simd.select(simd.first(m - i), simd.load(a, i), -np.inf))
    return simd.largest(most)


@njit
def model(m: int, room: Any) -> tuple[float, float, float, bool]:
    """The model through y = ENDS, from e', e'' and e''' where y_i > 0; the least and the largest
    z_i − e'(y_i) with their rounding errors, the largest of these, and whether e bends upwards."""
    z, y, g, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, G), memory.row(room, H)
    s, b, at, c = (
        memory.row(room, S),
        memory.row(room, B),
        memory.row(room, AT),
        memory.row(room, C),
    )
    g0, s0, b0 = memory.row(room, G0), memory.row(room, S0), memory.row(room, B0)
    ends = memory.row(room, ENDS)
    none = simd.spread(simd.load(z, 0), 0.0)
    low, high, noise = none - np.inf, none - np.inf, none
    wrong = 0
    for i in range(0, m, LANES):
        part, end, zi = simd.first(m - i), simd.load(ends, i), simd.load(z, i)
        on, yi = part & (end > 0.0), simd.larger(end, FLOOR)
        rate, gi = simd.load(s0, i), simd.select(on, simd.load(g, i), simd.load(g0, i))
        bent, value = simd.load(h, i), zi - gi
        wrong += simd.count(on) - simd.count(on & (bent > 0.0) & (value < np.inf))
        hi = simd.select(bent > 1e-250, simd.smaller(bent, 1e250), 1e-250)
        if simd.count(on) < LANES:
            hi = simd.select(on, hi, 1.0 / (rate * FLOOR))
        soft = 1.0 / (yi * hi)
        power = powers(yi, simd.load(c, i), soft * yi)
        simd.store(b, i, simd.select(on, power, simd.load(b0, i)))
        simd.store(s, i, simd.select(on, soft, rate))
        simd.store(y, i, yi)
        simd.store(g, i, gi)
        simd.store(h, i, hi)
        simd.store(at, i, value)
        rounding = simd.larger(zi, zi * -1.0) + simd.larger(gi, gi * -1.0)
        rounding = rounding * (4.0 * EPS) + simd.select(on, hi * yi * EPS, none)
        high = simd.larger(high, simd.select(part, value + rounding, -np.inf))
        sure = on & (end >= 2.0 * FLOOR)
        low = simd.larger(low, simd.select(sure, rounding - value, -np.inf))
        noise = simd.larger(noise, simd.select(sure, rounding, none))
    return -simd.largest(low), simd.largest(high), simd.largest(noise), wrong == 0


@njit
def _kind(tau: float, m: int, room: Any) -> tuple[float, float]:
    """How the model is computed: b, if it is the same everywhere; RATIONAL, if b is near 1; NEAR,
    the same function, while the step is short; else POWERS. And how far Σ t_i may be from 1: the
    relative error of the model is of the third order, and an error of Σ t_i moves the entries of
    the least y e'' by more."""
    b, b0, s = memory.row(room, B), memory.row(room, B0), memory.row(room, S)
    at, at0, y = memory.row(room, AT), memory.row(room, AT0), memory.row(room, Y)
    same, linear, near = 0, 0, 0
    far = simd.spread(simd.load(b, 0), 0.0)
    soft, hard = far, far + np.inf
    for i in range(0, m, LANES):
        part = simd.first(m - i)
        bi, least_b = simd.load(b, i), simd.load(b0, i)
        si = simd.load(s, i)
        u = (simd.load(at, i) - tau) * si
        on = part & (simd.load(at0, i) > tau)
        size = simd.larger(u, u * -1.0)
        counts = on & ((u > 0.0) | (simd.load(y, i) > 2.0 * FLOOR))
        far = simd.larger(far, simd.select(counts, size, 0.0))
        soft = simd.larger(soft, simd.select(counts, si, 0.0))
        hard = simd.smaller(hard, simd.select(counts, si, np.inf))
        size = size * (simd.larger(bi, bi * -1.0) + 1.0)
        same += simd.count(part & (bi == b[0]) & (least_b >= b[0]))
        linear += simd.count(part & (bi > 0.8) & (bi < 1.3) & (least_b > 0.8))
        near += simd.count(part) - simd.count(on) + simd.count(on & (size < 0.6))
    if same == m:
        return b[0], 0.0
    most = min(simd.largest(far), 0.5)
    kind = RATIONAL if linear == m else NEAR if near == m else POWERS
    least = -simd.largest(hard * -1.0)
    return kind, 0.1 * most * most * most / max(simd.largest(soft) / least, 1.0)


@njit
def root(tau: float, m: int, room: Any, top: float) -> tuple[float, float]:
    """τ with Σ t_i(τ) = 1 in the model through y, and that sum: bracketed Newton steps on a power
    of it. t_i is 0 where τ ≥ AT0_i. Towards 0 the power is at most that at 0: t would be 0 too
    early."""
    y, s, b, b0 = (
        memory.row(room, Y),
        memory.row(room, S),
        memory.row(room, B),
        memory.row(room, B0),
    )
    at, at0, t = memory.row(room, AT), memory.row(room, AT0), memory.row(room, T)
    kind, slack = _kind(tau, m, room)
    low, high, reach, total = -np.inf, top, 1.0, 0.0
    none = simd.spread(simd.load(y, 0), 0.0)
    for k in range(100):
        totals, slopes, bends, most = none, none, none, none
        beyond = 0
        for i in range(0, m, LANES):
            yi, si = simd.load(y, i), simd.load(s, i)
            u = (simd.load(at, i) - tau) * si
            if kind == 1.0:
                inside = u > -1.0
                ti = simd.select(inside, yi * (u + 1.0), yi * 0.01)
                slope, bend = simd.select(inside, yi * si, none), none
            elif kind == 0.5:
                inside, x = u > -2.0, u * 0.5 + 1.0
                ti = simd.select(inside, yi * x * x, yi * 0.01)
                bend = simd.select(inside, yi * si * si * 0.5, none)
                slope = simd.select(inside, yi * si * x, none)
            elif kind == 0.0:
                ti = yi * elementary.exp(simd.smaller(u, 700.0))
                slope = ti * si
                bend = slope * si
            elif kind >= RATIONAL:
                half = simd.load(b, i) * 0.5
                over, under = (half + 0.5) * u + 1.0, (half - 0.5) * u + 1.0
                inside = (over > under * 0.01) & (under > 0.0)
                each = simd.select(inside, 1.0 / under, none)
                rate = each * si
                ti = simd.select(u < 0.0, yi * 0.01, none + 2.0)
                ti = simd.select(inside, yi * over * each, ti)
                slope = yi * each * rate
                bend = slope * rate * (1.0 - half * 2.0)
                size = simd.larger(u, u * -1.0) * (simd.larger(half, half * -1.0) * 2.0 + 1.0)
                beyond += simd.count((simd.load(at0, i) > tau) & (size > 1.0))
            else:
                bi = simd.load(b, i)
                bi = simd.select(u < 0.0, simd.smaller(bi, simd.load(b0, i)), bi)
                x = u * bi
                inside = x > -1.0
                x = simd.select(inside, x, none)
                logs = elementary.log1p(x) / bi
                logs = simd.select((bi < 1e-7) & (bi > -1e-7), u, logs)
                ti = yi * elementary.exp(simd.smaller(logs, 700.0))
                ti = simd.select(inside, ti, simd.select(bi > 0.0, yi * 0.01, none + 2.0))
                rate = si / (x + 1.0)
                slope = simd.select(inside, ti * rate, none)
                bend = slope * rate * (1.0 - bi)
            # t may be above 1, so that τ is where the largest entry says
            low_enough, on = ti < 2.0, simd.load(at0, i) > tau
            ti = simd.select(on, simd.select(low_enough, ti, none + 2.0), none)
            simd.store(t, i, ti)
            on = on & low_enough
            totals, most = totals + ti, simd.larger(most, ti)
            slopes = slopes + simd.select(on, slope, none)
            bends = bends + simd.select(on, bend, none)
        if kind == NEAR and beyond > 0:
            kind, low, high = POWERS, -np.inf, top
            continue
        total, slope = simd.total(totals), simd.total(slopes)
        rest = total - simd.largest(most)
        rounding = 8.0 * EPS * rest + 2.0 * EPS + 2.0 * EPS * abs(tau) * slope
        if abs(total - 1.0) <= max(rounding, slack):
            break
        if total > 1.0:
            low = tau
        else:
            high = min(high, tau)
        if high < np.inf and high - low <= 0.5 * EPS * abs(high):
            break
        trial = np.nan
        if slope > 0.0 and total > 0.0:
            p = min(max(1.0 - total * simd.total(bends) / (slope * slope), -1.0), 1.0)
            if p == 1.0:
                trial = tau + (total - 1.0) / slope
            else:
                log = math.log(total)
                x = p * log
                part = 1.0 - 0.5 * x * (1.0 - x / 3.0) if abs(x) < 1e-4 else -math.expm1(-x) / x
                trial = tau + total * log * part / slope
        if low < trial < high and not (k >= 10 and k % 3 == 0):
            tau = trial
        elif low > -np.inf and high < np.inf:
            tau = low + (high - low) / 2.0
        else:
            reach *= 4.0
            tau = high - reach if high < np.inf else low + reach
    return tau, total
