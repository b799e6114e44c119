"""α-entmax of float32 for 1.05 < α < 2: sixteen rows at a time, and J v.

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
def _threshold15(rough: Any, h: Any, m: int) -> Any:
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


@tiles.short
def together15(job: Any, like: Any, n: int, room: Any) -> None:
    """Rows with α = 1.5, packed by :func:`tiles.pack`."""
    d = job[common.WIDTH]
    tile, exact = tiles.tile(room, d, like), tiles.wide(room)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 0.5)
    tau = _threshold15(tile, exact, m)
    for i in range(0, m, LANES):
        t = simd.larger(simd.load(exact, i) - tau, 0.0)
        simd.store(tile, i, simd.narrow(t * t))
    tiles.finish(job, like, n, m, 3, 4, room)


@njit
def _power(t: Any, less: Any) -> Any:
    """t₊^(1/a) in float32, and its quotient by t; ``less`` is 1/a − 1."""
    inside = t > 1e-30
    t = simd.select(inside, t, 1.0)
    log = elementary.log2_32(t) * less
    slope = simd.select(inside & (log > -125.0), elementary.exp2_32(log), 0.0)
    return slope * t, slope


@njit
def _sums(v: Any, whole: bool) -> Any:
    """The sums over rows of the sums of lanes: ``whole`` if all lanes are of one row."""
    return simd.spread(v, simd.total(v)) if whole else v


@njit
def _step(rough: Any, m: int, a: Any, tau: Any, whole: bool) -> tuple[Any, Any]:
    """Newton's step of (Σy)^a = 1, y = [a(z − τ)]₊^(1/a), and Σy.

    (Σy)^a is a norm of [a(z − τ)]₊, so it is convex in τ, and Newton from below stays below.
    """
    zero = simd.spread(tau, 0.0)
    less = (1.0 - a) / a
    sums, slopes = zero, zero
    for i in range(0, m, LANES):
        t = simd.larger((simd.load(rough, i) - tau) * a, 1e-30)
        slope = simd.select(t > 1e-30, elementary.rough_power(t, less), 0.0)
        sums = sums + slope * t
        slopes = slopes + slope
    sums, slopes = _sums(sums, whole), _sums(slopes, whole)
    norm = elementary.rough_power(sums, 1.0 - a)
    return (sums - norm) / (slopes * a), sums


@njit
def _bound(rough: Any, m: int, a: Any) -> Any:
    """A lower bound on τ of each lane, from some of the entries."""
    low = simd.spread(a, -1.0) / a
    return simd.larger(low + _step(rough, m, a, low, False)[0] - 1e-4 / a, low)


@njit
def _threshold(rough: Any, m: int, a: Any, tau: Any, whole: bool) -> Any:
    """τ, to about 1e-5/a and 1e-4 in Σy, from a lower bound."""
    moving = tau < simd.spread(tau, 0.0)
    for _ in range(m):
        step, sums = _step(rough, m, a, tau, whole)
        tau = tau + simd.select(moving, step, 0.0)
        moving = moving & ((step * a > 1e-3) | (sums > 1.01))
        if simd.count(moving) == 0:
            break
    return tau


@njit
def _entries(z: Any, m: int, a: Any, tau: Any, y: Any, slopes: Any, whole: bool) -> None:
    """y of the scores z, after a last step from τ; ``slopes`` is scratch."""
    rate = simd.wide(a)
    less = (1.0 - a) / a
    power = simd.spread(rate, 1.0) / rate
    zero = simd.spread(rate, 0.0)
    step = zero
    for _ in range(50):
        sums, total = zero, zero
        for i in range(0, m, LANES):
            exact = (simd.load(z, i) - tau) * rate
            t = simd.narrow(exact)
            v, slope = _power(t, less)
            # the rounding of t, which 1/a magnifies
            v = v + slope * simd.narrow((exact - simd.wide(t)) * power)
            v = simd.select(slope > 0.0, v, 0.0)
            simd.store(slopes, i, slope)
            simd.store(y, i, v)
            sums = sums + simd.wide(v)
            total = total + simd.wide(slope)
        off = _sums(sums, whole) - 1.0
        step = off / _sums(total, whole)
        size = simd.larger(off, 0.0 - off)
        far = (size > 1e-3) | (simd.larger(step, 0.0 - step) * rate > 1e-3)
        if simd.count(far) == 0:
            break
        tau = tau + simd.select(far, step, 0.0)
    last = simd.narrow(step)
    for i in range(0, m, LANES):
        simd.store(y, i, simd.larger(simd.load(y, i) - simd.load(slopes, i) * last, 0.0))


@tiles.short
def backward15(job: Any, like: Any, n: int, room: Any) -> None:
    """Jv of row n with α = 1.5, on the support alone if it is long. ``room`` has space for three
    rows."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, n, like), common.rows_at(job, 1, n, like)
    out = common.rows_at(job, 4, n, like)
    scale = 1.0 / common.number_at(job, 2, n)
    start, size = memory.address_of(room), d + 2 * LANES
    s, kept = memory.pointer(start, size, like), memory.pointer(start, 2 * size, like)
    if d <= common.DENSE:
        _product15(y, v, d, scale, s, out)
    else:
        m = common.keep_support(y, v, d, kept, room, blank)
        _product15(kept, room, m, scale, s, room)
        common.place_support(y, d, room, out, blank)


