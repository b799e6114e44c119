"""Rows of a threshold mapping whose p = (e')⁻¹ has no formula, by a table of it.

In float32, p is read from the table: Newton's method on e'(Σp) = e'(1) finds τ to a few digits
(:mod:`regmax.kernels.cpu.threshold`). In float64, one or two steps of the third order from there
solve e'(y_i) = z_i − τ, by the power that has e'' and e''' of e at y_i. A row is certified: with
z_i − e'(y_i) in [lo, hi] where y_i > 0, and at most hi elsewhere, the maximiser lies between the
y(τ) of lo and hi (Blondel, Martins & Niculae 2019, Prop. 5), for which e' need only rise.

θ of a row is the address of its numbers, an integer that float64 holds; the first of them are named
in :mod:`.inputs`, and those that the code of e takes follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cpu import common, elementary, mapping, memory, simd
from ..cpu.elementary import absolute
from ..cpu.jit import njit
from ..cpu.simd import LANES, larger, narrow, select, smaller
from ..cpu.sixteen_rows import shifted
from ..cpu.threshold import Description, whole_sum
from ..cpu.tiles import LONGEST
from .inputs import BASE, BIN, COUNT, CURVE, MISSED, NUMBERS, ONE, TABLE, TOLERANCE, WIDTH, ZERO

LEAST = 1e-30
"""Where e is evaluated instead of at 0."""
ROUND, ROUND_BITS, HALF_BIN = 12582912.0, 0x4B400000, 1 << (BIN - 1)
"""x + ROUND − ROUND is x rounded, and its bits are ROUND_BITS more than that integer."""
FEW, STEPS, TRIES = 4, 40, 12
"""The most steps of Newton's method to a bound, in float32, and in float64."""


@njit
def _numbers(theta: float) -> Any:
    return memory.doubles(int(theta))


@njit
def _at(theta: Any, k: int) -> float:
    found: float = _numbers(simd.largest(theta))[k]
    return found


@njit
def _zero(theta: float) -> float:
    found: float = _numbers(theta)[ZERO]
    return found


@njit
def _one(theta: Any) -> Any:
    """A little more than e'(1): a bound on τ that float32 rounds."""
    one = _at(theta, ONE)
    return simd.spread(theta, one + (abs(one) + 1.0) * 1e-6)


