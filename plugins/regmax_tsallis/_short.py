"""α-entmax of float32 for 1.05 < α < 2: thresholds of sixteen short rows at a time, and J v.

The formulas are those of :mod:`regmax_tsallis._rows`. Powers are in float32, sums over a row in
float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, elementary, memory, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from ._powers import REACH


@njit
def threshold15(rough: Any, h: Any, m: int) -> Any:
    """τ with Σ (h − τ)₊² = 1 of each lane; ``rough`` is h in float32.

    The root of Σ (h − τ)₊² is a norm, so it is convex in τ, and Newton from below stays below.
    """
    none = simd.spread(simd.load(rough, 0), 0.0)
    below = none - 1.0
    moving = below < none
    for _ in range(m):
        first, second = none, none
        for i in range(0, m, LANES):
            t = simd.larger(simd.load(rough, i) - below, 0.0)
            first = first + t
            second = second + t * t
        step = (second - simd.sqrt(second)) / first
        below = below + simd.select(moving, step, 0.0)
        moving = moving & (step > 1e-4)
        if simd.count(moving) == 0:
            break
    tau = simd.wide(below)
    zero = simd.spread(tau, 0.0)
    first, second, size = zero, zero, zero
    for i in range(0, m, LANES):
        t = simd.larger(simd.load(h, i) - tau, 0.0)
        first = first + t
        second = second + t * t
        size = size + simd.select(t > 0.0, zero + 1.0, 0.0)
    off = second - 1.0
    return tau + off / (first + simd.sqrt(simd.larger(first * first - size * off, 0.0)))


@njit
def write15(
    row: Any, d: int, low: float, top: float, scale: float, tau: float, out: Any, blank: bool
) -> None:
    """out = ((row − top)·scale − τ)₊², which is 0 below ``low``."""
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        if d <= common.DENSE or simd.count(v >= low) > 0:
            t = simd.larger((simd.wide(v) - top) * scale - tau, 0.0)
            common.store_piece(out, i, d, simd.like(v, t * t))
        elif not blank:
            common.store_piece(out, i, d, simd.spread(v, 0.0))


@njit
def _power(t: Any, less: Any) -> Any:
    """t₊^(1/a) in float32, and its quotient by t; ``less`` is 1/a − 1."""
    inside = t > 1e-30
    t = simd.select(inside, t, 1.0)
    log = elementary.log32(t) * less
    slope = simd.select(inside & (log > -87.0), elementary.exp32(log), 0.0)
    return slope * t, slope


@njit
def _step(rough: Any, m: int, a: Any, tau: Any) -> Any:
    """Newton's step of (Σy)^a = 1, y = [a(z − τ)]₊^(1/a).

    (Σy)^a is a norm of [a(z − τ)]₊, so it is convex in τ, and Newton from below stays below.
    """
    zero = simd.spread(tau, 0.0)
    less = (1.0 - a) / a
    sums, slopes = zero, zero
    for i in range(0, m, LANES):
        y, slope = _power((simd.load(rough, i) - tau) * a, less)
        sums = sums + y
        slopes = slopes + slope
    return (sums - elementary.exp32(elementary.log32(sums) * (1.0 - a))) / (slopes * a)


@njit
def bound(rough: Any, m: int, a: Any) -> Any:
    """A lower bound on τ, from some of the entries."""
    tau = simd.spread(a, -1.0) / a
    low = tau
    for _ in range(2):
        tau = tau + _step(rough, m, a, tau)
    return simd.larger(tau - 1e-5 / a, low)


@njit
def threshold(rough: Any, m: int, a: Any, tau: Any) -> Any:
    """τ of each lane, to about 1e-5/a, from a lower bound."""
    moving = tau < simd.spread(tau, 0.0)
    for _ in range(m):
        step = _step(rough, m, a, tau)
        tau = tau + simd.select(moving, step, 0.0)
        moving = moving & (step * a > 1e-3)
        if simd.count(moving) == 0:
            break
    return tau


@njit
def write(
    row: Any,
    d: int,
    low: float,
    top: float,
    scale: float,
    a: float,
    tau: float,
    slopes: Any,
    out: Any,
    blank: bool,
) -> None:
    """out = y, after a last step from τ; ``slopes`` is scratch of d entries."""
    none = simd.load_part(row, 0, simd.first(0), 0.0)
    less = simd.spread(none, 1.0 / a - 1.0)
    for _ in range(50):
        sums, total = simd.wide(none), simd.wide(none)
        for i in range(0, d, LANES):
            v = common.piece(row, i, d, -np.inf)
            if d > common.DENSE and simd.count(v >= low) == 0:
                simd.store(slopes, i, none)
                if not blank:
                    common.store_piece(out, i, d, none)
                continue
            exact = ((simd.wide(v) - top) * scale - tau) * a
            t = simd.narrow(exact)
            y, slope = _power(t, less)
            # the rounding of t, which 1/a magnifies
            y = y + slope * simd.narrow((exact - simd.wide(t)) * (1.0 / a))
            y = simd.select(slope > 0.0, y, 0.0)
            simd.store(slopes, i, slope)
            common.store_piece(out, i, d, y)
            sums = sums + simd.wide(y)
            total = total + simd.wide(slope)
        step = (simd.total(sums) - 1.0) / simd.total(total)
        if not abs(step) * a > 1e-3:
            break
        tau += step
    last = simd.spread(none, step)
    for i in range(0, d, LANES):
        slope = simd.load(slopes, i)
        if d <= common.DENSE or simd.count(slope > 0.0) > 0:
            y = common.piece(out, i, d, 0.0)
            common.store_piece(out, i, d, simd.larger(y - slope * last, 0.0))


@njit
def _product(
    y: Any, v: Any, n: int, a: float, scale: float, hyper: bool, s: Any, out: Any
) -> float:
    """out = Jv·scale; returns the derivative in α if ``hyper``, else 0. ``s`` is scratch."""
    # ∂∇Ω(y)/∂α = (t e^t − (e^t − 1))/a² up to a constant, t = a log y
    none = simd.load_part(y, 0, simd.first(0), 0.0)
    zero = simd.wide(none)
    weights, products, rates, both = zero, zero, zero, zero
    rate = simd.spread(none, a)
    size = simd.spread(none, 1.0 / (a * a))
    for i in range(0, n, LANES):
        u = common.piece(y, i, n, 0.0)
        on = u > 0.0
        if hyper or a != 0.5:
            t = elementary.log32(simd.larger(u, 1.2e-38)) * rate
            power, more = elementary.exps32(t)
            w = simd.select(on, u / power, 0.0)
        else:
            w = simd.sqrt(u)
            w = simd.select(on, w, 0.0)
        simd.store(s, i, w)
        w = simd.wide(w)
        x = w * simd.wide(simd.select(on, common.piece(v, i, n, 0.0), 0.0))
        weights = weights + w
        products = products + x
        if hyper:
            slope = simd.wide((t * power - more) * size)
            rates = rates + w * slope
            both = both + x * slope
    whole = simd.total(weights)
    mean = simd.total(products) / whole
    for i in range(0, n, LANES):
        w = simd.load(s, i)
        x = (simd.wide(common.piece(v, i, n, 0.0)) - mean) * (simd.wide(w) * scale)
        common.store_piece(out, i, n, simd.select(w > 0.0, simd.narrow(x), 0.0))
    if not hyper or whole == 0.0:
        return 0.0
    return mean * simd.total(rates) - simd.total(both)


@tiles.short
def backward(job: Any, like: Any, n: int, room: Any, a: float, hyper: bool) -> None:
    """Row n of a job, on the support alone if it is long. ``room`` has space for three rows."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, n, like), common.rows_at(job, 1, n, like)
    out = common.rows_at(job, 4, n, like)
    scale = 1.0 / common.number_at(job, 2, n)
    start, size = memory.address_of(room), d + 2 * LANES
    s, kept = memory.pointer(start, size, like), memory.pointer(start, 2 * size, like)
    if d <= common.DENSE:
        dalpha = _product(y, v, d, a, scale, hyper, s, out)
    else:
        m = common.keep_support(y, v, d, kept, room, blank)
        dalpha = _product(kept, room, m, a, scale, hyper, s, room)
        common.place_support(y, d, room, out, blank)
    if hyper:
        common.set_number(job, 5, n, dalpha)


