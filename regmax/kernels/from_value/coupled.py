"""Rows of Π_Ω for Ω(y) = Σ_i e(y_i) + ½ yᵀHy + F(y), by Newton steps on the support.

A step is J r with r = z − ∇Ω(y) and J the matrix of Proposition 1 (Niculae & Blondel 2017) on the
entries that are positive or must become so. In each entry it follows the power model of
:mod:`.separable`, so that no entry is set to 0 too early. It is shortened until the objective
falls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, memory
from ..cpu.jit import njit
from ..cpu.simd import LANES
from . import rows
from .dense import Rest, bend_at, factor, hessian, inverse_trace, placed, tangent_product
from .powers import B0, ENDS, G0, S0, B, G, H, T, Y, Z, exponent
from .rows import EPS, FLOOR, Entry
from .separable import at_zero

GRADIENT, FORM, COLUMN, ROOM = 10, 12, 13, 14
"""More places in a job: the addresses of the source of ∇F, which a backward job has not, H with the
inputs of F, the address of the source of a column of ∇²F, and how much work space F needs."""
STEPS, CAREFUL = 60, 15
"""Steps of a row; after the second number one entry at a time enters or leaves the support, so that
no entry does both again and again."""
Q, R, W, X, ONES, D, FULL, OUT_F = range(ENDS + 1, ENDS + 9)
SIDES = 8
"""Points between y and another one where the slope of Ω is compared."""


@njit
def _moved(y: float, change: float, b: float, b0: float) -> float:
    """y after a step in the power model: y + change where b = 1, y exp(change/y) where b = 0."""
    u = change / y
    if u < 0.0:
        b = min(b, b0)
    if b == 1.0:
        return max(y + change, 0.0)
    if b == 0.0:
        return y * math.exp(min(max(u, -40.0 if y > FLOOR else -700.0), 3.0))
    if b * u <= -1.0:
        return y * 0.01 if b > 0.0 else 1.0
    return min(y * math.exp(min(math.log1p(b * u) / b, 40.0)), 1.0)


@njit
def _look(e: Entry, rest: Rest, m: int, y: Any, form: Any, bend: Any, room: Any, on: Any) -> int:
    """e', e'', Hy + ∇F and r = z − ∇Ω(y) at y; how many entries are positive, −1 where e bends the
    wrong way or ∇Ω is undefined."""
    z, g, h, b = memory.row(room, Z), memory.row(room, G), memory.row(room, H), memory.row(room, B)
    q, r, g0 = memory.row(room, Q), memory.row(room, R), memory.row(room, G0)
    s0, b0 = memory.row(room, S0), memory.row(room, B0)
    n = 0
    for i in range(m):
        q[i] = 0.0
        if y[i] > 0.0:
            on[n] = i
            n += 1
        else:
            g[i], h[i], b[i] = g0[i], 1.0 / (FLOOR * s0[i]), b0[i]
    rows.slopes(e, n, on, y)
    for j in range(n):
        i = on[j]
        if e.out[e.ld + j] < 0.0:
            return -1
        g[i], h[i] = e.out[j], rows.positive(e.out[e.ld + j])
        b[i] = exponent(max(y[i], FLOOR), h[i] + bend[i * e.ld + i], e.out[2 * e.ld + j])
        scale, at = y[i], i * e.ld
        for k in range(m):
            q[k] += form[at + k] * scale
    if rest.gradient != 0:
        placed(rest, m, y)
        rows.call(rest.gradient, 0, rest.full, rest.numbers, rest.work, 1, rest.out)
        for i in range(m):
            q[i] += rest.out[rest.place[i]]
    for i in range(m):
        r[i] = z[i] - g[i] - q[i]
        if r[i] != r[i]:
            return -1
    return n


@njit
def _convex(
    e: Entry, rest: Rest, m: int, y: Any, form: Any, bend: Any, room: Any, on: Any, x: Any
) -> bool:
    """Whether the slope of Ω never falls on the ways from y to the barycentre and to the vertices
    of the three largest scores."""
    z, r, way = memory.row(room, Z), memory.row(room, R), memory.row(room, D)
    last = np.inf
    for end in range(4):
        best = -1
        for i in range(m):
            if end > 0 and z[i] < last and (best < 0 or z[i] > z[best]):
                best = i
        if end > 0:
            if best < 0:
                return True
            last = z[best]
        for i in range(m):
            way[i] = (1.0 / m if end == 0 else 1.0 if i == best else 0.0) - y[i]
        before = 0.0
        for k in range(SIDES):
            for i in range(m):
                x[i] = max(y[i] + way[i] * (k / SIDES), 0.0)
            if _look(e, rest, m, x, form, bend, room, on) <= 0:
                return False
            slope, size = 0.0, 1.0
            for i in range(m):
                if way[i] != 0.0:
                    slope += r[i] * way[i]
                    size += abs((z[i] - r[i]) * way[i]) + abs(z[i] * way[i])
            if not slope <= before + 1e3 * EPS * size:
                return False
            before = slope
    return True


@njit
def _coupled_row(
    e: Entry,
    rest: Rest,
    kinked: bool,
    m: int,
    form: Any,
    bend: Any,
    room: Any,
    place: Any,
    on: Any,
    a: Any,
) -> float:
    """y in its row of ``room``, and a bound on the distance to the maximiser, +inf where there is
    none."""
    z, y, g, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, G), memory.row(room, H)
    b, q, r, g0 = (
        memory.row(room, B),
        memory.row(room, Q),
        memory.row(room, R),
        memory.row(room, G0),
    )
    s0, b0, ones = memory.row(room, S0), memory.row(room, B0), memory.row(room, ONES)
    goal, w, x, d = (
        memory.row(room, T),
        memory.row(room, W),
        memory.row(room, X),
        memory.row(room, D),
    )
    ld = e.ld
    if at_zero(e, True, m, room, place) < m:
        return np.inf
    steep = True
    for i in range(m):
        steep = steep and b0[i] <= 0.0
        y[i], bent = 1.0 / m, 1.0 / (FLOOR * s0[i])
        # the power of all of ∂²Ω/∂y_i²
        b0[i] = exponent(1.0, 1.0, (b0[i] - 1.0) * bent / (bent + max(form[i * ld + i], 0.0)))
        # the slope of F at 0 is not told from a large one
        steep = steep and (rest.gradient == 0 or g0[i] == -np.inf)
    n = _look(e, rest, m, y, form, bend, room, on)
    before, alone = np.inf, False
    for step in range(STEPS):
        if n <= 0:
            return np.inf
        tau, lo, hi, noise = 0.0, np.inf, -np.inf, 0.0
        for j in range(n):
            tau += y[on[j]] * r[on[j]]
        for j in range(n):
            i = on[j]
            hi = max(hi, r[i])
            if y[i] < 2.0 * FLOOR:
                continue
            lo = min(lo, r[i])
            noise = max(noise, 8.0 * EPS * (abs(z[i]) + abs(g[i]) + abs(q[i])) + EPS * h[i] * y[i])
        if not (abs(lo) < np.inf and abs(hi) < np.inf):
            return np.inf
        most = 0.0
        for i in range(m):
            if y[i] == 0.0:
                most = max(most, r[i] - tau)
        spread = hi - lo
        settled = spread <= 4.0 * noise or (step > 6 and spread >= 0.5 * before and spread < 1e-10)
        if settled and most <= 4.0 * noise:
            break
        before = spread
        alone = alone or step > CAREFUL
        entering = most > 4.0 * noise and (settled or (most > 0.1 * spread and not alone))
        if entering:
            least = most if alone else 0.5 * most
            for i in range(m):
                if y[i] == 0.0 and r[i] - tau >= least:
                    if b0[i] < 0.8:  # infinite curvature at 0: start where the model is
                        u = (r[i] - tau) * s0[i]
                        y[i] = min(_moved(FLOOR, u * FLOOR, b0[i], b0[i]), 0.1 / m)
                        h[i] = (r[i] - tau) / max(y[i], FLOOR)
                    on[n] = i
                    n += 1
        bend_at(rest, n, on, m, y, form, bend, ld)
        hessian(n, on, h, bend, ld, a)
        if not factor(a, n, ld):
            return np.inf
        for j in range(n):
            w[j] = r[on[j]]
        tangent_product(n, a, ld, w, ones)
        for i in range(m):
            x[i] = 0.0
        total = 0.0
        for j in range(n):
            i = on[j]
            x[i] = _moved(max(y[i], FLOOR), w[j], b[i], b0[i]) if y[i] > 0.0 else max(w[j], 0.0)
            if not steep and x[i] < 0.1 * y[i] and z[i] - g0[i] - q[i] < tau:
                x[i] = 0.0
            total += x[i]
        if not (total > 0.0 and total < np.inf):
            return np.inf
        # the objective along d, by its slopes: r·d at both ends
        start, total_y = 0.0, 0.0
        for i in range(m):
            total_y += y[i]
        for i in range(m):
            y[i] /= total_y
            goal[i] = x[i] / total
            d[i] = goal[i] - y[i]
            start += r[i] * d[i]
        # setting entries to 0 may lead astray: up to the first that is 0
        if start < -4.0 * noise or (step > CAREFUL and not steep):
            t, start = 1.0, 0.0
            for j in range(n):
                if w[j] < 0.0:
                    t = min(t, y[on[j]] / -w[j])
            if t == 0.0 and alone:
                return np.inf
            alone = t == 0.0
            for i in range(m):
                goal[i], d[i] = y[i], 0.0
            for j in range(n):
                i = on[j]
                end = max(y[i] + t * w[j], 0.0)
                if end <= 1e-15 * y[i]:
                    end = 1e-3 * y[i] if steep else 0.0
                goal[i] = end
                d[i] = goal[i] - y[i]
                start += r[i] * d[i]
        t = 1.0
        for _ in range(30):
            for i in range(m):
                x[i] = goal[i] if t == 1.0 else max(y[i] + t * d[i], 0.0)
            n = _look(e, rest, m, x, form, bend, room, on)
            if n <= 0:
                return np.inf
            end = 0.0
            for i in range(m):
                end += r[i] * d[i]
            if not (end >= -0.5 * abs(start) - 4.0 * noise):
                ratio = start / (start - end) if start > 0.0 else 0.1
                t *= min(max(ratio, 0.05), 0.9)
            else:
                break
        for i in range(m):
            y[i] = x[i]
    if step == STEPS - 1:
        return np.inf
    total = 0.0
    for i in range(m):
        total += y[i]
    # all that may be positive within rounding
    n, missed = 0, 0.0
    for i in range(m):
        if y[i] > 0.0 or r[i] - tau > -8.0 * noise:
            on[n] = i
            n += 1
            inside = y[i] >= 2.0 * FLOOR or y[i] == 0.0
            off = max(abs(r[i] - tau) if inside else r[i] - tau, noise)
            missed += off * off
    if n == 1:
        if rest.gradient != 0 and not _convex(e, rest, m, y, form, bend, room, on, x):
            return np.inf
        return abs(total - 1.0) + 4.0 * EPS
    bend_at(rest, n, on, m, y, form, bend, ld)
    hessian(n, on, h, bend, ld, a)
    if not factor(a, n, ld):
        return np.inf
    trace = inverse_trace(a, n, ld, goal)
    bound = 2.0 * math.sqrt(missed) * trace + abs(total - 1.0)
    if not bound < (1e-3 if rest.gradient == 0 else 1e-9):
        return np.inf
    if not kinked and rest.gradient == 0 and bound < 1e-9:
        return bound
    if rest.gradient != 0:
        for side in range(2):  # ∇²Ω next to y
            for i in range(m):
                x[i] = y[i] + (bound if (i + side) % 2 == 0 else -bound) if y[i] > 0.0 else 0.0
            bend_at(rest, n, on, m, x, form, bend, ld)
            hessian(n, on, h, bend, ld, a)
            if not (factor(a, n, ld) and inverse_trace(a, n, ld, goal) <= 2.0 * trace):
                return np.inf
    for side in range(2):
        for i in range(m):
            x[i] = min(max(y[i] + (1 - 2 * side) * bound, FLOOR), 1.0) if y[i] > 0.0 else 0.0
        k = 0
        for i in range(m):
            if x[i] > 0.0:
                on[k] = i
                k += 1
        rows.slopes(e, k, on, x)
        for j in range(k):
            if not e.out[ld + j] >= 0.5 * h[on[j]]:
                return np.inf
    if rest.gradient != 0 and not _convex(e, rest, m, y, form, bend, room, on, x):
        return np.inf
    return 2.0 * bound


@njit
def _form(job: Any, k: int, n: int, place: Any, ld: int, out: Any) -> None:
    """H on the entries ``place``."""
    d = job[common.WIDTH]
    given = common.rows_at(job, k, 0, memory.doubles(d))
    for i in range(n):
        for j in range(n):
            out[i * ld + j] = given[place[i] * d + place[j]]


def forward(job: Any, like: Any) -> None:
    """y = Π_Ω(x) and the bound of each row."""
    d, count = job[common.WIDTH], job[5 + 2 * rows.COUNT]
    kinked = job[5 + 2 * rows.KINKED] != 0
    room = common.scratch(OUT_F + 1, d)
    ld = room.shape[1]
    wide = memory.empty(4, max(count, 3) * ld, np.float64)
    places = memory.empty(2, ld, np.int64)
    square = memory.empty(3, ld * ld, np.float64)
    work = memory.empty(1, job[5 + 2 * ROOM], np.float64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            place, on = memory.row(places, 0), memory.row(places, 1)
            form, a, bend = memory.row(square, 0), memory.row(square, 1), memory.row(square, 0)
            e = rows.entry(job, r, job[5 + 2 * rows.CODE], count, rows.NUMBERS, ld, wide)
            m = rows.taken(job, r, d, place, memory.row(room, Z), like)
            rows.vectors_of(job, rows.VECTORS, r, count, ld, place, m, e.vectors)
            _form(job, FORM, m, place, ld, form)
            rest = _rest(job, place, memory.row(room, FULL), memory.row(room, OUT_F), work)
            if rest.gradient != 0:
                bend = memory.row(square, 2)
                for i in range(m * ld):
                    bend[i] = form[i]
            bound = _coupled_row(e, rest, kinked, m, form, bend, room, place, on, a)
            rows.spread(job, r, m, place, memory.row(room, Y), bound, like)
            rows.summed(job, r, e, FORM, like)
        first, last = common.take(job)


@njit
def _rest(job: Any, place: Any, full: Any, out: Any, work: Any) -> Rest:
    """F; its inputs follow the d² numbers of H."""
    d = job[common.WIDTH]
    numbers = memory.doubles(job[5 + 2 * FORM] + 8 * d * d)
    gradient = job[5 + 2 * GRADIENT]  # of a backward job: not used
    return Rest(gradient, job[5 + 2 * COLUMN], numbers, place, d, full, out, memory.row(work, 0))


def backward(job: Any, like: Any) -> None:
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e."""
    count, ld = job[5 + 2 * rows.VARYING], job[common.WIDTH] + 2 * LANES
    room, places = memory.empty(6, ld, np.float64), memory.empty(2, ld, np.int64)
    wide = memory.empty(4, max(3, count + job[5 + 2 * rows.PLAIN]) * ld, np.float64)
    square = memory.empty(2, ld * ld, np.float64)
    work = memory.empty(1, job[5 + 2 * ROOM], np.float64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            place, on = memory.row(places, 0), memory.row(places, 1)
            w, h, ones = memory.row(room, 0), memory.row(room, 1), memory.row(room, 2)
            form, a = memory.row(square, 0), memory.row(square, 1)
            e = rows.entry(job, r, job[5 + 2 * rows.SLOPES], count, 3, ld, wide)
            n = rows.support(job, r, e, place, w, h, like)
            _form(job, FORM, n, place, ld, form)
            rest = _rest(job, place, memory.row(room, 3), memory.row(room, 4), work)
            y, own = common.rows_at(job, 0, r, like), memory.row(room, 5)
            for j in range(n):
                on[j], own[j] = j, y[place[j]]
            bend_at(rest, n, on, n, own, form, form, ld)
            hessian(n, on, h, form, ld, a)
            if n == 1:
                w[0] = 0.0
            elif factor(a, n, ld):
                tangent_product(n, a, ld, w, ones)
            else:
                for j in range(n):
                    w[j] = np.nan
            rows.finish(job, r, n, w, place, e, like)
        first, last = common.take(job)
