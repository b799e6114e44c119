"""The compiled functions of a threshold mapping, from its description.

A row takes these steps: its sixteen largest entries (by lanes) give a bound on τ; the entries that
may be positive by this bound are packed; they become those of a prox, where there is a penalty; the
equation is solved on these; y goes to their places, and 0 to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import common, jacobian, memory, simd, sixteen_rows
from .jit import njit
from .prox import LAMBDA, Prox, penalty, scratch
from .simd import LANES
from .sixteen_rows import APART, COPIES, COUNT, ENOUGH, PLACE, SCALE, THETA, TOP
from .threshold import SOME, Description, equation
from .tiles import LONGEST, ROW, SIZE

SHORT = 1024
"""The longest row that waits for others after a prox."""
LARGEST = 1e300
"""The largest 1/γ, whose products with 0 are 0."""


def functions(
    *descriptions: Description, theta: float | bool, first: Prox | None = None
) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` as
    :class:`regmax.kernels.cpu.rows.CompiledRows` takes them. A row is computed by the first of the
    descriptions that covers its θ, a number, or True if it is the hyperparameter. ``first``: the
    jobs are those of :class:`regmax.kernels.cpu.chain.Chain`."""
    number = 0.0 if theta is True else float(theta)
    given = theta is True
    if first is not None:  # more entries are left than without it, and all of them are packed
        descriptions = tuple(
            [replace(e, widest=e.widest and SHORT) for e in descriptions if not e.scales]
        )
    forward: Any = _forward(descriptions, given, number, first)
    forward.made_of = descriptions, theta
    return forward, jacobian.backward(descriptions, given, number, first)


def after(first: Prox, forward: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """:func:`functions` of those of another mapping, after a prox."""
    descriptions, theta = forward.made_of
    return functions(*descriptions, theta=theta, first=first)


def _forward(
    descriptions: tuple[Description, ...], given: bool, number: float, first: Prox | None
) -> Callable[..., None]:
    chained = first is not None
    at = LAMBDA + 1 if chained else 2
    to = 1 + at + given
    room_of, work_of = scratch(first)

    @njit
    def of_none(
        job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, work: Any, group: Any
    ) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], np.nan)

    @njit
    def nothing(job: Any, like: Any, arrays: Any, group: Any) -> None:
        pass

    row, rest = of_none, nothing
    grouped = [each for each in descriptions if each.widest > 0 and not each.scales]
    for each in reversed(descriptions):
        place = grouped.index(each) if each in grouped else 0
        row, rest = _rows(each, first, place, to, row, rest)
    many, longest = len(grouped), max([each.widest for each in grouped], default=0)

    def forward(job: Any, like: Any) -> None:
        d, masked = job[common.WIDTH], common.given(job, to - 1)
        wide, long = common.scratch_like(3, d, like), common.scratch(2, d)
        sizes = sixteen_rows.sizes_of(d, LONGEST, d <= longest)
        kept = sixteen_rows.rooms(many, sizes, d, like, masked)
        rows = (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2), memory.row(long, 0),
            memory.floats(memory.address_of(memory.row(long, 1))),
        )  # fmt: skip
        group = sixteen_rows.group_of(job, many, sizes, to, kept)
        arrays = room_of(d, like)
        work = work_of(arrays)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at, r) if given else number
                row(job, r, like, common.number_at(job, 1, r), own, rows, work, group)
            begin, end = common.take(job)
        rest(job, like, (rows, work), group)
        memory.keep((wide, long, kept, arrays))

    return forward


