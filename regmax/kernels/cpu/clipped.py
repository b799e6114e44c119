"""Rows of a threshold mapping between bounds, from its description.

    y_i = l_i where p(z_i − τ) ≤ l_i,  u_i where it is ≥ u_i,  else p(z_i − τ),    Σ y = k

maximises ⟨y, z⟩ − Σ e(y_i) over l ≤ y ≤ u, Σ y = k. Σ y falls with τ, so that two values of τ hold
the root between them; Newton's steps on e'(Σ_F y) = e'(k − the others), F the entries between their
bounds, are taken where they come closer fast enough, and halves where they do not. At the end z is
taken relative to τ, so that entries between their bounds keep their digits whatever the others are.
J is that of the simplex, on F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, jacobian, memory, simd
from .common import EPS
from .jit import njit
from .simd import LANES, larger, select, smaller
from .sixteen_rows import shifted
from .threshold import Description, size_of

STEPS = 400
"""Every second one halves an interval of float64 numbers, of which there are 2^64."""
LARGEST = 1e300


@njit
def _doubles_at(job: Any, k: int, r: int) -> Any:
    """A pointer to row r of the job's array k, of float64."""
    return memory.doubles(job[5 + 2 * k] + 8 * r * job[6 + 2 * k])


@njit
def _scan(row: Any, d: int) -> Any:
    """As :func:`regmax.kernels.cpu.common.scan`, with the second largest entry of each lane."""
    full = d - d % LANES
    v = simd.load_part(row, full, simd.first(d - full), -np.inf)
    best, second = larger(v, -np.inf), simd.spread(v, -np.inf)
    bad = simd.not_below(v, np.inf)
    for i in range(0, full, LANES):
        v = simd.load(row, i)
        second = larger(smaller(v, best), second)
        best = larger(v, best)
        bad = bad | simd.not_below(v, np.inf)
    return best, second, simd.count(bad) > 0


def _bounds(each: bool) -> Any:
    """(bounds, i) → l, u, e'(l), e'(u) of the entries from i on: of pointers, or vectors."""

    @njit
    def of_entries(bounds: Any, i: int) -> Any:
        low, high, least, most = bounds
        return simd.load(low, i), simd.load(high, i), simd.load(least, i), simd.load(most, i)

    @njit
    def of_row(bounds: Any, i: int) -> Any:
        return bounds

    return of_entries if each else of_row


def _sums(p: Any, at: Any) -> tuple[Any, Any]:
    """y of a vector of entries, and sums of a row."""

    @njit
    def entry(u: Any, theta: Any, bounds: Any) -> Any:
        """y, p', and where they are between the bounds."""
        low, high, least, most = bounds
        v, dv = p(smaller(u, most), theta)
        below, above = u < most, u > least
        v = select(below, select(above, larger(smaller(v, high), low), low), high)
        return v, dv, below & above

    @njit
    def sums(z: Any, n: int, t: Any, theta: Any, bounds: Any) -> tuple[float, float, float]:
        """Σ (y − l), Σ_F y and Σ_F p'."""
        none = simd.spread(theta, 0.0)
        total, free, slopes = none, none, none
        for i in range(0, n, LANES):
            some = at(bounds, i)
            v, dv, on = entry(simd.load(z, i) - t, theta, some)
            total = total + (v - some[0])
            free, slopes = free + select(on, v, 0.0), slopes + select(on, dv, 0.0)
        return simd.total(total), simd.total(free), simd.total(slopes)

    return entry, sums