@njit
def _product15(y: Any, v: Any, n: int, scale: float, s: Any, out: Any) -> None:
    """out = Jv·scale for α = 1.5; ``s`` is scratch."""
    zero = simd.wide(simd.load_part(y, 0, simd.first(0), 0.0))
    weights, products = zero, zero
    for i in range(0, n, LANES):
        u = common.piece(y, i, n, 0.0)
        on = u > 0.0
        w = simd.select(on, simd.sqrt(u), 0.0)
        simd.store(s, i, w)
        w = simd.wide(w)
        weights = weights + w
        products = products + w * simd.wide(simd.select(on, common.piece(v, i, n, 0.0), 0.0))
    mean = simd.total(products) / simd.total(weights)
    for i in range(0, n, LANES):
        w = simd.load(s, i)
        x = (simd.wide(common.piece(v, i, n, 0.0)) - mean) * (simd.wide(w) * scale)
        common.store_piece(out, i, n, simd.select(w > 0.0, simd.narrow(x), 0.0))


@njit
def _product(y: Any, v: Any, m: int, a: Any, scale: Any, hyper: bool, whole: bool) -> Any:
    """v ← Jv·scale and y ← y^(2−α); returns the derivative in α if ``hyper``, else 0."""
    # ∂∇Ω(y)/∂α = (t e^t − (e^t − 1))/a² up to a constant, t = a log y
    zero = simd.spread(scale, 0.0)
    weights, products, rates, both = zero, zero, zero, zero
    size = simd.wide(simd.spread(a, 1.0) / (a * a))
    for i in range(0, m, LANES):
        u = simd.load(y, i)
        t = elementary.log32(simd.larger(u, 1.2e-38)) * a
        power, more = elementary.exps32(t)
        w = u / power
        simd.store(y, i, w)
        w = simd.wide(w)
        x = w * simd.wide(simd.load(v, i))
        weights = weights + w
        products = products + x
        if hyper:
            slope = simd.wide(t * power - more)
            rates = rates + w * slope
            both = both + x * slope
    total = _sums(weights, whole)
    mean = _sums(products, whole) / total
    for i in range(0, m, LANES):
        w = simd.wide(simd.load(y, i)) * scale
        simd.store(v, i, simd.narrow((simd.wide(simd.load(v, i)) - mean) * w))
    found = (mean * _sums(rates, whole) - _sums(both, whole)) * size
    return simd.select(total > 0.0, found, 0.0)


