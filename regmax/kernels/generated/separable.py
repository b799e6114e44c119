"""Rows of Π_Ω for a separable Ω, solved, certified and differentiated with the code of its e.

y_i(τ) is where e'(y_i) = z_i − τ, z = x/γ, or 0 where z_i − e'(0) ≤ τ; τ is the root of
Σ y_i(τ) = 1 (Blondel, Martins & Niculae 2019, Prop. 5). Each step replaces e'' by the power of y_i
that has its value and slope at the present point, e''(t) ≈ e''(y_i) (t/y_i)^(b−1) with
b = 1 + y_i e'''/e'': it is exact for Σ y^α and Σ y log y, and has the speed of Newton's method for
every Ω.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, elementary, memory, simd
from ..cpu.jit import njit
from ..cpu.simd import LANES
from . import rows
from .rows import EPS, FLOOR, Entry

STEPS = 30
Z, Y, G, H, S, B, AT, G0, S0, B0, AT0, T, ENDS = range(13)
"""The work space of a row. At the point y of the model: e', e'', 1/(y e''), the power b and
z − e'; the same at 0; arguments and results."""


@njit
def exponent(y: float, h: float, c: float) -> float:
    """b of the power model at y, 0 for an exponential and 1 for a straight line."""
    b = 1.0 + y * c / h
    if not abs(b) < 20.0:
        b = 1.0 if not b > 0.0 else 20.0
    if abs(b) < 1e-7:
        return 0.0
    if abs(b - 0.5) < 1e-9:
        return 0.5
    return 1.0 if 0.8 < b < 1.3 else max(b, -3.0)


@njit
def _root(
    tau: float,
    m: int,
    a: Any,
    at0: Any,
    y: Any,
    s: Any,
    b: Any,
    b0: Any,
    power: float,
    high: float,
    t: Any,
) -> tuple[float, float]:
    """τ with Σ t_i(τ) = 1 in the model through y, where e' = z − a, and that sum: bracketed Newton
    steps on a power of it. s is 1/(y e''). t_i is 0 where τ ≥ at0_i. Towards 0 the power is at most
    b0, that at 0: t would be 0 too early. ``power``: b where all are the same, else NaN."""
    low, reach, total = -np.inf, 1.0, 0.0
    none = simd.spread(simd.load(y, 0), 0.0)
    for k in range(100):
        totals, slopes, bends, most = none, none, none, none
        for i in range(0, m, LANES):
            yi, si = simd.load(y, i), simd.load(s, i)
            u = (simd.load(a, i) - tau) * si
            if power == 1.0:
                inside = u > -1.0
                ti = simd.select(inside, yi * (u + 1.0), yi * 0.01)
                slope, bend = simd.select(inside, yi * si, none), none
            elif power == 0.5:
                inside, x = u > -2.0, u * 0.5 + 1.0
                ti = simd.select(inside, yi * x * x, yi * 0.01)
                bend = simd.select(inside, yi * si * si * 0.5, none)
                slope = simd.select(inside, yi * si * x, none)
            elif power == 0.0:
                ti = yi * elementary.exp(simd.smaller(u, 700.0))
                slope = ti * si
                bend = slope * si
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
                bend = slope * rate * (none + 1.0 - bi)
            # t may be above 1, so that τ is where the largest entry says
            low_enough, on = ti < 2.0, simd.load(at0, i) > tau
            ti = simd.select(on, simd.select(low_enough, ti, none + 2.0), none)
            simd.store(t, i, ti)
            on = on & low_enough
            totals, most = totals + ti, simd.larger(most, ti)
            slopes = slopes + simd.select(on, slope, none)
            bends = bends + simd.select(on, bend, none)
        total, slope = simd.total(totals), simd.total(slopes)
        rest = total - simd.largest(most)
        rounding = 8.0 * EPS * rest + 2.0 * EPS + 2.0 * EPS * abs(tau) * slope
        if abs(total - 1.0) <= rounding:
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
                p = p if abs(p) > 1e-3 else 1e-3
                trial = tau - total * math.expm1(-p * math.log(total)) / (p * slope)
        if low < trial < high and not (k >= 10 and k % 3 == 0):
            tau = trial
        elif low > -np.inf and high < np.inf:
            tau = low + (high - low) / 2.0
        else:
            reach *= 4.0
            tau = high - reach if high < np.inf else low + reach
    return tau, total


