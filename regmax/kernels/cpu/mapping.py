"""The compiled functions of a threshold mapping, from its description.

A row takes these steps: its sixteen largest entries (by lanes) give a bound on τ; the entries that
may be positive by this bound are packed; the equation is solved on these; y goes to their places,
and 0 to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, jacobian, memory, simd, sixteen_rows
from .jit import njit
from .simd import LANES
from .sixteen_rows import APART, COUNT, NUMBERS, SCALE, THETA, TOP
from .threshold import SOME, Description, equation
from .tiles import ROW, SIZE

LARGEST = 1e300
"""The largest 1/γ, whose products with 0 are 0."""


def functions(
    *descriptions: Description, theta: float | bool
) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` as
    :class:`regmax.kernels.cpu.rows.CompiledRows` takes them. A row is computed by the first of the
    descriptions that covers its θ, a number, or True if it is the hyperparameter."""
    number = 0.0 if theta is True else float(theta)
    given = theta is True
    return _forward(descriptions, given, number), jacobian.backward(descriptions, given, number)


def _forward(
    descriptions: tuple[Description, ...], given: bool, number: float
) -> Callable[..., None]:
    to = 4 if given else 3

    @njit
    def of_none(
        job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, group: Any
    ) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], np.nan)

    @njit
    def nothing(job: Any, like: Any, rows: Any, group: Any) -> None:
        pass

    row, rest = of_none, nothing
    grouped = [each for each in descriptions if each.widest > 0 and not each.scales]
    for each in reversed(descriptions):
        row, rest = _rows(each, grouped.index(each) if each in grouped else 0, to, row, rest)
    size, longest = len(grouped), max([each.widest for each in grouped], default=0)

    def forward(job: Any, like: Any) -> None:
        d, masked = job[common.WIDTH], common.given(job, to - 1)
        lanes, room = d <= longest, 1
        if lanes:
            room = LANES * APART
        wide, long = common.scratch_like(3, d, like), common.scratch(2, d)
        rooms = memory.empty(1, (size * NUMBERS + 1) * LANES, np.float64)
        entries, single = memory.empty(size + 4, room, like), memory.empty(2, room, np.float64)
        copies = common.scratch_like(size * LANES + 1 if masked and lanes else 1, d, like)
        for k in range(size):
            memory.row(rooms, 0)[LANES * (NUMBERS * k + COUNT)] = 0.0
        rows = (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2), memory.row(long, 0),
            memory.floats(memory.address_of(memory.row(long, 1))),
        )  # fmt: skip
        group = (
            memory.row(rooms, 0), memory.row(entries, 3), memory.row(entries, 0),
            memory.row(entries, 1), memory.row(entries, 2), memory.row(single, 0),
            memory.floats(memory.address_of(memory.row(single, 1))), memory.row(copies, 0),
        )  # fmt: skip
        first, last = common.take(job)
        while first < last:
            for r in range(first, last):
                own = common.number_at(job, 2, r) if given else number
                row(job, r, like, common.number_at(job, 1, r), own, rows, group)
            first, last = common.take(job)
        rest(job, like, rows, group)
        memory.keep((wide, long, rooms, entries, single, copies))

    return forward


