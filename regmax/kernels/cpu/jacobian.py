"""The product with the Jacobian of a threshold mapping, from its description.

    J v = s ∘ (v − ⟨s, v⟩/Σs) on the support of y,  s = 1/e''(y),

and ⟨J v, −∂e'/∂θ⟩ for the hyperparameter (Blondel, Martins & Niculae 2020, §4.2; Peters, Niculae &
Martins 2019, Prop. 2; in α: Correia, Niculae & Martins 2019, Prop. 1). With ``norm``, the curvature
is a multiple of (θ − 1) diag(1/s) plus one of rank one, and J follows by Sherman–Morrison. After a
prox, v becomes its averages over the groups of y first: J of the base may magnify what they cancel
(α > 2, next to a zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import common, memory, simd
from .jit import njit
from .prox import Prox, scratch
from .simd import LANES
from .threshold import Description


@njit
def _no_bounds(job: Any, r: int, zero: Any) -> int:
    return 0


@njit
def _itself(a: Any, ends: Any, i: int, d: int) -> Any:
    return a


def support_of(inner: Any = None) -> Any:
    """(job, r, y, d, copy, where, out, blank) → the first entries of the vectors of y that have a
    positive entry, ``where``, and how many there are; out = 0 unless it is ``blank``, 0 already.
    ``inner``: with copy = y, and 0 where y is at a bound, in the place of y."""
    bounded, (limits, between) = inner is not None, inner or (_no_bounds, _itself)

    @njit
    def support(
        job: Any, r: int, y: Any, d: int, copy: Any, where: Any, out: Any, blank: bool
    ) -> int:
        m, zero = 0, simd.spread(simd.load_part(y, 0, simd.first(0), 0.0), 0.0)
        ends = limits(job, r, zero)
        for i in range(0, d, LANES):
            a = between(common.piece(y, i, d, 0.0), ends, i, d)
            if bounded:
                simd.store(copy, i, a)
            where[m] = i
            m += simd.count(a > 0.0) > 0
            if not blank:
                common.store_piece(out, i, d, zero)
        return m

    return support


@njit
def of_first(y: Any, v: Any, d: int, where: Any, m: int, s: Any) -> float:
    """v_i of the first y_i > 0, 0 if there is none. ``s`` is scratch."""
    if m == 0:
        return 0.0
    i = where[0]
    simd.compress(s, 0, common.piece(v, i, d, 0.0), common.piece(y, i, d, 0.0) > 0.0)
    return np.float64(s[0])


@njit
def pack(y: Any, v: Any, d: int, where: Any, m: int, ys: Any, vs: Any) -> int:
    """ys[:n], vs[:n] = y_i, v_i where y_i > 0, in order, of the m vectors ``where``."""
    n = 0
    for k in range(m):
        i = where[k]
        a = common.piece(y, i, d, 0.0)
        on = a > 0.0
        simd.compress(ys, n, a, on)
        simd.compress(vs, n, common.piece(v, i, d, 0.0), on)
        n += simd.count(on)
    return n


@njit
def unpack(y: Any, d: int, where: Any, m: int, kept: Any, out: Any) -> None:
    """out_i = kept_1, kept_2, … where y_i > 0, of the m vectors ``where``."""
    n = 0
    for k in range(m):
        i = where[k]
        on = common.piece(y, i, d, 0.0) > 0.0
        common.store_piece(out, i, d, simd.expand(kept, n, on))
        n += simd.count(on)


@njit
def _at_smallest(y: Any, v: Any, n: int) -> float:
    """v_i of the smallest y_i > 0."""
    best, found = np.inf, v[0]
    for i in range(n):
        if 0.0 < y[i] < best:
            best, found = y[i], v[i]
    return found


def product_of(own: Description, rare: bool) -> Any:
    """out = Jv·scale of n entries; returns ⟨Jv, −∂∇Ω/∂θ⟩."""
    weight, norm, cheap = own.weight, own.norm, own.cheap

    @njit
    def without(y: Any, theta: Any) -> tuple[Any, Any]:
        """No derivative in θ."""
        return weight(y, theta), simd.spread(y, 0.0)

    @njit
    def narrow(like: Any, theta: Any) -> Any:
        return simd.like(like, theta)

    @njit
    def wide(like: Any, theta: Any) -> Any:
        return theta

    rate, given = own.rate or without, wide if own.root is not None else narrow

    @njit(apart=rare)
    def product(
        y: Any, v: Any, d: int, where: Any, m: int, origin: float, scale: float, theta: float,
        s: Any, out: Any, hyper: bool,
    ) -> float:  # fmt: skip
        """``where``: the m vectors that have support, of :func:`support_of`; others are not
        written. ``s`` is scratch. ``origin``, a number near v, is subtracted first, so that a
        nearly constant v has digits."""
        zero = simd.load_part(y, 0, simd.first(0), 0.0)
        none, each = simd.wide(zero), given(zero, simd.wide(zero) + theta)
        start = simd.like(zero, none + origin)
        weights, products, squares, both = none, none, none, none
        rates, more, powers = none, none, none
        for k in range(m):
            i = where[k]
            a = common.piece(y, i, d, 0.0)
            on = a > 0.0
            b = simd.wide(simd.select(on, common.piece(v, i, d, 0.0), start) - start)
            if hyper:
                w, h = rate(simd.select(on, a, 1.0), each)
                w = simd.select(on, w, 0.0)
                t = simd.wide(simd.select(on, h, 0.0))
                rates, more = rates + t, more + t * b
                if norm:
                    powers = powers + t * simd.wide(simd.select(on, a / w, 0.0))
            else:
                w = simd.select(on, weight(a, each), 0.0)
            if not cheap:
                simd.store(s, k * LANES, w)
            u = simd.wide(w)
            weights, products = weights + u, products + u * b
            if norm:  # the vector of the rank-one term is y/s, and Σ y = 1
                squares = squares + simd.wide(simd.select(on, a * a / w, 0.0))
                both = both + simd.wide(a) * b
        inverse = 1.0 / simd.total(weights)
        mean, c, factor = simd.total(products) * inverse, 0.0, scale
        excess, total = 0.0, 1.0
        if norm:
            # Jv is a multiple of s ∘ (v − mean − c (r − level)), r = y/s, level = 1/Σs
            total, excess = simd.total(squares), simd.total(both) - mean
            rho = (2.0 - theta) / ((theta - 1.0) * total)
            c = rho * excess / (rho * (total - inverse) + 1.0)
            factor = scale * total ** ((theta - 2.0) / theta) / (theta - 1.0)
        middle = simd.like(zero, none + mean)
        rest = simd.like(zero, (none + mean) - simd.wide(middle))
        level, bend = simd.like(zero, none + inverse), simd.like(zero, none + c)
        grown = simd.like(zero, none + factor)
        for k in range(m):
            i = where[k]
            a = common.piece(y, i, d, 0.0) if cheap or norm else zero
            t = ((common.piece(v, i, d, 0.0) - start) - middle) - rest
            w = simd.select(a > 0.0, weight(a, each), 0.0) if cheap else simd.load(s, k * LANES)
            on = w > 0.0
            if norm:
                t = t - (simd.select(on, a / w, 0.0) - level) * bend
            common.store_piece(out, i, d, simd.select(on, t * (w * grown), 0.0))
        # c r may be large: what is left of Σ Jv is its rounding; float32 sums in float64
        if norm and not cheap and memory.size(y) == 8:
            left = none
            for k in range(m):
                left = left + simd.wide(common.piece(out, where[k], d, 0.0))
            gone = simd.like(zero, none + simd.total(left) * inverse)
            for k in range(m):
                w = simd.load(s, k * LANES)
                part = simd.select(w > 0.0, w * gone, 0.0)
                common.store_piece(out, where[k], d, common.piece(out, where[k], d, 0.0) - part)
        found = 0.0
        if hyper and m > 0:
            changes, powered = simd.total(rates), simd.total(powers)
            found = mean * changes - simd.total(more)
            if norm:
                # ∂ log ∇Ω/∂p = log y + (2 − p)/p Σ y^p log y/Σ y^p − 2/p log ‖y‖
                found = found + c * (powered - inverse * changes)
                shift = (2.0 - theta) * powered - math.log(total) * total * 2.0 / theta
                found = found - (excess - c * (total - inverse)) * shift / (theta * total)
                found = found / (theta - 1.0)
        return found

    return product


@njit
def _nought(y: Any, w: Any, n: int, work: Any) -> float:
    return 0.0


def _packer(first: Prox | None, part: int) -> Any:
    """(job, r, y, v, d, scratch, where, m, ys, vs) → :func:`pack`, after the prox; ``part``: the
    place of who takes part."""
    if first is None:

        @njit
        def of_row(
            job: Any, r: int, y: Any, v: Any, d: int, work: Any, where: Any, m: int, ys: Any,
            vs: Any,
        ) -> int:  # fmt: skip
            n: int = pack(y, v, d, where, m, ys, vs)
            return n

        return of_row
    averages = first.averages

    @njit
    def moved(
        job: Any, r: int, y: Any, v: Any, d: int, work: Any, where: Any, m: int, ys: Any, vs: Any
    ) -> int:
        on = common.octets_at(job, part, r)
        n: int = averages(y, v, d, on, common.given(job, part), work, ys, vs)
        return n

    return moved


def _row(
    own: Description, first: Prox | None, inner: Any, given: bool, to: int, others: Any
) -> Any:
    """A function of a row, which ``others`` compute if this description does not cover its θ."""
    covers, steep, chained = own.covers, own.solve is not None, first is not None
    rare = own.widest == 0 and not own.cheap
    # powers by exp and log take longer than to pack the entries
    packs, product = rare or chained or own.rough is not None, product_of(own, rare)
    support, across = support_of(inner), _nought if first is None else first.across
    slope, lam = to + 1 + chained, to + 1
    packed, bounded = _packer(first, slope + given), inner is not None

    @njit
    def row(job: Any, r: int, like: Any, theta: float, hyper: bool, rows: Any, work: Any) -> None:
        if not covers(theta):
            others(job, r, like, theta, hyper, rows, work)
            return
        s, ys, vs, copy, where, every = rows
        d, learns, by = job[common.WIDTH], hyper and given, 1.0 / common.number_at(job, 2, r)
        y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
        out = common.rows_at(job, to, r, like)
        m = support(job, r, y, d, copy, where, out, job[common.BLANK] != 0)
        y = copy if bounded else y
        if packs:
            n = packed(job, r, y, v, d, work, where, m, ys, vs)
            origin = _at_smallest(ys, vs, n) if steep else np.float64(vs[0])
            found = product(ys, vs, n, every, -(-n // LANES), origin, by, theta, s, vs, learns)
            if chained and hyper:
                common.set_number(job, lam, r, -across(ys, vs, n, work) / by)
            unpack(y, d, where, m, vs, out)
        else:
            origin = of_first(y, v, d, where, m, s)
            found = product(y, v, d, where, m, origin, by, theta, s, out, learns)
        if learns:
            common.set_number(job, slope, r, found)

    return row


def backward(
    descriptions: Sequence[Description],
    given: bool,
    number: float,
    first: Prox | None = None,
    inner: Any = None,
) -> Callable[..., None]:
    """``backward(job, like)``; ``given``: whether θ is in the job, else it is this number.
    ``inner``: (job, r, 0) → the bounds of a row, and (vector of y, these, its place, d) → the
    vector with 0 at a bound; the bounds are two arrays more, before the gradient."""
    chained, bounded = first is not None, inner is not None
    at = 3 + chained
    to = at + given + 2 * bounded
    room_of, work_of = scratch(first)

    @njit
    def of_none(
        job: Any, r: int, like: Any, theta: float, hyper: bool, rows: Any, work: Any
    ) -> None:
        common.fill(common.rows_at(job, to, r, like), job[common.WIDTH], 0.0)
        if hyper:
            for k in range(chained + given):
                common.set_number(job, to + 1 + k, r, 0.0)

    row = of_none
    for each in reversed(descriptions):
        row = _row(each, first, inner, given, to, row)
    learns = given or chained

    def backward(job: Any, like: Any) -> None:
        d, hyper = job[common.WIDTH], learns and common.given(job, to + 1)
        wide, whole = common.scratch_like(4, d, like), memory.empty(2, d // LANES + 2, np.int64)
        rows = (
            memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2), memory.row(wide, 3),
            memory.row(whole, 0), memory.row(whole, 1),
        )  # fmt: skip
        for k in range(d // LANES + 1):
            rows[5][k] = k * LANES
        arrays = room_of(d, like)
        work = work_of(arrays)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at, r) if given else number
                row(job, r, like, own, hyper, rows, work)
            begin, end = common.take(job)
        memory.keep((wide, whole, arrays))

    return backward