@njit
def at_zero(e: Entry, keep: bool, m: int, room: Any, place: Any, on: Any) -> int:
    """How many entries may be positive, which are moved to the front with what e is at 0; −1 where
    e bends the wrong way, or has no slope; all where ``keep``. No y_i is above 1, so
    τ ≥ z_i − e'(1). Where the power b is not above 0, e'(0) is −∞."""
    g0, s0, b0 = memory.row(room, G0), memory.row(room, S0), memory.row(room, B0)
    at0, y, z = memory.row(room, AT0), memory.row(room, Y), memory.row(room, Z)
    out, ld, count = e.out, e.ld, e.count
    first = 1 if count == 0 else m
    for i in range(first):
        on[i], y[i] = i, 1.0
    rows.slopes(e, first, on, y)
    low = -np.inf
    for i in range(m):
        k = i if count > 0 else 0
        if out[k] < np.inf:  # neither infinite nor NaN
            low = max(low, z[i] - out[k])
    for i in range(first):
        y[i], at0[i] = 0.0, out[i]
        if out[ld + i] < 0.0:
            return -1
    rows.slopes(e, first, on, y)
    for i in range(first):
        h = out[ld + i]
        if h < 0.0 or at0[i] < out[i] or math.isnan(out[i]):
            return -1
        h = rows.positive(h)
        out[ld + i], out[2 * ld + i] = 1.0 / (FLOOR * h), exponent(FLOOR, h, out[2 * ld + i])
    n = 0
    for i in range(m):
        k = i if count > 0 else 0
        at = np.inf if keep or out[2 * ld + k] <= 0.0 else z[i] - out[k]
        if at >= low:
            z[n], at0[n], place[n] = z[i], at, place[i]
            g0[n], s0[n], b0[n] = out[k], out[ld + k], out[2 * ld + k]
            for v in range(count):
                e.vectors[v * ld + n] = e.vectors[v * ld + i]
            n += 1
    return n


@njit
def _forward_row(
    e: Entry, kinked: bool, m: int, room: Any, place: Any, on: Any
) -> tuple[int, float]:
    """How many entries are at ``place``, with y in its row of ``room``; and a bound on the distance
    to the maximiser, +inf where there is none."""
    z, y, g, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, G), memory.row(room, H)
    s, b, at = memory.row(room, S), memory.row(room, B), memory.row(room, AT)
    g0, s0, b0 = memory.row(room, G0), memory.row(room, S0), memory.row(room, B0)
    at0, t, ends = memory.row(room, AT0), memory.row(room, T), memory.row(room, ENDS)
    own, out, ld, count = e.own, e.out, e.ld, e.count
    m = at_zero(e, False, m, room, place, on)
    if m <= 0:
        return 0, np.inf
    high = -np.inf
    for i in range(m):
        on[i], y[i] = i, 1.0 / m
        high = max(high, at0[i])
    for i in range(m, m + LANES):
        at0[i], y[i], s[i], b[i], b0[i], at[i] = -np.inf, 1.0, 1.0, 1.0, 1.0, 0.0
    rows.slopes(e, m if count > 0 else 1, on, y)
    tau = -np.inf
    for i in range(m if count > 0 else 1):
        bent = rows.positive(out[ld + i])
        if out[ld + i] < 0.0:
            return 0, np.inf
        s[i], b[i] = 1.0 / (y[i] * bent), exponent(y[i], bent, out[2 * ld + i])
    for i in range(m):
        k = i if count > 0 else 0
        s[i], b[i] = s[k], b[k]
        at[i] = z[i] - out[k]
        tau = max(tau, at[i])
    before, lo, hi = np.inf, 0.0, 0.0
    for step in range(STEPS):
        power = b[0]
        for i in range(m):
            if b[i] != power or b0[i] < power:
                power = np.nan
        tau, total = _root(tau, m, at, at0, y, s, b, b0, power, high, t)
        if not (total > 0.0 and total < np.inf):
            return 0, np.inf
        n = 0
        for i in range(m):
            ends[i] = t[i] / total
            if ends[i] > 0.0:
                on[n] = i
                n += 1
        rows.slopes(e, n, on, ends)
        lo, hi, noise = np.inf, -np.inf, 0.0
        convex = True
        for i in range(m):
            if ends[i] == 0.0:
                hi = max(hi, z[i] - g0[i] + 4.0 * EPS * (abs(z[i]) + abs(g0[i])))
                y[i], g[i], s[i], b[i] = FLOOR, g0[i], s0[i], b0[i]
                h[i], at[i] = 1.0 / (FLOOR * s0[i]), z[i] - g0[i]
        for j in range(n):
            i = on[j]
            bent = out[ld + j]
            convex = convex and bent > 0.0
            y[i], g[i], h[i] = own[j], out[j], rows.positive(bent)
            s[i], b[i] = 1.0 / (y[i] * h[i]), exponent(y[i], h[i], out[2 * ld + j])
            at[i] = z[i] - g[i]
            rounding = 4.0 * EPS * (abs(z[i]) + abs(g[i])) + EPS * h[i] * y[i]
            hi = max(hi, at[i] + rounding)
            if ends[i] >= 2.0 * FLOOR:
                noise, lo = max(noise, rounding), min(lo, at[i] - rounding)
        if not (convex and abs(hi) < np.inf and abs(lo) < np.inf):
            if step > 3:
                return 0, np.inf
            before = np.inf
            continue
        spread = hi - lo
        if spread <= 4.0 * noise or (step > 4 and spread >= 0.5 * before and spread < 1e-9):
            break
        before = spread
    total = 0.0
    for i in range(m):
        y[i] = ends[i]
        total += y[i]
    off = abs(total - 1.0)
    return m, off + _distance(e, kinked, m, lo, hi, room, on)


