"""A quadratic model of Ω with its kinks, maximised over Δ by the method of multipliers.

The same as :func:`regmax.solvers.kinks.model.reference`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, memory
from ..cpu.jit import njit
from .dense import factor, solved
from .rows import EPS

SLOPE, HESSIAN, NORMALS, U, WEIGHT, RHO, MASK, LOW, HIGH, CAP, ENDS, COUNT = range(12)
"""Places in a job: r and ∇²_y L of each row; ∂u/∂y, u, W and ρ of its maxima; the participants.
Then, the same for all rows: M of each multiplier, where the multipliers of one M end, and how many
multipliers there are."""
M, S, AT, GOOD = range(12, 16)
"""The multipliers, before and after; s; u + Cs; and 1 where they are found."""
INNER, FACTOR, HARD, HARDEST = 200, 10.0, 1e3, 1e8


@njit
def _capped(begin: int, end: int, k: float, v: Any, m: Any, state: Any) -> None:
    """The projection onto {0 ≤ m ≤ 1, Σm = k}: clip(v − τ, 0, 1), τ by Newton steps between
    bounds."""
    low, high = np.inf, -np.inf
    for i in range(begin, end):
        low, high = min(low, v[i] - 1.0), max(high, v[i])
    tau = 0.5 * (low + high)
    for turn in range(200):
        total, free, inside = 0.0, 0, 0.0
        for i in range(begin, end):
            over = v[i] - tau
            if over >= 1.0:
                total += 1.0
            elif over > 0.0:
                inside += v[i]
                free += 1
        excess = total + inside - free * tau - k
        if excess == 0.0:
            break
        if excess > 0.0:
            low = tau
        else:
            high = tau
        ahead = tau + excess / free if free > 0 else low
        if not low < ahead < high or turn >= 100:
            ahead = 0.5 * (low + high)
        change, tau = abs(ahead - tau), ahead
        if change <= 2.0 * EPS * (abs(tau) + 1.0):
            break
    for i in range(begin, end):
        over = v[i] - tau
        m[i] = min(max(over, 0.0), 1.0)
        state[i] = 0 if over <= 0.0 else 2 if over >= 1.0 else 1


@njit
def _project(
    n: int, v: Any, low: Any, high: Any, cap: Any, ends: Any, m: Any, state: Any
) -> None:  # fmt: skip
    """m = P_M(v); which entries it holds, at 0 or 2, and which are free, at 1."""
    begin = 0
    while begin < n:  # ends: ends[begin] > begin, as the host wrote it
        end = ends[begin]
        if cap[begin] > 0.0:
            _capped(begin, end, cap[begin], v, m, state)
        else:
            for i in range(begin, end):
                m[i] = min(max(v[i], low[i]), high[i])
                state[i] = 0 if v[i] <= low[i] else 2 if v[i] >= high[i] else 1
        begin = end


@njit
def _look(
    n: int, d: int, s: Any, h: Any, r: Any, u: Any, c: Any, w: Any, rho: Any, hard: float, low: Any,
    high: Any, cap: Any, ends: Any, centre: Any, at: Any, v: Any, m: Any, state: Any, g: Any,
) -> None:  # fmt: skip
    """u + Cs, the multipliers and the gradient of the augmented model at s."""
    for j in range(n):
        at[j] = u[j]
        for i in range(d):
            at[j] += c[j * d + i] * s[i]
        v[j] = centre[j] + rho[j] * hard * at[j]
    _project(n, v, low, high, cap, ends, m, state)
    for i in range(d):
        g[i] = -r[i]
        for k in range(d):
            g[i] += h[i * d + k] * s[k]
    for j in range(n):
        if w[j] != 0.0 and m[j] != 0.0:
            for i in range(d):
                g[i] += c[j * d + i] * (w[j] * m[j])


@njit
def _missing(
    n: int, u: Any, w: Any, low: Any, high: Any, cap: Any, ends: Any, m: Any, state: Any
) -> float:  # fmt: skip
    """The largest W (max ⟨·, u⟩ − ⟨m, u⟩) of an entry."""
    begin, most = 0, 0.0
    while begin < n:  # ends: ends[begin] > begin, as the host wrote it
        end, level = ends[begin], 0.0
        if cap[begin] > 0.0:  # between the entries with m = 1 and those with m = 0
            count, total, least, top = 0, 0.0, np.inf, -np.inf
            for j in range(begin, end):
                if state[j] == 1:
                    count += 1
                    total += u[j]
                elif state[j] == 2:
                    least = min(least, u[j])
                else:
                    top = max(top, u[j])
            level = total / count if count > 0 else 0.5 * (least + top)
        for j in range(begin, end):
            over = u[j] - level
            if over > 0.0 and m[j] < high[j]:
                most = max(most, w[j] * over * min(high[j] - m[j], 1.0))
            elif over < 0.0 and m[j] > low[j]:
                most = max(most, w[j] * -over * min(m[j] - low[j], 1.0))
        begin = end
    return most


@njit
def _bend(
    n: int, d: int, h: Any, c: Any, w: Any, rho: Any, hard: float, cap: Any, ends: Any, state: Any,
    mean: Any, a: Any, ld: int,
) -> None:  # fmt: skip
    """The lower triangle of H + CᵀWρP'C."""
    for i in range(d):
        for k in range(i + 1):
            a[i * ld + k] = h[i * d + k]
    begin = 0
    while begin < n:  # ends: ends[begin] > begin, as the host wrote it
        end, count = ends[begin], 0
        for i in range(d):
            mean[i] = 0.0
        if cap[begin] > 0.0:
            for j in range(begin, end):
                if state[j] == 1:
                    count += 1
                    for i in range(d):
                        mean[i] += c[j * d + i]
            for i in range(d):
                mean[i] /= max(count, 1)
        for j in range(begin, end):
            weight = w[j] * rho[j] * hard
            if state[j] == 1 and weight != 0.0:
                for i in range(d):
                    own = weight * (c[j * d + i] - mean[i])
                    if own != 0.0:
                        for k in range(i + 1):
                            a[i * ld + k] += own * (c[j * d + k] - mean[k])
        begin = end


