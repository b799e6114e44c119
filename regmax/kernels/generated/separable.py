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
def _each(a: Any, k: int, count: int, i: int) -> Any:
    """a[k + i : k + i + 16], or a[k] in each lane if ``count`` is 0."""
    return simd.load(a, k + i) if count > 0 else simd.spread(simd.load(a, k), a[k])


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
    for i in range(0, m, LANES):
        slope = _each(out, 0, count, i)
        above = simd.select(simd.first(m - i) & (slope < np.inf), simd.load(z, i) - slope, -np.inf)
        low = max(low, simd.largest(above))
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
    n, limit = 0, np.inf if keep else 0.0
    for i in range(0, m, LANES):
        zi, gi = simd.load(z, i), _each(out, 0, count, i)
        si, bi = _each(out, ld, count, i), _each(out, 2 * ld, count, i)
        at = simd.select(bi > limit, zi - gi, simd.spread(zi, np.inf))
        chosen = simd.first(m - i) & (at >= low)
        simd.compress(z, n, zi, chosen)
        simd.compress(at0, n, at, chosen)
        simd.compress(g0, n, gi, chosen)
        simd.compress(s0, n, si, chosen)
        simd.compress(b0, n, bi, chosen)
        simd.compress(place, n, simd.load(place, i), chosen)
        for v in range(count):
            simd.compress(e.vectors, v * ld + n, simd.load(e.vectors, v * ld + i), chosen)
        n += simd.count(chosen)
    return n


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
    out, ld, count = e.out, e.ld, e.count
    m = at_zero(e, False, m, room, place, on)
    if m <= 0:
        return 0, np.inf
    for i in range(m, m + LANES):
        at0[i], z[i], g0[i], s0[i], b0[i], ends[i] = -np.inf, 0.0, 0.0, 1.0, 1.0, 0.0
    for i in range(m):
        on[i], ends[i] = i, 1.0 / m
    rows.slopes(e, m if count > 0 else 1, on, ends)
    for i in range(m):
        k = i if count > 0 else 0
        g[i], h[i], c[i] = out[k], out[ld + k], out[2 * ld + k]
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
        n = 0
        for i in range(m):
            on[n] = i
            n += 1 if ends[i] > 0.0 else 0
        rows.slopes(e, n, on, ends)
        for j in range(n):
            i = on[j]
            g[i], h[i], c[i] = out[j], out[ld + j], out[2 * ld + j]
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
            rows.summed(job, r, e, 0, like)
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
