"""Fenchel–Young losses of vertices e_k and their gradients y − t, from rows of x and y = Π_Ω(x);
:mod:`regmax.kernels.cpu.distributions` has those of distributions t.

In units of γ, with a = α − 1 or p − 1, r = Σ' y_i and Σ' over i ≠ k, the loss is a Bregman
divergence plus the distance s of x_k/γ to the threshold where x_k is below it (Blondel, Martins &
Niculae 2020):

    gini      (r² + Σ' y_i²) / 2 + s,
    entropy   −log y_k,
    tsallis   (1 − y_k^a (1 + a r)) / (αa) + Σ' y_i^α / α + s,
    p-norm    (1 − N)² / 2 + N (1 − (y_k/N)^a) + s,    N = ‖y‖_p.

No term is negative, and r = 1 − y_k, so a small loss has as many digits as these sums. Where
r ≥ 1/2, y_k follows from its distance δ to the largest entry, which may be far below what y can
hold: log y_k = log y_max − δ, y_k^a = y_max^a − aδ, and y_k^a = y_max^a − δ N^(a−1).

Label smoothing with ε adds ε(x_k − mean x), the mean over the participants.

With y held fixed (Danskin's theorem), the derivatives in γ and θ are δ = Ω(t) − Ω(y) and γ ∂δ/∂θ.
For t = e_k, δ is the same for all k:

    gini                (1 − ‖y‖²) / 2,
    entropy, tsallis    −Σ y_i log_α(y_i) / α,    log_α(y) = (y^a − 1)/a, log y at a = 0,
    p-norm              (1 − N²) / 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import common, distributions, elementary, memory, simd
from .distributions import (
    ENTROPY,
    GAMMA,
    GINI,
    MASK,
    PNORM,
    TARGET,
    THETA,
    TINY,
    TSALLIS,
    Y,
    sum_of_powers,
    taking_part,
)
from .jit import njit
from .job import ROWS, STEP, STOPPED
from .simd import LANES

VALUE, EPSILON = 6, 7
"""The arrays of a job after x and those of :mod:`regmax.kernels.cpu.distributions`."""
KIND, CODE, IGNORED, MEAN, DENSE, ALL, COUNT = range(21, 28)
"""The numbers after them: the kind of Ω, the function that computes y, the target that does not
count, whether the gradient is that of the mean, whether the targets are distributions, the number
of rows, of which a job may do a part; and the result, the number of targets that count, or −1."""
ARRAYS = 5
LENGTH = ARRAYS + 2 * (Y + 2)
SOME = 1 << 15
"""Entries of which y and x fit in a core's cache."""


@njit
def _counted(job: Any) -> int:
    """How many targets count; −1 if one of them is out of range."""
    d, ignored, count, wrong = job[common.WIDTH], job[IGNORED], 0, 0
    for r in range(job[ALL]):
        k = common.rows_at(job, TARGET, r, job)[0]
        count += int(k != ignored)
        wrong += int(k != ignored and (k < 0 or k >= d))
    return -1 if wrong > 0 else count


@njit
def _sum(y: Any, d: int) -> tuple[float, float]:
    """Σ y, and the largest entry."""
    best = simd.load_part(y, 0, simd.first(0), 0.0)
    sums = simd.wide(best)
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        best = simd.larger(v, best)
        sums = sums + simd.wide(v)
    return simd.total(sums), np.float64(simd.largest(best))


@njit
def _position(y: Any, d: int, top: float) -> int:
    """Where y_i = top."""
    i = 0
    # ends: i grows
    while i + LANES <= d and simd.count(simd.load(y, i) == top) == 0:
        i += LANES
    # ends: i grows
    while i < d - 1 and y[i] != top:
        i += 1
    return i


@njit
def _divergence(kind: int, r: float, s: float, own: float, top: float, gap: float, a: float) -> Any:
    """L/γ from r = Σ' y, s = Σ' y^(1+a), y_k, the largest entry and its distance to x_k/γ."""
    near = r < 0.5
    log_y, below = math.log1p(-r) if near else 0.0, 0.0
    if kind == GINI:
        return 0.5 * (r * r + s) + max(gap - top, 0.0)
    if kind == ENTROPY or a == 0.0:
        return -log_y if near else gap - math.log(top)
    if kind == TSALLIS:
        if not near:
            # y_k^a − 1
            t = math.expm1(a * math.log(top)) - a * gap
            log_y = -np.inf
            if t > -1.0:
                log_y = math.log1p(t) / a
            else:
                below = -(1.0 + t) / a
        rest = r if near else 1.0 - math.exp(log_y)
        power = math.expm1(a * log_y + math.log1p(a * rest))
        return s / (a + 1.0) - power / (a * (a + 1.0)) + below
    p = a + 1.0
    if near:
        log_rho = -math.log1p(s * math.exp(-p * log_y)) / p
        log_norm = log_y - log_rho
    else:
        log_norm = math.log(s + own**p) / p
        log_rho = a * (math.log(top) - log_norm)
        t = math.exp(log_rho) - gap * math.exp(-log_norm)
        log_rho = -np.inf
        if t > 0.0:
            log_rho = math.log(t) / a
        else:
            below = -t * math.exp(log_norm)
    off = math.expm1(log_norm)
    return 0.5 * off * off - (off + 1.0) * math.expm1(a * log_rho) + below