def _rows(
    own: Description, first: Prox | None, place: int, to: int, others: Any, rest: Any
) -> tuple[Any, Any]:
    """A function of a row, which ``others`` compute if this description does not cover its θ, and
    one of the rows that wait, after which it calls ``rest``."""
    if own.scales:
        return _scaled(own, to, others), rest
    covers, factor, widest, chained = own.covers, own.factor, own.widest, first is not None
    parts, entries = equation(own), sixteen_rows.entries_of(first)
    single, finish = _alone(own, parts, entries, chained)
    together = rest
    if widest > 0:
        steps = sixteen_rows.steps(own, parts, place, to, entries, finish, chained)
        together = sixteen_rows.together(place, LONGEST, *steps)

    @njit
    def row(
        job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, work: Any, group: Any
    ) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, rows, work, group)
            return
        d, blank, copy = job[common.WIDTH], job[common.BLANK] != 0, group[COPIES]
        k, w, waits = 0, penalty(job, r, chained), d <= widest
        if waits:
            k = sixteen_rows.waiting(group, place)
            copy = sixteen_rows.copy_of(job, place, k, group)
        scores = common.participants(job, r, to - 1, like, copy)
        out = common.rows_at(job, to, r, like)
        if not waits:
            if single(scores, d, gamma, theta, w, rows, work, out, blank):
                common.set_number(job, to + 1, 0, 1.0)
            return
        best, bad = common.scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad or not (gamma > 0.0 and w >= 0.0), top, d, out):
            return
        room, packed = sixteen_rows.room_of(group, place), sixteen_rows.packed_of(group, place)
        one = sixteen_rows.numbers_of(room, k)
        simd.store(packed, k * group[APART], best)
        one[LANES * ROW], one[LANES * SIZE], one[LANES * PLACE] = r, LANES, k
        one[LANES * TOP], one[LANES * SCALE] = top, _scale(factor(theta) / gamma)
        one[LANES * THETA], room[LANES * COUNT] = theta, k + 1
        if k + 1 == group[ENOUGH]:
            together(job, like, (rows, work), group)

    @njit
    def waiting(job: Any, like: Any, arrays: Any, group: Any) -> None:
        if sixteen_rows.waiting(group, place) > 0:
            together(job, like, arrays, group)
        rest(job, like, arrays, group)

    return row, waiting if widest > 0 else rest


@njit
def _scale(scale: float) -> float:
    """Such that its product with 0 is 0, and that with −∞ is −∞."""
    return min(max(scale, 1.0 / LARGEST), LARGEST)


def single(own: Description) -> Any:
    """(scores, d, γ, θ, 0, scratch, 0, y, whether y is 0) → y of one row, as a step of other
    kernels; the scratch is as in :func:`regmax.kernels.cpu.sixteen_rows.alone`."""
    return _alone(own, equation(own), sixteen_rows.entries_of(None), False)[0]


def _alone(
    own: Description, parts: tuple[Any, Any, Any], entries: Any, chained: bool
) -> tuple[Any, Any]:
    """One row from the start, and from its packed entries."""
    zero, factor, (relative, bound, _) = own.zero, own.factor, parts
    alone, finish = sixteen_rows.alone(own, parts, entries, chained)

    @njit
    def single(
        scores: Any, d: int, gamma: float, theta: float, w: float, rows: Any, work: Any, out: Any,
        blank: bool,
    ) -> bool:  # fmt: skip
        best, bad = common.scan(scores, d)
        top = np.float64(simd.largest(best))
        if common.without_answer(bad or not (gamma > 0.0 and w >= 0.0), top, d, out):
            return False
        none, scale = simd.spread(simd.wide(best), 0.0), _scale(factor(theta) / gamma)
        _, y, _, z, rounded = rows
        simd.store(y, 0, best)
        relative(y, LANES, none + top, none + scale, z, rounded)
        tau = bound(rounded, LANES, none + theta, none - zero(theta), True)
        moved: bool = alone(scores, d, top, scale, theta, w, tau, rows, work, out, blank)
        return moved

    return single, finish


def _scaled(own: Description, to: int, others: Any) -> Any:
    """A function of a row of y = p/Σp. Sums of 64 terms are in the dtype of the row, the sums of
    these in float64."""
    covers, p = own.covers, own.inverse

    @njit
    def row(
        job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, work: Any, group: Any
    ) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, rows, work, group)
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
