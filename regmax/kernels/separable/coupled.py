"""Rows of Π_Ω for Ω(y) = Σ_i e(y_i) + ½ yᵀHy, by Newton steps on the support.

A step is J r with r = z − ∇Ω(y) and J the matrix of Proposition 1 (Niculae & Blondel 2017) on the
entries that are positive or must become so. In each entry it follows the power model of
:mod:`.rows`, so that no entry is set to 0 too early. It is shortened until the objective falls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from ..cpu import common, memory
from .rows import (
    AT0,
    B0,
    CODE,
    COUNT,
    EPS,
    FLOOR,
    G0,
    KINKED,
    NUMBERS,
    OUT,
    PLAIN,
    S0,
    SLOPES,
    STEEP,
    VARYING,
    VECTORS,
    B,
    BOUND,
    G,
    H,
    S,
    T,
    Y,
    Z,
    at_zero,
    call,
    exponent,
    finish,
    positive,
    slopes,
    taken,
    vectors_of,
)

FORM, FORM_BACK = 11, 12
"""The places of H in a forward and a backward job, after those of :mod:`.rows`."""
STEPS = 60
Q, R, W, X, ONES, D = range(14, 20)
_FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(fastmath=_FAST)
def _dot(a: Any, i: int, b: Any, j: int, n: int) -> float:
    total = 0.0
    for k in range(n):
        total += a[i + k] * b[j + k]
    return total


@njit
def _factor(a: Any, n: int, ld: int) -> bool:
    """The Cholesky factor of a in its lower triangle; False where a is not positive definite."""
    for j in range(n):
        at = j * ld
        pivot = a[at + j] - _dot(a, at, a, at, j)
        if not pivot > 1e-13 * a[at + j]:
            return False
        root = math.sqrt(pivot)
        a[at + j] = root
        for i in range(j + 1, n):
            a[i * ld + j] = (a[i * ld + j] - _dot(a, i * ld, a, at, j)) / root
    return True


@njit(fastmath=_FAST)
def _solved(a: Any, n: int, ld: int, v: Any) -> None:
    """v ← (LLᵀ)⁻¹ v."""
    for i in range(n):
        v[i] = (v[i] - _dot(a, i * ld, v, 0, i)) / a[i * ld + i]
    for i in range(n - 1, -1, -1):
        v[i] /= a[i * ld + i]
        scale = v[i]
        for k in range(i):
            v[k] -= a[i * ld + k] * scale


@njit
def _inverse_trace(a: Any, n: int, ld: int, own: Any) -> float:
    """tr (LLᵀ)⁻¹ = ‖L⁻¹‖², column by column of L⁻¹."""
    total = 0.0
    for j in range(n):
        own[j] = 1.0 / a[j * ld + j]
        total += own[j] * own[j]
        for i in range(j + 1, n):
            own[i] = -_dot(a, i * ld + j, own, j, i - j) / a[i * ld + i]
            total += own[i] * own[i]
    return total


@njit
def _matrix(n: int, on: Any, h: Any, form: Any, width: int, a: Any, ld: int) -> None:
    """∇²Ω on the entries ``on``, plus a multiple of 11ᵀ, which changes nothing on Δ and makes a
    matrix that is positive definite along Δ positive definite."""
    shift, size = np.inf, 0.0
    for j in range(n):
        own = form[on[j] * width + on[j]]
        shift, size = min(shift, own + h[on[j]]), size + abs(own)
    shift = max(shift, 1e-3 * size / n)
    for j in range(n):
        i = on[j]
        for k in range(j + 1):
            a[j * ld + k] = form[i * width + on[k]] + shift
        a[j * ld + j] += h[i]


@njit
def tangent_product(n: int, a: Any, ld: int, v: Any, ones: Any) -> None:
    """v ← J v by the factor a."""
    for j in range(n):
        ones[j] = 1.0
    _solved(a, n, ld, v)
    _solved(a, n, ld, ones)
    total, weight = 0.0, 0.0
    for j in range(n):
        total += v[j]
        weight += ones[j]
    for j in range(n):
        v[j] -= ones[j] * (total / weight)


@njit
def _moved(y: float, change: float, b: float, b0: float) -> float:
    """y after a step in the power model: y + change where b = 1, y exp(change/y) where b = 0."""
    u = change / y
    if u < 0.0:
        b = min(b, b0)
    if b == 1.0:
        return max(y + change, 0.0)
    if b == 0.0:
        return y * math.exp(min(max(u, -40.0), 3.0))
    if b * u <= -1.0:
        return y * 0.01 if b > 0.0 else 1.0
    return min(y * math.exp(min(math.log1p(b * u) / b, 40.0)), 1.0)


@njit
def _look(
    code: int, m: int, y: Any, z: Any, form: Any, width: int, numbers: Any, vectors: Any,
    count: int, ld: int, g: Any, h: Any, s: Any, b: Any, q: Any, r: Any, g0: Any, s0: Any,
    b0: Any, own: Any, on: Any, part: Any, out: Any
) -> int:
    """e', e'', Hy and r = z − ∇Ω(y) at y; how many entries are positive, −1 where e bends the
    wrong way."""
    n = 0
    for i in range(m):
        q[i] = 0.0
        if y[i] > 0.0:
            on[n] = i
            n += 1
        else:
            g[i], h[i], b[i] = g0[i], 1.0 / (FLOOR * s0[i]), b0[i]
    slopes(code, n, on, y, numbers, vectors, count, ld, own, part, out)
    for j in range(n):
        i = on[j]
        if out[ld + j] < 0.0:
            return -1
        g[i], h[i] = out[j], positive(out[ld + j])
        b[i] = exponent(max(y[i], FLOOR), h[i] + form[i * width + i], out[2 * ld + j])
        scale, at = y[i], i * width
        for k in range(m):
            q[k] += form[at + k] * scale
    for i in range(m):
        r[i] = z[i] - g[i] - q[i]
    return n


@njit
def _coupled_row(
    code: int, steep: bool, kinked: bool, m: int, numbers: Any, vectors: Any, count: int, ld: int,
    form: Any, width: int, room: Any, place: Any, on: Any, part: Any, out: Any, a: Any
) -> float:
    """y in its row of ``room``, and a bound on the distance to the maximiser, +inf where there is
    none."""
    z, y, g, h = memory.row(room, Z), memory.row(room, Y), memory.row(room, G), memory.row(room, H)
    s, b, q, r = memory.row(room, S), memory.row(room, B), memory.row(room, Q), memory.row(room, R)
    g0, s0, b0 = memory.row(room, G0), memory.row(room, S0), memory.row(room, B0)
    own, w, x = memory.row(room, T), memory.row(room, W), memory.row(room, X)
    ones, d, at0 = memory.row(room, ONES), memory.row(room, D), memory.row(room, AT0)
    low = at_zero(code, True, m, z, numbers, vectors, count, ld, room, place, on, part, out)
    if low < m:
        return np.inf
    for i in range(m):
        y[i], bent = 1.0 / m, 1.0 / (FLOOR * s0[i])
        # the power of all of ∂²Ω/∂y_i²
        b0[i] = exponent(1.0, 1.0, (b0[i] - 1.0) * bent / (bent + max(form[i * width + i], 0.0)))
    n = _look(
        code, m, y, z, form, width, numbers, vectors, count, ld, g, h, s, b, q, r, g0, s0, b0, own,
        on, part, out
    )
    before, alone = np.inf, False
    for step in range(STEPS):
        if n <= 0:
            return np.inf
        tau, lo, hi, noise = 0.0, np.inf, -np.inf, 0.0
        for j in range(n):
            tau += y[on[j]] * r[on[j]]
        for j in range(n):
            i = on[j]
            lo, hi = min(lo, r[i]), max(hi, r[i])
            noise = max(noise, 8.0 * EPS * (abs(z[i]) + abs(g[i]) + abs(q[i])) + EPS * h[i] * y[i])
        if not (abs(lo) < np.inf and abs(hi) < np.inf):
            return np.inf
        most = 0.0
        for i in range(m):
            if y[i] == 0.0 and not steep:
                most = max(most, r[i] - tau)
        spread = hi - lo
        settled = spread <= 4.0 * noise or (
            step > 6 and spread >= 0.5 * before and spread < 1e-10
        )
        if settled and most <= 4.0 * noise:
            break
        before = spread
        entering = most > 4.0 * noise and (settled or most > 0.1 * spread)
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
        _matrix(n, on, h, form, width, a, ld)
        if not _factor(a, n, ld):
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
            d[i] = x[i] / total - y[i]
            start += r[i] * d[i]
        if start < -4.0 * noise:  # setting entries to 0 led astray: up to the first that is 0
            t, start = 1.0, 0.0
            for j in range(n):
                if w[j] < 0.0:
                    t = min(t, y[on[j]] / -w[j])
            if t == 0.0 and alone:
                return np.inf
            alone = t == 0.0
            for i in range(m):
                d[i] = 0.0
            for j in range(n):
                i = on[j]
                end = max(y[i] + t * w[j], 0.0)
                d[i] = (0.0 if end <= 1e-15 * y[i] else end) - y[i]
                start += r[i] * d[i]
        t = 1.0
        for trial in range(30):
            for i in range(m):
                x[i] = max(y[i] + t * d[i], 0.0)
            n = _look(
                code, m, x, z, form, width, numbers, vectors, count, ld, g, h, s, b, q, r, g0, s0,
                b0, own, on, part, out
            )
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
        if y[i] > 0.0 or (not steep and r[i] - tau > -8.0 * noise):
            on[n] = i
            n += 1
            off = max(abs(r[i] - tau), noise)
            missed += off * off
    if n == 1:
        return abs(total - 1.0) + 4.0 * EPS
    _matrix(n, on, h, form, width, a, ld)
    if not _factor(a, n, ld):
        return np.inf
    bound = 2.0 * math.sqrt(missed) * _inverse_trace(a, n, ld, own) + abs(total - 1.0)
    if not bound < 1e-3:
        return np.inf
    if not kinked and bound < 1e-9:
        return bound
    for side in range(2):
        for i in range(m):
            x[i] = min(max(y[i] + (1 - 2 * side) * bound, FLOOR), 1.0) if y[i] > 0.0 else 0.0
        k = 0
        for i in range(m):
            if x[i] > 0.0:
                on[k] = i
                k += 1
        slopes(code, k, on, x, numbers, vectors, count, ld, own, part, out)
        for j in range(k):
            if not out[ld + j] >= 0.5 * h[on[j]]:
                return np.inf
    return 2.0 * bound


def forward(job: Any, like: Any) -> None:
    """y = Π_Ω(x) and the bound of each row."""
    d = job[common.WIDTH]
    code, count = job[5 + 2 * CODE], job[5 + 2 * COUNT]
    steep, kinked = job[5 + 2 * STEEP] != 0, job[5 + 2 * KINKED] != 0
    room = common.scratch(D + 1, d)
    ld = room.shape[1]
    wide, places = np.empty((5, max(max(count, 3) * ld, ld * ld))), np.empty((2, ld), np.int64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y = common.rows_at(job, OUT, r, like)
            numbers = common.rows_at(job, NUMBERS, r, memory.doubles(d))
            place, on = memory.row(places, 0), memory.row(places, 1)
            out, vectors, part = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
            m = taken(job, r, d, place, memory.row(room, Z), like)
            vectors_of(job, VECTORS, r, d, ld, count, place, m, vectors)
            form, own = common.rows_at(job, FORM, 0, memory.doubles(d)), memory.row(wide, 3)
            for i in range(m):
                for j in range(m):
                    own[i * ld + j] = form[place[i] * d + place[j]]
            bound = _coupled_row(
                code, steep, kinked, m, numbers, vectors, count, ld, own, ld, room, place, on, part,
                out, memory.row(wide, 4)
            )
            for i in range(d):
                y[i] = 0.0
            found = memory.row(room, Y)
            total = 0.0
            for i in range(m):
                total += found[i]
            for i in range(m):
                y[place[i]] = found[i] / total
            common.set_number(job, BOUND, r, bound)
        first, last = common.take(job)


def backward(job: Any, like: Any) -> None:
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e."""
    d = job[common.WIDTH]
    code, count = job[5 + 2 * SLOPES], job[5 + 2 * VARYING]
    plain, ld = job[5 + 2 * PLAIN], d + 2 * common.LANES
    room, places = np.empty((5, ld)), np.empty((2, ld), np.int64)
    rooms = np.empty((3, max(max(3, count + plain) * ld, ld * ld)))
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 2, r, like)
            numbers = common.rows_at(job, 3, r, memory.doubles(d))
            own, h, w = memory.row(room, 0), memory.row(room, 1), memory.row(room, 2)
            out, part, a = memory.row(rooms, 0), memory.row(rooms, 1), memory.row(rooms, 2)
            place, on = memory.row(places, 0), memory.row(places, 1)
            form = common.rows_at(job, FORM_BACK, 0, memory.doubles(d))
            n = 0
            for i in range(d):
                if y[i] > 0.0:
                    place[n], own[n], w[n] = i, max(y[i], 1e-154), v[i]
                    n += 1
            vectors_of(job, 4, r, d, ld, count, place, n, part)
            known = n > 1
            if known:
                call(code, n, own, numbers, part, ld, out)
                for j in range(n):
                    memory.row(room, 3)[place[j]] = positive(out[ld + j])
                _matrix(n, place, memory.row(room, 3), form, d, a, ld)
                known = _factor(a, n, ld)
            if known:
                tangent_product(n, a, ld, w, memory.row(room, 4))
            else:
                for j in range(n):
                    w[j] = 0.0 if n == 1 else np.nan
            finish(job, r, d, n, w, place, own, numbers, part, count, plain, ld, out, like)
        first, last = common.take(job)
