"""α-entmax of rows with α < 2, by the logarithm ℓ of the largest entry.

    y_i = e^ℓ [1 − a δ_i e^(−aℓ)]₊^(1/a),  Σ y = 1,  δ = max z − z,  a = α − 1,

which has a limit at α = 1 (Peters, Niculae & Martins 2019, Lemma 2, relative to its largest entry).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, elementary, memory, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

GROUP = 8
"""Rows that are computed in an interleaved loop."""
REACH = 800.0
"""exp(−800) is 0."""


@njit
def newton(t: Any, power: float) -> tuple[Any, Any]:
    """y = t₊^(1/a) in float32, and y/t."""
    inside = t > 1e-30
    t = simd.select(inside, t, 1.0)
    slope = elementary.exp32(elementary.log32(t) * (power - 1.0))
    slope = simd.select(inside, slope, 0.0)
    return slope * t, slope


@njit
def _entries(
    z: Any, n: int, a: float, log_top: float, y: Any, rate: Any
) -> tuple[float, float, float]:
    """y_i = e^ℓ b_i^(1/a), b_i = [1 − a δ_i e^(−aℓ)]₊, δ = −z, and e^(ℓ−δ_i) at a = 0: exact in
    relative terms; ``rate`` is 1/b. Returns Σy, and its first and second derivative in ℓ."""
    # dy/dℓ = y/b and db/dℓ = a (1 − b)
    stretch = math.exp(-a * log_top)
    near = abs(a) < 0.1  # log b loses digits, and 1/a magnifies the loss
    zero = simd.spread(simd.load(z, 0), 0.0)
    sums, firsts, seconds = zero, zero, zero
    inverse = 1.0 / a if a != 0.0 else 1.0
    for i in range(0, n, LANES):
        t = simd.load(z, i) * -stretch
        b = 1.0 - t * a
        inside = (b > 0.0) & (t < np.inf)
        b = simd.select(inside, b, 1.0)
        if near:
            t = simd.select(inside, t, 0.0)
            power = elementary.log1p(t * -a) * inverse if a != 0.0 else 0.0 - t
        else:
            power = elementary.log(b) * inverse
        v = simd.select(inside, elementary.exp(power + log_top), 0.0)
        b = 1.0 / b
        first = v * b
        sums = sums + v
        firsts = firsts + first
        seconds = seconds + first * b
        simd.store(y, i, v)
        simd.store(rate, i, b)
    s1 = simd.total(firsts)
    return simd.total(sums), s1, (1.0 - a) * simd.total(seconds) + a * s1


@njit
def _log_near_one(t: float) -> float:
    """log t, by its series near 1."""
    u = t - 1.0
    if abs(u) > 1e-4:
        return math.log(t)
    return u * (1.0 - u * (0.5 - u * (1.0 / 3.0 - u * 0.25)))


@njit
def _powers_at(z: Any, a: float, log_top: float) -> Any:
    """y of sixteen entries, at any ℓ; a is not 0."""
    t = z * (a * math.exp(-a * log_top))
    inside = t > -1.0
    t = simd.select(inside, t, 0.0)
    y = elementary.exp(elementary.log1p(t) * (1.0 / a) + log_top)
    return simd.select(inside, y, 0.0)


@njit
def _solve(z: Any, n: int, a: float, log_top: float, tol: float, y: Any, rate: Any) -> None:
    """y[:n] with Σ y = 1, from some ``log_top``: Halley's steps on log Σy, kept in a bracket.

    Once log Σy is within ``tol`` the last step is taken by the Taylor series of y.
    """
    low, high = -math.log(n), 0.0
    step, width = 0.0, -low
    for _ in range(200):
        total, first, second = _entries(z, n, a, log_top, y, rate)
        off = _log_near_one(total)
        slope = first / total
        bend = second / total - slope * slope
        step = 2.0 * off * slope / (2.0 * slope * slope - off * bend)
        if not abs(off) > tol or high - low <= common.EPS * max(-low, 1e-300):
            break
        if off > 0.0:
            high = min(high, log_top)
        else:
            low = max(low, log_top)
        trial = log_top - step
        if not (low <= trial <= high):
            trial = log_top - off / slope
        if not (low <= trial <= high and abs(trial - log_top) <= 0.5 * width):
            trial = 0.5 * (low + high)
        width = abs(trial - log_top)
        if trial == log_top:
            break
        log_top = trial
    zero = simd.spread(simd.load(y, 0), 0.0)
    sums, lost = zero, zero
    for i in range(0, n, LANES):
        v = simd.load(y, i)
        b = simd.load(rate, i) * -step
        if simd.count((b > 0.01) | (b < -0.01)) > 0:  # next to the threshold
            v = _powers_at(simd.load(z, i), a, log_top - step)
        else:
            v = simd.larger(v * (1.0 + b * (1.0 + (b * (1.0 - a) - step * a) * 0.5)), 0.0)
        sums, lost = common.added(sums, lost, v)
        simd.store(y, i, v)
    common.scaled(y, n, 1.0 / simd.total(sums))


@njit
def forward_below(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    a: float,
    z: Any,
    y: Any,
    more: Any,
    kept: Any,
    out: Any,
    blank: bool,
) -> None:
    """α ≤ 1.05, where all entries may be in the support."""
    top = np.float64(simd.largest(best))
    depth = np.inf
    if a >= 0.0:
        depth = min(1.0 / a, REACH) if a > 0.0 else REACH
    low = common.floor(row, top, depth * gamma)
    n = common.pack(row, d, low, top, 1.0 / gamma, kept, z)
    _solve(z, n, a, 0.0, tolerance(row), y, more)
    common.unpack(row, d, low, n, y, kept, out, blank)


@njit
def tolerance(row: Any) -> float:
    """The tolerance of log Σy before the last step."""
    return 4.0 * common.EPS if simd.resolution(row) < 1e-10 else 1e-4


@tiles.double
def forward_power(job: Any, like: Any, rows: Any, count: int, wide: Any, own: Any) -> None:
    """Up to GROUP rows of float64 with 1.05 < α < 2. ``wide`` is scratch for two rows more than the
    group, ``own`` for two rows per row of the group.

    Each step waits for the sum of the step before. Interleaving the rows lets the processor compute
    several of them at once.
    """
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    group = wide.shape[0] - 2
    state = memory.empty(6, GROUP, np.float64)
    top, low, rate, scale, tau, step = state[0], state[1], state[2], state[3], state[4], state[5]
    size = memory.empty(1, GROUP, np.int64)[0]
    heads = memory.empty(GROUP, LANES, np.float64)
    for k in range(count):
        r = rows[k]
        row = common.participants(job, r, 3, like, memory.row(own, group + k))
        out = common.rows_at(job, 4, r, like)
        best, bad = common.scan(row, d)
        top[k] = np.float64(simd.largest(best))
        scale[k] = 1.0 / common.number_at(job, 1, r)
        rate[k] = common.number_at(job, 2, r) - 1.0
        size[k] = -1
        if not common.without_answer(bad, top[k], d, out):
            size[k] = 0
            tau[k] = -1.0 / rate[k]
            simd.store(memory.row(heads, k), 0, (simd.wide(best) - top[k]) * scale[k])
    # a lower bound on τ, from sixteen entries: Newton from below on a convex function
    for _ in range(4):
        for k in range(count):
            if size[k] >= 0:
                a = rate[k]
                head = simd.narrow(simd.load(memory.row(heads, k), 0))
                y, slope = newton((head - tau[k]) * a, 1.0 / a)
                tau[k] += (simd.total(y) - 1.0) / simd.total(slope)
    for k in range(count):
        if size[k] >= 0:
            a = rate[k]
            tau[k] = max(tau[k] - 1e-5 / a, -1.0 / a)
            step[k] = 1.0
            row = common.participants(job, rows[k], 3, like, memory.row(own, group + k))
            low[k] = common.floor(row, top[k], min(-tau[k], REACH) / scale[k])
            kept, z = memory.row(own, k), memory.row(wide, k)
            size[k] = common.pack(row, d, low[k], top[k], scale[k], kept, z)
    # τ to float32's accuracy
    for _ in range(8):
        for k in range(count):
            if size[k] > 0 and step[k] >= 1e-3:
                step[k] = _newton_step(memory.row(wide, k), size[k], rate[k], tau[k])
                tau[k] = min(tau[k] + step[k], -1e-30)
    y, more = memory.row(wide, group), memory.row(wide, group + 1)
    for k in range(count):
        if size[k] > 0:
            a = rate[k]
            log_top = min(math.log(-a * tau[k]) / a, 0.0)
            row = common.participants(job, rows[k], 3, like, memory.row(own, group + k))
            _solve(memory.row(wide, k), size[k], a, log_top, tolerance(row), y, more)
            out = common.rows_at(job, 4, rows[k], like)
            common.unpack(row, d, low[k], size[k], y, memory.row(own, k), out, blank)


@njit
def _newton_step(z: Any, n: int, a: float, tau: float) -> float:
    y, slope = newton((simd.narrow(simd.load(z, 0)) - tau) * a, 1.0 / a)
    for i in range(LANES, n, LANES):
        more_y, more_slope = newton((simd.narrow(simd.load(z, i)) - tau) * a, 1.0 / a)
        y = y + more_y
        slope = slope + more_slope
    return (simd.total(y) - 1.0) / simd.total(slope)