@tiles.short
def together15(job: Any, like: Any, n: int, room: Any) -> None:
    """Rows with α = 1.5, packed by :func:`tiles.pack`."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 0.5)
    found = threshold15(tiles.tile(room, d, like), tiles.wide(room), m)
    simd.store(room, LANES * tiles.TAU, found)
    for k in range(n):
        row = tiles.row_of(job, k, 3, like, room)
        out = common.rows_at(job, 4, int(room[LANES * tiles.ROW + k]), like)
        top, scale = room[LANES * tiles.TOP + k], 0.5 * room[LANES * tiles.SCALE + k]
        low, tau = room[LANES * tiles.LOW + k], room[LANES * tiles.TAU + k]
        write15(row, d, low, top, scale, tau, out, blank)


@tiles.short
def together(job: Any, like: Any, n: int, room: Any) -> None:
    """Rows with 1.05 < α < 2, which hold the sixteen entries of :func:`tiles.enter`."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    tile = tiles.tile(room, d, like)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    a = simd.narrow(simd.load(tiles.numbers(room, tiles.RATE), 0))
    low = bound(tile, m, a)
    simd.store(room, LANES * tiles.TAU, simd.wide(low))
    for k in range(n):
        depth = min(-room[LANES * tiles.TAU + k], REACH)
        tiles.pack(job, k, 3, depth, like, room)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    simd.store(room, LANES * tiles.TAU, simd.wide(threshold(tile, m, a, low)))
    slopes = tiles.tile(room, d, like)
    for k in range(n):
        row = tiles.row_of(job, k, 3, like, room)
        out = common.rows_at(job, 4, int(room[LANES * tiles.ROW + k]), like)
        top, scale = room[LANES * tiles.TOP + k], room[LANES * tiles.SCALE + k]
        least, tau = room[LANES * tiles.LOW + k], room[LANES * tiles.TAU + k]
        rate = room[LANES * tiles.RATE + k]
        write(row, d, least, top, scale, rate, tau, slopes, out, blank)
