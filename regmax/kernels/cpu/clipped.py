"""Rows of a threshold mapping between bounds, from its description.

    y_i = l_i where p(z_i − τ) ≤ l_i,  u_i where it is ≥ u_i,  else p(z_i − τ),    Σ y = k

maximises ⟨y, z⟩ − Σ e(y_i) over l ≤ y ≤ u, Σ y = k. Σ y falls with τ, so that two values of τ hold
the root between them; Newton's steps on e'(Σ_F y) = e'(k − the others), F the entries between their
bounds, are taken where they come closer fast enough, and halves where they do not. At the end z is
taken relative to τ, so that entries between their bounds keep their digits whatever the others are.
J is that of the simplex, on F.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, memory, simd
from .common import EPS
from .jit import njit
from .simd import LANES, larger, select, smaller
from .sixteen_rows import shifted
from .threshold import Description

STEPS = 400
"""Every second one halves an interval of float64 numbers, of which there are 2^64."""


@njit
def doubles_at(job: Any, k: int, r: int) -> Any:
    """A pointer to row r of the job's array k, of float64."""
    return memory.doubles(job[5 + 2 * k] + 8 * r * job[6 + 2 * k])


def bounds_at(each: bool) -> Any:
    """(bounds, i) → l, u, e'(l), e'(u) of the entries from i on: of pointers, or vectors."""

    @njit
    def of_entries(bounds: Any, i: int) -> Any:
        low, high, least, most = bounds
        return simd.load(low, i), simd.load(high, i), simd.load(least, i), simd.load(most, i)

    @njit
    def of_row(bounds: Any, i: int) -> Any:
        return bounds

    return of_entries if each else of_row


def sums_of(p: Any, at: Any, rest: Any = None) -> tuple[Any, Any]:
    """y of a vector of entries, and sums of a row. ``rest``: as in a description."""

    @njit
    def entry(u: Any, theta: Any, bounds: Any) -> Any:
        """y, p', and where they are between the bounds."""
        low, high, least, most = bounds
        v, dv = p(smaller(u, most), theta)
        below, above = u < most, u > least
        v = select(below, select(above, larger(smaller(v, high), low), low), high)
        return v, dv, below & above

    @njit
    def sums(
        z: Any, n: int, t: Any, theta: Any, bounds: Any, room: float
    ) -> tuple[float, float, float, float]:
        """Σ (y − l) − room, Σ_F y, Σ_F p', and what rounding is relative to."""
        none = simd.spread(theta, 0.0)
        total, free, slopes = none, none, none
        for i in range(0, n, LANES):
            some = at(bounds, i)
            v, dv, on = entry(simd.load(z, i) - t, theta, some)
            total = total + (v - some[0])
            free, slopes = free + select(on, v, 0.0), slopes + select(on, dv, 0.0)
        return simd.total(total) - room, simd.total(free), simd.total(slopes), np.inf

    @njit
    def sums_with_rest(
        z: Any, n: int, t: Any, theta: Any, bounds: Any, room: float
    ) -> tuple[float, float, float, float]:
        """The same, where entries next to 1 are 1 less ``rest``, which has more digits."""
        none = simd.spread(theta, 0.0)
        total, few, slopes = none, none, none
        for i in range(0, n, LANES):
            some = at(bounds, i)
            u = simd.load(z, i) - t
            v, dv, on = entry(u, theta, some)
            near = on & (v > 0.5)
            total = total + (select(near, none + 1.0, select(on, none, v)) - some[0])
            few = few + select(near, 0.0 - rest(u, theta), select(on, v, none))
            slopes = slopes + select(on, dv, 0.0)
        slope = simd.total(slopes)
        return simd.total(total) - room + simd.total(few), 0.0, slope, slope

    return entry, sums if rest is None else sums_with_rest


