"""The compiled functions of a threshold mapping with weights of each entry, from its description.

    y_i = m_i p((z_i − τ)/c_i),    Σ y = 1

maximises ⟨y, z⟩ − Σ m_i c_i e(y_i/m_i) over the simplex. A row takes these steps: the largest of
its entries in each lane give a bound on τ; the entries that may be above 0 are packed with their
weights; the root is found in float64 (:mod:`regmax.kernels.cpu.root`). J is that of
:mod:`regmax.kernels.cpu.jacobian` with s_i = m_i/(c_i e''(y_i/m_i)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, memory, simd
from .clipped_rows import nothing, row_by_row
from .common import EPS, doubles_at
from .jit import njit
from .mapping import LARGEST
from .root import last_of, root_of
from .simd import LANES, larger, select, smaller, summed
from .threshold import Description


def functions(
    *descriptions: Description, theta: float | bool
) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` of the descriptions as
    :func:`regmax.kernels.cpu.mapping.functions` takes them. The arrays of forward are x, γ, θ …,
    m and 1/c, of float64, the mask, y, and where a row that is not solved is counted; those of
    backward y, v, γ, θ …, m, 1/c and the gradient of x."""
    number = 0.0 if theta is True else float(theta)
    given = theta is True
    able = [own for own in descriptions if own.solve is None and not own.norm]
    return _forward(able, given, number), _backward(able, given, number)


