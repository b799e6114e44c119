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
from .common import EPS, doubles_at
from .elementary import Either, absolute
from .jit import njit
from .mapping import LARGEST
from .root import last_of, root_of
from .simd import LANES, highest, larger, one, select, smaller, spread, summed
from .sixteen_rows import shifted
from .threshold import Description


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


def sums_of(p: Any, at: Any, rest: Any = None, scales: bool = False) -> tuple[Any, Any]:
    """y of a vector of entries, and sums of a row. ``rest``, ``scales``: as in a description; with
    ``scales``, these take p(z) instead of z, so that p is computed once for many τ."""

    @njit
    def same(t: Any, theta: Any) -> Any:
        return spread(theta, t)

    @njit
    def factor(t: Any, theta: Any) -> Any:
        return p(0.0 - spread(theta, t), theta)[0]

    @njit
    def by_inverse(z: Any, t: Any, theta: Any, bounds: Any) -> Any:
        """y, p', and where they are between the bounds."""
        low, high, least, most = bounds
        u = z - t
        v, dv = p(smaller(u, most), theta)
        below = u < most
        if simd.is_number(low):  # 0, as p is at −∞
            return select(below, v, high), dv, below
        above = u > least
        return select(below, select(above, v, low), high), dv, below & above

    @njit
    def by_product(z: Any, c: Any, theta: Any, bounds: Any) -> Any:
        low, high, _least, _most = bounds
        v = z * c
        below = v < high
        if simd.is_number(low):
            return select(below, v, high), v, below
        above = v > low
        return select(below, select(above, v, low), high), v, below & above

    ready, entry = (factor, by_product) if scales else (same, by_inverse)

    @njit
    def sums(
        z: Any, n: int, t: Any, theta: Any, bounds: Any, room: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Σ (y − l) − room, Σ_F y, Σ_F p', and what rounding is relative to."""
        none, c = simd.spread(theta, 0.0), ready(t, theta)
        total, free, slopes = none, none, none
        for i in range(0, n, LANES):
            some = at(bounds, i)
            v, dv, on = entry(simd.load(z, i), c, theta, some)
            total = total + (v - some[0])
            free, slopes = free + select(on, v, 0.0), slopes + select(on, dv, 0.0)
        rate, least = summed(slopes, t), spread(t, np.inf)
        return summed(total, t) - room, summed(free, t), rate, least

    @njit
    def sums_with_rest(
        z: Any, n: int, t: Any, theta: Any, bounds: Any, room: Any
    ) -> tuple[Any, Any, Any, Any]:
        """The same, where entries next to 1 are 1 less ``rest``, which has more digits."""
        none, each = simd.spread(theta, 0.0), spread(theta, t)
        total, few, slopes = none, none, none
        for i in range(0, n, LANES):
            some = at(bounds, i)
            u = simd.load(z, i)
            v, dv, on = entry(u, each, theta, some)
            near = on & (v > 0.5)
            total = total + (select(near, none + 1.0, select(on, none, v)) - some[0])
            few = few + select(near, 0.0 - rest(u - each, theta), select(on, v, none))
            slopes = slopes + select(on, dv, 0.0)
        rate, off = summed(slopes, t), summed(total, t) - room + summed(few, t)
        return off, spread(t, -np.inf), rate, rate

    return (ready, entry), sums if rest is None else sums_with_rest


def values_of(entry: Any, at: Any, moves: bool) -> Any:
    """y at τ, or, if it ``moves``, at τ and a linear step to it. ``entry``: of :func:`sums_of`."""
    ready, entry = entry

    @njit
    def values(
        z: Any, n: int, theta: Any, t: Any, step: Any, bounds: Any, out: Any
    ) -> tuple[Any, Any]:
        """y[:n]; Σ min(y − l, u − y), and Σ (y − l) before the step. An entry that is not at a
        bound but for rounding does not get there when it is rounded to the dtype of ``out``: J
        depends on it."""
        like, inside, c = simd.load(out, 0), spread(theta, 0.0), ready(t, theta)
        along, sums = spread(theta, step), inside
        coarse, fine = simd.resolution(out), 4.0 * EPS
        for i in range(0, n, LANES):
            low, high, least, most = at(bounds, i)
            v, dv, on = entry(simd.load(z, i), c, theta, (low, high, least, most))
            sums = sums + (v - low)
            moved = v - dv * along if moves else v
            inner = smaller(moved, high * (1.0 - coarse))
            if not moves and simd.is_number(low):
                v = select(moved < high * (1.0 - fine), inner, high)
            else:
                inner = larger(inner, low * (1.0 + coarse))
                inner = select(moved < high * (1.0 - fine), inner, high)
                inner = select(moved > low * (1.0 + fine), inner, low)
                v = select(on, smaller(inner, high), v)
            inside = inside + smaller(v - low, high - v)
            simd.store(out, i, simd.like(like, v))
        return summed(inside, t), summed(sums, t)

    return values


def corner_of(at: Any) -> Any:
    """y where the bounds alone make the sum: at a vertex, where τ is any number of an interval."""

    @njit
    def corner(
        z: Any, n: int, zero: Any, room: Any, slack: Any, bounds: Any, close: Any, y: Any
    ) -> Any:
        """Put y[:n] at the nearest bounds where they are ``close``, if they add up and some τ has
        each entry at its own; the largest such τ, else −∞."""
        like, none = simd.load(y, 0), spread(simd.load(z, 0), 0.0)
        over, under, sums = none + np.inf, none - np.inf, none
        for i in range(0, n, LANES):
            low, high, least, most = at(bounds, i)
            v, s = simd.wide(simd.load(y, i)), simd.load(z, i)
            up = v - low > high - v
            over = smaller(over, select(up, s - most, np.inf))
            down = (high > low) & (high - v >= v - low)  # an entry with l = u is there for any τ
            under = larger(under, select(down, s - larger(least, zero), none - np.inf))
            sums = sums + select(up, high - low, 0.0)
        most, last = 0.0 - highest(0.0 - over, room), highest(under, room)
        there = close & (slack >= absolute(summed(sums, room) - room)) & (most >= last)
        if simd.count(there) == 0:
            return spread(room, -np.inf)
        for i in range(0, n, LANES):
            low, high, _least, _most = at(bounds, i)
            v = simd.wide(simd.load(y, i))
            v = select(there, select(v - low > high - v, high, low), v)
            simd.store(y, i, simd.like(like, v))
        return select(there, most, -np.inf)

    return corner


EASE = 1e3
"""How much more of Σ y may be missing before the last step, after which it is computed again."""
REACH, HALVES = 60.0, 1100
"""How far τ moves for p(z) p(−τ): e^84, the largest p(z), is a number of float32, and above the
bounds of y after that. And how many times an interval of float64 numbers is halved to have less."""


def steps_of(own: Description, pick: Any, each: bool) -> tuple[Any, Any, Any]:
    """``start`` and ``solve`` of the packed entries of a row, or of sixteen, and y of entries at a
    number τ."""
    p, slope, scales = own.inverse, own.slope, own.scales and not each
    entry, sums = sums_of(p, pick, own.rest, scales)
    root, corner = root_of(sums, slope), corner_of(pick)
    exactly, values = values_of(entry, pick, False), values_of(entry, pick, True)
    coarse, slope_of = own.rough or (own.inverse, slope)
    few = sums_of(coarse, pick, own.rest, scales)[1]
    rough = root_of(few, slope_of)

    @njit
    def powered(v: Any, theta: Any) -> Any:
        """p, for :func:`sums_of` with ``scales``."""
        return p(smaller(v, 1.4 * REACH), theta)[0]

    @njit
    def powered32(like: Any, v: Any, theta: Any) -> Any:
        return simd.wide(powered(simd.narrow(v), simd.narrow(theta)))

    @njit
    def powered64(like: Any, v: Any, theta: Any) -> Any:
        return powered(v, theta)

    last = last_of(root, Either(powered32, powered64), REACH) if scales else last_of(root)
    reach, checked = REACH if scales else np.inf, own.rest is None
    wide = own.precise or each or own.root is not None

    @njit
    def in_doubles(
        z: Any, n: int, rounded: Any, theta: Any, room: Any, total: Any, bounds: Any, low: Any,
        high: Any, near: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        t, step, least, _off = root(z, n, theta, room, total, bounds, low, high, low, near, 1e-6)
        return t + step, least

    @njit
    def in_floats(
        z: Any, n: int, rounded: Any, theta: Any, room: Any, total: Any, bounds: Any, low: Any,
        high: Any, near: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        if simd.is_number(low) and simd.count(low < -1e30) > 0:
            return in_doubles(z, n, rounded, theta, room, total, bounds, low, high, near)
        a, b, c, e = bounds
        some = simd.narrow(a), simd.narrow(b), simd.narrow(c), simd.narrow(e)
        by, begin = simd.narrow(theta), simd.narrow(low)
        t, step, least, _off = rough(
            rounded, n, by, simd.narrow(room), simd.narrow(total), some, begin, simd.narrow(high),
            begin, near, 1e-6,
        )  # fmt: skip
        return simd.wide(t + step), simd.wide(least)

    @njit
    def in_products(
        z: Any, n: int, rounded: Any, theta: Any, room: Any, total: Any, bounds: Any, low: Any,
        high: Any, near: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        """As ``in_floats``, by p(z) p(−τ) of scores relative to a number next to τ."""
        a, b, c, e = bounds
        some = simd.narrow(a), simd.narrow(b), simd.narrow(c), simd.narrow(e)
        by, size, most = simd.narrow(theta), simd.narrow(total), simd.narrow(room)
        none = spread(size, 0.0)
        for _ in range(HALVES):
            middle = low + (high - low) * 0.5
            far = (high - low > REACH) & (middle > low) & (high > middle)
            base = select(far, middle, low)
            for i in range(0, n, LANES):
                simd.store(rounded, i, powered(simd.narrow(simd.load(z, i) - base), by))
            if simd.count(far) == 0:
                break
            off = simd.wide(few(rounded, n, none, by, some, most)[0])
            low = select(far & (off > 0.0), base, low)
            high = select(far & simd.not_below(0.0 - off, 0.0), base, high)
        end = simd.narrow(smaller(high - low, REACH))
        t, step, least, _off = rough(rounded, n, by, most, size, some, none, end, none, near, 1e-6)
        return low + simd.wide(t + step), low + simd.wide(least)

    first = in_doubles if wide else in_products if scales else in_floats

    @njit
    def relative(kept: Any, n: int, top: Any, scale: Any, z: Any, rounded: Any) -> Any:
        """z = (kept − top)·scale, also in float32, and the least of these, 0 included."""
        smallest = spread(simd.load(z, 0), 0.0)
        for i in range(0, n, LANES):
            v = (simd.wide(simd.load(kept, i)) - top) * scale
            simd.store(z, i, v)
            simd.store(rounded, i, simd.narrow(v))
            smallest = smaller(select(v > -LARGEST, v, 0.0), smallest)
        return 0.0 - highest(0.0 - smallest, top)

    @njit
    def start(
        kept: Any, n: int, top: Any, scale: Any, z: Any, rounded: Any, theta: Any, room: Any,
        total: Any, bounds: Any,
    ) -> Any:  # fmt: skip
        """A lower bound on τ, from 32 entries of a row with the same bounds, 0 below, which may
        add up to more than k."""
        least = relative(kept, n, top, scale, z, rounded) - one(bounds[3], top)
        least = least - (absolute(least) + 1.0) * 1e-6
        high = 0.0 - one(slope(spread(theta, room * (0.5 / LANES)), theta)[0], top)
        t = first(z, n, rounded, theta, room, total, bounds, least, high, 0.03)[1]
        return t - (absolute(t) + 1.0) * 1e-5

    @njit
    def solve(
        kept: Any, n: int, top: Any, scale: Any, z: Any, rounded: Any, theta: Any, row: Any,
        room: Any, total: Any, bounds: Any, low: Any, near: float, y: Any,
    ) -> Any:  # fmt: skip
        """y[:n], from a lower bound on τ, −∞ if all entries are packed; 1 where it is the answer,
        else 0. ``row``: how many entries are packed, the largest u, e'(0), and the tolerance of
        Σ y."""
        count, most, zero, slack = row
        edge = one(slope(spread(theta, most), theta)[0], top)
        least = relative(kept, n, top, scale, z, rounded) - edge
        least = least - (absolute(least) + 1.0) * 1e-6
        high = 0.0 - one(slope(spread(theta, room / count), theta)[0], top)
        bottom = select(low > -np.inf, low, least)
        t = first(z, n, rounded, theta, room, total, bounds, bottom, high, 1e-3)[0]
        # where y is rounded to float32, its sum after the last step says whether that was enough
        certifies = checked and memory.size(y) == 4
        enough = near * EASE if certifies else near
        t, tau, step, off = last(
            kept, n, top, scale, z, theta, room, total, bounds, t, bottom, high, enough, slack
        )
        here = tau + step if certifies else tau
        if not certifies:
            inside, found = values(z, n, theta, here, step, bounds, y)
        else:
            inside, found = exactly(z, n, theta, here, step, bounds, y)
            missed = simd.not_below(absolute(found - room) - total * near, 0.0)
            if simd.count(missed) > 0:  # as where an entry met or left its bound in the last step
                gap = (absolute(t) + 1.0) * 1e-6
                ends = larger(bottom - t - gap, -reach), smaller(high - t + gap, reach)
                given = z, n, theta, room, total, bounds, *ends, tau, near, 2.0 * EPS
                again, step, _least, off = root(*given)
                here, step = select(missed, again, here), select(missed, step, 0.0)
                inside, found = values(z, n, theta, here, step, bounds, y)
            off = select(missed, off, 0.0)
        upper = here
        close = room * 1e-6 > inside
        if simd.count(close) > 0:
            if scales:
                relative(kept, n, top + t / scale, scale, z, rounded)
            upper = larger(corner(z, n, zero, room, slack, bounds, close, y), here)
        good = (slack >= absolute(off)) & (t + upper >= low)
        return select(good, spread(t, 1.0), 0.0)

    return start, solve, values


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