@njit
def _distances(job: Any, r: int, like: Any, top: float) -> tuple[float, float, int]:
    """With δ_i = (top − x_i)/2d, which cannot overflow: Σ y_i δ_i and Σ δ_i over the participants,
    and their number."""
    d, size = job[common.WIDTH], 0
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    each = 1.0 / d
    sums = simd.wide(simd.load_part(x, 0, simd.first(0), 0.0))
    dots = sums
    for i in range(0, d, LANES):
        v = common.piece(x, i, d, -np.inf)
        on = (v > -np.inf) & taking_part(job, r, i)
        size += simd.count(on)
        # halves are exact: a product and a difference that round once keep ties at 0
        off = simd.select(on, (top * 0.5 - simd.wide(v) * 0.5) * each, 0.0)
        sums = sums + off
        dots = dots + off * simd.wide(common.piece(y, i, d, 0.0))
    return simd.total(dots), simd.total(sums), size


@njit
def _spread(job: Any, r: int, like: Any, each: float, scale: float) -> None:
    """y ← (y − each)·scale, where ``each`` is subtracted from the participants."""
    d, x, y = job[common.WIDTH], common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        if each > 0.0:
            on = (common.piece(x, i, d, -np.inf) > -np.inf) & taking_part(job, r, i)
            v = simd.select(on, v - each, v)
        common.store_piece(y, i, d, v * scale)


@njit
def _row(job: Any, r: int, like: Any, scale: float) -> float:
    """The loss of a row, and y ← (y − t)·scale."""
    d, kind = job[common.WIDTH], job[KIND]
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    k = common.rows_at(job, TARGET, r, job)[0]
    out = k == job[IGNORED]
    spoilt = y[0] != y[0]
    if out or spoilt:
        common.fill(y, d, 0.0)
        return 0.0 if out else np.nan
    gamma, epsilon = common.number_at(job, GAMMA, r), common.number_at(job, EPSILON, 0)
    a = 1.0 if kind == GINI else 0.0
    if kind >= TSALLIS:
        a = common.number_at(job, THETA, r) - 1.0
    own = np.float64(y[k])
    y[k] = 0.0
    rest, top = _sum(y, d)
    if top == 0.0 and own == 0.0:  # nobody takes part
        return 0.0
    score = np.float64(x[k])
    if score == -np.inf or (common.given(job, MASK) and common.octets_at(job, MASK, r)[k] == 0):
        common.fill(y, d, 0.0)
        return np.inf
    near, smooth = rest < 0.5, epsilon > 0.0
    gap, best, top, size, powers, total = 0.0, score, max(top, own), 0, 0.0, 0.0
    if top > own and (smooth or not near):
        best = np.float64(x[_position(y, d, top)])
        gap = min(max((best - score) / gamma, 0.0), 1.7e308)
    known = kind == TSALLIS and not near  # y_i^a = y_max^a − aδ_i
    if smooth or known:
        powers, total, size = _distances(job, r, like, best)
    if known:
        powers = rest * top**a - powers * (2.0 * d * a / gamma)
    elif kind != ENTROPY:
        powers = sum_of_powers(y, d, a + 1.0, 1.0)
    loss = gamma * _divergence(kind, rest, powers, own, top, gap, a)
    share = 1.0 - epsilon
    y[k] = own - share
    if smooth:
        loss += epsilon * (total * (2.0 * d / size) - (best - score))
        _spread(job, r, like, (1.0 - share) / size, scale)
    elif scale != 1.0:
        _spread(job, r, like, 0.0, scale)
    return loss


@njit
def _mapping(job: Any, own: Any) -> None:
    """``own``: the job of the function that computes y; its arrays are x, γ, θ, the mask, y."""
    n = ARRAYS + 2 * (MASK if job[KIND] >= TSALLIS else THETA)
    for i in range(n):
        own[i] = job[i]
    for i in range(4):
        own[n + i] = job[ARRAYS + 2 * MASK + i]
    for i in range(n + 4, LENGTH):
        own[i] = 0


@njit
def _terms(kind: int, w: Any, a: float) -> tuple[Any, Any]:
    """The terms of a distribution's sums that :func:`_derivatives` takes; ``w`` is float64."""
    if kind == GINI:
        return w * w, w
    log = elementary.log(simd.larger(w, TINY))
    if kind == PNORM:
        power = w * elementary.exp(log * a)
        return power, power * log
    ratio, rate = elementary.ratios(log * a)
    return w * ratio * log, w * rate * (log * log)