def root_of(sums: Any, slope: Any) -> Any:
    """(z, n, θ, r, k, bounds, low, high, t, the tolerance of Σ y/k, that of τ) → τ and the last
    step to it, where Σ (y − l) = r, from t, between ``low`` and ``high``; a lower bound on τ; and
    Σ (y − l) − r after this step. ``sums``: as :func:`sums_of` makes them."""

    @njit(apart=True)
    def root(
        z: Any, n: int, theta: Any, room: float, size: float, bounds: Any, low: float, high: float,
        t: float, near: float, close: float,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        width, before, step, off, unit = high - low, np.inf, 0.0, 0.0, size
        for _ in range(STEPS):
            off, free, slopes, least = sums(z, n, simd.spread(theta, t), theta, bounds, room)
            unit, step = min(size, least), 0.0
            if slopes > 0.0:
                step, aim = off / slopes, free - off
                if aim > 0.0:
                    g, h = slope(simd.spread(theta, free), theta)
                    a, _rest = slope(simd.spread(theta, aim), theta)
                    step = simd.largest(g - a) / (simd.largest(h) * slopes)
            if off > 0.0:
                low = t
            else:
                high = t
            far = abs(off)
            if far <= 2.0 * EPS * unit or (far <= near * unit and (far >= before or near > 1e-10)):
                break
            if not high > low or (slopes > 0.0 and abs(step) <= close * abs(t)):
                break
            before = far
            following = t + step
            if slopes > 0.0 and low < following < high and abs(step) <= width:
                width = 0.5 * abs(step)
            else:
                following, width = low + 0.5 * (high - low), 0.5 * (high - low)
                if following <= low or following >= high:
                    break
            t = following
        step = 0.0
        if slopes > 0.0 and abs(off) <= 1e-6 * unit:
            step, off = off / slopes, 0.0
        return t, step, low, off

    return root


def values_of(entry: Any, at: Any) -> Any:
    """y at τ."""

    @njit
    def values(z: Any, n: int, theta: Any, t: float, step: float, bounds: Any, out: Any) -> None:
        """y[:n] at τ and the last step to it. An entry that is not at a bound but for rounding
        does not get there when it is rounded to the dtype of ``out``: J depends on it."""
        like, each, along = simd.load(out, 0), simd.spread(theta, t), simd.spread(theta, step)
        coarse, fine = simd.resolution(out), 4.0 * EPS
        for i in range(0, n, LANES):
            low, high, least, most = at(bounds, i)
            v, dv, on = entry(simd.load(z, i) - each, theta, (low, high, least, most))
            moved = v - dv * along
            inner = larger(smaller(moved, high * (1.0 - coarse)), low * (1.0 + coarse))
            inner = select(moved < high * (1.0 - fine), inner, high)
            inner = select(moved > low * (1.0 + fine), inner, low)
            simd.store(out, i, simd.like(like, select(on, smaller(inner, high), v)))

    return values


def corner_of(at: Any) -> Any:
    """y where the bounds alone make the sum: at a vertex, where τ is any number of an interval."""

    @njit
    def corner(z: Any, n: int, zero: Any, room: float, slack: float, bounds: Any, y: Any) -> None:
        """Put y[:n] at the nearest bounds, if they add up and some τ has each entry at its own."""
        like, none = simd.load(y, 0), zero * 0.0
        over, under, sums = none + np.inf, none - np.inf, none
        for i in range(0, n, LANES):
            low, high, least, most = at(bounds, i)
            v, s = simd.wide(simd.load(y, i)), simd.load(z, i)
            up = v - low > high - v
            over = smaller(over, select(up, s - most, np.inf))
            under = larger(under, select(up, none - np.inf, s - larger(least, zero)))
            sums = sums + select(up, high - low, 0.0)
        alone = abs(simd.total(sums) - room) <= slack
        if not (alone and -simd.largest(0.0 - over) >= simd.largest(under)):
            return
        for i in range(0, n, LANES):
            low, high, _least, _most = at(bounds, i)
            v = simd.wide(simd.load(y, i))
            simd.store(y, i, simd.like(like, select(v - low > high - v, high, low)))

    return corner


def limits_of(own: Description, at: int, each: bool) -> tuple[Any, Any]:
    """(job, r, scores, d, k, θ, scratch) → l, u, e'(l), e'(u) of the participants of a row, Σ l,
    NaN if l > u, and the largest u; no u is more than k leaves. And Σ u of these."""
    slope, cap = own.slope, 1.0 if own.rest else np.inf

    @njit
    def least(v: Any, theta: Any) -> Any:
        """e', and −∞ where that bound is 0."""
        return select(v > 0.0, slope(larger(v, 2.3e-308), theta)[0], -np.inf)

    @njit
    def count(row: Any, d: int) -> int:
        """How many take part."""
        n, full = 0, d - d % LANES
        for i in range(0, full, LANES):
            n += simd.count(simd.load(row, i) > -np.inf)
        return n + simd.count(simd.load_part(row, full, simd.first(d - full), -np.inf) > -np.inf)

    @njit
    def of_entries(
        job: Any, r: int, row: Any, d: int, total: float, theta: Any, z: Any
    ) -> tuple[Any, float, float]:
        low, high, start = doubles_at(job, at, r), doubles_at(job, at + 1, r), d + 2 * LANES
        kept = (
            shifted(z, start), shifted(z, 2 * start), shifted(z, 3 * start), shifted(z, 4 * start)
        )  # fmt: skip
        none, n = simd.spread(theta, 0.0), 0
        for i in range(0, d, LANES):
            here = simd.first(d - i)
            on = simd.load_part(row, i, here, -np.inf) > -np.inf
            simd.compress(kept[0], n, simd.load_part(low, i, here, 0.0), on)
            simd.compress(kept[1], n, simd.load_part(high, i, here, 0.0), on)
            n += simd.count(on)
        simd.store(kept[0], n, none)
        simd.store(kept[1], n, none)
        sums, most = none, none
        for i in range(0, n, LANES):
            a, b = simd.load(kept[0], i), simd.load(kept[1], i)
            sums = sums + select((b >= a) & (a >= 0.0), a, np.nan)
        lows = simd.total(sums)
        room = max(total - lows, 0.0)
        for i in range(0, n, LANES):
            a = simd.load(kept[0], i)
            b = smaller(smaller(simd.load(kept[1], i), a + room), cap)
            b = select(simd.first(n - i), b, 0.0)
            simd.store(kept[1], i, b)
            simd.store(kept[2], i, least(a, theta))
            simd.store(kept[3], i, least(b, theta))
            most = larger(b, most)
        return kept, lows, simd.largest(most)

    @njit
    def sum_of_entries(row: Any, d: int, bounds: Any, theta: Any) -> float:
        sums = simd.spread(theta, 0.0)
        for i in range(0, count(row, d), LANES):
            sums = sums + simd.load(bounds[1], i)
        return simd.total(sums)

    @njit
    def of_row(
        job: Any, r: int, row: Any, d: int, total: float, theta: Any, z: Any
    ) -> tuple[Any, float, float]:
        low, high = common.number_at(job, at, r), common.number_at(job, at + 1, r)
        lows = 0.0
        if low > 0.0:
            lows = count(row, d) * low
        if not high >= low >= 0.0:
            lows = np.nan
        high = min(high, low + max(total - lows, 0.0), cap)
        a, b = simd.spread(theta, low), simd.spread(theta, high)
        return (a, b, least(a, theta), least(b, theta)), lows, high

    @njit
    def sum_of_row(row: Any, d: int, bounds: Any, theta: Any) -> float:
        return count(row, d) * simd.largest(bounds[1])

    return (of_entries, sum_of_entries) if each else (of_row, sum_of_row)