def _rows(own: Description, place: int, to: int, others: Any, rest: Any) -> tuple[Any, Any]:
    """A function of a row, which ``others`` compute if this description does not cover its θ, and
    one of the rows that wait, after which it calls ``rest``."""
    if own.scales:
        return _scaled(own, to, others), rest
    covers, factor, widest = own.covers, own.factor, own.widest
    parts = equation(own)
    alone, single = _alone(own, parts)
    together = rest
    if widest > 0:
        together = sixteen_rows.together(own, *parts, place, to, alone)

    @njit
    def row(job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, group: Any) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, rows, group)
            return
        d, blank, copy = job[common.WIDTH], job[common.BLANK] != 0, 0
        room, packed, _, _, _, _, _ = sixteen_rows.own(group, place)
        k = int(room[LANES * COUNT])
        waits = d <= widest
        if waits:
            copy = 1 + place * LANES + k  # the first is of rows that do not wait
        scores = common.participants(job, r, to - 1, like, sixteen_rows.copy_of(job, copy, group))
        out = common.rows_at(job, to, r, like)
        if not waits:
            single(scores, d, gamma, theta, rows, out, blank)
            return
        best, bad = common.scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad or not gamma > 0.0, top, d, out):
            return
        simd.store(packed, k * APART, best)
        room[LANES * ROW + k], room[LANES * SIZE + k] = r, LANES
        room[LANES * TOP + k], room[LANES * SCALE + k] = top, _scale(factor(theta) / gamma)
        room[LANES * THETA + k], room[LANES * COUNT] = theta, k + 1
        if k + 1 == LANES:
            together(job, like, rows, group)

    @njit
    def waiting(job: Any, like: Any, rows: Any, group: Any) -> None:
        if sixteen_rows.own(group, place)[0][LANES * COUNT] > 0.0:
            together(job, like, rows, group)
        rest(job, like, rows, group)

    return row, waiting if widest > 0 else rest


@njit
def _scale(scale: float) -> float:
    """Such that its product with 0 is 0, and that with −∞ is −∞."""
    return min(max(scale, 1.0 / LARGEST), LARGEST)


def single(own: Description) -> Any:
    """(scores, d, γ, θ, scratch, y, whether y is 0) → y of one row, as a step of other kernels; the
    scratch is as in :func:`regmax.kernels.cpu.sixteen_rows.alone`."""
    return _alone(own, equation(own))[1]


def _alone(own: Description, parts: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """One row, given a bound on τ, and from the start."""
    zero, factor, (relative, bound, solve) = own.zero, own.factor, parts
    alone = sixteen_rows.alone(own, relative, solve)

    @njit
    def single(
        scores: Any, d: int, gamma: float, theta: float, rows: Any, out: Any, blank: bool
    ) -> None:
        best, bad = common.scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad or not gamma > 0.0, top, d, out):
            return
        none, scale = simd.spread(simd.wide(best), 0.0), _scale(factor(theta) / gamma)
        _, y, _, z, rounded = rows
        simd.store(y, 0, best)
        relative(y, LANES, none + top, none + scale, z, rounded)
        tau = bound(rounded, LANES, none + theta, none - zero(theta), True)
        alone(scores, d, top, scale, theta, tau, rows, out, blank)

    return alone, single


def _scaled(own: Description, to: int, others: Any) -> Any:
    """A function of a row of y = p/Σp. Sums of 64 terms are in the dtype of the row, the sums of
    these in float64."""
    covers, p = own.covers, own.inverse

    @njit
    def row(job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, group: Any) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, rows, group)
            return
        d, out = job[common.WIDTH], common.rows_at(job, to, r, like)
        scores = common.participants(job, r, to - 1, like, rows[0])
        best, bad = common.scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad or not gamma > 0.0, top, d, out):
            return
        # a product of 0 and ∞ is NaN
        scale, full = min(1.0 / gamma, simd.greatest(scores)), d - d % LANES
        each = simd.spread(best, theta)
        rest = simd.first(d - full)
        last = p((simd.load_part(scores, full, rest, -np.inf) - top) * scale, each)[0]
        sums = simd.wide(last)
        for start in range(0, full, SOME):
            some = simd.spread(last, 0.0)
            for i in range(start, min(start + SOME, full), LANES):
                v = p((simd.load(scores, i) - top) * scale, each)[0]
                simd.store(out, i, v)
                some = some + v
            sums = sums + simd.wide(some)
        factor = 1.0 / simd.total(sums)
        for i in range(0, full, LANES):
            simd.store(out, i, simd.load(out, i) * factor)
        simd.store_part(out, full, rest, last * factor)

    return row
