"""pnormmax of float32 for p = 1.5: thresholds of sixteen short rows at a time, and J v.

y = u²/Σu²,  u = (z − τ)₊,  Σu² = (Σu³)^⅓,  z = (x − max x)/γ,  −1 ≤ τ < 0
"""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import common, elementary, memory, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def _threshold(rough: Any, z: Any, m: int) -> Any:
    """τ and Σu² of each lane; ``rough`` is z in float32.

    Newton on Σu² (Σu³)^(−⅓), kept in a bracket, in float32; then one step in float64.
    """
    none = simd.spread(simd.load(rough, 0), 0.0)
    low, high = none - 1.0, none
    tau, width = low, none + 1.0
    moving = low < high
    for _ in range(100):
        first, second, third = none, none, none
        for i in range(0, m, LANES):
            u = simd.larger(simd.load(rough, i) - tau, 0.0)
            square = u * u
            first = first + u
            second = second + square
            third = third + square * u
        off = second - elementary.exp32(elementary.log32(third) * (1.0 / 3.0))
        below = off > 0.0
        low, high = simd.select(below, tau, low), simd.select(below, high, tau)
        step = off / (first * 2.0 - second * second / third)
        trial = tau + step
        size = simd.larger(step, 0.0 - step)
        usable = (trial > low) & (trial < high) & (width * 0.5 > size)
        trial = simd.select(usable, trial, (low + high) * 0.5)
        step = simd.larger(trial - tau, tau - trial)
        tau, width = simd.select(moving, trial, tau), simd.select(moving, step, width)
        moving = moving & (step > tau * -1e-4)
        if simd.count(moving) == 0:
            break
    exact = simd.wide(tau)
    zero = simd.spread(exact, 0.0)
    first, second, third, size = zero, zero, zero, zero
    for i in range(0, m, LANES):
        u = simd.larger(simd.load(z, i) - exact, 0.0)
        square = u * u
        size = size + simd.select(u > 0.0, zero + 1.0, 0.0)
        first = first + u
        second = second + square
        third = third + square * u
    off = second - elementary.exp(elementary.log(third) * (1.0 / 3.0))
    step = off / (first * 2.0 - second * second / third)
    return exact + step, second - step * (first * 2.0 - size * step)


@tiles.short
def together(job: Any, like: Any, n: int, room: Any) -> None:
    """Rows packed by :func:`tiles.pack`."""
    d = job[common.WIDTH]
    tile, exact = tiles.tile(room, d, like), tiles.wide(room)
    m = tiles.fill(room, d, like, n)
    tiles.relative(room, d, like, m, 1.0)
    tau, square = _threshold(tile, exact, m)
    factor = simd.spread(square, 1.0) / square
    for i in range(0, m, LANES):
        u = simd.larger(simd.load(exact, i) - tau, 0.0)
        simd.store(tile, i, simd.narrow(u * u * factor))
    tiles.finish(job, like, n, m, 3, 4, room)


@tiles.short
def backward(job: Any, like: Any, n: int, room: Any) -> None:
    """Row n of a job; ``room`` has space for the row."""
    # J v = 2 ‖y‖^(−½) r ∘ (v − ⟨r, v⟩/Σr − c (r − Σr²/Σr)), r = √y: the curvature's diagonal and
    # the vector of its rank-one term depend on r alone
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, n, like), common.rows_at(job, 1, n, like)
    out, roots = common.rows_at(job, 4, n, like), memory.pointer(memory.address_of(room), 0, like)
    none = simd.load_part(y, 0, simd.first(0), 0.0)
    zero = simd.wide(none)
    sums, squares, cubes, products, more = zero, zero, zero, zero, zero
    for i in range(0, d, LANES):
        a = common.piece(y, i, d, 0.0)
        on = a > 0.0
        if d > common.DENSE and simd.count(on) == 0:
            simd.store(roots, i, none)
            continue
        a = simd.select(on, simd.sqrt(a), 0.0)
        simd.store(roots, i, a)
        r = simd.wide(a)
        t = r * simd.wide(simd.select(on, common.piece(v, i, d, 0.0), 0.0))
        square = r * r
        sums = sums + r
        squares = squares + square
        cubes = cubes + square * r
        products = products + t
        more = more + t * r
    whole, cube = simd.total(sums), simd.total(cubes)
    mean, level = simd.total(products) / whole, simd.total(squares) / whole
    excess = simd.total(more) - level * simd.total(products)
    c = excess / (2.0 * cube - level * level * whole)
    factor = 2.0 / (elementary.cbrt(cube) * common.number_at(job, 2, n))
    for i in range(0, d, LANES):
        a = simd.load(roots, i)
        if d <= common.DENSE or simd.count(a > 0.0) > 0:
            r = simd.wide(a)
            t = (simd.wide(common.piece(v, i, d, 0.0)) - mean) - (r - level) * c
            t = simd.narrow(t * (r * factor))
            common.store_piece(out, i, d, simd.select(a > 0.0, t, 0.0))
        elif not blank:
            common.store_piece(out, i, d, none)