def weighted(forward: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """:func:`functions` of those of a mapping on the simplex."""
    descriptions, theta = forward.made_of
    return functions(*descriptions, theta=theta)


def _forward(descriptions: list[Description], given: bool, number: float) -> Callable[..., None]:
    at = 2 + given

    @njit
    def of_none(
        job: Any, r: int, like: Any, gamma: float, theta: float, rows: Any, group: Any
    ) -> None:
        common.set_number(job, at + 4, 0, 1.0)

    row = of_none
    for own in reversed(descriptions):
        row = _row(own, at, row)

    @njit
    def rows_of(wide: Any, long: Any) -> Any:
        return (
            memory.row(wide, 0), memory.row(long, 0), memory.row(wide, 1), memory.row(long, 1),
            memory.row(long, 2), memory.row(long, 3),
            (_floats(long, 4), _floats(long, 5), _floats(long, 6)),
        )  # fmt: skip

    return row_by_row(row, nothing, 0, at + 3, given, number, (2, 7), rows_of)


@njit
def _floats(arrays: Any, k: int) -> Any:
    return memory.floats(memory.address_of(memory.row(arrays, k)))


@njit
def _of_pointers(weights: Any, i: int) -> tuple[Any, Any]:
    """m and 1/c of the entries from i on."""
    return simd.load(weights[0], i), simd.load(weights[1], i)


@njit
def _of_vectors(weights: Any, i: int) -> tuple[Any, Any]:
    """The same of sixteen entries."""
    return weights[0], weights[1]


def _sums(p: Any, at: Any) -> Any:
    """As :func:`regmax.kernels.cpu.clipped.sums_of`."""

    @njit
    def sums(
        z: Any, n: int, t: Any, theta: Any, weights: Any, room: float
    ) -> tuple[float, float, float, float]:
        none = simd.spread(theta, 0.0)
        total, slopes = none, none
        for i in range(0, n, LANES):
            m, rate = at(weights, i)
            v, dv = p((simd.load(z, i) - t) * rate, theta)
            total, slopes = total + v * m, slopes + dv * (m * rate)
        free = summed(total, t)
        return free - room, free, summed(slopes, t), np.inf

    return sums


def _row(own: Description, at: int, others: Any) -> Any:
    """A function of a row, which ``others`` compute if this description does not cover its θ."""
    p, covers, factor, zero, slope = own.inverse, own.covers, own.factor, own.zero, own.slope
    few, root = (root_of(_sums(p, each), slope) for each in (_of_vectors, _of_pointers))
    last, to = last_of(root), at + 3
    quick, quick_slope = own.rough or (p, slope)
    rough = root_of(_sums(quick, _of_pointers), quick_slope)

    @njit
    def in_doubles(
        z: Any, n: int, theta: Any, weights: Any, low: float, high: float, work: Any
    ) -> float:
        t, step, _, _ = root(z, n, theta, 1.0, 1.0, weights, low, high, low, 1e-3, 1e-6)
        return t + step

    @njit
    def in_floats(
        z: Any, n: int, theta: Any, weights: Any, low: float, high: float, work: Any
    ) -> float:
        rounded, sizes, rates = work
        for i in range(0, n, LANES):
            simd.store(rounded, i, simd.narrow(simd.load(z, i)))
            simd.store(sizes, i, simd.narrow(simd.load(weights[0], i)))
            simd.store(rates, i, simd.narrow(simd.load(weights[1], i)))
        by = simd.narrow(theta)
        given = rounded, n, by, 1.0, 1.0, (sizes, rates), low, high, low
        t, step, _, _ = rough(*given, 1e-3, 1e-6)
        return t + step

    first = in_doubles if own.precise else in_floats

    @njit
    def row(
        job: Any, r: int, like: Any, gamma: float, theta: float, arrays: Any, group: Any
    ) -> None:
        if not covers(theta):
            others(job, r, like, gamma, theta, arrays, group)
            return
        d, blank, out = job[common.WIDTH], job[common.BLANK] != 0, common.rows_at(job, to, r, like)
        copy, kept, y, z, sizes, rates, work = arrays
        scores = common.participants(job, r, to - 1, like, copy)
        m, rate = doubles_at(job, at, r), doubles_at(job, at + 1, r)
        lane, bad = common.scan(scores, d)
        top = np.float64(simd.largest(lane))
        if common.without_answer(bad, top, d, out):
            return
        none = simd.wide(simd.spread(lane, 0.0))
        by, scale = none + theta, min(max(factor(theta) / gamma, 1.0 / LARGEST), LARGEST)
        # the largest of each lane, with its weights; the bounds of all weights
        best, own_m, own_rate = none - np.inf, none, none + 1.0
        most, slow, fast, wrong = none, none + np.inf, none, 0
        for i in range(0, d, LANES):
            here = simd.first(d - i)
            v = simd.wide(simd.load_part(scores, i, here, -np.inf))
            a, b = simd.load_part(m, i, here, 1.0), simd.load_part(rate, i, here, 1.0)
            on, above = v > -np.inf, v > best
            wrong += simd.count(on) - simd.count(on & (a > 0.0) & (b > 0.0) & (a < np.inf))
            best = select(above, v, best)
            own_m, own_rate = select(above, a, own_m), select(above, b, own_rate)
            most = larger(select(on, a, 0.0), most)
            slow = smaller(select(on, b, np.inf), slow)
            fast = larger(select(on, b, 0.0), fast)
        slowest, fastest = -simd.largest(0.0 - slow), simd.largest(fast)
        if not (gamma > 0.0 and fastest < np.inf) or wrong > 0:
            common.set_number(job, to + 1, 0, 1.0)
            return
        # y_i ≤ 1 for each entry, and Σ y ≤ 1 where no y_i is above 1/d
        best = (best - top) * scale
        alive = best > -np.inf
        each = best - slope(1.0 / larger(own_m, 1e-300), by)[0] / own_rate
        low = simd.largest(select(alive, each, -np.inf))
        edge = simd.largest(slope(none + 1.0 / (d * simd.largest(most)), by)[0])
        high = max(-edge / slowest, -edge / fastest)
        low, high = low - 1e-6 * (abs(low) + 1.0), high + 1e-6 * (abs(high) + 1.0)
        simd.store(z, 0, best)
        lanes = select(alive, own_m, 0.0), own_rate
        low = few(z, LANES, by, 1.0, 1.0, lanes, low, high, low, 0.03, 1e-6)[2]
        low -= 1e-5 * (abs(low) + 1.0)
        least = common.floor(scores, top, max(-(low + zero(theta) / slowest) / scale, 0.0))
        n = 0
        for i in range(0, d, LANES):
            here = simd.first(d - i)
            v = simd.load_part(scores, i, here, -np.inf)
            on = v >= least
            simd.compress(kept, n, simd.wide(v) - top, on)
            simd.compress(sizes, n, simd.load_part(m, i, here, 1.0), on)
            simd.compress(rates, n, simd.load_part(rate, i, here, 1.0), on)
            n += simd.count(on)
        simd.store(kept, n, none - np.inf)
        simd.store(sizes, n, none)
        simd.store(rates, n, none + 1.0)
        for i in range(0, n, LANES):
            simd.store(z, i, simd.load(kept, i) * scale)
        near, slack = 1e-8 if memory.size(like) == 4 else 1e-11, 8.0 * EPS * np.sqrt(np.float64(d))
        t = first(z, n, by, (sizes, rates), low, high, work)
        given = by, 1.0, 1.0, (sizes, rates), t, low, high
        t, tau, step, off = last(kept, n, 0.0, scale, z, *given, near, slack)
        if not (abs(off) <= slack and t + tau >= low):
            common.set_number(job, to + 1, 0, 1.0)
            return
        of = simd.load(y, 0)
        for i in range(0, n, LANES):
            a, b = simd.load(sizes, i), simd.load(rates, i)
            v, dv = p((simd.load(z, i) - tau) * b, by)
            simd.store(y, i, simd.like(of, larger((v - dv * (b * step)) * a, 0.0)))
        common.place(scores, d, least, y, out, blank)

    return row


def _backward(descriptions: list[Description], given: bool, number: float) -> Callable[..., None]:
    at = 3 + given

    @njit
    def of_none(job: Any, r: int, like: Any, theta: float, s: Any) -> None:
        common.fill(common.rows_at(job, at + 2, r, like), job[common.WIDTH], 0.0)

    row = of_none
    for own in reversed(descriptions):
        row = _product(own, at, row)

    def backward(job: Any, like: Any) -> None:
        wide = common.scratch(1, job[common.WIDTH])
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at - 1, r) if given else number
                row(job, r, like, own, memory.row(wide, 0))
            begin, end = common.take(job)
        memory.keep((wide,))

    return backward