@tiles.short
def backward(job: Any, like: Any, r: int, k: int, a: float, hyper: bool, room: Any) -> None:
    """Row r: Jv of a long row; the support of a short one, packed in lane k for
    :func:`backward_together`."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
    scale = 1.0 / common.number_at(job, 2, r)
    if d <= tiles.LONGEST:
        ys, vs = tiles.packed(room, d, like, k), tiles.copy(room, d, like, k)
        room[LANES * tiles.ROW + k], room[LANES * tiles.RATE + k] = r, a
        room[LANES * tiles.SIZE + k] = common.keep_support(y, v, d, ys, vs, blank)
        room[LANES * tiles.SCALE + k] = scale
        return
    ys, vs = tiles.spare(room, d, like, 0), tiles.spare(room, d, like, 1)
    n = common.keep_support(y, v, d, ys, vs, blank)
    none = simd.load_part(y, 0, simd.first(0), 0.0)
    simd.store(ys, n, none)
    simd.store(vs, n, none)
    factor = simd.spread(simd.wide(none), scale)
    found = _product(ys, vs, n, simd.spread(none, a), factor, hyper, True)
    common.place_support(y, d, vs, common.rows_at(job, 4, r, like), blank)
    if hyper:
        common.set_number(job, 5, r, simd.largest(found))


@tiles.short
def backward_together(job: Any, like: Any, count: int, hyper: bool, room: Any) -> None:
    """Jv of the rows of lanes."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    for k in range(count, LANES):
        for j in range(tiles.NUMBERS):
            room[LANES * j + k] = room[LANES * j]
        room[LANES * tiles.SIZE + k] = 0
    rows, apart = tiles.packed(room, d, like, 0), d + 2 * LANES
    ys, vs = tiles.tile(room, d, like), memory.pointer(memory.address_of(tiles.wide(room)), 0, like)
    m = tiles.columns(room, rows, apart, 0.0, ys)
    tiles.columns(room, tiles.copy(room, d, like, 0), apart, 0.0, vs)
    scale = simd.load(tiles.numbers(room, tiles.SCALE), 0)
    a = simd.narrow(simd.load(tiles.numbers(room, tiles.RATE), 0))
    found = _product(ys, vs, m, a, scale, hyper, False)
    simd.store(room, LANES * tiles.TAU, found)
    tiles.uncolumns(vs, m, rows, apart)
    for k in range(count):
        r = int(room[LANES * tiles.ROW + k])
        y, out = common.rows_at(job, 0, r, like), common.rows_at(job, 4, r, like)
        common.place_support(y, d, tiles.packed(room, d, like, k), out, blank)
        if hyper:
            common.set_number(job, 5, r, room[LANES * tiles.TAU + k])


@njit
def _alone(job: Any, k: int, n: int, like: Any, room: Any, z: Any) -> None:
    """The row of lane k, whose n entries are in ``tiles.spare``; ``z`` is scratch."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    kept, slopes = tiles.spare(room, d, like, 0), tiles.spare(room, d, like, 1)
    simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
    top, scale = room[LANES * tiles.TOP + k], room[LANES * tiles.SCALE + k]
    for i in range(0, n, LANES):
        t = (simd.wide(simd.load(kept, i)) - top) * scale
        simd.store(z, i, t)
        simd.store(kept, i, simd.narrow(t))
    a = simd.spread(simd.load(kept, 0), room[LANES * tiles.RATE + k])
    tau = _threshold(kept, n, a, simd.spread(a, room[LANES * tiles.TAU + k]), True)
    _entries(z, n, a, simd.wide(tau), kept, slopes, True)
    row = tiles.row_of(job, k, 3, like, room)
    out = common.rows_at(job, 4, int(room[LANES * tiles.ROW + k]), like)
    common.place(row, d, room[LANES * tiles.LOW + k], kept, out, blank)


@tiles.short
def together(job: Any, like: Any, n: int, room: Any, z: Any) -> None:
    """Rows with 1.05 < α < 2, which hold the sixteen entries of :func:`tiles.enter`. ``z`` is
    scratch for a row."""
    d = job[common.WIDTH]
    tile, exact = tiles.tile(room, d, like), tiles.wide(room)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    a = simd.narrow(simd.load(tiles.numbers(room, tiles.RATE), 0))
    low = _bound(tile, m, a)
    simd.store(room, LANES * tiles.TAU, simd.wide(low))
    for k in range(n):
        depth = min(-room[LANES * tiles.TAU + k], REACH)
        size = tiles.pack(job, k, 3, depth, like, room)
        if size > tiles.LONGEST:
            _alone(job, k, size, like, room, z)
            room[LANES * tiles.ROW + k] = -1
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    tau = _threshold(tile, m, a, low, False)
    _entries(exact, m, a, simd.wide(tau), tile, tiles.packed(room, d, like, 0), False)
    tiles.finish(job, like, n, m, 3, 4, room)