@njit
def _distance(e: Entry, kinked: bool, m: int, lo: float, hi: float, room: Any, on: Any) -> float:
    """A bound on ‖y − y*‖ that needs nothing but that e' rises.

    With r_i = z_i − e'(y_i) in [lo, hi] where y_i > 0, and z_i − e'(0) ≤ hi elsewhere, Σ y_i(τ) is
    at least 1 at lo and at most 1 at hi; so y* is between y(hi) and y(lo). y_i ± δ_i lie outside
    of these where e' there is beyond z_i − lo and z_i − hi: this is tested where e has kinks, or
    where δ_i is not far below y_i. One entry, the least certain, is 1 less the others.
    """
    z, y, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, H)
    g0, delta = memory.row(room, G0), memory.row(room, T)
    free = 0
    for i in range(m):
        if y[i] >= 2.0 * FLOOR:
            delta[i] = 2.0 * (hi - lo) / h[i] + 4.0 * EPS * y[i]
        else:
            above = z[i] - g0[i] + 4.0 * EPS * (abs(z[i]) + abs(g0[i])) - lo
            delta[i] = min(2.0 * max(above, 0.0) / h[i], 1.0) + 2.0 * FLOOR
        free = i if delta[i] > delta[free] else free
    n = 0
    for i in range(m):
        known = delta[i] <= 2.0 * FLOOR or (not kinked and delta[i] <= 1e-4 * y[i])
        if i != free and not known:
            on[n] = i
            n += 1
    for side in range(2 if n > 0 else 0):
        left = n
        for _ in range(40):
            k = 0
            for j in range(left):
                i = on[j]
                end = y[i] + delta[i] if side == 0 else y[i] - delta[i]
                if end >= 1.0 or end <= 0.0:
                    continue
                on[j], on[k] = on[k], i
                e.own[k] = max(end, FLOOR)
                for v in range(e.count):
                    e.part[v * e.ld + k] = e.vectors[v * e.ld + i]
                k += 1
            left = 0
            if k == 0:
                break
            rows.at_points(e.code, k, e)
            for j in range(k):
                i = on[j]
                r = z[i] - e.out[j]
                if not (r <= lo if side == 0 else r >= hi):
                    delta[i] *= 4.0
                    on[j], on[left] = on[left], i
                    left += 1
            if left == 0:
                break
        if left > 0:
            return np.inf
    delta[free] = 2.0 * EPS
    for i in range(m):
        if i != free:
            delta[free] += delta[i]
    total = 0.0
    for i in range(m):
        total += min(delta[i], 1.0) ** 2
    return math.sqrt(total)


def forward(job: Any, like: Any) -> None:
    """y = Π_Ω(x) and the bound of each row."""
    d, count = job[common.WIDTH], job[5 + 2 * rows.COUNT]
    kinked = job[5 + 2 * rows.KINKED] != 0
    room = common.scratch(ENDS + 1, d)
    ld = room.shape[1]
    wide = memory.empty(4, max(count, 3) * ld, np.float64)
    places = memory.empty(2, ld, np.int64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            place, on = memory.row(places, 0), memory.row(places, 1)
            e = rows.entry(job, r, job[5 + 2 * rows.CODE], count, rows.NUMBERS, ld, wide)
            m = rows.taken(job, r, d, place, memory.row(room, Z), like)
            rows.vectors_of(job, rows.VECTORS, r, count, ld, place, m, e.vectors)
            m, bound = _forward_row(e, kinked, m, room, place, on)
            rows.spread(job, r, m, place, memory.row(room, Y), bound, like)
        first, last = common.take(job)


@njit
def _product(n: int, h: Any, v: Any, w: Any) -> None:
    """w = J v for the curvature diag(h) on the support (Peters et al. 2019, Prop. 2), relative to
    the entry of the least h."""
    p = 0
    for j in range(n):
        if h[j] < h[p]:
            p = j
    weights, mean = 0.0, 0.0
    for j in range(n):
        w[j] = h[p] / h[j]
        weights += w[j]
        mean += w[j] * (v[j] - v[p])
    mean /= weights
    for j in range(n):
        w[j] = w[j] * ((v[j] - v[p] - mean) / h[p])


def backward(job: Any, like: Any) -> None:
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e."""
    count, ld = job[5 + 2 * rows.VARYING], job[common.WIDTH] + 2 * LANES
    room, places = memory.empty(3, ld, np.float64), memory.empty(1, ld, np.int64)
    wide = memory.empty(4, max(3, count + job[5 + 2 * rows.PLAIN]) * ld, np.float64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            place, vs = memory.row(places, 0), memory.row(room, 0)
            h, w = memory.row(room, 1), memory.row(room, 2)
            e = rows.entry(job, r, job[5 + 2 * rows.SLOPES], count, 3, ld, wide)
            n = rows.support(job, r, e, place, vs, h, like)
            w[0] = 0.0
            if n > 1:
                _product(n, h, vs, w)
            rows.finish(job, r, n, w, place, e, like)
        first, last = common.take(job)
