"""α-entmax of a row with α > 2, by the smallest entry t of the support.

    y_i = (aΔ_i + t^a)^(1/a),  Σ y = 1,  Δ_i the distance to the smallest supported score, a = α − 1

(Peters, Niculae & Martins 2019, Lemma 2): dy/dτ is infinite at the threshold τ; dy/dt is finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, simd
from regmax.kernels.cpu.jit import njit


@njit
def _powers(z: Any, n: int, smallest: float, a: float) -> float:
    """Σ (aΔ)^(1/a), Δ = z − smallest where positive."""
    total = 0.0
    for i in range(n):
        if z[i] > smallest:
            total += math.exp((math.log(z[i] - smallest) + math.log(a)) / a)
    return total


@njit
def _sink(a: Any, i: int, n: int) -> None:
    """Move a[i] down the heap a[:n] of decreasing numbers."""
    t = a[i]
    # ends: i doubles
    while 2 * i + 1 < n:
        j = 2 * i + 1
        if j + 1 < n and a[j + 1] > a[j]:
            j += 1
        if not a[j] > t:
            break
        a[i] = a[j]
        i = j
    a[i] = t


@njit
def _sort(a: Any, n: int) -> None:
    """Sort a[:n] in ascending order, as a heap."""
    for i in range(n // 2 - 1, -1, -1):
        _sink(a, i, n)
    for last in range(n - 1, 0, -1):
        t = a[last]
        a[last] = a[0]
        a[0] = t
        _sink(a, 0, last)


@njit
def _solve_above(z: Any, n: int, a: float, ordered: Any, y: Any) -> None:
    """y = (aΔ_i + t^a)^(1/a), Δ_i the distance to the smallest supported score.

    The k-th largest score is supported iff Σ (aΔ_i)^(1/a) < 1 for the distances to it; Σ y is
    convex and increases in t.
    """
    for i in range(n):
        ordered[i] = -z[i]
    _sort(ordered, n)
    size, beyond = 1, n + 1
    # ends: the interval of whole numbers is halved
    while beyond - size > 1:
        middle = (size + beyond) // 2
        if _powers(z, n, -ordered[middle - 1], a) < 1.0:
            size = middle
        else:
            beyond = middle
    smallest = -ordered[size - 1]
    # ends: the size grows
    while size < n and -ordered[size] == smallest:
        size += 1
    low = (1.0 - _powers(z, n, smallest, a)) / size
    high = 1.0 / size
    t = high
    total = 1.0
    for _ in range(200):
        total, slope = 0.0, 0.0
        log_t = math.log(t)
        for i in range(n):
            y[i] = 0.0
            if z[i] >= smallest:
                log_y = log_t
                if z[i] > smallest:
                    p, q = math.log(z[i] - smallest) + math.log(a), a * log_t
                    log_y = (max(p, q) + math.log1p(math.exp(-abs(p - q)))) / a
                y[i] = math.exp(log_y)
                total += y[i]
                slope += math.exp((a - 1.0) * (log_t - log_y))  # dy_i/dt = (t/y_i)^(a−1)
        off = total - 1.0
        if not abs(off) > 4.0 * common.EPS or not high > low:
            break
        if off > 0.0:
            high = min(high, t)
        else:
            low = max(low, t)
        trial = t - off / slope
        if not (low <= trial <= high):
            trial = 0.5 * (low + high)
        if trial == t:
            break
        t = trial
    total, lost = 0.0, 0.0
    for i in range(n):
        term = y[i] - lost
        following = total + term
        lost = (following - total) - term
        total = following
    for i in range(n):
        y[i] /= total


@njit(apart=True)
def forward_above(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    a: float,
    z: Any,
    y: Any,
    sort: Any,
    kept: Any,
    out: Any,
    blank: bool,
) -> None:
    top = np.float64(simd.largest(best))
    low = common.floor(row, top, gamma / a)
    n = common.pack(row, d, low, top, 1.0 / gamma, kept, z)
    _solve_above(z, n, a, sort, y)
    common.unpack(row, d, low, n, y, kept, out, blank)
