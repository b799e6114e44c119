"""Rows of Π_Ω for a separable Ω, solved, certified and differentiated with the code of its e.

y_i(τ) is where e'(y_i) = z_i − τ, z = x/γ, or 0 where z_i − e'(0) ≤ τ; τ is the root of
Σ y_i(τ) = 1 (Blondel, Martins & Niculae 2019, Prop. 5). Each step takes the root of a model of e
(:mod:`.powers`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, memory, simd
from ..cpu.jit import njit
from ..cpu.simd import LANES
from . import rows
from .powers import (
    AT,
    AT0,
    B0,
    ENDS,
    G0,
    S0,
    C,
    G,
    H,
    T,
    Y,
    Z,
    exponent,
    largest,
    model,
    root,
)
from .rows import EPS, FLOOR, Entry

STEPS = 30


@njit
def at_zero(e: Entry, keep: bool, m: int, room: Any, place: Any) -> int:
    """How many entries may be positive, which are moved to the front with what e is at 0; −1 where
    e bends the wrong way, or has no slope; all where ``keep``. No y_i is above 1, so
    τ ≥ z_i − e'(1). Where the power b is not above 0, e'(0) is −∞."""
    z, at0, g0 = memory.row(room, Z), memory.row(room, AT0), memory.row(room, G0)
    s0, b0, g = memory.row(room, S0), memory.row(room, B0), memory.row(room, G)
    h, c = memory.row(room, H), memory.row(room, C)
    none = simd.spread(simd.load(z, 0), 0.0)
    best, n, wrong = none - np.inf, 0, 0
    rows.slopes_at(e, m, 1.0, g, h, c)
    for i in range(0, m, LANES):
        part, slope = simd.first(m - i), simd.load(g, i)
        wrong += simd.count(part & (simd.load(h, i) < 0.0))
        above = simd.select(part & (slope < np.inf), simd.load(z, i) - slope, -np.inf)
        best = simd.larger(best, above)
        simd.store(at0, i, slope)
    low = -np.inf if keep else simd.largest(best)
    rows.slopes_at(e, m, FLOOR, g, h, c)
    for i in range(0, m, LANES):
        part, zi, gi = simd.first(m - i), simd.load(z, i), simd.load(g, i)
        hi, ci = simd.load(h, i), simd.load(c, i)
        bad = (hi < 0.0) | (simd.load(at0, i) < gi) | simd.not_below(gi, np.inf)
        wrong += simd.count(part & bad)
        endless = rows.positive(hi) * (1.0 - 1e-7) + ci * FLOOR <= 0.0
        at = simd.select(endless, none + np.inf, zi - gi)
        chosen = part & (at >= low)
        if simd.count(chosen) == 0:
            continue
        simd.compress(z, n, zi, chosen)
        simd.compress(at0, n, at, chosen)
        simd.compress(g0, n, gi, chosen)
        simd.compress(s0, n, hi, chosen)
        simd.compress(b0, n, ci, chosen)
        simd.compress(place, n, simd.load(place, i), chosen)
        for v in range(e.count):
            own = simd.load(e.vectors, v * e.ld + i)
            simd.compress(e.vectors, v * e.ld + n, own, chosen)
        n += simd.count(chosen)
    for i in range(0, n, LANES):
        h0 = rows.positive(simd.load(s0, i))
        simd.store(s0, i, 1.0 / (h0 * FLOOR))
        simd.store(b0, i, exponent(none + FLOOR, h0, simd.load(b0, i)))
    return n if wrong == 0 else -1


@njit
def _forward_row(
    e: Entry, kinked: bool, m: int, room: Any, place: Any, on: Any
) -> tuple[int, float]:
    """How many entries are at ``place``, with y in its row of ``room``; and a bound on the distance
    to the maximiser, +inf where there is none."""
    z, y, g, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, G), memory.row(room, H)
    c, at, at0 = memory.row(room, C), memory.row(room, AT), memory.row(room, AT0)
    g0, s0, b0 = memory.row(room, G0), memory.row(room, S0), memory.row(room, B0)
    t, ends = memory.row(room, T), memory.row(room, ENDS)
    m = at_zero(e, False, m, room, place)
    if m <= 0:
        return 0, np.inf
    none = simd.spread(simd.load(z, 0), 0.0)
    for i in range(0, m, LANES):
        simd.store(ends, i, none + 1.0 / m)
    simd.store(ends, m, none)
    simd.store(at0, m, none - np.inf)
    simd.store(z, m, none)
    simd.store(g0, m, none)
    simd.store(s0, m, none + 1.0)
    simd.store(b0, m, none + 1.0)
    rows.slopes_at(e, m, 1.0 / m, g, h, c)
    lo, hi, noise, convex = model(m, room)
    if not convex:
        return 0, np.inf
    high, tau = largest(at0, m), largest(at, m)
    before = np.inf
    for step in range(STEPS):
        tau, total = root(tau, m, room, high)
        if not (total > 0.0 and total < np.inf):
            return 0, np.inf
        for i in range(0, m, LANES):
            simd.store(ends, i, simd.load(t, i) / total)
        rows.slopes_of(e, m, ends, g, h, c)
        lo, hi, noise, convex = model(m, room)
        if not (convex and abs(hi) < np.inf and abs(lo) < np.inf):
            if step > 3:
                return 0, np.inf
            before = np.inf
            continue
        spread = hi - lo
        if spread <= 4.0 * noise or (step > 4 and spread >= 0.5 * before and spread < 1e-9):
            break
        before = spread
    sums = simd.load(ends, 0)
    simd.store(y, 0, sums)
    for i in range(LANES, m, LANES):
        part = simd.load(ends, i)
        simd.store(y, i, part)
        sums = sums + part
    off = abs(simd.total(sums) - 1.0)
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
    none = simd.spread(simd.load(z, 0), 0.0)
    most, near = none, 0.0 if kinked else 1e-4
    for i in range(0, m, LANES):
        yi, zi, gi = simd.load(y, i), simd.load(z, i), simd.load(g0, i)
        size = simd.larger(zi, zi * -1.0) + simd.larger(gi, gi * -1.0)
        above = simd.larger(zi - gi + size * (4.0 * EPS) - lo, 0.0)
        inside = yi >= 2.0 * FLOOR
        change = simd.select(inside, none + (hi - lo), above) * 2.0 / simd.load(h, i)
        change = simd.select(inside, change + yi * (4.0 * EPS), simd.smaller(change, 1.0))
        change = simd.select(inside, change, change + 2.0 * FLOOR)
        change = simd.select(simd.first(m - i), change, none)
        most = simd.larger(most, change)
        simd.store(delta, i, change)
    free, highest, n = 0, simd.largest(most), 0
    while free < m - 1 and delta[free] < highest:  # ends: free < m
        free += 1
    for i in range(0, m, LANES):
        change = simd.load(delta, i)
        sure = simd.larger(simd.load(y, i) * near, 2.0 * FLOOR)
        if simd.count(change > sure) > 0:
            for k in range(i, min(i + LANES, m)):
                if k != free and delta[k] > max(near * y[k], 2.0 * FLOOR):
                    on[n] = k
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
    delta[free] = 0.0
    sums, squares = none, none
    for i in range(0, m, LANES):
        change = simd.load(delta, i)
        sums = sums + change
        change = simd.smaller(change, 1.0)
        squares = squares + change * change
    last = min(2.0 * EPS + simd.total(sums), 1.0)
    return math.sqrt(simd.total(squares) + last * last)


def forward(job: Any, like: Any) -> None:
    """y = Π_Ω(x) and the bound of each row."""
    d, count = job[common.WIDTH], job[5 + 2 * rows.COUNT]
    kinked = job[5 + 2 * rows.KINKED] != 0
    room = common.scratch(ENDS + 1, d)
    ld = room.shape[1]
    wide = memory.empty(4, max(count, 3) * ld, np.float64)
    places = memory.empty(2, ld, np.int64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            place, on = memory.row(places, 0), memory.row(places, 1)
            e = rows.entry(job, r, job[5 + 2 * rows.CODE], count, rows.NUMBERS, ld, wide)
            m = rows.taken(job, r, d, place, memory.row(room, Z), like)
            rows.vectors_of(job, rows.VECTORS, r, count, ld, place, m, e.vectors)
            m, bound = _forward_row(e, kinked, m, room, place, on)
            rows.spread(job, r, m, place, memory.row(room, Y), bound, like)
            rows.summed(job, r, e, 0, like)
        first, last = common.take(job)


@njit
def _product(n: int, h: Any, v: Any, w: Any) -> None:
    """w = J v for the curvature diag(h) on the support (Peters et al. 2019, Prop. 2), relative to
    the entry of the least h."""
    none = simd.spread(simd.load(h, 0), 0.0)
    low, p = none - np.inf, 0
    for i in range(0, n, LANES):
        simd.store(h, i, simd.select(simd.first(n - i), simd.load(h, i), np.inf))
        low = simd.larger(low, simd.load(h, i) * -1.0)
    least = -simd.largest(low)
    while p < n - 1 and h[p] > least:  # ends: p < n
        p += 1
    weights, sums, origin = none, none, v[p]
    for i in range(0, n, LANES):
        part = least / simd.load(h, i)
        weights = weights + part
        each = simd.select(part > 0.0, simd.load(v, i) - origin, none)
        sums = sums + part * each
        simd.store(w, i, part)
        simd.store(v, i, each)
    mean, scale = simd.total(sums) / simd.total(weights), 1.0 / least
    for i in range(0, n, LANES):
        simd.store(w, i, simd.load(w, i) * ((simd.load(v, i) - mean) * scale))


def backward(job: Any, like: Any) -> None:
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e."""
    count, ld = job[5 + 2 * rows.VARYING], job[common.WIDTH] + 2 * LANES
    room, places = memory.empty(3, ld, np.float64), memory.empty(1, ld, np.int64)
    wide = memory.empty(4, max(3, count + job[5 + 2 * rows.PLAIN]) * ld, np.float64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
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
