"""Fenchel–Young losses of rows and their gradients y − t, from x and y = Π_Ω(x).

t is a vertex e_k or a distribution. The memory holds m t for a distribution, and its loss and
gradient are multiplied by m. In units of γ, a loss is the Bregman divergence of Ω, plus the
distance of x_i/γ to the threshold where it is below (Blondel, Martins & Niculae 2020). With D that
of e (:mod:`regmax.kernels.cpu.divergence`), y₁ the largest entry and δ_i = (max x − x_i)/f, let

    S = Σ D(t_i, y_i) over y_i > 0, + Σ (e(t_i) − e(0) + t_i (δ_i − e'(y₁))) over y_i = 0.

Then the loss is

    Ω = Σ e(y_i)               S,                         f = γ,
    Ω = ½‖y‖², with norm       (M − N)² / 2 + aN S',      f = γaN,

‖·‖ the θ-norm, a = θ − 1, M = ‖t‖, N = ‖y‖, e that of powers, and S' is M S of t/M and y/N. No term
is negative, so a small loss has as many digits as these sums. For a vertex 1 − y_k is Σ' y_i over
i ≠ k, which has more digits than y_k.

Label smoothing with ε adds ε(x_k − mean x), the mean over the participants.

With y held fixed (Danskin's theorem), the derivatives in γ and θ are δ = Ω(t) − Ω(y) and γ ∂δ/∂θ.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import common, memory, simd
from .divergence import TINY, alone, apart, mean, outer, simple, slope, terms, vertex
from .jit import njit
from .job import COUNT, ROWS, STEP, STOPPED
from .simd import LANES

GAMMA, THETA, MASK, Y, TARGET, VALUE, EPSILON = range(1, 8)
"""The arrays of a job after x."""
NORM, GIVEN, CODE, IGNORED, MEAN, DENSE, ALL = range(21, 35, 2)
"""The numbers after them: whether Ω is a norm, whether θ is a hyperparameter, the function that
computes y, the target that does not count, whether the gradient is that of the mean, whether the
targets are distributions, the number of rows, of which a job may do a part."""
ARRAYS = 5
LENGTH = ARRAYS + 2 * (Y + 2)
LEAST = 1.2e-38
"""Below it, y of float32 has few digits."""
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
def _mapping(job: Any, own: Any) -> None:
    """``own``: the job of the function that computes y; its arrays are x, γ, θ, the mask, y."""
    n = ARRAYS + 2 * (MASK if job[GIVEN] != 0 else THETA)
    for i in range(n):
        own[i] = job[i]
    for i in range(4):
        own[n + i] = job[ARRAYS + 2 * MASK + i]
    for i in range(n + 4, LENGTH):
        own[i] = 0


@njit
def _none(row: Any) -> Any:
    """Zeros of float64."""
    return simd.wide(simd.load_part(row, 0, simd.first(0), 0.0))


@njit
def _takes_part(job: Any, r: int, i: int, x: Any) -> Any:
    """The entries i, …, i + 15 that take part."""
    d = job[common.WIDTH]
    on = common.piece(x, i, d, -np.inf) > -np.inf
    if common.given(job, MASK):
        on = on & simd.differ(common.piece(common.octets_at(job, MASK, r), i, d, 0), 0)
    return on


@njit
def _survey(job: Any, r: int, like: Any) -> tuple[float, float, bool, bool]:
    """Σ t, the largest y_i, whether t is outside of the entries that take part, and whether it is a
    multiple of a distribution."""
    d = job[common.WIDTH]
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    t = common.rows_at(job, TARGET, r, like)
    top = simd.load_part(y, 0, simd.first(0), 0.0)
    sums, part, full = simd.wide(top), simd.first(0), simd.first(LANES)
    outside, wrong = part, part
    for i in range(0, d, LANES):
        v = common.piece(t, i, d, 0.0)
        part = simd.differ(_takes_part(job, r, i, x), full)
        outside = outside | (v > 0.0) & part
        wrong = wrong | (v < 0.0) | simd.not_below(v, np.inf)
        sums, top = sums + simd.wide(v), simd.larger(common.piece(y, i, d, 0.0), top)
    total = simd.total(sums)
    proper = simd.count(wrong) == 0 and total <= simd.greatest(t)
    return total, np.float64(simd.largest(top)), simd.count(outside) > 0, proper


@njit
def _score_of(x: Any, y: Any, d: int, top: float) -> float:
    """x_i where y_i = top."""
    i = 0
    # ends: i grows
    while i + LANES <= d and simd.count(simd.load(y, i) == top) == 0:
        i += LANES
    # ends: i grows
    while i < d - 1 and y[i] != top:
        i += 1
    return np.float64(x[i])


@njit
def _distance(job: Any, r: int, like: Any, score: float) -> tuple[float, int]:
    """The score less the mean score of the participants, and their number."""
    d, size = job[common.WIDTH], 0
    x = common.rows_at(job, 0, r, like)
    each, sums = 1.0 / d, _none(x)
    for i in range(0, d, LANES):
        on = _takes_part(job, r, i, x)
        size += simd.count(on)
        # halves are exact: a product and a difference that round once keep ties at 0, and no sum
        # overflows
        off = (score * 0.5 - simd.wide(common.piece(x, i, d, 0.0)) * 0.5) * each
        sums = sums + simd.select(on, off, 0.0)
    return simd.total(sums) * (2.0 * d / max(size, 1)), size


@njit
def _spread(job: Any, r: int, like: Any, each: float, scale: float) -> None:
    """y ← (y − each)·scale, where ``each`` is subtracted from the participants."""
    d, x, y = job[common.WIDTH], common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        if each > 0.0:
            v = simd.select(_takes_part(job, r, i, x), v - each, v)
        common.store_piece(y, i, d, v * scale)


@njit
def _sums_of(y: Any, d: int, theta: float, m: float, room: Any) -> tuple[float, float, float]:
    """Σ y, Σ D(0, y/m), and the largest entry. ``room``: scratch."""
    best = simd.load_part(y, 0, simd.first(0), 0.0)
    sums = simd.wide(best)
    rest, n, at_once = sums, 0, simple(theta)
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        best, sums = simd.larger(v, best), sums + simd.wide(v)
        count = simd.count(v > 0.0)
        if count > 0:
            if m != 1.0:
                v = v / m
            if at_once:
                rest = rest + alone(v, theta)
            else:
                simd.compress(room, n, v, v > 0.0)
                n += count
    simd.store(room, n, simd.spread(best, 0.0))
    for i in range(0, n, LANES):
        rest = rest + alone(simd.load(room, i), theta)
    return simd.total(sums), simd.total(rest), np.float64(simd.largest(best))


@njit
def _below(t: Any, log: Any, theta: float, f: float, level: float, off: Any) -> Any:
    """f (e(t) − e(0) − t e'(y₁))/t + max x − x_i; ``log``: e'(t)."""
    return simd.larger((mean(t, log, theta) - level) * f + simd.smaller(off, 1.7e308), 0.0)


@njit
def _level_of(none: Any, top: float, theta: float) -> float:
    """e' of the largest entry."""
    return simd.largest(slope(simd.spread(none, top), theta))


@njit
def _loss_of_vertex(job: Any, r: int, like: Any, scale: float, room: Any) -> float:
    """The loss of a row, and y ← (y − t)·scale."""
    d, theta = job[common.WIDTH], common.number_at(job, THETA, r)
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    k = common.rows_at(job, TARGET, r, job)[0]
    out = k == job[IGNORED]
    spoilt = y[0] != y[0]
    if out or spoilt:
        common.fill(y, d, 0.0)
        return 0.0 if out else np.nan
    gamma, epsilon = common.number_at(job, GAMMA, r), common.number_at(job, EPSILON, 0)
    y_k = np.float64(y[k])
    y[k] = 0.0
    rest, others, top = _sums_of(y, d, theta, 1.0, room)
    if top == 0.0 and y_k == 0.0:  # nobody takes part
        return 0.0
    score = np.float64(x[k])
    if score == -np.inf or (common.given(job, MASK) and common.octets_at(job, MASK, r)[k] == 0):
        common.fill(y, d, 0.0)
        return np.inf
    f, n, loss, found, log_y = gamma, 1.0, 0.0, others, 0.0
    near, least = rest < 0.5, LEAST if memory.size(y) == 4 else TINY
    if near or y_k > least:
        log_y = math.log1p(-rest) if near else math.log(y_k)
    if job[NORM] != 0:
        a = theta - 1.0
        if near:
            others *= math.exp(-theta * log_y)
            log_share = -math.log1p(theta * others) / theta
            log_n, others = log_y - log_share, others / (1.0 + theta * others)
        else:
            power = theta * others + y_k**theta
            log_n, others = math.log(power) / theta, others / power
            log_share = log_y - log_n
        off = math.expm1(log_n)
        n = off + 1.0
        f, loss = gamma * a * n, 0.5 * gamma * off * off
        found = -math.expm1(a * log_share) / a  # as ‖y/N‖ = 1
    elif near or y_k > least:
        found = others + vertex(rest if near else 1.0 - y_k, log_y, theta)
    if near or y_k > least:
        loss += f * found
    else:
        one = _none(y) + 1.0
        off = one * (_score_of(x, y, d, top) - score)
        level = _level_of(one, top / n, theta)
        found = _below(one, slope(one, theta), theta, f, level, off)
        loss += f * others + simd.largest(found)
    share = 1.0 - epsilon
    y[k] = y_k - share
    if epsilon > 0.0:
        distance, size = _distance(job, r, like, score)
        loss += epsilon * distance
        _spread(job, r, like, (1.0 - share) / size, scale)
    elif scale != 1.0:
        _spread(job, r, like, 0.0, scale)
    return loss


@njit
def _loss_of_distribution(
    job: Any, r: int, like: Any, scale: float, room: Any
) -> tuple[float, bool]:
    """The loss of a row, and y ← (y − t)·scale, both times m; and whether t is a
    distribution."""
    d, theta = job[common.WIDTH], common.number_at(job, THETA, r)
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    t, spoilt = common.rows_at(job, TARGET, r, like), y[0] != y[0]
    mass, top, outside, proper = _survey(job, r, like)
    if not proper or mass == 0.0 or spoilt or top == 0.0 or outside:
        common.fill(y, d, 0.0)
        if not proper:
            return np.nan, False
        if mass == 0.0 or (top == 0.0 and not spoilt):
            return 0.0, True
        return np.nan if spoilt else np.inf, True
    f, n, big, loss = common.number_at(job, GAMMA, r), 1.0, 1.0, 0.0
    if job[NORM] != 0:
        n = (theta * _sums_of(y, d, theta, 1.0, room)[1]) ** (1.0 / theta)
        big = (theta * _sums_of(t, d, theta, mass, room)[1]) ** (1.0 / theta)
        loss, f = 0.5 * f * (big - n) ** 2, f * (theta - 1.0) * n
    least = LEAST if memory.size(y) == 4 else TINY
    best, level, scale = _score_of(x, y, d, top), np.nan, scale * mass
    sums = _none(y)
    rest, log, needed = sums, sums, not simple(theta)
    for i in range(0, d, LANES):
        u, v = common.piece(y, i, d, 0.0), common.piece(t, i, d, 0.0)
        if simd.count((u > 0.0) | (v > 0.0)) == 0:
            continue
        v = v / mass
        common.store_piece(y, i, d, (u - v) * scale)
        on, q = u > least, v * (1.0 / big)
        low = simd.select(on, simd.spread(v, 0.0), v) > 0.0
        count = simd.count(low)
        if needed or count > 0:
            log = slope(q, theta)
        if simd.count(on) > 0:
            sums = sums + simd.select(on, apart(q, u * (1.0 / n), log, theta), 0.0)
        if count > 0:
            if level != level:
                level = _level_of(sums, top / n, theta)
            off = (simd.wide(common.piece(x, i, d, 0.0)) - best) * -1.0
            each = simd.wide(v) * _below(q, log, theta, f, level, off)
            rest = rest + simd.select(low, each, 0.0)
    loss += f * big * max(simd.total(sums), 0.0) + simd.total(rest)
    return mass * loss, True


def losses(job: Any, like: Any) -> None:
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
    scratch = common.scratch_like(1, job[common.WIDTH], like)
    room = memory.row(scratch, 0)
    values = memory.doubles(job[ARRAYS + 2 * VALUE])
    first, last = common.take(job)
    while first < last:
        for start in range(first, last, most):
            end = min(start + most, last)
            given = memory.row(some, 0)
            _mapping(job, given)
            given[0], given[ROWS], given[STEP] = start, end, end - start
            memory.call(job[CODE], given)
            if given[0] >= STOPPED:
                memory.fetch_add(job, 2 * STOPPED)
                break
            for r in range(start, end):
                if dense:
                    values[r], proper = _loss_of_distribution(job, r, like, scale, room)
                    if not proper:
                        job[COUNT] = -1
                else:
                    values[r] = _loss_of_vertex(job, r, like, scale, room)
        first, last = common.take(job)
    memory.keep((some, scratch))


@njit
def _omega_at(
    job: Any, r: int, like: Any, share: float, each: float, mass: float, theta: float
) -> tuple[float, float]:
    """Ω and ∂Ω/∂θ of (share·(y − t) + t)/mass for a distribution, of y − t + each for a
    vertex."""
    d, norm, given = job[common.WIDTH], job[NORM] != 0, job[GIVEN] != 0
    x, y = common.rows_at(job, 0, r, like), common.rows_at(job, Y, r, like)
    s = _none(y)
    t = s
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        if mass > 0.0:
            v = v * share + common.piece(common.rows_at(job, TARGET, r, like), i, d, 0.0)
        elif each > 0.0:
            v = simd.select(_takes_part(job, r, i, x), v + each, v)
        if simd.count(v > 0.0) > 0:
            w = simd.larger(simd.wide(v), 0.0)
            if mass > 0.0:
                w = w / mass
            first, second = terms(w, theta, norm, given)
            s, t = s + first, t + second
    return outer(simd.total(s), simd.total(t), theta, norm)


@njit
def _slopes_of_vertex(job: Any, r: int, like: Any, theta: float) -> tuple[float, float]:
    """Ω(t) − Ω(y) and its derivative in θ."""
    norm, given = job[NORM] != 0, job[GIVEN] != 0
    y = common.rows_at(job, Y, r, like)
    k, epsilon = common.rows_at(job, TARGET, r, job)[0], common.number_at(job, EPSILON, 0)
    if k < 0:
        return 0.0, 0.0
    each = 0.0
    if epsilon > 0.0:
        size = _distance(job, r, like, 0.0)[1]
        if size == 0:
            return 0.0, 0.0
        each = epsilon / size
    change = y[k]
    y[k] += 1.0 - epsilon
    at_y, slope_y = _omega_at(job, r, like, 1.0, each, 0.0, theta)
    y[k] = change
    first, second = terms(_none(y) + 1.0, theta, norm, given)
    at_t, slope_t = outer(simd.largest(first), simd.largest(second), theta, norm)
    return at_t - at_y, slope_t - slope_y


@njit
def _slopes_of_distribution(job: Any, r: int, like: Any, theta: float) -> tuple[float, float]:
    """The same, times m."""
    mass = _survey(job, r, like)[0]
    if not mass > 0.0:
        return 0.0, 0.0
    at_t, slope_t = _omega_at(job, r, like, 0.0, 0.0, mass, theta)
    at_y, slope_y = _omega_at(job, r, like, 1.0, 0.0, mass, theta)
    return mass * (at_t - at_y), mass * (slope_t - slope_y)


def slopes(job: Any, like: Any) -> None:
    """The derivatives of each row in γ and θ."""
    values = memory.doubles(job[ARRAYS + 2 * VALUE])
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            theta, gamma = common.number_at(job, THETA, r), common.number_at(job, GAMMA, r)
            if job[DENSE] != 0:
                found = _slopes_of_distribution(job, r, like, theta)
            else:
                found = _slopes_of_vertex(job, r, like, theta)
            values[2 * r], values[2 * r + 1] = found[0], gamma * found[1]
        first, last = common.take(job)
