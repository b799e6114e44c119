"""Certificates of rows for an Ω that PyTorch evaluates: the points that they need, and bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..cpu import memory
from ..cpu.jit import njit
from . import layout
from .dense import factor, hessian, inverse_trace, tangent_product
from .rows import EPS

REACH = 1e-7
"""The distance from y at which the slope of Ω is compared with that at y."""


@njit
def hessian_at(
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
def points_of(
    m: int, d: int, place: Any, z: Any, x: Any, y: Any, r: Any, h: Any, s: Any, points: Any, v: Any,
    w: Any, ones: Any, zeros: Any, on: Any, a: Any, ld: int,
) -> None:  # fmt: skip
    """The points that the certificate of x needs."""
    for i in range(layout.COUNT * d):
        points[i] = 0.0
    n, top, tau = 0, -1, 0.0
    for i in range(m):
        tau += x[i] * r[i]
        if x[i] > 0.0:
            on[n] = i
            n += 1
    for i in range(m):
        p = place[i]
        points[p], points[layout.LAST * d + p] = x[i], y[i]
        points[layout.HALF * d + p] = (x[i] + (1.0 / n if x[i] > 0.0 else 0.0)) / 2
        if top < 0 or r[i] > r[top]:
            top = i
    best, second, third = -1, -1, -1
    for end in range(layout.ENDS):
        best, second, third = -1, best, second
        for i in range(m):
            if end > 0 and i != second and i != third and (best < 0 or z[i] > z[best]):
                best = i
        for k in range(layout.SIDES):
            t, at = (k + 1.0) / layout.SIDES, (layout.SEGMENTS + end * layout.SIDES + k) * d
            for i in range(m):
                goal = 1.0 / m if end == 0 or best < 0 else 1.0 if i == best else 0.0
                points[at + place[i]] = goal if k == layout.SIDES - 1 else x[i] + t * (goal - x[i])
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
    for way in range(layout.WAYS):
        size, at = 0.0, (layout.SECANTS + way) * d
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
    return min(distance, math.sqrt((gap + more) / beta))


@njit
def _differs(a: float, b: float) -> bool:
    return not abs(a - b) <= 1e-9 * (1.0 + abs(a) + abs(b))


@njit
def _convex(
    m: int, d: int, place: Any, z: Any, y: Any, v: Any, g: Any, points: Any, gap: float
) -> bool:  # fmt: skip
    """Whether Ω lies above its tangents on the ways, and no point is better than y by more than the
    gap: see :func:`regmax.optimality.premises.refuted`."""
    for end in range(layout.ENDS):
        goal = (layout.SEGMENTS + end * layout.SIDES + layout.SIDES - 1) * d
        f, slope, size, f0 = 0.0, 0.0, 0.0, 0.0
        for k in range(layout.SIDES + 1):
            at = 0 if k == 0 else layout.SEGMENTS + end * layout.SIDES + k - 1
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
                    or f + slope / layout.SIDES - own > slack
                    or own - f - new / layout.SIDES > slack
                ):
                    return False
            f, slope, size = own, new, more
    return True


@njit
def certify(
    m: int, d: int, even: bool, place: Any, z: Any, v: Any, g: Any, form: Any, units: int,
    steep: bool, s: Any, c: Any, points: Any, room: Any, on: Any, square: Any,
) -> float:  # fmt: skip
    """A bound on the distance of y to the maximiser, +inf where there is none."""
    y, rho, noise = memory.row(room, 1), memory.row(room, 2), memory.row(room, 3)
    own = memory.row(room, 4)
    zeros, h, a = memory.row(room, 7), memory.row(square, 0), memory.row(square, 1)
    ld = room.shape[1]
    # Ω must be what it was among other rows
    start = layout.SEGMENTS + layout.SIDES - 1
    if _differs(v[layout.LAST], c[layout.VALUE_BEFORE]) or _differs(
        v[start], c[layout.VALUE_START]
    ):
        return np.inf
    if even and _differs(v[layout.AMONG], v[0]):
        return np.inf
    for i in range(m):
        p = place[i]
        if _differs(g[layout.LAST * d + p], s[layout.BEFORE * d + p]):
            return np.inf
        if _differs(g[start * d + p], s[layout.START * d + p]):
            return np.inf
        if even and _differs(g[layout.AMONG * d + p], g[p]):
            return np.inf
    if not hessian_at(m, d, place, points, form, units, h, ld):
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
        size = abs(z[i]) + abs(g[p]) + 2.0 * abs(s[layout.TILT * d + p])
        noise[i] = 4.0 * EPS * size + (EPS * stiff if y[i] > 0.0 else 0.0)
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
            at = memory.pointer(memory.address_of(points), layout.HALF * d, points)
            beyond = memory.pointer(memory.address_of(form), units * d, form)
            if not hessian_at(m, d, place, at, beyond, units, h, ld):
                return np.inf
        if n == 1:
            if h[on[0] * ld + on[0]] < 0.0:
                return np.inf
            continue
        hessian(n, on, zeros, h, ld, a)
        if not factor(a, n, ld):
            return np.inf
        low = min(low, 1.0 / inverse_trace(a, n, ld, own))
    c[layout.GAP], c[layout.LOW] = gap, low
    if vertex:
        return off + c[layout.MOVED]
    if not (low > 0.0 and low <= 1e6):
        return np.inf
    beta = low / 2
    if not _bound(m, y, rho, noise, gap, beta) <= REACH / 2:
        return np.inf
    for way in range(layout.WAYS):
        at = (layout.SECANTS + way) * d
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
    return bound + off + c[layout.MOVED]
