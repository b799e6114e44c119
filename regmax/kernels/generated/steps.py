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
from .dense import factor, hessian, inverse_trace, tangent_product
from .rows import EPS, FLOOR

Z, MASK, VALUE, GRADIENT, HESSIAN, STATE, NUMBERS, POINTS, UNITS, STEEP, FINAL = range(11)
"""Places in a job. Its arrays are z, the mask, Ω, ∇Ω and ∇²Ω at the last point, vectors and numbers
of each row that stay from step to step, and the points that a certificate needs. In a job that
certifies, Ω and ∇Ω are of all these points, and ∇²Ω is at y and half-way to the barycentre."""
Y, TRIAL, WAY, BEFORE, START = range(5)
"""Vectors of a row: y; where Ω is evaluated next; the direction; ∇Ω at y and at the barycentre."""
STATUS, SLOPE, PART, LENGTH, SPREAD, STEP, VALUE_BEFORE, VALUE_START, BOUND, GAP, LOW = range(11)
GOING, READY, LOST, DONE = 0.0, 1.0, 2.0, 3.0
SIDES, ENDS, WAYS = 8, 4, 6
LAST, SECANTS = 1, 2 + ENDS * SIDES
HALF = SECANTS + WAYS
COUNT = HALF + 1
"""The points of a certificate: y, the point before it, those on the ways from y to the barycentre
and to the vertices of the three largest scores, those next to y, one half-way to the barycentre."""
REACH = 1e-7
STEPS = 40


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
def _hessian(
    m: int, d: int, place: Any, y: Any, given: Any, units: int, h: Any, ld: int
) -> bool:  # fmt: skip
    """∇²Ω(y) of the participants; False where it is not finite. Of a separable Ω, ∇²Ω(y) 1 and
    ∇²Ω(y) v are given, and v tests whether it is diagonal: only where y is not 0."""
    for i in range(m):
        p = place[i]
        for k in range(m):
            q = place[k]
            if units == d:
                h[i * ld + k] = 0.5 * (given[p * d + q] + given[q * d + p])
            else:
                h[i * ld + k] = given[p] if i == k else 0.0
            if not abs(h[i * ld + k]) < np.inf:
                return False
        if units != d and y[p] > EPS:
            expected = given[p] * (math.sin(12.9898 * p) + 2.0)
            if not abs(given[d + p] - expected) <= 4e-10 * abs(expected):
                return False
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
    trial = memory.pointer(memory.address_of(s), TRIAL * d, s)
    if not (_hessian(m, d, place, trial, form, units, h, ld) and abs(value) < np.inf):
        c[STATUS] = LOST
        return
    tau, noise, lo, hi = 0.0, 0.0, np.inf, -np.inf
    for i in range(m):
        g = given[place[i]]
        y[i] = trial[place[i]]
        r[i] = z[i] - g
        if not abs(g) < np.inf:
            c[STATUS] = LOST
            return
        tau += y[i] * r[i]
        if y[i] > 0.0:
            hi = max(hi, r[i])
            if not steep or y[i] >= 2.0 * FLOOR:
                lo = min(lo, r[i])
            noise = max(noise, 8.0 * EPS * (abs(z[i]) + abs(g)) + EPS * abs(h[i * ld + i]) * y[i])
    steps = c[STEP]
    c[STEP] = steps + 1.0
    if steps > STEPS:
        c[STATUS] = LOST
        return
    if steps > 0.0:
        end = 0.0
        for i in range(m):
            end += r[i] * s[WAY * d + place[i]]
        start, t = c[SLOPE], c[PART]
        if not end >= -0.5 * abs(start) - 4.0 * noise:
            ratio = start / (start - end) if start > 0.0 else 0.1
            t *= min(max(ratio, 0.05), 0.9)
            for i in range(m):
                p = place[i]
                s[TRIAL * d + p] = max(s[Y * d + p] + t * s[WAY * d + p], 0.0)
            c[PART], c[STATUS] = t, GOING
            return
    else:
        c[VALUE_START] = value
        for i in range(m):
            s[START * d + place[i]] = given[place[i]]
    most = 0.0
    for i in range(m):
        if y[i] == 0.0:
            most = max(most, r[i] - tau)
    spread = hi - lo
    slow = steps > 6.0 and spread >= 0.5 * c[SPREAD] and spread < 1e-10
    if c[STATUS] == READY and (spread <= 4.0 * noise or slow) and most <= 4.0 * noise:
        c[STATUS] = DONE
        return
    c[SPREAD], c[VALUE_BEFORE] = spread, value
    for i in range(m):
        s[Y * d + place[i]], s[BEFORE * d + place[i]] = y[i], given[place[i]]
    if steep:
        found = _logarithmic(m, y, r, h, on, x, w, ones, zeros, a, ld)
    else:
        found = _model(m, y, r, h, noise, on, x, w, v, ones, zeros, free, a, ld)
    if not found:
        c[STATUS] = LOST
        return
    start, length, total = 0.0, 0.0, 0.0
    for i in range(m):
        total += x[i]
    for i in range(m):
        x[i] /= total
        change = x[i] - y[i]
        start += r[i] * change
        length += change * change / (y[i] * y[i] if steep else 1.0)
        s[WAY * d + place[i]], s[TRIAL * d + place[i]] = change, x[i]
    length = math.sqrt(length)
    before = c[LENGTH] if c[PART] == 1.0 and steps > 1.0 else np.inf
    # the error of a Newton step is about C times its squared length
    ahead = length * min((length / before) * (length / before), 1.0) if before < np.inf else length
    c[SLOPE], c[PART], c[LENGTH] = start, 1.0, length
    c[STATUS] = READY if ahead <= 1e-13 or length <= 1e-8 or slow else GOING
    if c[STATUS] == READY:
        _points(m, d, place, z, x, y, r, h, s, points, v, w, ones, zeros, on, a, ld)


