"""The compiled functions of a threshold mapping between bounds, from its description.

A row takes these steps: the two largest of its entries in each lane give a bound on τ, where all
have the same bounds; the entries that may be above 0 are packed; the root is found in float32 where
that will do, then in float64 on scores relative to it; y goes to its places. Rows with l = 0 and
one u wait for others, and take these steps sixteen at a time
(:mod:`regmax.kernels.cpu.sixteen_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, jacobian, memory, simd, sixteen_rows, tiles
from .clipped import bounds_at, limits_of, steps_of
from .common import EPS, doubles_at
from .jit import njit
from .mapping import LARGEST
from .simd import LANES, larger, smaller
from .sixteen_rows import (
    APART,
    COUNT,
    ENOUGH,
    LOW,
    MOST,
    PLACE,
    SCALE,
    SHARED,
    TAU,
    THETA,
    TOP,
    TOTAL,
    ZERO,
    lane,
    row_of,
    shifted,
)
from .threshold import Description
from .tiles import ROW, SIZE, WIDEST

LONGEST = 512
"""How many packed entries of a row fit in a tile."""


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
    inner = _inner(3 + given, each)
    return _forward(able, given, number, each), jacobian.backward(able, given, number, inner=inner)


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
    def of_none(
        job: Any, r: int, like: Any, gamma: float, theta: float, arrays: Any, group: Any
    ) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], np.nan)
        common.set_number(job, to + 1, 0, 1.0)

    row, rest, many = of_none, nothing, 0
    for own in reversed(descriptions):
        row, rest = _row(own, many, at, each, row, rest)
        many += _longest(own, each) > 0

    @njit
    def rows_of(wide: Any, long: Any) -> Any:
        return (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2),
            memory.floats(memory.address_of(memory.row(long, 0))), memory.row(long, 1),
        )  # fmt: skip

    return row_by_row(row, rest, many, to, given, number, (3, 6 if each else 2), rows_of)


def _longest(own: Description, each: bool) -> int:
    """The longest row that waits for others."""
    if own.rest is not None or each:
        return 0
    return LONGEST if own.scales else WIDEST if own.widest > 0 else 0


@njit
def nothing(job: Any, like: Any, arrays: Any, group: Any) -> None:
    """No rows wait."""


def row_by_row(
    row: Any, rest: Any, many: int, to: int, given: bool, number: float, counts: tuple[int, int],
    rows_of: Any,
) -> Callable[..., None]:  # fmt: skip
    """``forward(job, like)`` that calls ``row`` for each row, and then ``rest`` for those that wait
    in ``many`` rooms. θ is array 2 if it is ``given``, y array ``to``. ``rows_of`` takes scratch of
    the dtype of a row and of float64, of these ``counts`` of rows, and makes that of ``row``."""
    few, longs = counts

    def forward(job: Any, like: Any) -> None:
        d, masked = job[common.WIDTH], common.given(job, to - 1)
        wide, long = common.scratch_like(few, d, like), common.scratch(longs, d)
        sizes = sixteen_rows.sizes_of(d, LONGEST, many > 0 and d <= WIDEST)
        kept = sixteen_rows.rooms(many, sizes, d, like, masked)
        arrays, group = rows_of(wide, long), sixteen_rows.group_of(job, many, sizes, to, kept)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, 2, r) if given else number
                row(job, r, like, common.number_at(job, 1, r), own, arrays, group)
            begin, end = common.take(job)
        rest(job, like, arrays, group)
        memory.keep((wide, long, kept))

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


def _row(
    own: Description, place: int, at: int, each: bool, others: Any, rest: Any
) -> tuple[Any, Any]:
    """A function of a row, which ``others`` compute if this description does not cover its θ, and
    one of the rows that wait, after which it calls ``rest``."""
    covers, factor, zero, slope, to = own.covers, own.factor, own.zero, own.slope, at + 4
    start, solve, values = steps_of(own, bounds_at(each), each)
    limits, sum_of = limits_of(own, at, each)
    widest, cap = _longest(own, each), 1.0 if own.rest else np.inf

    @njit
    def alone(
        job: Any, r: int, like: Any, scores: Any, top: float, scale: float, theta: float,
        low: float, arrays: Any,
    ) -> None:  # fmt: skip
        """A row, from a lower bound on τ, −∞ if there is none."""
        d, blank, out = job[common.WIDTH], job[common.BLANK] != 0, common.rows_at(job, to, r, like)
        _, kept, y, rounded, z = arrays
        by, total = simd.spread(simd.load(z, 0), theta), common.number_at(job, at + 2, r)
        bounds, lows, most = limits(job, r, scores, d, total, by, z)
        slack, room = 8.0 * EPS * total * np.sqrt(np.float64(d)), total - lows
        all_low, all_high, sound = room <= slack, False, scale > 0.0 and total > 0.0
        if low == -np.inf:
            highs = sum_of(scores, d, bounds, by)
            all_high = highs <= total + slack
            sound = sound and lows <= total + slack and highs >= total - slack
        if not sound:
            common.fill(out, d, np.nan)
            common.set_number(job, to + 1, 0, 1.0)
            return
        least, near = 0.0, 1e-8 if memory.size(like) == 4 else 1e-11
        for _ in range(2):  # the second time, all entries are kept
            least = common.floor(scores, top, max(-(low + zero(theta)) / scale, 0.0))
            n = common.keep(scores, d, least, kept)
            simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
            if all_low or all_high:
                for i in range(0, n, LANES):
                    simd.store(z, i, (simd.wide(simd.load(kept, i)) - top) * scale)
                values(z, n, by, np.inf if all_low else -np.inf, 0.0, bounds, y)
                break
            size = 1.0 * n, most, zero(theta), slack
            good = solve(
                kept, n, top, scale, z, rounded, by, size, room, total, bounds, low, near, y
            )
            if good > 0.0:
                break
            if low == -np.inf:
                common.set_number(job, to + 1, 0, 1.0)
                break
            low = -np.inf
        common.place(scores, d, least, y, out, blank)

    @njit
    def given(room: Any) -> Any:
        """The largest entries, the factors, θ, Σ y and the bounds of sixteen rows."""
        by, most = lane(room, THETA), lane(room, MOST)
        bounds = 0.0, most, -np.inf, slope(most, by)[0]
        return lane(room, TOP), lane(room, SCALE), by, lane(room, TOTAL), bounds

    @njit
    def pack(
        job: Any, like: Any, arrays: Any, group: Any, room: Any, packed: Any, count: int
    ) -> None:
        """Of rows whose 32 largest entries (by lanes) are packed."""
        (_, _, tile, _, _, z, rounded), apart = group[SHARED], group[APART]
        d, long = job[common.WIDTH], arrays[1]
        top, scale, by, total, bounds = given(room)
        m = tiles.columns(room, packed, apart, -np.inf, tile)
        low = start(tile, m, top, scale, z, rounded, by, total, total, bounds)
        simd.store(room, LANES * TAU, low)
        for k in range(count):
            edge = room[LANES * TAU + k] + room[LANES * ZERO + k]
            row = row_of(job, room, k, place, to, like, group)
            least = common.floor(
                row, room[LANES * TOP + k], max(-edge / room[LANES * SCALE + k], 0.0)
            )
            kept = shifted(packed, k * apart)
            n = common.keep(row, d, least, kept if d <= LONGEST else long)
            room[LANES * LOW + k] = least
            if n > LONGEST:
                n, kept[0], room[LANES * LOW + k] = 1, room[LANES * TOP + k], np.inf
            elif d > LONGEST:
                for i in range(0, n, LANES):
                    simd.store(kept, i, simd.load(long, i))
            room[LANES * SIZE + k] = n

    @njit
    def finish(
        job: Any, like: Any, arrays: Any, group: Any, room: Any, packed: Any, count: int
    ) -> None:
        (_, _, tile, y, _, z, rounded), apart = group[SHARED], group[APART]
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        for k in range(count, LANES):  # one entry, with a sum that it reaches above the bound on τ
            room[LANES * TOTAL + k] = min(room[LANES * MOST], room[LANES * TOTAL]) / (4.0 * LANES)
        top, scale, by, total, bounds = given(room)
        m, low = tiles.columns(room, packed, apart, -np.inf, tile), lane(room, TAU)
        size = lane(room, SIZE), bounds[1], lane(room, ZERO), total * (8.0 * EPS * np.sqrt(1.0 * d))
        near = 1e-8 if memory.size(like) == 4 else 1e-11
        good = solve(tile, m, top, scale, z, rounded, by, size, total, total, bounds, low, near, y)
        simd.store(room, LANES * SIZE, good)
        tiles.uncolumns(y, m, packed, apart)
        for k in range(count):
            r, least = int(room[LANES * ROW + k]), room[LANES * LOW + k]
            row = row_of(job, room, k, place, to, like, group)
            if least < np.inf and room[LANES * SIZE + k] > 0.0:
                out = common.rows_at(job, to, r, like)
                common.place(row, d, least, shifted(packed, k * apart), out, blank)
            else:
                own_low = room[LANES * TAU + k] if least == np.inf else -np.inf
                alone(
                    job, r, like, row, room[LANES * TOP + k], room[LANES * SCALE + k],
                    room[LANES * THETA + k], own_low, arrays,
                )  # fmt: skip

    together = sixteen_rows.together(place, LONGEST, pack, finish)
    fill = together if widest > 0 else nothing

    @njit
    def of_entries(
        job: Any, r: int, like: Any, best: Any, second: Any, top: float, scale: float,
        theta: float, arrays: Any, group: Any,
    ) -> float:  # fmt: skip
        return -np.inf

    @njit
    def of_row(
        job: Any, r: int, like: Any, best: Any, second: Any, top: float, scale: float,
        theta: float, arrays: Any, group: Any,
    ) -> float:  # fmt: skip
        total, many = common.number_at(job, at + 2, r), 0
        if scale > 0.0 and common.number_at(job, at, r) == 0.0:
            many = simd.count((simd.wide(best) - top) * scale > -LARGEST)
            many += simd.count((simd.wide(second) - top) * scale > -LARGEST)
        most = min(min(common.number_at(job, at + 1, r), total), cap)
        if not most * many > total * 1.001:
            return -np.inf
        if job[common.WIDTH] <= widest:
            room, packed = sixteen_rows.room_of(group, place), sixteen_rows.packed_of(group, place)
            k = sixteen_rows.waiting(group, place)
            own = sixteen_rows.numbers_of(room, k)
            simd.store(packed, k * group[APART], best)
            simd.store(packed, k * group[APART] + LANES, second)
            own[LANES * ROW], own[LANES * SIZE], own[LANES * PLACE] = r, 2 * LANES, k
            own[LANES * TOP], own[LANES * SCALE] = top, scale
            own[LANES * THETA], own[LANES * ZERO] = theta, zero(theta)
            own[LANES * MOST], own[LANES * TOTAL] = most, total
            room[LANES * COUNT] = k + 1
            if k + 1 == group[ENOUGH]:
                fill(job, like, arrays, group)
            return np.inf
        _, kept, _, rounded, z = arrays
        simd.store(kept, 0, best)
        simd.store(kept, LANES, second)
        by = simd.wide(simd.spread(best, theta))
        none, cap_of = simd.spread(by, 0.0), simd.spread(by, most)
        bounds = none, cap_of, none - np.inf, slope(cap_of, by)[0]
        found: float = start(kept, 2 * LANES, top, scale, z, rounded, by, total, total, bounds)
        return found if found > -np.inf else -np.inf

    bound = of_entries if each else of_row

    @njit
    def row(
        job: Any, r: int, like: Any, gamma: float, theta: float, arrays: Any, group: Any
    ) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, arrays, group)
            return
        d, copy, scale = job[common.WIDTH], arrays[0], -1.0
        if d <= widest:
            copy = sixteen_rows.copy_of(job, place, sixteen_rows.waiting(group, place), group)
        scores = common.participants(job, r, to - 1, like, copy)
        best, second, bad = _scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad, top, d, common.rows_at(job, to, r, like)):
            return
        if gamma > 0.0:
            scale = min(max(factor(theta) / gamma, 1.0 / LARGEST), LARGEST)
        low = bound(job, r, like, best, second, top, scale, theta, arrays, group)
        if low != np.inf:
            alone(job, r, like, scores, top, scale, theta, low, arrays)

    @njit
    def waiting(job: Any, like: Any, arrays: Any, group: Any) -> None:
        if sixteen_rows.waiting(group, place) > 0:
            together(job, like, arrays, group)
        rest(job, like, arrays, group)

    return row, waiting if widest > 0 else rest


def _inner(at: int, each: bool) -> tuple[Any, Any]:
    """The bounds of a row, and a vector of y with 0 at a bound, for :func:`jacobian.backward`;
    ``at``: the place of l, before that of u."""

    @njit
    def pointers(job: Any, r: int, zero: Any) -> Any:
        return doubles_at(job, at, r), doubles_at(job, at + 1, r)

    @njit
    def of_entries(a: Any, ends: Any, i: int, d: int) -> Any:
        low = simd.like(a, common.piece(ends[0], i, d, 0.0))
        high = simd.like(a, common.piece(ends[1], i, d, 0.0))
        return simd.select((a > low) & (a < high), a, 0.0)

    @njit
    def numbers(job: Any, r: int, zero: Any) -> Any:
        none = simd.wide(zero)
        low, high = common.number_at(job, at, r), common.number_at(job, at + 1, r)
        return simd.like(zero, none + low), simd.like(zero, none + high)

    @njit
    def of_row(a: Any, ends: Any, i: int, d: int) -> Any:
        return simd.select((a > ends[0]) & (a < ends[1]), a, 0.0)

    return (pointers, of_entries) if each else (numbers, of_row)
