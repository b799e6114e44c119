"""The compiled functions of a threshold mapping between bounds, from its description.

A row takes these steps: the two largest of its entries in each lane give a bound on τ, where all
have the same bounds; the entries that may be above 0 are packed; the root is found in float32 where
that will do, then in float64 on scores relative to it; y goes to its places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, jacobian, memory, simd
from .clipped import bounds_at, corner_of, doubles_at, limits_of, root_of, sums_of, values_of
from .common import EPS
from .jit import njit
from .mapping import LARGEST
from .simd import LANES, larger, select, smaller
from .threshold import Description


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
    able = [e for e in descriptions if (e.solve is None or e.rest) and not e.norm]
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

    @njit
    def rows_of(wide: Any, long: Any) -> Any:
        return (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2),
            memory.floats(memory.address_of(memory.row(long, 0))), memory.row(long, 1),
        )  # fmt: skip

    return row_by_row(row, at, given, number, (3, 6 if each else 2), rows_of)


def row_by_row(
    row: Any, at: int, given: bool, number: float, counts: tuple[int, int], rows_of: Any
) -> Callable[..., None]:
    """``forward(job, like)`` that calls ``row`` for each row; θ is array ``at`` − 1 if it is
    ``given``. ``rows_of`` takes scratch of the dtype of a row and of float64, of these ``counts``
    of rows, and makes the scratch of ``row``."""
    few, many = counts

    def forward(job: Any, like: Any) -> None:
        d = job[common.WIDTH]
        wide, long = common.scratch_like(few, d, like), common.scratch(many, d)
        arrays = rows_of(wide, long)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at - 1, r) if given else number
                row(job, r, like, common.number_at(job, 1, r), own, arrays)
            begin, end = common.take(job)
        memory.keep((wide, long))

    return forward


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


def last_steps(root: Any) -> Any:
    """(scores, the largest, their factor, z, n, θ, r, k, bounds, t, an interval of τ, the tolerance
    of Σ y/k, that of Σ y) → t, from which on τ is the root, τ, the last step to it, and Σ (y − l) −
    r after it. z becomes the scores relative to t, which has few digits more than t where scores
    are large."""

    @njit
    def last(
        kept: Any, top: float, scale: float, z: Any, n: int, theta: Any, room: float, total: float,
        bounds: Any, t: float, bottom: float, high: float, near: float, slack: float,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        base, gap = top + t / scale, 1e-6 * (abs(t) + 1.0)
        bottom, high = bottom - t - gap, high - t + gap
        tau, step, off = 0.0, 0.0, 0.0
        for _ in range(2):
            for i in range(0, n, LANES):
                simd.store(z, i, (simd.wide(simd.load(kept, i)) - base) * scale)
            given = z, n, theta, room, total, bounds
            tau, step, _below, off = root(*given, bottom, high, 0.0, near, 2.0 * EPS)
            if abs(off) <= slack:
                break
            # scores so large that τ, next to one of them, is no number: from that one on
            following = _nearest(kept, n, base + tau / scale)
            moved = (following - base) * scale
            bottom, high = bottom - moved, high - moved
            base, t = following, (following - top) * scale
        return t, tau, step, off

    return last


@njit
def _nearest(row: Any, n: int, number: float) -> float:
    """The entry that is nearest to a number."""
    found = np.float64(row[0])
    for i in range(n):
        v = np.float64(row[i])
        if abs(v - number) < abs(found - number):
            found = v
    return found


def _row(own: Description, at: int, each: bool, others: Any) -> Any:
    """A function of a row, which ``others`` compute if this description does not cover its θ."""
    covers, factor, zero, slope, to = own.covers, own.factor, own.zero, own.slope, at + 4
    pick, (limits, sum_of) = bounds_at(each), limits_of(own, at, each)
    entry, sums = sums_of(own.inverse, pick, own.rest)
    root, values, corner = root_of(sums, slope), values_of(entry, pick), corner_of(pick)
    coarse, slope_of = own.rough or (own.inverse, own.slope)
    rough, last = root_of(sums_of(coarse, pick, own.rest)[1], slope_of), last_steps(root)
    wide = own.precise or each or own.root is not None

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
        smallest = smaller(best, select(second > -LARGEST, second, 0.0))
        smallest = select(best > -LARGEST, smallest, 0.0)
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
        for _ in range(2):  # the second time, all entries are kept
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
            given = z, n, by, room, total, bounds
            t, tau, step, off = last(kept, top, scale, *given, t, bottom, high, near, slack)
            values(z, n, by, tau, step, bounds, y)
            corner(z, n, none + zero(theta), room, slack, bounds, y)
            solved = abs(off) <= slack
            if whole or (solved and t + tau >= low):
                if not solved:
                    common.set_number(job, to + 1, 0, 1.0)
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
    def of_none(job: Any, r: int, like: Any, theta: float, hyper: bool, arrays: Any) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], 0.0)
        if hyper:
            common.set_number(job, to + 1, r, 0.0)

    row = of_none
    for own in reversed(descriptions):
        row = _product(own, at, given, each, row)

    def backward(job: Any, like: Any) -> None:
        d, hyper = job[common.WIDTH], given and common.given(job, to + 1)
        wide, places = common.scratch_like(2, d, like), jacobian.places(d)
        arrays = memory.row(wide, 0), memory.row(wide, 1), memory.row(places, 0)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at - 1, r) if given else number
                row(job, r, like, own, hyper, arrays)
            begin, end = common.take(job)
        memory.keep((wide, places))

    return backward


def _product(own: Description, at: int, given: bool, each: bool, others: Any) -> Any:
    covers, product, to = own.covers, jacobian.product_of(own, False), at + 2

    @njit
    def of_entries(job: Any, r: int, zero: Any) -> Any:
        """l and u."""
        return doubles_at(job, at, r), doubles_at(job, at + 1, r)

    @njit
    def between_entries(bounds: Any, v: Any, i: int, d: int) -> Any:
        """Which of sixteen entries are between their bounds."""
        here = simd.first(d - i)
        low = simd.like(v, simd.load_part(bounds[0], i, here, 0.0))
        high = simd.like(v, simd.load_part(bounds[1], i, here, 0.0))
        return (v > low) & (v < high)

    @njit
    def of_row(job: Any, r: int, zero: Any) -> Any:
        none = simd.wide(zero)
        low, high = common.number_at(job, at, r), common.number_at(job, at + 1, r)
        return simd.like(zero, none + low), simd.like(zero, none + high)

    @njit
    def between_row(bounds: Any, v: Any, i: int, d: int) -> Any:
        return (v > bounds[0]) & (v < bounds[1])

    limits, free = (of_entries, between_entries) if each else (of_row, between_row)

    @njit
    def row(job: Any, r: int, like: Any, theta: float, hyper: bool, arrays: Any) -> None:
        if not covers(theta):
            others(job, r, like, theta, hyper, arrays)
            return
        d, (s, ys, where) = job[common.WIDTH], arrays
        y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
        out, zero = common.rows_at(job, to, r, like), simd.load_part(y, 0, simd.first(0), 0.0)
        bounds, scale = limits(job, r, zero), 1.0 / common.number_at(job, 2, r)
        for i in range(0, d, LANES):
            a = common.piece(y, i, d, 0.0)
            simd.store(ys, i, simd.select(free(bounds, a, i, d), a, 0.0))
        m, origin = jacobian.begin(ys, v, d, where, s, out, job[common.BLANK] != 0)
        found = product(ys, v, d, where, m, origin, scale, theta, s, out, hyper and given)
        if hyper and given:
            common.set_number(job, to + 1, r, found)

    return row