@njit
def _points(
    m: int, d: int, place: Any, z: Any, x: Any, y: Any, r: Any, h: Any, s: Any, points: Any, v: Any,
    w: Any, ones: Any, zeros: Any, on: Any, a: Any, ld: int,
) -> None:  # fmt: skip
    """The points that the certificate of x needs."""
    for i in range(COUNT * d):
        points[i] = 0.0
    n, top, tau = 0, -1, 0.0
    for i in range(m):
        tau += x[i] * r[i]
        if x[i] > 0.0:
            on[n] = i
            n += 1
    for i in range(m):
        p = place[i]
        points[p], points[LAST * d + p] = x[i], y[i]
        points[HALF * d + p] = (x[i] + (1.0 / n if x[i] > 0.0 else 0.0)) / 2
        if top < 0 or r[i] > r[top]:
            top = i
    last = np.inf
    for end in range(ENDS):
        best = -1
        for i in range(m):
            if end > 0 and z[i] < last and (best < 0 or z[i] > z[best]):
                best = i
        if end > 0 and best >= 0:
            last = z[best]
        for k in range(SIDES):
            t, at = (k + 1.0) / SIDES, (2 + end * SIDES + k) * d
            for i in range(m):
                goal = 1.0 / m if end == 0 or best < 0 else 1.0 if i == best else 0.0
                points[at + place[i]] = goal if k == SIDES - 1 else x[i] + t * (goal - x[i])
    for j in range(n):
        v[j], w[j] = r[on[j]] - tau, 1.0 + 0.6 * math.sin(2.399963 * (on[j] + 1))
    good = n > 1
    if good:
        hessian(n, on, zeros, h, ld, a)
        good = factor(a, n, ld)
    if good:
        tangent_product(n, a, ld, v, ones)
        for _ in range(4):
            size = 0.0
            for j in range(n):
                size += w[j] * w[j]
            for j in range(n):
                w[j] /= math.sqrt(size)
            tangent_product(n, a, ld, w, ones)
    for way in range(WAYS):
        size, at = 0.0, (SECANTS + way) * d
        sign = 1.0 if way % 2 == 0 else -1.0
        for i in range(m):
            points[at + place[i]] = 0.0
            if way == 4:
                points[at + place[i]] = (1.0 if i == top else 0.0) - x[i]
            elif way == 5:
                points[at + place[i]] = 1.0 / m - x[i]
        if way < 4 and good:
            for j in range(n):
                points[at + place[on[j]]] = sign * (v[j] if way < 2 else w[j])
        for i in range(m):
            size += points[at + place[i]] * points[at + place[i]]
        scale, total = REACH / math.sqrt(size) if size > 0.0 else 0.0, 0.0
        for i in range(m):
            p = place[i]
            points[at + p] = max(x[i] + scale * points[at + p], 0.0)
            total += points[at + p]
        for i in range(m):
            points[at + place[i]] /= total


