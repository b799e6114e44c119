"""Rows of Π_Ω for a separable Ω, solved, certified and differentiated with the code of its e.

y_i(τ) is where e'(y_i) = z_i − τ, z = x/γ, or 0 where z_i − e'(0) ≤ τ; τ is the root of
Σ y_i(τ) = 1 (Blondel, Martins & Niculae 2019, Prop. 5). Each step replaces e'' by the power of y_i
that has its value and slope at the present point, e''(t) ≈ e''(y_i) (t/y_i)^(b−1) with
b = 1 + y_i e'''/e'': it is exact for Σ y^α and Σ y log y, and has the speed of Newton's method for
every Ω.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..cpu import common, memory

EPS = common.EPS
FLOOR = EPS**2
"""Where e is evaluated instead of at 0."""
STEPS = 30
X, GAMMA, MASK, NUMBERS, VECTORS, Y, BOUND, CODE, COUNT, STEEP = range(10)
"""The arrays of a forward job; the last three are the address of e's slopes, how many inputs of e
have a number for each entry, and whether e'(0) = −∞."""


@intrinsic
def call(typingctx: Any, code: Any, n: Any, y: Any, numbers: Any, vectors: Any, ld: Any, out: Any) -> Any:
    """The generated function at the address ``code``, of n entries."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
        function = ir.FunctionType(ir.VoidType(), kinds)
        builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, y, numbers, vectors, types.int64, out), emit


@njit
def _exponent(y: float, h: float, c: float) -> float:
    """b of the power model at y, 0 for an exponential and 1 for a straight line."""
    b = 1.0 + y * c / h
    if not abs(b) < 20.0:
        b = 1.0 if not b > 0.0 else 20.0
    if abs(b) < 1e-7:
        return 0.0
    return 1.0 if 0.8 < b < 1.3 else max(b, -3.0)


@njit
def _slope(h: float) -> float:
    """e'', kept positive and finite."""
    return min(max(h, 1e-300), 1e300) if h == h else 1e-300


@njit
def _model(
    tau: float, a: float, y: float, h: float, b: float, b0: float
) -> tuple[float, float, float]:
    """t(τ) of the model through y, where e' = z − a, and −dt/dτ, d²t/dτ². Towards 0 the power is at
    most ``b0``, that at 0: t would be 0 too early."""
    u = a - tau
    if u < 0.0:
        b = min(b, b0)
    if b == 1.0:
        t, s, q = y + u / h, 1.0 / h, 0.0
    elif b == 0.0:
        rate = 1.0 / (y * h)
        t = y * math.exp(min(u * rate, 700.0))
        s = t * rate
        q = s * rate
    else:
        rise = b * u / (y * h)
        if rise <= -1.0:
            return (y * 0.01 if b > 0.0 else 2.0), 0.0, 0.0
        if b == 0.5:
            t = y * (1.0 + rise) * (1.0 + rise)
        elif b == 2.0:
            t = y * math.sqrt(1.0 + rise)
        else:
            t = y * math.exp(min(math.log1p(rise) / b, 700.0))
        rate = 1.0 / (y * h * (1.0 + rise))
        s = t * rate
        q = s * rate * (1.0 - b)
    if not t > 0.0:
        return (0.0 if b == 0.0 else y * 0.01), 0.0, 0.0
    if t >= 2.0:  # above 1, so that τ is where the largest entry says
        return 2.0, 0.0, 0.0
    return t, s, q


@njit
def _root(
    tau: float, m: int, a: Any, at: Any, y: Any, h: Any, b: Any, b0: Any, high: float, t: Any
) -> tuple[float, float]:
    """τ with Σ t_i(τ) = 1 in the model, by bracketed Newton steps on a power of the sum, and the
    sum; t_i is 0 where τ ≥ at_i."""
    low = -np.inf
    total, reach = 0.0, 1.0
    for k in range(100):
        total, slope, bend, most = 0.0, 0.0, 0.0, 0.0
        for i in range(m):
            if at[i] <= tau:
                t[i] = 0.0
                continue
            ti, s, q = _model(tau, a[i], y[i], h[i], b[i], b0[i])
            t[i] = ti
            total += ti
            slope += s
            bend += q
            most = max(most, ti)
        rounding = 8.0 * EPS * (total - most) + 2.0 * EPS + 2.0 * EPS * abs(tau) * slope
        if abs(total - 1.0) <= rounding:
            break
        if total > 1.0:
            low = tau
        else:
            high = min(high, tau)
        if high < np.inf and high - low <= 0.5 * EPS * abs(high):
            break
        power = 1.0 - total * bend / (slope * slope) if slope > 0.0 else 1.0
        power = min(max(power, -1.0), 1.0)
        power = power if abs(power) > 1e-3 else 1e-3
        trial = tau - total * math.expm1(-power * math.log(total)) / (power * slope) if (
            slope > 0.0 and total > 0.0
        ) else np.nan
        if low < trial < high and not (k >= 10 and k % 3 == 0):
            tau = trial
        elif low > -np.inf and high < np.inf:
            tau = low + (high - low) / 2.0
        else:
            reach *= 4.0
            tau = high - reach if high < np.inf else low + reach
    return tau, total


@njit
def _slopes(
    code: int, n: int, on: Any, y: Any, numbers: Any, vectors: Any, count: int, ld: int, own: Any,
    part: Any, out: Any
) -> None:
    """e', e'', e''' in ``out`` at the entries ``on`` of y."""
    for j in range(n):
        own[j] = min(max(y[on[j]], FLOOR), 1.0)
    for k in range(count):
        for j in range(n):
            part[k * ld + j] = vectors[k * ld + on[j]]
    call(code, n, own, numbers, part, ld, out)


@njit
def _forward_row(
    code: int, steep: bool, m: int, z: Any, numbers: Any, vectors: Any, count: int, ld: int,
    room: Any, on: Any, out: Any, part: Any
) -> float:
    """y in ``room[0]``, and a bound on its distance to the maximiser, +inf where there is none."""
    y, g, h, b = memory.row(room, 0), memory.row(room, 1), memory.row(room, 2), memory.row(room, 3)
    at0, g0, h0 = memory.row(room, 4), memory.row(room, 5), memory.row(room, 6)
    b0, at, own = memory.row(room, 7), memory.row(room, 8), memory.row(room, 9)
    t, ends = memory.row(room, 10), memory.row(room, 11)
    alike = count == 0
    first = 1 if alike else m
    for i in range(m):
        on[i] = i
        y[i] = 0.0
    _slopes(code, first, on, y, numbers, vectors, count, ld, own, part, out)
    high = -np.inf
    for i in range(m):
        k = 0 if alike else i
        g0[i], h0[i] = out[k], _slope(out[ld + k])
        b0[i] = _exponent(FLOOR, h0[i], out[2 * ld + k])
        at0[i] = np.inf if steep else z[i] - g0[i]
        high = max(high, at0[i])
        y[i] = 1.0 / m
    _slopes(code, first, on, y, numbers, vectors, count, ld, own, part, out)
    tau = -np.inf
    for i in range(m):
        k = 0 if alike else i
        g[i], h[i] = out[k], _slope(out[ld + k])
        b[i] = _exponent(y[i], h[i], out[2 * ld + k])
        at[i] = z[i] - g[i]
        tau = max(tau, at[i])
    before = np.inf
    n = 0
    lo, hi, noise = 0.0, 0.0, 0.0
    for step in range(STEPS):
        tau, total = _root(tau, m, at, at0, y, h, b, b0, high, t)
        if not (total > 0.0 and total < np.inf):
            return np.inf
        n = 0
        for i in range(m):
            y[i] = t[i] / total
            if y[i] > 0.0:
                on[n] = i
                n += 1
        _slopes(code, n, on, y, numbers, vectors, count, ld, own, part, out)
        lo, hi, noise = np.inf, -np.inf, 0.0
        convex = True
        for i in range(m):
            if y[i] == 0.0:
                if not steep:
                    hi = max(hi, at0[i] + 4.0 * EPS * (abs(z[i]) + abs(g0[i])))
                ends[i], at[i] = y[i], z[i] - g0[i]
                y[i], g[i], h[i], b[i] = FLOOR, g0[i], h0[i], b0[i]
        for j in range(n):
            i = on[j]
            bent = out[ld + j]
            g[i], h[i] = out[j], _slope(bent)
            ends[i] = y[i]
            y[i] = own[j]
            b[i] = _exponent(y[i], h[i], out[2 * ld + j])
            at[i] = z[i] - g[i]
            convex = convex and bent > 0.0
            if ends[i] < 2.0 * FLOOR:
                continue
            rounding = 4.0 * EPS * (abs(z[i]) + abs(g[i])) + EPS * h[i] * y[i]
            noise = max(noise, rounding)
            lo, hi = min(lo, at[i] - rounding), max(hi, at[i] + rounding)
        if not convex or not (abs(hi) < np.inf and abs(lo) < np.inf):
            if step > 3:
                return np.inf
            before = np.inf
            continue
        spread = hi - lo
        if spread <= 4.0 * noise or (step > 4 and spread >= 0.5 * before and spread < 1e-9):
            break
        before = spread
    sums = 0.0
    for i in range(m):
        y[i] = ends[i]
        sums += y[i]
    return _distance(
        code, m, z, numbers, vectors, count, ld, lo, hi, y, g0, h, at0, steep, on, own, t, part, out
    ) + abs(sums - 1.0)


@njit
def _distance(
    code: int, m: int, z: Any, numbers: Any, vectors: Any, count: int, ld: int, lo: float,
    hi: float, y: Any, g0: Any, h: Any, at0: Any, steep: bool, on: Any, own: Any, delta: Any,
    part: Any, out: Any
) -> float:
    """A bound on ‖y − y*‖ that needs nothing but e' to rise.

    With r_i = z_i − e'(y_i) in [lo, hi] where y_i > 0, and z_i − e'(0) ≤ hi elsewhere, Σ y_i(τ) is
    at least 1 at lo and at most 1 at hi; so y* is between y(hi) and y(lo). y_i ± δ_i lie outside
    of these where e' there is beyond z_i − lo and z_i − hi.
    """
    n = 0
    for i in range(m):
        noise = 4.0 * EPS * (abs(z[i]) + abs(g0[i]))
        delta[i] = 0.0
        if y[i] >= 2.0 * FLOOR:
            delta[i] = 2.0 * (hi - lo) / h[i] + 4.0 * EPS * y[i]
        elif y[i] > 0.0:
            delta[i] = 2.0 * FLOOR
            continue
        elif not steep and at0[i] + noise > lo:
            delta[i] = min(2.0 * (at0[i] + noise - lo) / h[i], 1.0) + FLOOR
        else:
            continue
        on[n] = i
        n += 1
    # one entry, the least certain, is 1 less the others
    last, free = 0, 0
    for j in range(n):
        if delta[on[j]] > delta[on[last]]:
            last = j
    if n > 0:
        n -= 1
        free = on[last]
        on[last], on[n] = on[n], free
    for side in range(2):
        left = n
        for _ in range(40):
            k = 0
            for j in range(left):
                i = on[j]
                end = y[i] + delta[i] if side == 0 else y[i] - delta[i]
                if end >= 1.0 or end <= 0.0:
                    continue
                on[j], on[k] = on[k], i
                own[k] = max(end, FLOOR)
                for v in range(count):
                    part[v * ld + k] = vectors[v * ld + i]
                k += 1
            if k == 0:
                left = 0
                break
            call(code, k, own, numbers, part, ld, out)
            left = 0
            for j in range(k):
                i = on[j]
                r = z[i] - out[j]
                if not (r <= lo if side == 0 else r >= hi):
                    delta[i] *= 4.0
                    on[j], on[left] = on[left], i
                    left += 1
            if left == 0:
                break
        if left > 0:
            return np.inf
    if m > 0:
        delta[free] = 2.0 * EPS
        for i in range(m):
            if i != free:
                delta[free] += delta[i]
    total = 0.0
    for i in range(m):
        total += min(delta[i], 1.0) ** 2
    return math.sqrt(total)


@njit
def _taken(job: Any, r: int, d: int, ld: int, place: Any, z: Any, like: Any) -> int:
    """z of the participants of row r and their places."""
    row = common.rows_at(job, X, r, like)
    scale = 1.0 / common.number_at(job, GAMMA, r)
    masked = common.given(job, MASK)
    on = common.octets_at(job, MASK, r)
    m, top = 0, -np.inf
    for i in range(d):
        if not masked or on[i] != 0:
            place[m] = i
            z[m] = row[i]
            top = max(top, z[m])
            m += 1
    for i in range(m):
        z[i] = (z[i] - top) * scale
    return m


@njit
def _vectors(job: Any, k: int, r: int, d: int, ld: int, count: int, place: Any, m: int, out: Any) -> None:
    """The inputs of e that have a number for each entry, of the participants of row r."""
    given = common.rows_at(job, k, r, memory.doubles(job[common.WIDTH]))
    for v in range(count):
        for i in range(m):
            out[v * ld + i] = given[v * d + place[i]]


def forward(job: Any, like: Any) -> None:
    """y = Π_Ω(x) and the bound of each row."""
    d = job[common.WIDTH]
    code, count = job[5 + 2 * CODE], job[5 + 2 * COUNT]
    steep = job[5 + 2 * STEEP] != 0
    room = common.scratch(13, d)
    ld = room.shape[1]
    wide, places = np.empty((3, max(count, 3) * ld)), np.empty((2, ld), np.int64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y = common.rows_at(job, Y, r, like)
            numbers = common.rows_at(job, NUMBERS, r, memory.doubles(job[common.WIDTH]))
            z, place = memory.row(room, 12), memory.row(places, 0)
            out, vectors = memory.row(wide, 0), memory.row(wide, 1)
            part, on = memory.row(wide, 2), memory.row(places, 1)
            m = _taken(job, r, d, ld, place, z, like)
            _vectors(job, VECTORS, r, d, ld, count, place, m, vectors)
            bound = _forward_row(
                code, steep, m, z, numbers, vectors, count, ld, room, on, out, part
            )
            for i in range(d):
                y[i] = 0.0
            found = memory.row(room, 0)
            sums = 0.0
            for i in range(m):
                sums += found[i]
            for i in range(m):
                y[place[i]] = found[i] / sums
            common.set_number(job, BOUND, r, bound)
        first, last = common.take(job)


SLOPES, PARTIALS, VARYING, PLAIN = 8, 9, 10, 11
"""Places in a backward job. Its arrays are y, γ, v, the inputs of e that have one number per row
and those that have one per entry, then the gradients of x and of both; then the addresses of e's
slopes and partial derivatives, and how many inputs there are of either kind."""


@njit
def _product(n: int, h: Any, v: Any, w: Any) -> None:
    """w = J v for the curvature diag(h) on the support (Peters et al. 2019, Prop. 2), relative to
    the entry of the least h."""
    p = 0
    for j in range(n):
        if h[j] < h[p]:
            p = j
    weights, mean = 0.0, 0.0
    for j in range(n):
        w[j] = h[p] / h[j]
        weights += w[j]
        mean += w[j] * (v[j] - v[p])
    mean /= weights
    for j in range(n):
        w[j] = w[j] * ((v[j] - v[p] - mean) / h[p])


def backward(job: Any, like: Any) -> None:
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e."""
    d = job[common.WIDTH]
    code, partials = job[5 + 2 * SLOPES], job[5 + 2 * PARTIALS]
    count, plain = job[5 + 2 * VARYING], job[5 + 2 * PLAIN]
    hyper = common.given(job, PARTIALS)
    wide = d + 2 * common.LANES
    room, rooms = np.empty((4, wide)), np.empty((2, max(3, count + plain) * wide))
    places = np.empty((1, wide), np.int64)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 2, r, like)
            dx = common.rows_at(job, 5, r, like)
            numbers = common.rows_at(job, 3, r, memory.doubles(d))
            own, h = memory.row(room, 0), memory.row(room, 1)
            vs, w = memory.row(room, 2), memory.row(room, 3)
            out, part, place = memory.row(rooms, 0), memory.row(rooms, 1), memory.row(places, 0)
            n = 0
            for i in range(d):
                dx[i] = 0.0
                if y[i] > 0.0:
                    place[n], own[n], vs[n] = i, max(y[i], 1e-154), v[i]
                    n += 1
            _vectors(job, 4, r, d, wide, count, place, n, part)
            if hyper:
                dnumbers = common.rows_at(job, 6, r, memory.doubles(d))
                dvectors = common.rows_at(job, 7, r, memory.doubles(d))
                for k in range(plain):
                    dnumbers[k] = 0.0
                for k in range(count * d):
                    dvectors[k] = 0.0
            if n < 2:
                continue
            call(code, n, own, numbers, part, wide, out)
            for j in range(n):
                h[j] = _slope(out[wide + j])
            _product(n, h, vs, w)
            scale = 1.0 / common.number_at(job, 1, r)
            for j in range(n):
                dx[place[j]] = w[j] * scale
            if hyper:
                call(partials, n, own, numbers, part, wide, out)
                for k in range(plain):
                    total = 0.0
                    for j in range(n):
                        total += w[j] * out[k * wide + j]
                    dnumbers[k] = -total
                for k in range(count):
                    for j in range(n):
                        dvectors[k * d + place[j]] = -w[j] * out[(plain + k) * wide + j]
        first, last = common.take(job)