def functions(slopes: Any, dense: bool) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` as
    :class:`regmax.kernels.cpu.rows.CompiledRows` takes them, from ``slopes``: (y, numbers) →
    e', e'' and e''' of vectors. ``dense``: e'(0) = −∞."""

    @njit
    def weight(y: Any, theta: Any) -> Any:
        numbers = shifted(_numbers(simd.largest(theta)), NUMBERS)
        return 1.0 / slopes(larger(y, LEAST), numbers)[1]

    @njit
    def slope(y: Any, theta: Any) -> tuple[Any, Any]:
        numbers = shifted(_numbers(simd.largest(theta)), NUMBERS)
        g, h, _ = slopes(larger(y, LEAST), numbers)
        return g, h

    inverse, *root = _equation(slopes, dense)
    own = Description(
        inverse, slope, weight, one=_one, zero=_zero, root=root,
        widest=LONGEST if dense else 1024,
    )  # fmt: skip
    return mapping.functions(own, theta=True)


def _equation(slopes: Any, dense: bool) -> tuple[Any, Any, Any]:
    """p of y ≤ 1 in float64; ``bound`` and ``solve`` of
    :func:`regmax.kernels.cpu.threshold.equation`."""

    @njit
    def table(u: Any, theta: Any) -> tuple[Any, Any]:
        """y and dy/du from the nearest number of the table, of float32, as if e' were a power; u is
        less e'(0) if that is finite."""
        numbers = _numbers(simd.largest(theta))
        known = memory.doubles(int(numbers[TABLE]))
        if dense:
            base, width = numbers[BASE], numbers[WIDTH]
            place = smaller(larger((u - base) * (1.0 / width), 0.0), numbers[COUNT] - 1.0)
            shifted_place = place + ROUND
            k = simd.sub_int(simd.as_bits32(shifted_place), ROUND_BITS)
            near = (shifted_place - ROUND) * width + base
            alive = u > base
            away = u - near
        else:
            alive = u > 0.0
            away = smaller(larger(u, numbers[BASE]), numbers[WIDTH])
            k = simd.shift_right(simd.add_int(simd.as_bits32(away), HALF_BIN), BIN)
            near = simd.from_bits32(simd.shift_left(k, BIN))
            k = simd.sub_int(k, int(numbers[COUNT]))
            away = away - near
        both = simd.gather(known, k)
        v, rate = simd.first_half(both), simd.second_half(both)
        curve = numbers[CURVE]
        q = rate * away
        found, slope = v * (q * (q * curve + 1.0) + 1.0), v * rate * (q * (curve * 2.0) + 1.0)
        return select(alive, larger(found, 0.0), 0.0), select(alive, larger(slope, 0.0), 0.0)

    @njit
    def step(u: Any, before: Any, numbers: Any) -> tuple[Any, Any]:
        """y and dy/du, from a y nearby: to the third order, and exact for powers."""
        y = larger(before, LEAST)
        g, h, c = slopes(y, numbers)
        # y (1 + (b + 1)/2 w)/(1 + (b − 1)/2 w), w = (u − g)/(yh), b = 1 + yc/h, times yh²
        r, soft, bend = u - g, y * h, y * c * 0.5
        under = soft * h + bend * r
        over = under + h * r
        fits = (over > under * 0.125) & (under * 8.0 > over) & (under > 0.0)
        inverse = 1.0 / select(fits, under, 1.0)
        found = select(r > 0.0, y * 8.0, y * 0.125)
        rate = soft * inverse
        found, rate = (
            select(fits, y * over * inverse, found),
            select(fits, rate * rate * h, 1.0 / h),
        )
        return select(before > 0.0, found, 0.0), select(before > 0.0, rate, 0.0)

    @njit
    def inverse(u: Any, theta: Any) -> tuple[Any, Any]:
        numbers, edge = shifted(_numbers(simd.largest(theta)), NUMBERS), 0.0
        if not dense:
            edge = _at(theta, ZERO)
        v, _ = step(u, simd.wide(table(narrow(u - edge), theta)[0]), numbers)
        return step(u, v, numbers)

    @njit
    def start(z: Any, n: int, numbers: Any, tau: Any, whole: bool) -> Any:
        """τ of the largest entry of softmax, where e'(0) = −∞."""
        sums = simd.spread(tau, 0.0)
        for i in range(0, n, LANES):
            sums = sums + elementary.exp32(simd.load(z, i))
        return 0.0 - slopes(1.0 / whole_sum(sums, whole), numbers)[0]

    @njit
    def rough(z: Any, n: int, theta: Any, tau: Any, whole: bool, steps: int, tol: float) -> Any:
        """τ in float32, from a lower bound, with Σy = 1 but for ``tol`` before the last step; where
        it is not there yet, a lower bound."""
        none, zero, one = simd.spread(tau, 0.0), _at(theta, ZERO), _at(theta, ONE)
        numbers = shifted(_numbers(simd.largest(theta)), NUMBERS)
        moving = none < none + 1.0
        low, high = none - one - (abs(one) + 1.0), none - zero
        if dense:
            tau = larger(start(z, n, numbers, tau, whole), tau)
        for _ in range(steps):
            sums, rates, edge = none, none, tau if dense else tau + zero
            for i in range(0, n, LANES):
                v, dv = table(simd.load(z, i) - edge, theta)
                sums, rates = sums + v, rates + dv
            sums, rates = whole_sum(sums, whole), whole_sum(rates, whole)
            off = sums - 1.0
            g, h, _ = slopes(larger(sums, LEAST), numbers)
            low, high = (
                select(moving & (off > 0.0), tau, low),
                select(moving & (off < 0.0), tau, high),
            )
            trial = tau + select(rates > 0.0, (g - one) / (h * rates), 0.0)
            near = absolute(off) < tol
            usable = near | (trial > low) & (trial < high) & (rates > 0.0)
            middle = select(high < np.inf, (low + high) * 0.5, low + absolute(low) + 1.0)
            tau = select(moving, select(usable, trial, middle), tau)
            moving = moving & simd.not_below(absolute(off), tol)
            if simd.count(moving) == 0:
                break
        return select(moving, low, tau)

    @njit
    def bound(z: Any, n: int, theta: Any, high: Any, whole: bool) -> Any:
        """A lower bound on τ, float32, from some of the entries."""
        least = 0.0 - narrow(_one(theta))
        if dense:
            return least
        found = rough(z, n, theta, least, whole, FEW, 3e-3)
        return larger(found - (absolute(found) + 1.0) * 1e-2, least)

    @njit
    def exact(
        z: Any, n: int, theta: Any, t: Any, whole: bool, moving: Any, twice: bool, y: Any, dy: Any
    ) -> tuple[Any, Any]:
        """Σy and Σ dy, with y and dy of these lanes that are moving."""
        none, of = simd.spread(t, 0.0), simd.load(dy, 0)
        numbers = shifted(_numbers(simd.largest(theta)), NUMBERS)
        sums, rates, edge = none, none, 0.0 if dense else _at(theta, ZERO)
        for i in range(0, n, LANES):
            u = simd.load(z, i) - t
            v, dv = step(u, simd.wide(table(narrow(u - edge), theta)[0]), numbers)
            if twice:
                v, dv = step(u, v, numbers)
            simd.store(y, i, select(moving, v, simd.load(y, i)))
            simd.store(dy, i, select(moving, simd.like(of, dv), simd.load(dy, i)))
            sums, rates = sums + v, rates + dv
        return whole_sum(sums, whole), whole_sum(rates, whole)

    @njit
    def certified(
        z: Any, n: int, theta: Any, least: Any, t: Any, change: Any, rates: Any, whole: bool,
        moving: Any, precise: bool, y: Any, dy: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Take the last step in τ; whether each row is as near to the maximiser as it must be, if
        e'(0) + ``least`` is above the scores that are left out."""
        none, tol = simd.spread(t, 0.0), _at(theta, TOLERANCE)
        numbers, like = shifted(_numbers(simd.largest(theta)), NUMBERS), simd.load(out, 0)
        size, most = tol / (8.0 * n), select(rates > 0.0, (none + tol * 0.1) / rates, 0.0)
        away = smaller((absolute(t) + 1.0) * (3e-14 if precise and not dense else 1e-9), most)
        low, high, wrong = none + np.inf, none - np.inf, none
        sums, distance, after = none, none, t + change
        edge = 0.0 if dense else _at(theta, ZERO)
        for i in range(0, n, LANES):
            x, last = simd.load(z, i), simd.load(y, i)
            v = larger(last - simd.wide(simd.load(dy, i)) * change, 0.0)
            if not dense:  # but for rounding, it is at the threshold
                v = select(x - after - absolute(x) * (8.0 * common.EPS) > edge, v, 0.0)
            v = select(moving, v, last)
            simd.store(y, i, v)
            simd.store(out, i, select(moving, simd.like(like, v), simd.load(out, i)))
            at = larger(v, LEAST)
            g, h, _ = slopes(at, numbers)
            r = x - g
            noise = (absolute(x) + absolute(g)) * (4.0 * common.EPS)
            inside = r > -1e300
            high = larger(high, select(inside, r + noise, -np.inf))
            low = smaller(low, select(v >= 2.0 * LEAST, r - noise, np.inf))
            off = away * 2.0 / h + v * (4.0 * common.EPS)
            counts = inside & (r > after - away * 2.0)
            near = counts & (off > v * 1e-4)
            if simd.count(near) > 0:
                off = select(near, larger(off * 1.5, size), off)
                end = at + off
                g1 = slopes(smaller(end, 1.0), numbers)[0]
                start = at - off
                g2 = slopes(larger(start, LEAST), numbers)[0]
                good = (end > 1.0) | (g1 > g + away)
                good = good & ((start < LEAST) | (g - away > g2))
                wrong = wrong + select(near, select(good, none, 1.0), 0.0)
            sums, distance = sums + v, distance + select(counts, off, 0.0)
        if whole:
            low, high = none - simd.largest(0.0 - low), none + simd.largest(high)
        sums, distance = whole_sum(sums, whole), whole_sum(distance, whole)
        wrong = whole_sum(wrong, whole)
        near = (away > high - low) & (wrong < 0.5)
        near = near & (low > least)
        return near & (absolute(sums - 1.0) + distance * 1.5 < tol)

    @njit
    def solve(
        z: Any, rounded: Any, n: int, theta: Any, tau: Any, high: Any, whole: bool, y: Any, dy: Any
    ) -> None:
        """As :func:`regmax.kernels.cpu.threshold.equation` makes it; ``rounded`` has room for n
        numbers of float64."""
        wide, double = memory.doubles(memory.address_of(rounded)), memory.size(y) == 8
        t, least = simd.wide(rough(rounded, n, theta, tau, whole, STEPS, 1e-4)), simd.wide(tau)
        none = simd.spread(t, 0.0)
        moving, low, high = none < none + 1.0, none - np.inf, none + np.inf
        precise, tol, far, change, rates = double, 1e-9 if double else 3e-6, moving, none, none
        for _ in range(TRIES):
            sums, slope = exact(z, n, theta, t, whole, far, precise, wide, dy)
            off, rates = sums - 1.0, select(far, slope, rates)
            low, high = select(off > 0.0, t, low), select(off < 0.0, t, high)
            change = select(far, select(slope > 0.0, off / slope, 0.0), change)
            far = far & (absolute(off) > tol)
            if simd.count(far) == 0:
                done = certified(
                    z, n, theta, least, t, change, rates, whole, moving, precise, wide, dy, y
                )
                moving = moving & (select(done, none, 1.0) > 0.5)
                if simd.count(moving) == 0:
                    return
                precise, far = True, moving
            # a lane that waits for others does not change
            trial, middle = t + change, (low + high) * 0.5
            middle = select(absolute(middle) < np.inf, middle, trial)
            usable = (trial > low) & (trial < high) | (tol > absolute(off))
            t = select(far, select(usable, trial, middle), t)
        memory.fetch_add(memory.longs(int(simd.largest(theta)) + 8 * MISSED), 1)

    return inverse, bound, solve