@njit
def _bound(
    m: int, y: Any, rho: Any, rounding: Any, gap: float, beta: float
) -> float:  # fmt: skip
    """See :func:`regmax.optimality.certificates.certify`."""
    a, b, more = 0.0, 0.0, 0.0
    for i in range(m):
        more += y[i] * rounding[i]
        if rho[i] <= 0.0 and (y[i] <= EPS or -rho[i] > 2.0 * beta * y[i]):
            if -rho[i] < rounding[i]:
                a += rounding[i] * rounding[i]
            b += (rounding[i] - rho[i]) * y[i]
        else:
            a += (abs(rho[i]) + rounding[i]) * (abs(rho[i]) + rounding[i])
    distance = (math.sqrt(a) + math.sqrt(a + 4.0 * beta * b)) / (2.0 * beta)
    return min(distance, math.sqrt(2.0 * (gap + more) / beta))


@njit
def _differs(a: float, b: float) -> bool:
    return not abs(a - b) <= 1e-9 * (1.0 + abs(a) + abs(b))


@njit
def _convex(m: int, d: int, place: Any, z: Any, y: Any, v: Any, g: Any, points: Any, gap: float) -> bool:  # fmt: skip
    """Whether Ω lies above its tangents on the ways, and no point is better than y by more than the
    gap: see :func:`regmax.optimality.diagnosis.refuted`."""
    for end in range(ENDS):
        goal = (2 + end * SIDES + SIDES - 1) * d
        f, slope, size, f0 = 0.0, 0.0, 0.0, 0.0
        for k in range(SIDES + 1):
            at = 0 if k == 0 else 1 + end * SIDES + k
            own, new, more = v[at], 0.0, 1.0 + abs(v[at])
            for i in range(m):
                p = place[i]
                way = points[goal + p] - y[i]
                own -= points[at * d + p] * z[i]
                more += abs(points[at * d + p] * z[i])
                if way != 0.0:
                    term = (g[at * d + p] - z[i]) * way
                    new += term
                    more += abs(term)
            more += abs(own)
            if k == 0:
                f0 = own
            else:
                slack = 1e3 * EPS * (size + more)
                if (
                    f0 - gap - own > slack
                    or f + slope / SIDES - own > slack
                    or own - f - new / SIDES > slack
                ):
                    return False
            f, slope, size = own, new, more
    return True