def _root(p: Any, slope: Any, at: Any) -> Any:
    """(z, n, θ, r, k, bounds, low, high, t, the tolerance of Σ y/k, that of τ) → τ and the last
    step to it, where Σ (y − l) = r, from t, between ``low`` and ``high``; a lower bound on τ; and
    what is missing before the last step."""
    sums = _sums(p, at)[1]

    @njit(apart=True)
    def root(
        z: Any, n: int, theta: Any, room: float, size: float, bounds: Any, low: float, high: float,
        t: float, near: float, close: float,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        width, before, step, off = high - low, np.inf, 0.0, 0.0
        for _ in range(STEPS):
            total, free, slopes = sums(z, n, simd.spread(theta, t), theta, bounds)
            off, step = total - room, 0.0
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
            if far <= 2.0 * EPS * size or (far <= near * size and (far >= before or near > 1e-10)):
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
        if slopes > 0.0:
            step = off / slopes
        return t, step, low, off

    return root


def _values(p: Any, at: Any) -> Any:
    """y at τ."""
    entry = _sums(p, at)[0]

    @njit
    def values(
        z: Any, n: int, theta: Any, t: float, step: float, bounds: Any, out: Any
    ) -> None:
        """y[:n] at τ and the last step to it."""
        like, each, along = simd.load(out, 0), simd.spread(theta, t), simd.spread(theta, step)
        for i in range(0, n, LANES):
            some = at(bounds, i)
            v, dv, on = entry(simd.load(z, i) - each, theta, some)
            moved = larger(smaller(v - dv * along, some[1]), some[0])
            simd.store(out, i, simd.like(like, select(on, moved, v)))

    return values


def functions(
    *descriptions: Description, theta: float | bool, each: bool
) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` of the descriptions as
    :func:`regmax.kernels.cpu.mapping.functions` takes them, between bounds; ``each``: bounds are
    numbers of an entry, not of a row.

    The arrays of forward are x, γ, θ …, l, u, k, the mask, y, and where a row without a point of
    the domain is counted; those of backward y, v, γ, θ …, l, u, the gradient of x, those of θ.
    """
    number = 0.0 if theta is True else float(theta)
    given = theta is True
    able = [e for e in descriptions if e.solve is None and e.root is None and not e.norm]
    return _forward(able, given, number, each), _backward(able, given, number, each)


def between(forward: Any, each: bool) -> tuple[Callable[..., None], Callable[..., None]]:
    """:func:`functions` of those of a mapping on the simplex."""
    descriptions, theta = forward.made_of
    return functions(*descriptions, theta=theta, each=each)


def _forward(
    descriptions: list[Description], given: bool, number: float, each: bool
) -> Callable[..., None]:
    at = 2 + given
    to = at + 4

    @njit
    def of_none(job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], np.nan)
        common.set_number(job, to + 1, 0, 1.0)

    row = of_none
    for own in reversed(descriptions):
        row = _row(own, at, each, row)

    def forward(job: Any, like: Any) -> None:
        d = job[common.WIDTH]
        wide, long = common.scratch_like(3, d, like), common.scratch(6 if each else 2, d)
        arrays = (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2),
            memory.floats(memory.address_of(memory.row(long, 0))), memory.row(long, 1),
        )  # fmt: skip
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at - 1, r) if given else number
                row(job, r, like, common.number_at(job, 1, r), own, arrays)
            begin, end = common.take(job)
        memory.keep((wide, long))

    return forward


def _limits(own: Description, at: int, each: bool) -> tuple[Any, Any]:
    """(job, r, scores, d, k, θ, scratch) → l, u, e'(l), e'(u) of the participants of a row, Σ l,
    NaN if l > u, and the largest u; no u is more than k leaves. And Σ u of these."""
    slope = own.slope

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
        low, high, start = _doubles_at(job, at, r), _doubles_at(job, at + 1, r), d + 2 * LANES
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
            b = select(simd.first(n - i), smaller(simd.load(kept[1], i), a + room), 0.0)
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
        high = min(high, low + max(total - lows, 0.0))
        a, b = simd.spread(theta, low), simd.spread(theta, high)
        return (a, b, least(a, theta), least(b, theta)), lows, high

    @njit
    def sum_of_row(row: Any, d: int, bounds: Any, theta: Any) -> float:
        return count(row, d) * simd.largest(bounds[1])

    return (of_entries, sum_of_entries) if each else (of_row, sum_of_row)


def _row(own: Description, at: int, each: bool, others: Any) -> Any:
    """A function of a row, which ``others`` compute if this description does not cover its θ."""
    covers, factor, zero, slope, to = own.covers, own.factor, own.zero, own.slope, at + 4
    pick, (limits, sum_of) = _bounds(each), _limits(own, at, each)
    root, values = _root(own.inverse, own.slope, pick), _values(own.inverse, pick)
    rough = _root(*(own.rough or (own.inverse, own.slope)), pick)
    wide = own.precise or each

    @njit
    def in_doubles(
        z: Any, n: int, rounded: Any, theta: Any, room: float, total: float, bounds: Any,
        low: float, high: float, near: float,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        return root(z, n, theta, room, total, bounds, low, high, low, near, 1e-6)

    @njit
    def in_floats(
        z: Any, n: int, rounded: Any, theta: Any, room: float, total: float, bounds: Any,
        low: float, high: float, near: float,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        for i in range(0, n, LANES):
            simd.store(rounded, i, simd.narrow(simd.load(z, i)))
        a, b, c, e = bounds
        some = simd.narrow(a), simd.narrow(b), simd.narrow(c), simd.narrow(e)
        by = simd.narrow(theta)
        return rough(rounded, n, by, room, total, some, low, high, low, near, 1e-6)

    first = in_doubles if wide else in_floats

    @njit
    def start(
        best: Any, second: Any, z: Any, rounded: Any, theta: Any, room: float, total: float,
        bounds: Any,
    ) -> float:  # fmt: skip
        """A lower bound on τ, from 32 entries with the same bounds; −∞ if they do not reach k."""
        low, cap, _, most = pick(bounds, 0)
        some = select(best > -LARGEST, cap, 0.0) + select(second > -LARGEST, cap, 0.0)
        if each or simd.largest(low) > 0.0 or not simd.total(some) > room * 1.001:
            return -np.inf
        simd.store(z, 0, best)
        simd.store(z, LANES, second)
        smallest = smaller(select(best > -LARGEST, best, 0.0), select(second > -LARGEST, second, 0.0))
        least = -simd.largest(0.0 - smallest) - simd.largest(most)
        least -= 1e-6 * (abs(least) + 1.0)
        high = -simd.largest(slope(simd.spread(theta, room / (2 * LANES)), theta)[0])
        t = first(z, 2 * LANES, rounded, theta, room, total, bounds, least, high, 0.03)[2]
        return t - 1e-5 * (abs(t) + 1.0)

    @njit
    def row(job: Any, r: int, like: Any, gamma: float, theta: float, arrays: Any) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, arrays)
            return
        d, blank, out = job[common.WIDTH], job[common.BLANK] != 0, common.rows_at(job, to, r, like)
        copy, kept, y, rounded, z = arrays
        scores = common.participants(job, r, to - 1, like, copy)
        best, second, bad = _scan(scores, d)
        top, total = np.float64(simd.largest(best)), common.number_at(job, at + 2, r)
        if common.without_answer(bad, top, d, out):
            return
        none = simd.wide(simd.spread(best, 0.0))
        by = none + theta
        bounds, lows, most = limits(job, r, scores, d, total, by, z)
        slack, room = 8.0 * EPS * total * np.sqrt(np.float64(d)), total - lows
        low, scale = -np.inf, min(max(factor(theta) / gamma, 1.0 / LARGEST), LARGEST)
        all_low, all_high, sound = room <= slack, False, gamma > 0.0 and total > 0.0
        if sound and room > slack:
            some, more = (simd.wide(best) - top) * scale, (simd.wide(second) - top) * scale
            low = start(some, more, z, rounded, by, room, total, bounds)
        if low == -np.inf:
            highs = sum_of(scores, d, bounds, by)
            all_high = highs <= total + slack
            sound = sound and lows <= total + slack and highs >= total - slack
        if not sound:
            common.fill(out, d, np.nan)
            common.set_number(job, to + 1, 0, 1.0)
            return
        near = 1e-8 if memory.size(like) == 4 else 1e-11
        while True:  # ends: the second time, all entries are kept
            whole = low == -np.inf
            least = common.floor(scores, top, max(-(low + zero(theta)) / scale, 0.0))
            n = common.keep(scores, d, least, kept)
            simd.store(kept, n, simd.spread(best, -np.inf))
            smallest = none
            for i in range(0, n, LANES):
                v = (simd.wide(simd.load(kept, i)) - top) * scale
                simd.store(z, i, v)
                smallest = smaller(select(v > -LARGEST, v, 0.0), smallest)
            if all_low or all_high:
                values(z, n, by, np.inf if all_low else -np.inf, 0.0, bounds, y)
                break
            bottom = low
            if whole:
                edge = simd.largest(slope(none + most, by)[0])
                bottom = -simd.largest(0.0 - smallest) - edge
                bottom -= 1e-6 * (abs(bottom) + 1.0)
            high = -simd.largest(slope(none + room / n, by)[0])
            t = first(z, n, rounded, by, room, total, bounds, bottom, high, 1e-4)[0]
            base, gap = top + t / scale, 1e-6 * (abs(t) + 1.0)
            for i in range(0, n, LANES):
                simd.store(z, i, (simd.wide(simd.load(kept, i)) - base) * scale)
            bottom, high = bottom - t - gap, high - t + gap
            tau, step, _, off = root(
                z, n, by, room, total, bounds, bottom, high, 0.0, near, 2.0 * EPS
            )
            values(z, n, by, tau, step, bounds, y)
            if whole or (abs(off) <= 1e-6 * total and t + tau >= low):
                break
            low = -np.inf
        common.place(scores, d, least, y, out, blank)

    return row


def _backward(
    descriptions: list[Description], given: bool, number: float, each: bool
) -> Callable[..., None]:
    at = 3 + given
    to = at + 2

    @njit
    def of_none(
        job: Any, r: int, like: Any, theta: float, hyper: bool, arrays: Any
    ) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], 0.0)
        if hyper:
            common.set_number(job, to + 1, r, 0.0)

    row = of_none
    for own in reversed(descriptions):
        row = _product(own, at, given, each, row)

    def backward(job: Any, like: Any) -> None:
        d, hyper = job[common.WIDTH], given and common.given(job, to + 1)
        wide = common.scratch_like(3, d, like)
        arrays = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at - 1, r) if given else number
                row(job, r, like, own, hyper, arrays)
            begin, end = common.take(job)
        memory.keep(wide)

    return backward


def _product(own: Description, at: int, given: bool, each: bool, others: Any) -> Any:
    covers, product, to = own.covers, jacobian.product_of(own, False), at + 2
    dense = own.cheap

    @njit
    def free(job: Any, r: int, v: Any, i: int, d: int) -> Any:
        """Which of sixteen entries are between their bounds."""
        here = simd.first(d - i)
        if each:
            low = simd.load_part(_doubles_at(job, at, r), i, here, 0.0)
            high = simd.load_part(_doubles_at(job, at + 1, r), i, here, 0.0)
            return (v > simd.like(v, low)) & (v < simd.like(v, high))
        low, high = common.number_at(job, at, r), common.number_at(job, at + 1, r)
        wide = simd.wide(v)
        return (v > simd.like(v, simd.spread(wide, low))) & (v < simd.like(v, simd.spread(wide, high)))

    @njit
    def row(job: Any, r: int, like: Any, theta: float, hyper: bool, arrays: Any) -> None:
        if not covers(theta):
            others(job, r, like, theta, hyper, arrays)
            return
        d, blank, (s, ys, vs) = job[common.WIDTH], job[common.BLANK] != 0, arrays
        y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
        out, zero = common.rows_at(job, to, r, like), simd.load_part(y, 0, simd.first(0), 0.0)
        none = simd.wide(zero)
        by, scale, n = none + theta, none + 1.0 / common.number_at(job, 2, r), 0
        if dense and not hyper:
            for i in range(0, d, LANES):
                a = common.piece(y, i, d, 0.0)
                simd.store(ys, i, simd.select(free(job, r, a, i, d), a, 0.0))
            product(ys, v, d, none, scale, by, s, out, False, True, blank, False, True)
            return
        for i in range(0, d, LANES):
            a = common.piece(y, i, d, 0.0)
            on = free(job, r, a, i, d)
            simd.compress(ys, n, a, on)
            simd.compress(vs, n, common.piece(v, i, d, 0.0), on)
            n += simd.count(on)
        simd.store(ys, n, zero)
        simd.store(vs, n, zero)
        if hyper and given:
            found = product(ys, vs, n, none + vs[0], scale, by, s, vs, True, False, False, True, True)
            common.set_number(job, to + 1, r, simd.largest(found))
        else:
            product(ys, vs, n, none + vs[0], scale, by, s, vs, True, False, False, False, True)
        n = 0
        for i in range(0, d, LANES):
            on = free(job, r, common.piece(y, i, d, 0.0), i, d)
            size = simd.count(on)
            if size > 0 or not blank:
                common.store_piece(out, i, d, simd.expand(vs, n, on))
                n += size

    return row