@njit
def _derivatives(kind: int, first: float, second: float, p: float) -> tuple[float, float]:
    """Ω, up to a constant, and its derivative in θ."""
    if kind == GINI:
        return 0.5 * first, 0.0
    if kind == PNORM:
        square = first ** (2.0 / p)
        return 0.5 * square, square * (second / first - math.log(first) / p) / p
    return first / p, (second - first / p) / p


@njit
def _slopes(job: Any, r: int, like: Any) -> tuple[float, float]:
    """The derivatives of the loss of a row in γ and θ, from y − t."""
    d, kind, epsilon = job[common.WIDTH], job[KIND], common.number_at(job, EPSILON, 0)
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    k, each = common.rows_at(job, TARGET, r, job)[0], 0.0
    if k < 0:
        return 0.0, 0.0
    if epsilon > 0.0:
        size = _distances(job, r, like, 0.0)[2]
        if size == 0:
            return 0.0, 0.0
        each = epsilon / size
    a = common.number_at(job, THETA, r) - 1.0 if kind >= TSALLIS else 0.0
    change = y[k]
    y[k] += 1.0 - epsilon
    s = simd.wide(simd.load_part(y, 0, simd.first(0), 0.0))
    t = s
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        if each > 0.0:
            on = (common.piece(x, i, d, -np.inf) > -np.inf) & taking_part(job, r, i)
            v = simd.select(on, v + each, v)
        if simd.count(v > 0.0) > 0:
            first, second = _terms(kind, simd.larger(simd.wide(v), 0.0), a)
            s, t = s + first, t + second
    y[k] = change
    own, slope = _derivatives(kind, simd.total(s), simd.total(t), a + 1.0)
    vertex = 0.5
    if ENTROPY <= kind <= TSALLIS:
        vertex = 0.0
    return vertex - own, -common.number_at(job, GAMMA, r) * slope


@njit
def _slopes_apart(job: Any, r: int, like: Any) -> tuple[float, float]:
    """The same for a distribution, from m(y − t) and m t, times m."""
    d, kind = job[common.WIDTH], job[KIND]
    y, target = common.rows_at(job, Y, r, like), common.rows_at(job, TARGET, r, like)
    a = common.number_at(job, THETA, r) - 1.0 if kind >= TSALLIS else 0.0
    none = simd.wide(simd.load_part(y, 0, simd.first(0), 0.0))
    sums = none
    for i in range(0, d, LANES):
        sums = sums + simd.wide(common.piece(target, i, d, 0.0))
    mass = simd.total(sums)
    if not mass > 0.0:
        return 0.0, 0.0
    s, t, own, rate = none, none, none, none
    for i in range(0, d, LANES):
        u = common.piece(target, i, d, 0.0)
        v = common.piece(y, i, d, 0.0) + u
        if simd.count(u > 0.0) > 0:
            first, second = _terms(kind, simd.wide(u) / mass, a)
            s, t = s + first, t + second
        if simd.count(v > 0.0) > 0:
            first, second = _terms(kind, simd.larger(simd.wide(v) / mass, 0.0), a)
            own, rate = own + first, rate + second
    p = a + 1.0
    at_t, slope_t = _derivatives(kind, simd.total(s), simd.total(t), p)
    at_y, slope_y = _derivatives(kind, simd.total(own), simd.total(rate), p)
    return mass * (at_t - at_y), mass * common.number_at(job, GAMMA, r) * (slope_t - slope_y)


def slopes(job: Any, like: Any) -> None:
    """The derivatives of each row in γ and θ."""
    values = memory.doubles(job[ARRAYS + 2 * VALUE])
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            if job[DENSE] != 0:
                values[2 * r], values[2 * r + 1] = _slopes_apart(job, r, like)
            else:
                values[2 * r], values[2 * r + 1] = _slopes(job, r, like)
        first, last = common.take(job)


def forward(job: Any, like: Any) -> None:
    """The losses of rows, and y − t."""
    dense, count = job[DENSE] != 0, job[ALL]
    if not dense:
        count = _counted(job)
        job[COUNT] = count
    if count < 0:
        return
    scale = 1.0
    if job[MEAN] != 0 and count > 0:
        scale = 1.0 / count
    some, most = memory.empty(1, LENGTH, np.int64), max(SOME // job[common.WIDTH], 4)
    values = memory.doubles(job[ARRAYS + 2 * VALUE])
    first, last = common.take(job)
    while first < last:
        for start in range(first, last, most):
            end = min(start + most, last)
            own = memory.row(some, 0)
            _mapping(job, own)
            own[0], own[ROWS], own[STEP] = start, end, end - start
            memory.call(job[CODE], own)
            if own[0] >= STOPPED:
                memory.fetch_add(job, 2 * STOPPED)
                break
            for r in range(start, end):
                if dense:
                    values[r], proper = distributions.row(job, r, like, job[KIND], scale)
                    if not proper:
                        job[COUNT] = -1
                else:
                    values[r] = _row(job, r, like, scale)
        first, last = common.take(job)