@njit
def _step(
    d: int, on: Any, a: Any, ld: int, g: Any, scale: Any, ones: Any, step: Any, place: Any
) -> bool:  # fmt: skip
    """−a⁻¹g along Δ on the participants; False where a is not positive definite."""
    n, total = 0, 0.0
    for i in range(d):
        if on[i] != 0:
            if not a[i * ld + i] > 0.0:
                return False
            place[n] = i
            scale[n] = 1.0 / math.sqrt(a[i * ld + i])
            total += scale[n] * scale[n]
            n += 1
    total = math.sqrt(total)
    for p in range(n):
        i = place[p]
        ones[p], step[p] = scale[p] / total, -g[i] * scale[p]
        for q in range(p + 1):  # in place: p ≤ i and q ≤ k
            a[p * ld + q] = a[i * ld + place[q]] * scale[p] * scale[q] + ones[p] * ones[q]
    if not factor(a, n, ld):
        return False
    solved(a, n, ld, step)
    for p in range(n):
        g[p] = scale[p] / total
    solved(a, n, ld, g)
    one, other = 0.0, 0.0
    for p in range(n):
        one += ones[p] * step[p]
        other += ones[p] * g[p]
    for p in range(n):
        step[p] = (step[p] - g[p] * (one / other)) * scale[p]
    p = n
    for k in range(d):
        i = d - 1 - k
        if on[i] != 0:
            p -= 1
            step[i] = step[p]
        else:
            step[i] = 0.0
    return True