@njit
def _certify(
    m: int, d: int, place: Any, z: Any, v: Any, g: Any, form: Any, units: int, steep: bool, s: Any,
    c: Any, points: Any, room: Any, on: Any, square: Any,
) -> float:  # fmt: skip
    """A bound on the distance of y to the maximiser, +inf where there is none."""
    y, rho, noise, own = (
        memory.row(room, 1),
        memory.row(room, 2),
        memory.row(room, 3),
        memory.row(room, 4),
    )
    zeros, h, a = memory.row(room, 7), memory.row(square, 0), memory.row(square, 1)
    ld = room.shape[1]
    # Ω must be what it was among other rows
    start = 1 + SIDES
    if _differs(v[LAST], c[VALUE_BEFORE]) or _differs(v[start], c[VALUE_START]):
        return np.inf
    for i in range(m):
        p = place[i]
        if _differs(g[LAST * d + p], s[BEFORE * d + p]):
            return np.inf
        if _differs(g[start * d + p], s[START * d + p]):
            return np.inf
    if not _hessian(m, d, place, points, form, units, h, ld):
        return np.inf
    tau, top, total = 0.0, -np.inf, 0.0
    for i in range(m):
        p, zeros[i] = place[i], 0.0
        y[i], rho[i] = points[p], z[i] - g[p]
        tau += y[i] * rho[i]
        total += y[i]
        top = max(top, rho[i])
        stiff = 0.0
        for k in range(m):
            stiff += abs(h[i * ld + k]) * points[place[k]]
        noise[i] = 4.0 * EPS * (abs(z[i]) + abs(g[p])) + (EPS * stiff if y[i] > 0.0 else 0.0)
    gap, missed = max(top - tau, 0.0), 0.0
    for i in range(m):
        rho[i] -= tau
        if y[i] > 1e-6:
            missed += rho[i] * rho[i]
    room_for = 2.0 * math.sqrt(m * missed)
    n, vertex = 0, True
    for i in range(m):
        if y[i] > 0.0 or rho[i] > -noise[i] - room_for:
            on[n] = i
            n += 1
        if y[i] == 0.0 and rho[i] > noise[i]:
            return np.inf  # it must be positive
        if y[i] < 1.0 and rho[i] + noise[i] >= 0.0:
            vertex = False
        if y[i] > 0.0 and y[i] < 1.0:
            vertex = False
    if not _convex(m, d, place, z, y, v, g, points, gap):
        return np.inf
    low, off = np.inf, abs(total - 1.0) + 4.0 * EPS
    for side in range(2):
        if side == 1:
            at = memory.pointer(memory.address_of(points), HALF * d, points)
            beyond = memory.pointer(memory.address_of(form), units * d, form)
            if not _hessian(m, d, place, at, beyond, units, h, ld):
                return np.inf
        if n == 1:
            if h[on[0] * ld + on[0]] < 0.0:
                return np.inf
            continue
        hessian(n, on, zeros, h, ld, a)
        if not factor(a, n, ld):
            return np.inf
        low = min(low, 1.0 / inverse_trace(a, n, ld, own))
    c[GAP], c[LOW] = gap, low
    if vertex:
        return off
    if not (low > 0.0 and low <= 1e6):
        return np.inf
    beta = low / 2
    if not _bound(m, y, rho, noise, gap, beta) <= REACH / 2:
        return np.inf
    for way in range(WAYS):
        at = (SECANTS + way) * d
        rise, square_, rounding = 0.0, 0.0, 0.0
        for i in range(m):
            p = place[i]
            along = points[at + p] - y[i]
            rise += (g[at + p] - g[p]) * along
            rounding += (abs(g[at + p]) + abs(g[p])) * abs(along)
            square_ += along * along
        if math.sqrt(square_) > REACH / 4:
            found = (rise + 4.0 * EPS * rounding) / square_
            beta = min(beta, found / 2)
    if not beta > 0.0:
        return np.inf
    bound = _bound(m, y, rho, noise, gap, beta)
    if not bound <= REACH:
        return np.inf
    for i in range(m):
        if not steep and y[i] > 0.0 and y[i] <= bound and rho[i] < -noise[i]:
            return np.inf  # it may be 0
    return bound + off


def forward(job: Any, like: Any) -> None:
    """The next point of each row, or its certificate."""
    d, final = job[common.WIDTH], common.whole_at(job, FINAL)
    units, steep = common.whole_at(job, UNITS), common.whole_at(job, STEEP) != 0
    room, places = common.scratch(8, d), memory.empty(3, d + 1, np.int64)
    square = memory.empty(2, room.shape[1] * room.shape[1], np.float64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            c = common.rows_at(job, NUMBERS, r, like)
            if c[STATUS] != (READY if final != 0 else GOING):
                continue
            place, z = memory.row(places, 0), memory.row(room, 0)
            m = _participants(job, r, d, place, z, like)
            value, gradient = common.rows_at(job, VALUE, r, like), common.rows_at(job, GRADIENT, r, like)
            form, s = common.rows_at(job, HESSIAN, r, like), common.rows_at(job, STATE, r, like)
            points, on, free = common.rows_at(job, POINTS, r, like), memory.row(places, 1), memory.row(places, 2)
            _step(
                m, d, place, z, value[0], gradient, form, units, steep, s, c, points, room, on,
                free, square,
            )  # fmt: skip
            if c[STATUS] == DONE:
                c[BOUND] = _certify(
                    m, d, place, z, value, gradient, form, units, steep, s, c, points, room, on,
                    square,
                )  # fmt: skip
        first, last = common.take(job)


@njit
def _participants(job: Any, r: int, d: int, place: Any, z: Any, like: Any) -> int:
    row, on, m = common.rows_at(job, Z, r, like), common.octets_at(job, MASK, r), 0
    masked = common.given(job, MASK)
    for i in range(d):
        if not masked or on[i] != 0:
            place[m], z[m] = i, row[i]
            m += 1
    return m
