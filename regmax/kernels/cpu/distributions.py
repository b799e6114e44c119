"""Fenchel–Young losses of distributions t and their gradients, from rows of x and y = Π_Ω(x).

The memory holds m t, and the loss and its gradient are multiplied by m. In units of γ, the loss is
the Bregman divergence of Ω, plus the distance of x_i/γ to the threshold where it is below (Blondel,
Martins & Niculae 2020). With a = α − 1 or p − 1 and log_a(y) = (y^a − 1)/a, log y at a = 0, let

    D(t, y) = (y^a (y − t) + t (log_a t − log_a y)) / (a + 1),
    D(t, 0) = t ((log_a t − 1)/(a + 1) − log_a y₁ + δ),

y₁ the largest entry and δ the distance of its score to that of t. Then the loss is

    gini, entropy, tsallis   Σ D(t_i, y_i),                               δ_i = (max x − x_i)/γ,
    p-norm                   (M − N)² / 2 + aMN Σ D(t_i/M, y_i/N),        δ_i = (max x − x_i)/(γaN),

M = ‖t‖_p and N = ‖y‖_p. No term is negative, and a rounding of y changes the sum in proportion to
y − t, so a small loss has digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, elementary, memory, simd
from .jit import njit
from .simd import LANES

GINI, ENTROPY, TSALLIS, PNORM = range(4)
GAMMA, THETA, MASK, Y, TARGET = range(1, 6)
TINY = 2.3e-308


@njit
def taking_part(job: Any, r: int, i: int) -> Any:
    """The entries i, …, i + 15 that the mask does not exclude."""
    d = job[common.WIDTH]
    if not common.given(job, MASK):
        return simd.first(d - i)
    return simd.differ(common.piece(common.octets_at(job, MASK, r), i, d, 0), 0)


@njit
def sum_of_powers(y: Any, d: int, b: float, m: float) -> float:
    """Σ (y/m)^b."""
    sums = simd.wide(simd.load_part(y, 0, simd.first(0), 0.0))
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        if simd.count(v > 0.0) > 0:
            sums = sums + _power(v / m, b)
    return simd.total(sums)


@njit
def _power(y: Any, b: float) -> Any:
    """y^b, 0 at 0, float64."""
    if b == 1.5:
        return simd.wide(y * simd.sqrt(y))
    v = simd.wide(y)
    if b == 2.0:
        return v * v
    power = elementary.exp(elementary.log(simd.larger(v, TINY)) * b)
    return simd.select(v > 0.0, power, 0.0)


@njit
def _survey(job: Any, r: int, like: Any) -> tuple[float, float, float, bool, bool]:
    """Σ t, the largest y_i, the largest score that takes part, whether t is outside of those that
    do, and whether it is a multiple of a distribution."""
    d = job[common.WIDTH]
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    t = common.rows_at(job, TARGET, r, like)
    top = simd.load_part(y, 0, simd.first(0), 0.0)
    sums, best = simd.wide(top), simd.spread(top, -np.inf)
    outside = top > 0.0
    wrong = outside
    for i in range(0, d, LANES):
        v, score = common.piece(t, i, d, 0.0), common.piece(x, i, d, -np.inf)
        score = simd.select(taking_part(job, r, i), score, -np.inf)
        outside = outside | (v > 0.0) & simd.not_below(-np.inf, score)
        wrong = wrong | (v < 0.0) | simd.not_below(v, np.inf)
        sums, best = sums + simd.wide(v), simd.larger(score, best)
        top = simd.larger(common.piece(y, i, d, 0.0), top)
    total = simd.total(sums)
    return (
        total,
        np.float64(simd.largest(top)),
        np.float64(simd.largest(best)),
        simd.count(outside) > 0,
        simd.count(wrong) == 0 and total <= simd.greatest(t),
    )


@njit
def _log_a(t: Any, a: float) -> Any:
    """(t^a − 1)/a, log t at a = 0, float64; some number at t = 0."""
    if a == 1.0:
        return simd.wide(t) - 1.0
    if a == 0.5:
        return (simd.wide(simd.sqrt(t)) - 1.0) * 2.0
    log = elementary.log(simd.larger(simd.wide(t), TINY))
    if a == 0.0:
        return log
    if abs(a) > 0.01:
        return (elementary.exp(log * a) - 1.0) * (1.0 / a)
    return log * elementary.ratios(log * a)[0]


@njit
def _relative_entropy(y: Any, t: Any) -> Any:
    """t log(t/y) + y − t of float32, for y > 0, to a few roundings."""
    # with r = (t − y)/(t + y), artanh r = log(t/y)/2: r (t − y) + 2t (artanh r − r)
    r = (t - y) / (t + y)
    w = r * r
    p = w * (1 / 13) + 1 / 11
    p = p * w + 1 / 9
    p = p * w + 1 / 7
    p = p * w + 1 / 5
    p = p * w + 1 / 3
    rest = p * w * r * 2.0
    far = w > 0.1
    if simd.count(far) > 0:
        rest = simd.select(far, elementary.log32(simd.larger(t / y, 1.2e-38)) - r * 2.0, rest)
    return r * (t - y) + t * rest


@njit
def _apart(y: Any, t: Any, a: float, log: Any, single: bool) -> Any:
    """D(t, y) for y > 0, float64. ``log``: log_a(t), where a is not 1, 1/2 or 0; ``single``:
    whether y is float32."""
    if a == 1.0:
        off = y - t
        return simd.wide(off * off) * 0.5
    if a == 0.5:
        # (√y − √t)² (√y + 2√t) · 2/3
        s, q = simd.sqrt(y), simd.sqrt(t)
        off = (y - t) / simd.larger(s + q, 1e-37)
        return simd.wide(off * off * (s + q * 2.0)) * (2 / 3)
    if a == 0.0 and single:
        return simd.wide(_relative_entropy(simd.narrow(y), simd.narrow(t)))
    u, v = simd.wide(y), simd.wide(t)
    if a == 0.0:
        return v * elementary.log(simd.larger(v / simd.larger(u, TINY), TINY)) + (u - v)
    own = _log_a(u, a)
    return ((own * a + 1.0) * (u - v) + v * (log - own)) * (1.0 / (a + 1.0))


@njit
def _sums(
    job: Any, r: int, like: Any, best: float, top: float, m: float, scale: float, a: float,
    f: float, big: float, n: float,
) -> float:  # fmt: skip
    """fM Σ D(t_i/M, y_i/N), with δ_i = (max x − x_i)/f; and y ← (y − t)·scale."""
    d = job[common.WIDTH]
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    t = common.rows_at(job, TARGET, r, like)
    single = memory.size(y) == 4
    least = 1.2e-38 if single else TINY  # below, y has few digits
    level, needed = np.nan, not (a == 1.0 or a == 0.5 or a == 0.0)
    sums = simd.wide(simd.load_part(y, 0, simd.first(0), 0.0))
    rest, log = sums, sums
    for i in range(0, d, LANES):
        u, v = common.piece(y, i, d, 0.0), common.piece(t, i, d, 0.0)
        if simd.count((u > 0.0) | (v > 0.0)) == 0:
            continue
        v = v / m
        common.store_piece(y, i, d, (u - v) * scale)
        on, q = u > least, v * (1.0 / big)
        below = simd.select(on, simd.spread(v, 0.0), v) > 0.0
        count = simd.count(below)
        if needed or count > 0:
            log = _log_a(q, a)
        if simd.count(on) > 0:
            sums = sums + simd.select(on, _apart(u * (1.0 / n), q, a, log, single), 0.0)
        if count > 0:
            if level != level:
                level = simd.largest(_log_a(simd.spread(sums, top / n), a))
            off = (simd.wide(common.piece(x, i, d, 0.0)) - best) * -1.0
            s = (log - 1.0) * (f / (a + 1.0)) - f * level + simd.smaller(off, 1.7e308)
            rest = rest + simd.select(below, simd.wide(v) * simd.larger(s, 0.0), 0.0)
    return f * big * max(simd.total(sums), 0.0) + simd.total(rest)


@njit
def row(job: Any, r: int, like: Any, kind: int, scale: float) -> tuple[float, bool]:
    """The loss of a row, and y ← (y − t)·scale, both times m; and whether t is a distribution."""
    d, y = job[common.WIDTH], common.rows_at(job, Y, r, like)
    spoilt = y[0] != y[0]
    mass, top, best, outside, proper = _survey(job, r, like)
    if not proper or mass == 0.0 or spoilt or top == 0.0 or outside:
        common.fill(y, d, 0.0)
        if not proper:
            return np.nan, False
        if mass == 0.0 or (top == 0.0 and not spoilt):
            return 0.0, True
        return np.nan if spoilt else np.inf, True
    f, a = common.number_at(job, GAMMA, r), 1.0
    if kind == ENTROPY:
        a = 0.0
    elif kind >= TSALLIS:
        a = common.number_at(job, THETA, r) - 1.0
    if kind < PNORM:
        loss = _sums(job, r, like, best, top, mass, mass * scale, a, f, 1.0, 1.0)
    else:
        p, t = a + 1.0, common.rows_at(job, TARGET, r, like)
        n, big = sum_of_powers(y, d, p, 1.0) ** (1.0 / p), sum_of_powers(t, d, p, mass) ** (1.0 / p)
        loss = 0.5 * f * (big - n) ** 2
        loss += _sums(job, r, like, best, top, mass, mass * scale, a, a * f * n, big, n)
    return mass * loss, True
