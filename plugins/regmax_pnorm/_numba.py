"""sq-pnorm-max and its derivatives, compiled with numba.

    y = v/Σv,  v_i = (1 − δ_i/s)₊^q,  q = 1/(p − 1),  δ = max z − z,  z = x/γ,
    log s + (p − 2)/p log Σv^p + log Σv = 0,

whose left side increases in log s ≤ 0 (the conditions of Niculae & Blondel 2017, §3.1, solved for
one scalar; see :mod:`regmax_pnorm`). With r = y/‖y‖_p the curvature is
(p − 1) diag(r^(p−2)) + (2 − p) uuᵀ, u = r^(p−1), and J follows by Sherman–Morrison.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, elementary, memory, projection, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from . import _short


@njit
def _entries(delta: Any, n: int, p: float, log_s: float, v: Any) -> tuple[float, float]:
    """Writes v; returns the residual and its slope in log s."""
    q = 1.0 / (p - 1.0)
    shrink = -math.exp(-log_s)
    zero = simd.spread(simd.load(delta, 0), 0.0)
    sums, powers, slopes, power_slopes = zero, zero, zero, zero
    for i in range(0, n, LANES):
        t = simd.load(delta, i) * shrink  # −δ/s
        b = t + 1.0
        inside = b > 0.0
        b = simd.select(inside, b, 1.0)
        w = elementary.exp(elementary.log1p(simd.select(inside, t, 0.0)) * q)
        w = simd.select(inside, w, 0.0)
        rest = simd.select(inside, 0.0 - t, 0.0)
        # v^p = v b;  dv/dlog s = q v (δ/s)/b, dv^p/dlog s = p q v (δ/s)
        sums = sums + w
        powers = powers + w * b
        slopes = slopes + w * rest / b
        power_slopes = power_slopes + w * rest
        simd.store(v, i, w)
    s1, sp = simd.total(sums), simd.total(powers)
    residual = log_s + (p - 2.0) / p * math.log(sp) + math.log(s1)
    slope = 1.0 + q * ((p - 2.0) * simd.total(power_slopes) / sp + simd.total(slopes) / s1)
    return residual, slope


@njit(apart=True)
def _solve(delta: Any, n: int, count: int, p: float, tol: float, v: Any) -> None:
    """v ← y for the distances ``delta``: Newton in log s, kept in a bracket."""
    low, high = (2.0 / p - 2.0) * math.log(count), 0.0
    log_s, width = 0.0, -low
    for _ in range(200):
        off, slope = _entries(delta, n, p, log_s, v)
        if not abs(off) > tol:
            break
        if off > 0.0:
            high = min(high, log_s)
        else:
            low = max(low, log_s)
        trial = log_s - off / slope
        if not (low <= trial <= high and abs(trial - log_s) <= 0.5 * width):
            trial = 0.5 * (low + high)
        width = abs(trial - log_s)
        if abs(trial - log_s) <= common.EPS * abs(log_s):
            break
        log_s = trial
    _normalized(v, n)


@njit
def _solve_three_halves(delta: Any, n: int, tol: float, v: Any) -> None:
    """v ← y for p = 1.5, where u = (s − δ)₊, y = u²/Σu² and Σu² = (Σu³)^⅓.

    Newton on Σu² (Σu³)^(−⅓), which is linear in s where all entries are equal.
    """
    zero = simd.spread(simd.load(delta, 0), 0.0)
    low, high, s = 0.0, 1.0, 1.0
    width = 1.0
    for _ in range(200):
        first, second, third = zero, zero, zero
        for i in range(0, n, LANES):
            u = simd.larger(s - simd.load(delta, i), 0.0)
            square = u * u
            first = first + u
            second = second + square
            third = third + square * u
            simd.store(v, i, square)
        a, b = simd.total(second), simd.total(third)
        root = elementary.cbrt(b)
        off = a - root
        if not abs(off) > tol * root:
            break
        if off > 0.0:
            high = min(high, s)
        else:
            low = max(low, s)
        trial = s - off / (2.0 * simd.total(first) - a * a / b)
        if not (low < trial < high and abs(trial - s) <= 0.5 * width):
            trial = 0.5 * (low + high)
        width = abs(trial - s)
        if width <= common.EPS * s:
            break
        s = trial
    _normalized(v, n)


@njit
def _normalized(v: Any, n: int) -> None:
    """v ← v/Σv."""
    zero = simd.spread(simd.load(v, 0), 0.0)
    sums, lost = zero, zero
    for i in range(0, n, LANES):
        sums, lost = common.added(sums, lost, simd.load(v, i))
    common.scaled(v, n, 1.0 / simd.total(sums))


@njit
def _forward_row(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    p: float,
    z: Any,
    v: Any,
    kept: Any,
    out: Any,
    blank: bool,
) -> None:
    top = np.float64(simd.largest(best))
    low = common.floor(row, top, gamma)
    n = common.pack(row, d, low, top, -1.0 / gamma, kept, z)
    tol = 4.0 * common.EPS if simd.resolution(row) < 1e-10 else 1e-9
    if p == 1.5:
        _solve_three_halves(z, n, tol, v)
    else:
        _solve(z, n, n, p, tol, v)
    common.unpack(row, d, low, n, v, kept, out, blank)


def forward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(2, d), common.scratch_like(2, d, like)
    short = tiles.fits(d, like)
    rooms, waiting = tiles.room(d if short else 0, like), 0
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            g, p = common.number_at(job, 1, r), common.number_at(job, 2, r)
            room = memory.row(rooms, 0)
            if short and p == 1.5 and tiles.enter(job, r, waiting, 3, like, room):
                tiles.pack(job, waiting, 3, 1.0, like, room)
                waiting += 1
                if waiting == LANES:
                    _short.together(job, like, waiting, room)
                    waiting = 0
                continue
            row = common.participants(job, r, 3, like, memory.row(own, 1))
            out, kept = common.rows_at(job, 4, r, like), memory.row(own, 0)
            z, v = memory.row(wide, 0), memory.row(wide, 1)
            best, bad = common.scan(row, d)
            bad = bad or not (g > 0.0 and p > 1.0 and p <= 2.0)
            if common.without_answer(bad, np.float64(simd.largest(best)), d, out):
                continue
            if p == 2.0:
                projection.special(row, d, g, z, kept, out, blank)
            else:
                _forward_row(row, d, best, g, p, z, v, kept, out, blank)
        first, last = common.take(job)
    if waiting > 0:
        _short.together(job, like, waiting, memory.row(rooms, 0))


@njit
def _norm(y: Any, n: int, p: float, log: Any) -> tuple[float, float]:
    """log ‖y‖_p and Σ y^p log y/Σ y^p; ``log`` ← log y."""
    zero = simd.spread(simd.load(y, 0), 0.0)
    sums, logs = zero, zero
    for i in range(0, n, LANES):
        t = elementary.log(simd.larger(simd.load(y, i), 2.3e-308))
        power = simd.select(simd.first(n - i), elementary.exp(t * p), 0.0)
        sums = sums + power
        logs = logs + power * t
        simd.store(log, i, t)
    total = simd.total(sums)
    return math.log(total) / p, simd.total(logs) / total


@njit
def _weights(logs: Any, n: int, p: float, log_norm: float, s: Any, u: Any) -> None:
    """s = r^(2−p)/(p − 1) and u = r^(p−1), 0 beyond n."""
    for i in range(0, n, LANES):
        on = simd.first(n - i)
        log_r = simd.load(logs, i) - log_norm
        grown = elementary.exp(log_r * (2.0 - p)) * (1.0 / (p - 1.0))
        simd.store(u, i, simd.select(on, elementary.exp(log_r * (p - 1.0)), 0.0))
        simd.store(s, i, simd.select(on, grown, 0.0))


@njit
def _weights_three_halves(y: Any, n: int, s: Any, u: Any) -> None:
    """As ``_weights``: for p = 1.5 both are multiples of √r."""
    sums = simd.spread(simd.load(y, 0), 0.0)
    for i in range(0, n, LANES):
        t = simd.select(simd.first(n - i), simd.load(y, i), 0.0)
        root = simd.sqrt(t)
        sums = sums + root * t
        simd.store(u, i, root)
    norm = 1.0 / elementary.cbrt(simd.total(sums))  # ‖y‖^(−½)
    for i in range(0, n, LANES):
        t = simd.load(u, i) * norm
        simd.store(u, i, t)
        simd.store(s, i, t * 2.0)


@njit
def _product(
    y: Any, w: Any, n: int, p: float, s: Any, u: Any, logs: Any, hyper: bool
) -> tuple[float, float]:
    """w ← Jw of the packed support, u ← r^(p−1), logs ← log y; overwrites y. Returns log ‖y‖ and
    Σ y^p log y/Σ y^p."""
    # J w = Dw − c Du ⟨u, Dw⟩ / (1 + c ⟨u, Du⟩), D the product for the diagonal alone, c = 2 − p
    log_norm, mean_log = 0.0, 0.0
    if p == 1.5 and not hyper:
        _weights_three_halves(y, n, s, u)
    else:
        log_norm, mean_log = _norm(y, n, p, logs)
        _weights(logs, n, p, log_norm, s, u)
    common.diagonal_product(s, w, n, w[0], 1.0)
    if p < 2.0:
        for i in range(0, n, LANES):
            simd.store(y, i, simd.load(u, i))
        common.diagonal_product(s, y, n, y[0], 1.0)
        share = (2.0 - p) * common.dot(u, w, n) / (1.0 + (2.0 - p) * common.dot(u, y, n))
        for i in range(0, n, LANES):
            simd.store(w, i, simd.load(w, i) - simd.load(y, i) * share)
    return log_norm, mean_log


@njit
def _along_slope(
    w: Any, u: Any, logs: Any, n: int, p: float, log_norm: float, mean_log: float
) -> float:
    """⟨w, ∂∇Ω/∂p⟩: ∇Ω = ‖y‖u, ∂ log ∇Ω/∂p = log r + (2 − p)/p (Σ y^p log y/Σ y^p − log ‖y‖)."""
    shift = (2.0 - p) / p * (mean_log - log_norm)
    sums = simd.spread(simd.load(w, 0), 0.0)
    for i in range(0, n, LANES):
        rate = (simd.load(logs, i) - log_norm) + shift
        sums = sums + simd.load(w, i) * simd.load(u, i) * rate
    return math.exp(log_norm) * simd.total(sums)


def backward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(5, d), common.scratch_like(2, d, like)
    hyper = common.given(job, 5)
    quick = tiles.fits(d, like) and not hyper
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            if quick and common.number_at(job, 3, r) == 1.5:
                _short.backward(job, like, r, memory.row(own, 0))
                continue
            y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
            out = common.rows_at(job, 4, r, like)
            scale, p = 1.0 / common.number_at(job, 2, r), common.number_at(job, 3, r)
            ys, w, kept = memory.row(wide, 0), memory.row(wide, 1), memory.row(own, 0)
            s, u, logs = memory.row(wide, 2), memory.row(wide, 3), memory.row(wide, 4)
            n = common.pack_support(y, v, d, kept, memory.row(own, 1), ys, w, blank)
            dp = 0.0
            if n == 0:
                common.fill(out, d, 0.0)
            else:
                log_norm, mean_log = _product(ys, w, n, p, s, u, logs, hyper)
                if hyper:
                    dp = -_along_slope(w, u, logs, n, p, log_norm, mean_log)
                common.scaled(w, n, scale)
                common.unpack_support(y, d, n, w, kept, out, blank)
            if hyper:
                common.set_number(job, 5, r, dp)
        first, last = common.take(job)