def _product(own: Description, at: int, others: Any) -> Any:
    covers, weight = own.covers, own.weight

    @njit
    def row(job: Any, r: int, like: Any, theta: float, s: Any) -> None:
        if not covers(theta):
            others(job, r, like, theta, s)
            return
        d, scale = job[common.WIDTH], 1.0 / common.number_at(job, 2, r)
        y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
        m, rate = doubles_at(job, at, r), doubles_at(job, at + 1, r)
        out, zero = common.rows_at(job, at + 2, r, like), simd.load_part(y, 0, simd.first(0), 0.0)
        none, origin = simd.wide(zero), 0.0
        for i in range(d):
            if y[i] > 0.0:
                origin = np.float64(v[i])  # v may be nearly constant
                break
        total, products = none, none
        for i in range(0, d, LANES):
            here = simd.first(d - i)
            a, b = simd.wide(common.piece(y, i, d, 0.0)), simd.wide(common.piece(v, i, d, 0.0))
            size, on = simd.load_part(m, i, here, 1.0), a > 0.0
            w = weight(select(on, a / size, 1.0), none + theta) * size
            w = select(on, w * simd.load_part(rate, i, here, 1.0), 0.0)
            simd.store(s, i, w)
            total, products = total + w, products + select(on, (b - origin) * w, 0.0)
        mean = simd.total(products) / simd.total(total)
        for i in range(0, d, LANES):
            w, b = simd.load(s, i), simd.wide(common.piece(v, i, d, 0.0))
            found = select(w > 0.0, ((b - origin) - mean) * (w * scale), 0.0)
            common.store_piece(out, i, d, simd.like(zero, found))

    return row