@njit
def _maximised(
    n: int, d: int, on: Any, h: Any, r: Any, u: Any, c: Any, w: Any, rho: Any, low: Any, high: Any,
    cap: Any, ends: Any, centre: Any, s: Any, at: Any, v: Any, m: Any, other: Any, g: Any,
    ahead: Any, step: Any, trial: Any, scale: Any, ones: Any, state: Any, new: Any, place: Any,
    a: Any, ld: int,
) -> bool:  # fmt: skip
    """Semismooth Newton steps with line search, and steps of the method of multipliers between."""
    for i in range(d):
        s[i] = 0.0
    hard, left, former = FACTOR, np.inf, np.inf
    _look(n, d, s, h, r, u, c, w, rho, hard, low, high, cap, ends, centre, at, v, m, state, g)
    for _ in range(INNER):
        _bend(n, d, h, c, w, rho, hard, cap, ends, state, ahead, a, ld)
        for i in range(d):
            ahead[i] = g[i]
        if not _step(d, on, a, ld, ahead, scale, ones, step, place):
            return False
        start, length = 0.0, 0.0
        for i in range(d):
            start += g[i] * step[i]
            length += step[i] * step[i]
        length = math.sqrt(length)
        if not length < np.inf:
            return False
        t, before, after, low_end, high_end = 1.0, 0.0, np.inf, start, 0.0
        for _ in range(30):
            for i in range(d):
                trial[i] = s[i] + t * step[i]
            _look(
                n, d, trial, h, r, u, c, w, rho, hard, low, high, cap, ends, centre, at, v, other,
                new, ahead,
            )  # fmt: skip
            end = 0.0
            for i in range(d):
                end += ahead[i] * step[i]
            if length <= 1e-8 or start >= -1e-15:  # rounding
                break
            if abs(end) <= -0.1 * start or (t == 1.0 and end <= 0.0):
                break
            if end > 0.0:
                after, high_end = t, end
            else:
                before, low_end = t, end
            t = before + (after - before) * min(max(low_end / (low_end - high_end), 0.02), 0.98)
        same = t == 1.0
        for j in range(n):
            same = same and (state[j] == new[j] or w[j] == 0.0)
        last, left = left, length
        off = _missing(n, at, w, low, high, cap, ends, other, new)
        small = left <= 1e-14 or (left <= 1e-11 and left > last / 2)
        change = 0.0  # of the slope, which is far where Ω is stiff
        for i in range(d):
            change = max(change, abs(h[i * d + i] * step[i]))
        over = hard >= HARD and small and ((off <= 1e-14 and change <= 1e-9) or hard >= HARDEST)
        for i in range(d):
            s[i] = trial[i]
        if over:
            for j in range(n):
                centre[j] = other[j]
            return True
        if same or length <= 1e-11:  # states of no weight may change
            for j in range(n):
                centre[j] = other[j]
            slow = hard >= HARD and off > former / FACTOR
            hard, former = min(hard * FACTOR, HARDEST if slow else max(hard, HARD)), off
        _look(n, d, s, h, r, u, c, w, rho, hard, low, high, cap, ends, centre, at, v, m, state, g)
    return False


def forward(job: Any, like: Any) -> None:
    d, n = job[common.WIDTH], common.whole_at(job, COUNT)
    room, long = memory.empty(8, d, np.float64), memory.empty(4, n, np.float64)
    places = memory.empty(3, max(n, d), np.int64)
    ld = d + (-d) % 8
    square = memory.empty(1, ld * d, np.float64)
    low, high = common.rows_at(job, LOW, 0, like), common.rows_at(job, HIGH, 0, like)
    cap, ends = common.rows_at(job, CAP, 0, like), common.ints_at(job, ENDS, 0)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for row in range(first, last):
            good = _maximised(
                n, d, common.octets_at(job, MASK, row), common.rows_at(job, HESSIAN, row, like),
                common.rows_at(job, SLOPE, row, like), common.rows_at(job, U, row, like),
                common.rows_at(job, NORMALS, row, like), common.rows_at(job, WEIGHT, row, like),
                common.rows_at(job, RHO, row, like), low, high, cap, ends,
                common.rows_at(job, M, row, like), common.rows_at(job, S, row, like),
                common.rows_at(job, AT, row, like), memory.row(long, 0), memory.row(long, 1),
                memory.row(long, 2), memory.row(room, 0), memory.row(room, 1), memory.row(room, 2),
                memory.row(room, 3), memory.row(room, 4), memory.row(room, 5),
                memory.row(places, 0), memory.row(places, 1), memory.row(places, 2),
                memory.row(square, 0), ld,
            )  # fmt: skip
            common.set_number(job, GOOD, row, 1.0 if good else 0.0)
        first, last = common.take(job)
