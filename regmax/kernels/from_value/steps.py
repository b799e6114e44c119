"""Newton steps and certificates of rows, for an Ω that PyTorch evaluates.

Each row asks for a point, is given ∇Ω and ∇²Ω there, and asks for another. A step maximises the
quadratic model of ⟨y, z⟩ − Ω(y) over Δ, and is shortened until the objective does not fall along
it. A row that may have converged asks for all points that its certificate needs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import common, memory
from ..cpu.jit import njit
from . import layout
from .bounds import certify, hessian_at, points_of
from .dense import factor, hessian, tangent_product
from .rows import EPS, FLOOR

NEAR = 1e-12
"""A step of this length is taken without another look, and counts in the bound."""


@njit
def _model(
    m: int, y: Any, r: Any, h: Any, noise: float, on: Any, x: Any, w: Any, s: Any, ones: Any,
    diagonal: Any, free: Any, a: Any, ld: int,
) -> bool:  # fmt: skip
    """x: the maximiser over Δ of ⟨r, x − y⟩ − ½ (x − y)ᵀH(x − y), by exchanging the entries that
    break its optimality condition: all of them, and one at a time where that does not help
    (Júdice & Pires 1994)."""
    for i in range(m):
        free[i] = 1 if y[i] > 0.0 else 0
        diagonal[i] = 0.0
    least, tries = m + 1, 3
    for _ in range(8 * m + 20):
        n, total = 0, 0.0
        for i in range(m):
            if free[i] != 0:
                on[n] = i
                n += 1
                total += y[i]
        if n == 0:
            return False
        for i in range(m):
            x[i] = 0.0 if free[i] == 0 else y[i] / total if total > 0.0 else 1.0 / n
        for i in range(m):
            w[i] = r[i]
            for k in range(m):
                w[i] -= h[i * ld + k] * (x[k] - y[k])
        for j in range(n):
            s[j] = w[on[j]]
        if n > 1:
            hessian(n, on, diagonal, h, ld, a)
            if not factor(a, n, ld):
                return False
            tangent_product(n, a, ld, s, ones)
        else:
            s[0] = 0.0
        tau = 0.0
        for j in range(n):
            x[on[j]] += s[j]
        for i in range(m):
            for j in range(n):
                w[i] -= h[i * ld + on[j]] * s[j]
        for j in range(n):
            tau += w[on[j]] / n
        wrong, last = 0, -1
        for i in range(m):
            if (x[i] < 0.0) if free[i] != 0 else (w[i] - tau > 4.0 * noise):
                wrong += 1
                last = i
        if wrong == 0:
            return True
        if wrong < least:
            least, tries = wrong, 3
        else:
            tries -= 1
        for i in range(m):
            if tries >= 0 or i == last:
                if free[i] != 0:
                    free[i] = 0 if x[i] < 0.0 else 1
                elif w[i] - tau > 4.0 * noise:
                    free[i] = 1
    return False


@njit
def _logarithmic(
    m: int, y: Any, r: Any, h: Any, on: Any, x: Any, w: Any, ones: Any, zeros: Any, a: Any, ld: int
) -> bool:  # fmt: skip
    """x ∝ y exp(J r / y): a Newton step in log y, where the slope of Ω is infinite at 0."""
    for i in range(m):
        on[i], zeros[i], w[i] = i, 0.0, r[i]
    hessian(m, on, zeros, h, ld, a)
    if not factor(a, m, ld):
        return False
    tangent_product(m, a, ld, w, ones)
    for i in range(m):
        x[i] = y[i] * math.exp(min(max(w[i] / y[i], -40.0), 3.0))
    return True


@njit
def _step(
    m: int, d: int, place: Any, z: Any, value: float, given: Any, form: Any, units: int,
    steep: bool, s: Any, c: Any, points: Any, room: Any, on: Any, free: Any, square: Any,
) -> None:  # fmt: skip
    y, r, x, w = memory.row(room, 1), memory.row(room, 2), memory.row(room, 3), memory.row(room, 4)
    v, ones, zeros = memory.row(room, 5), memory.row(room, 6), memory.row(room, 7)
    h, a = memory.row(square, 0), memory.row(square, 1)
    ld = room.shape[1]
    trial = memory.pointer(memory.address_of(s), layout.TRIAL * d, s)
    if not (hessian_at(m, d, place, trial, form, units, h, ld) and abs(value) < np.inf):
        c[layout.STATUS] = layout.LOST
        return
    tau, noise, lo, hi = 0.0, 0.0, np.inf, -np.inf
    for i in range(m):
        g = given[place[i]]
        y[i] = trial[place[i]]
        r[i] = z[i] - g
        if not abs(g) < np.inf:
            c[layout.STATUS] = layout.LOST
            return
        tau += y[i] * r[i]
        if y[i] > 0.0:
            hi = max(hi, r[i])
            if not steep or y[i] >= 2.0 * FLOOR:
                lo = min(lo, r[i])
            noise = max(noise, 8.0 * EPS * (abs(z[i]) + abs(g)) + EPS * abs(h[i * ld + i]) * y[i])
    steps = c[layout.STEP]
    c[layout.STEP] = steps + 1.0
    if steps > layout.STEPS:
        c[layout.STATUS] = layout.LOST
        return
    if steps > 0.0:
        end = 0.0
        for i in range(m):
            end += r[i] * s[layout.WAY * d + place[i]]
        start, t = c[layout.SLOPE], c[layout.PART]
        if not end >= -0.5 * abs(start) - 4.0 * noise:
            ratio = start / (start - end) if start > 0.0 else 0.1
            t *= min(max(ratio, 0.05), 0.9)
            for i in range(m):
                p = place[i]
                s[layout.TRIAL * d + p] = max(s[layout.Y * d + p] + t * s[layout.WAY * d + p], 0.0)
            c[layout.PART], c[layout.STATUS] = t, layout.GOING
            return
    else:
        c[layout.VALUE_START] = value
        for i in range(m):
            s[layout.START * d + place[i]] = given[place[i]]
    most = 0.0
    for i in range(m):
        if y[i] == 0.0:
            most = max(most, r[i] - tau)
    spread = hi - lo
    slow = steps > 6.0 and spread >= 0.5 * c[layout.SPREAD] and spread < 1e-10
    if c[layout.STATUS] == layout.READY and (spread <= 4.0 * noise or slow) and most <= 4.0 * noise:
        c[layout.STATUS] = layout.DONE
        return
    if steep:
        found = _logarithmic(m, y, r, h, on, x, w, ones, zeros, a, ld)
    else:
        found = _model(m, y, r, h, noise, on, x, w, v, ones, zeros, free, a, ld)
    if not found:
        c[layout.STATUS] = layout.LOST
        return
    start, length, total, same = 0.0, 0.0, 0.0, True
    for i in range(m):
        total += x[i]
        same = same and (x[i] > 0.0) == (y[i] > 0.0)
    for i in range(m):
        x[i] /= total
        change = x[i] - y[i]
        start += r[i] * change
        length += change * change / (y[i] * y[i] if steep else 1.0)
    length = math.sqrt(length)
    if c[layout.STATUS] == layout.READY and same and length <= NEAR:
        c[layout.STATUS], c[layout.MOVED] = layout.DONE, length
        for i in range(m):
            trial[place[i]] = x[i]
        return
    c[layout.SPREAD], c[layout.VALUE_BEFORE] = spread, value
    for i in range(m):
        p = place[i]
        s[layout.Y * d + p], s[layout.BEFORE * d + p] = y[i], given[p]
        s[layout.WAY * d + p], trial[p] = x[i] - y[i], x[i]
    before = c[layout.LENGTH] if c[layout.PART] == 1.0 and steps > 1.0 else np.inf
    # the error of a Newton step is about C times its squared length
    ahead = length * min((length / before) * (length / before), 1.0) if before < np.inf else length
    c[layout.SLOPE], c[layout.PART], c[layout.LENGTH] = start, 1.0, length
    c[layout.STATUS] = layout.READY if ahead <= 1e-13 or length <= 1e-8 or slow else layout.GOING
    if c[layout.STATUS] == layout.READY:
        points_of(m, d, place, z, x, y, r, h, s, points, v, w, ones, zeros, on, a, ld)


def forward(job: Any, like: Any) -> None:
    """The next point of each row, or its certificate."""
    d, final = job[common.WIDTH], common.whole_at(job, layout.FINAL)
    units, steep = common.whole_at(job, layout.UNITS), common.whole_at(job, layout.STEEP) != 0
    room, places = common.scratch(8, d), memory.empty(3, d + 1, np.int64)
    square = memory.empty(2, room.shape[1] * room.shape[1], np.float64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            c = common.rows_at(job, layout.NUMBERS, r, like)
            if c[layout.STATUS] != (layout.GOING if final == layout.STEPPED else layout.READY):
                continue
            place, z = memory.row(places, 0), memory.row(room, 0)
            s = common.rows_at(job, layout.STATE, r, like)
            m = _participants(job, r, d, place, z, s, like)
            value = common.rows_at(job, layout.VALUE, r, like)
            gradient = common.rows_at(job, layout.GRADIENT, r, like)
            form = common.rows_at(job, layout.HESSIAN, r, like)
            points = common.rows_at(job, layout.POINTS, r, like)
            on, free = memory.row(places, 1), memory.row(places, 2)
            if final == layout.ASKED:
                _asked(m, d, place, z, gradient, form, units, s, points, room, on, square)
                continue
            if final == layout.CERTIFIED:
                c[layout.STATUS] = layout.DONE
            else:
                _step(
                    m, d, place, z, value[0], gradient, form, units, steep, s, c, points, room,
                    on, free, square,
                )  # fmt: skip
            if c[layout.STATUS] == layout.DONE:
                c[layout.BOUND] = certify(
                    m, d, r % 2 == 0, place, z, value, gradient, form, units, steep, s, c, points,
                    room, on, square,
                )  # fmt: skip
        first, last = common.take(job)


@njit
def _asked(
    m: int, d: int, place: Any, z: Any, given: Any, form: Any, units: int, s: Any, points: Any,
    room: Any, on: Any, square: Any,
) -> None:  # fmt: skip
    """The points that the certificate of TRIAL needs, from Ω at Y."""
    y, r, x = memory.row(room, 1), memory.row(room, 2), memory.row(room, 3)
    w, v, ones, zeros = (
        memory.row(room, 4),
        memory.row(room, 5),
        memory.row(room, 6),
        memory.row(room, 7),
    )
    h, a, ld = memory.row(square, 0), memory.row(square, 1), room.shape[1]
    for i in range(m):
        p = place[i]
        y[i], x[i] = s[layout.Y * d + p], s[layout.TRIAL * d + p]
        r[i], zeros[i] = z[i] - given[p], 0.0
    at = memory.pointer(memory.address_of(s), layout.Y * d, s)
    hessian_at(m, d, place, at, form, units, h, ld)
    points_of(m, d, place, z, x, y, r, h, s, points, v, w, ones, zeros, on, a, ld)


@njit
def _participants(job: Any, r: int, d: int, place: Any, z: Any, s: Any, like: Any) -> int:
    row, on, m = common.rows_at(job, layout.Z, r, like), common.octets_at(job, layout.MASK, r), 0
    masked = common.given(job, layout.MASK)
    for i in range(d):
        if not masked or on[i] != 0:
            place[m], z[m] = i, row[i] - s[layout.TILT * d + i]
            m += 1
    return m
