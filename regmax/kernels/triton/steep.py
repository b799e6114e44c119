"""Entmax with α > 2 in Triton, by the smallest entry of its support.

With a = α − 1 > 1 and the distances δ_i = (max x − x_i)/γ, y has an infinite slope at its
threshold. As a function of t = y_k, δ_k the largest distance in the support,

    y_i = (a (δ_k − δ_i) + t^a)^(1/a),    Σ y = 1,

Σ y is convex and increasing. All arithmetic is float64, as float32 is too inaccurate here. The root
(c, e) is (δ_k, log t^a).

Source: Peters, Niculae & Martins (2019) for entmax.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import stats, totals


@triton.jit
def log_gap(gap, a):
    """log a gap, −∞ where it is not positive."""
    return tl.where(gap > 0, tl.log(tl.where(gap > 0, gap, 1.0) * a), -float("inf"))


@triton.jit
def log_sum(a, b):
    """log(e^a + e^b), b finite."""
    high = tl.maximum(a, b)
    return high + tl.log(1.0 + tl.exp(tl.minimum(a, b) - high))


@triton.jit
def next_ones(delta, q, OWN: tl.constexpr):
    """q0 < q1 ≤ q2: the least δ in [q1, q2), and in (q0, q1)."""
    between = (delta > q[0]) & (delta < q[2])
    above = tl.where(between & (delta >= q[1]), delta, float("inf"))
    below = tl.where(between & (delta < q[1]), delta, float("inf"))
    least = tl.min(below, 1, keep_dims=True)
    return tl.min(above, 1, keep_dims=True), least, least


@triton.jit
def excess_sums(delta, q, OWN: tl.constexpr):
    """q = (δ_k, a): Σ (a (δ_k − δ))^(1/a), and how many."""
    gap = q[0] - delta
    on = gap >= 0
    u = tl.where(on, tl.exp(log_gap(gap, q[1]) / q[1]), 0.0)
    w = tl.where(on, 1.0, 0.0).to(delta.dtype)
    return totals(u, w, w)


@triton.jit
def steep_sums(delta, q, OWN: tl.constexpr):
    """q = (δ_k, log t^a, a): Σ y and Σ (t/y)^(a−1)."""
    last, log_power, a = q
    gap = last - delta
    on = gap >= 0
    log_y = log_sum(log_gap(gap, a), log_power) / a
    w = tl.where(on, tl.exp((a - 1.0) * (log_power / a - log_y)), 0.0)
    return totals(tl.where(on, tl.exp(log_y), 0.0), w, w)


@triton.jit
def steep_root(held, n, count, active, OWN: tl.constexpr, N: tl.constexpr):
    """δ_k, log t^a and Σy.

    A distance θ is in the support iff Σ [a (θ − δ)]₊^(1/a) < 1; the largest such is found among
    the distances by bisection, then t by Newton's method on Σ y − 1, convex and increasing.
    """
    a = n[0]
    low = tl.zeros_like(a)
    high = 1.0 / a
    looking = active
    # ends: two turns bring low and high half as near, until no distance is between them
    while tl.max(looking) > 0:
        middle = low + (high - low) / 2
        above, below, _ = stats(held, (low, middle, high), next_ones, OWN, N, True)
        some = above < float("inf")
        at = tl.where(some, above, middle)
        total, _, _ = stats(held, (at, a), excess_sums, OWN, N)
        fits = some & (total < 1)
        on = looking > 0
        low = tl.where(on & fits, at, low)
        high = tl.where(on & (fits == 0), at, high)
        looking = (on & (some | (below < float("inf")))).to(tl.int32)
    total, size, _ = stats(held, (low, a), excess_sums, OWN, N)
    size = tl.maximum(size, 1.0)
    least = tl.maximum((1.0 - total) / size, 1e-300)
    t = tl.maximum(1.0 / size, least)
    turns = 0
    while (tl.max(active) > 0) & (turns < 200):  # ends: turns < 200
        total, rate, _ = stats(held, (low, a * tl.log(t), a), steep_sums, OWN, N)
        f = total - 1.0
        following = tl.maximum(t - f / tl.maximum(rate, 1e-300), least)
        moves = (active > 0) & (tl.abs(f) > 4e-16) & (tl.abs(following - t) > 2e-16 * t)
        t = tl.where(moves, following, t)
        active = moves.to(tl.int32)
        turns += 1
    log_power = a * tl.log(t)
    total, _, _ = stats(held, (low, log_power, a), steep_sums, OWN, N)
    return low, log_power, total


@triton.jit
def steep_inverse(delta, c, e, n):
    a = n[0]
    gap = c - delta
    log_base = log_sum(log_gap(gap, a), e)
    v = tl.where(gap >= 0, tl.exp(log_base / a), 0.0)
    base = tl.where(gap >= 0, tl.exp(log_base), 0.0)
    return v, tl.where(gap >= 0, v / base, 0.0), base


@triton.jit
def steep_logarithm(delta, c, e, n, total):
    a = n[0]
    power = a * (c - delta) + tl.exp(e)
    on = power > 0
    log_y = tl.log(tl.where(on, power, 1.0)) / a - tl.log(total)
    return tl.where(on, log_y, -float("inf")), tl.where(on, 0.0, -power / a)
