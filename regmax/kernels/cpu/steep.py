"""Powers e' = y^a/a with a > 1, as of α-entmax with α > 2, by the smallest entry s of the support.

    y_i = (aΔ_i + s^a)^(1/a),  Σ y = 1,  Δ_i the distance to the smallest supported score, a = α − 1

(Peters, Niculae & Martins 2019, Lemma 2): dy/dτ is infinite at the threshold τ; dy/ds is finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import common, elementary, simd
from .jit import njit
from .simd import LANES


@njit
def _sum_above(z: Any, n: int, pivot: float, a: float) -> float:
    """Σ (aΔ)^(1/a), Δ = z − pivot where positive."""
    sums = simd.spread(simd.load(z, 0), 0.0)
    for i in range(0, n, LANES):
        v = simd.load(z, i) - pivot
        on = v > 0.0
        if simd.count(on) > 0:
            log = elementary.log(simd.select(on, v, 1.0) * a)
            sums = sums + simd.select(on, elementary.exp(log * (1.0 / a)), 0.0)
    return simd.total(sums)


@njit
def _smallest(z: Any, n: int, a: float) -> tuple[float, int]:
    """The smallest supported score, and how many are: a score is supported iff Σ (aΔ_i)^(1/a) < 1
    for the distances to it."""
    low, high = -1.0 / a, 0.0
    none, tries = simd.spread(simd.load(z, 0), np.inf), 0
    # ends: fewer scores are between low and high
    while True:
        least, most = none, 0.0 - none
        for i in range(0, n, LANES):
            v = simd.load(z, i)
            on = (v > low) & (v < high)
            least = simd.smaller(simd.select(on, v, np.inf), least)
            most = simd.larger(simd.select(on, v, -np.inf), most)
        first, last = -simd.largest(0.0 - least), simd.largest(most)
        if not last > low:
            break
        middle, pivot, score = first + (last - first) * 0.5, none, last
        tries += 1
        if tries > 3:  # the support is not small
            for i in range(0, n, LANES):
                v = simd.load(z, i)
                on = (v > low) & (v < high) & (v >= middle)
                pivot = simd.smaller(simd.select(on, v, np.inf), pivot)
            score = -simd.largest(0.0 - pivot)
        if _sum_above(z, n, score, a) < 1.0:
            high = score
        else:
            low = score
    count = 0
    for i in range(0, n, LANES):
        count += simd.count(simd.load(z, i) >= high)
    return high, count


@njit
def _entries(
    z: Any, n: int, smallest: float, a: float, log_s: float, y: Any
) -> tuple[float, float]:
    """y, and Σy and its derivative in s: dy_i/ds = (s/y_i)^(a−1)."""
    sums = simd.spread(simd.load(z, 0), 0.0)
    slopes, lost, base = sums, sums, a * log_s
    for i in range(0, n, LANES):
        v = simd.load(z, i) - smallest
        on, above = v >= 0.0, v > 0.0
        log = elementary.log(simd.select(above, v, 1.0) * a)
        off = log - base
        away = simd.larger(off, 0.0 - off)
        log = simd.larger(log, base) + elementary.log1p(elementary.exp(0.0 - away))
        log_y = simd.select(above, log * (1.0 / a), log_s)
        w = simd.select(on, elementary.exp(log_y), 0.0)
        simd.store(y, i, w)
        sums, lost = common.added(sums, lost, w)
        rate = elementary.exp(simd.smaller((0.0 - log_y + log_s) * (a - 1.0), 0.0))
        slopes = slopes + simd.select(on, rate, 0.0)
    return simd.total(sums), simd.total(slopes)


@njit(apart=True)
def solve(z: Any, n: int, alpha: float, y: Any, scratch: Any) -> None:
    """y[:n] of the scores z: Σ y is convex and increases in s."""
    a, like = alpha - 1.0, simd.load(y, 0)
    smallest, size = _smallest(z, n, a)
    low, high = (1.0 - _sum_above(z, n, smallest, a)) / size, 1.0 / size
    s, total = high, 1.0
    for _ in range(200):
        total, slope = _entries(z, n, smallest, a, math.log(s), scratch)
        off = total - 1.0
        if not abs(off) > 4.0 * common.EPS or not high > low:
            break
        if off > 0.0:
            high = min(high, s)
        else:
            low = max(low, s)
        trial = s - off / slope
        if not (low <= trial <= high):
            trial = 0.5 * (low + high)
        if trial == s:
            break
        s = trial
    for i in range(0, n, LANES):
        simd.store(y, i, simd.like(like, simd.load(scratch, i) * (1.0 / total)))
