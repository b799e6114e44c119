"""The product with the Jacobian of a threshold mapping, from its description.

    J v = s ∘ (v − ⟨s, v⟩/Σs) on the support of y,  s = 1/e''(y),

and ⟨J v, −∂e'/∂θ⟩ for the hyperparameter (Blondel, Martins & Niculae 2020, §4.2; Peters, Niculae &
Martins 2019, Prop. 2; in α: Correia, Niculae & Martins 2019, Prop. 1). With ``norm``, the curvature
is a multiple of (θ − 1) diag(1/s) plus one of rank one, and J follows by Sherman–Morrison. After a
prox, v becomes its averages over the groups of y first: J of the base may magnify what they cancel
(α > 2, next to a zero).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, elementary, memory, simd
from .jit import njit
from .prox import LAMBDA, Prox, scratch
from .simd import LANES
from .threshold import Description, whole_sum


@njit
def _piece(row: Any, i: int, n: int, even: bool) -> Any:
    """row[i : i + 16], with 0 from n on; ``even``: whether n is a multiple of 16."""
    return simd.load(row, i) if even else common.piece(row, i, n, 0.0)


@njit
def _put(out: Any, i: int, n: int, v: Any, even: bool) -> None:
    if even:
        simd.store(out, i, v)
    else:
        common.store_piece(out, i, n, v)


@njit
def at_first(y: Any, v: Any, n: int) -> float:
    """v_i of the first y_i > 0, 0 if there is none."""
    full = n - n % LANES
    for i in range(0, n, LANES):
        if i == full or simd.count(simd.load(y, i) > 0.0) > 0:
            for k in range(i, min(i + LANES, n)):
                if y[k] > 0.0:
                    return np.float64(v[k])
    return 0.0


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
        y: Any, v: Any, n: int, origin: Any, scale: Any, theta: Any, s: Any, out: Any,
        even: bool, sparse: bool, blank: bool, hyper: bool,
    ) -> Any:  # fmt: skip
        """``s`` is scratch; ``sparse``: whether to look for vectors without support. ``origin``, a
        number near v, is subtracted first, so that a nearly constant v has digits."""
        zero = simd.load_part(y, 0, simd.first(0), 0.0)
        none, each = simd.wide(zero), given(zero, theta)
        weights, products, squares, both = none, none, none, none
        rates, more, powers = none, none, none
        for i in range(0, n, LANES):
            a = _piece(y, i, n, even)
            on = a > 0.0
            if sparse and simd.count(on) == 0:
                continue
            b = simd.wide(simd.select(on, _piece(v, i, n, even), 0.0)) - origin
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
                simd.store(s, i, w)
            u = simd.wide(w)
            weights, products = weights + u, products + u * b
            if norm:  # the vector of the rank-one term is y/s, and Σ y = 1
                squares = squares + simd.wide(simd.select(on, a * a / w, 0.0))
                both = both + simd.wide(a) * b
        weights = whole_sum(weights, True)
        inverse = 1.0 / weights
        mean, c, factor = whole_sum(products, True) * inverse, none, scale
        excess, total = none, none + 1.0
        if norm:
            # Jv is a multiple of s ∘ (v − mean − c (r − level)), r = y/s, level = 1/Σs
            total, excess = whole_sum(squares, True), whole_sum(both, True) - mean
            rho = (2.0 - theta) / ((theta - 1.0) * total)
            c = rho * excess / (rho * (total - inverse) + 1.0)
            factor = scale * elementary.power(total, (theta - 2.0) / theta) / (theta - 1.0)
        start, middle = simd.like(zero, origin), simd.like(zero, mean)
        rest = simd.like(zero, mean - simd.wide(middle))
        level, bend, grown = simd.like(zero, inverse), simd.like(zero, c), simd.like(zero, factor)
        for i in range(0, n, LANES):
            a = _piece(y, i, n, even) if cheap or norm or sparse else zero
            if sparse and simd.count(a > 0.0) == 0:
                if not blank:
                    _put(out, i, n, zero, even)
                continue
            t = ((_piece(v, i, n, even) - start) - middle) - rest
            w = simd.select(a > 0.0, weight(a, each), 0.0) if cheap else simd.load(s, i)
            on = w > 0.0
            if norm:
                t = t - (simd.select(on, a / w, 0.0) - level) * bend
            _put(out, i, n, simd.select(on, t * (w * grown), 0.0), even)
        # c r may be large: what is left of Σ Jv is its rounding; float32 sums in float64
        if norm and not cheap and memory.size(y) == 8:
            left = none
            for i in range(0, n, LANES):
                if not sparse or simd.count(_piece(y, i, n, even) > 0.0) > 0:
                    left = left + simd.wide(_piece(out, i, n, even))
            gone = simd.like(zero, whole_sum(left, True) * inverse)
            for i in range(0, n, LANES):
                if not sparse or simd.count(_piece(y, i, n, even) > 0.0) > 0:
                    w = simd.load(s, i)
                    part = simd.select(w > 0.0, w * gone, 0.0)
                    _put(out, i, n, _piece(out, i, n, even) - part, even)
        found = none
        if hyper:
            rates, powers = whole_sum(rates, True), whole_sum(powers, True)
            found = mean * rates - whole_sum(more, True)
            if norm:
                # ∂ log ∇Ω/∂p = log y + (2 − p)/p Σ y^p log y/Σ y^p − 2/p log ‖y‖
                found = found + c * (powers - inverse * rates)
                shift = (2.0 - theta) * powers - elementary.log(total) * total * 2.0 / theta
                found = found - (excess - c * (total - inverse)) * shift / (theta * total)
                found = found / (theta - 1.0)
        return simd.select(weights > 0.0, found, 0.0)

    return product


def _steps(first: Prox | None) -> tuple[Any, Any]:
    """(job, r, like, place of who takes part, y, v, d, scratch, ys, vs, whether zeros need not be
    written) → the support and v there; and ⟨w, u⟩ of it."""
    if first is None:

        @njit
        def pack(
            job: Any, r: int, like: Any, part: int, y: Any, v: Any, d: int, work: Any, ys: Any,
            vs: Any, blank: bool,
        ) -> int:  # fmt: skip
            n: int = common.keep_support(y, v, d, ys, vs, blank)
            return n

        @njit
        def nought(y: Any, w: Any, n: int, work: Any) -> float:
            return 0.0

        return pack, nought
    averages = first.averages

    @njit
    def moved(
        job: Any, r: int, like: Any, part: int, y: Any, v: Any, d: int, work: Any, ys: Any,
        vs: Any, blank: bool,
    ) -> int:  # fmt: skip
        on = common.octets_at(job, part, r)
        n: int = averages(y, v, d, on, common.given(job, part), work, ys, vs)
        return n

    return moved, first.across


def _row(own: Description, first: Prox | None, given: bool, to: int, others: Any) -> Any:
    """A function of a row, which ``others`` compute if this description does not cover its θ."""
    covers, steep, chained = own.covers, own.solve is not None, first is not None
    rare = own.widest == 0 and not own.cheap
    packs, product = rare or chained, product_of(own, rare)
    pack, across = _steps(first)
    slope, lam = to + 1 + chained, to + 1
    part = slope + given

    @njit
    def row(job: Any, r: int, like: Any, theta: float, hyper: bool, rows: Any, work: Any) -> None:
        if not covers(theta):
            others(job, r, like, theta, hyper, rows, work)
            return
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
        out, gamma = common.rows_at(job, to, r, like), common.number_at(job, 2, r)
        s, ys, vs = rows
        zero, learns = simd.load_part(y, 0, simd.first(0), 0.0), hyper and given
        none = simd.wide(zero)
        by, at, own = none + 1.0 / gamma, none + theta, none
        if packs:
            n = pack(job, r, like, part, y, v, d, work, ys, vs, blank)
            simd.store(ys, n, zero)
            simd.store(vs, n, zero)
            own = none + (_at_smallest(ys, vs, n) if steep else vs[0])
            own = product(ys, vs, n, own, by, at, s, vs, True, False, False, learns)
            if chained and hyper:
                common.set_number(job, lam, r, -gamma * across(ys, vs, n, work))
            common.place_support(y, d, vs, out, blank)
        elif d <= common.DENSE and d % LANES == 0 and not learns:
            own = none + at_first(y, v, d)
            product(y, v, d, own, by, at, s, out, True, False, False, False)
        else:
            own, sparse = none + at_first(y, v, d), d > common.DENSE
            own = product(y, v, d, own, by, at, s, out, False, sparse, blank, learns)
        if learns:
            common.set_number(job, slope, r, simd.largest(own))

    return row


def backward(
    descriptions: tuple[Description, ...], given: bool, number: float, first: Prox | None
) -> Callable[..., None]:
    """``backward(job, like)``; ``given``: whether θ is in the job, else it is this number."""
    chained = first is not None
    at = LAMBDA + 2 if chained else 3
    to = at + given
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
        row = _row(each, first, given, to, row)
    learns = given or chained

    def backward(job: Any, like: Any) -> None:
        d, hyper = job[common.WIDTH], learns and common.given(job, to + 1)
        wide = common.scratch_like(3, d, like)
        rows = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
        arrays = room_of(d, like)
        work = work_of(arrays)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                own = common.number_at(job, at, r) if given else number
                row(job, r, like, own, hyper, rows, work)
            begin, end = common.take(job)
        memory.keep((wide, arrays))

    return backward
