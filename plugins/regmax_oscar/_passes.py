"""Oscarmax on the CPU: passes over a row, sixteen entries at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def scan(row: Any, d: int) -> Any:
    """As ``cpu.scan``, and the smallest entry and the number of those that are not −inf."""
    best = simd.spread(simd.load_part(row, 0, simd.first(0), 0.0), -np.inf)
    least, bad, m = best * -1.0, best > np.inf, 0
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        best = simd.larger(v, best)
        on = v > -np.inf
        least = simd.smaller(simd.select(on, v, np.inf), least)
        bad = bad | simd.not_below(v, np.inf)
        m += simd.count(on)
    return best, simd.count(bad) > 0, smallest(least), m


@njit
def count_above(row: Any, d: int, low: float) -> Any:
    """How many entries are at least ``low``, and sixteen of these, the smallest among them."""
    least, n = simd.spread(simd.load_part(row, 0, simd.first(0), 0.0), np.inf), 0
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v >= low
        least = simd.smaller(simd.select(on, v, np.inf), least)
        n += simd.count(on)
    return n, least


@njit
def smallest(v: Any) -> float:
    """The smallest of the 16 numbers, of which none may be NaN."""
    return -np.float64(simd.largest(v * -1.0))


@njit
def pack(row: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> int:
    """The n entries x_i ≥ low, in their order, to kept[:n], and their i to index[:n]."""
    n = 0
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v >= low
        simd.compress(kept, n, v, on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    return n


@njit
def write(row: Any, d: int, bounds: Any, value: float, other: float, out: Any, blank: bool) -> None:
    """out_i = value where low ≤ x_i ≤ high, else ``other``, which it is already if ``blank``."""
    low, high = bounds
    others = simd.spread(simd.load_part(row, 0, simd.first(0), 0.0), other)
    level = simd.spread(others, value)
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v >= low
        if not blank or simd.count(on) > 0:
            v = simd.select(v > high, others, simd.select(on, level, others))
            common.store_piece(out, i, d, v)


@njit
def moments(row: Any, d: int, low: float, top: float) -> Any:
    """Σ (x − top) and Σ (x − top)² of the entries x ≥ low."""
    sums = simd.wide(simd.load_part(row, 0, simd.first(0), 0.0))
    squares = sums
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        t = simd.wide(simd.select(v >= low, v, top)) - top
        sums = sums + t
        squares = squares + t * t
    return simd.total(sums), simd.total(squares)


@njit
def parts(row: Any, d: int, bounds: Any, top: float, lanes: Any, above: Any, below: Any) -> Any:
    """The entries above ``high`` to ``above``, those in [low, lower) to ``below``; how many; and
    of those between, Σ (x − top) and Σ (x − top)²."""
    low, lower, high = bounds
    kept, index = above
    kept_below, index_below = below
    a, b = 0, 0
    sums = simd.wide(simd.load_part(row, 0, simd.first(0), 0.0))
    squares = sums
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        numbers = simd.add_int(lanes, i)
        over, under = v > high, v < lower
        t = simd.wide(simd.select(over | under, simd.spread(v, top), v)) - top
        sums = sums + t
        squares = squares + t * t
        under = under & (v >= low)
        simd.compress(kept, a, v, over)
        simd.compress(index, a, numbers, over)
        a += simd.count(over)
        simd.compress(kept_below, b, v, under)
        simd.compress(index_below, b, numbers, under)
        b += simd.count(under)
    return a, b, simd.total(sums), simd.total(squares)


@njit
def levels(y: Any, d: int) -> Any:
    """The largest entry, the smallest positive one, and how many are positive."""
    most, n = simd.load_part(y, 0, simd.first(0), 0.0), 0
    least = simd.spread(most, np.inf)
    for i in range(0, d, LANES):
        v = common.piece(y, i, d, 0.0)
        most = simd.larger(v, most)
        on = v > 0.0
        least = simd.smaller(simd.select(on, v, np.inf), least)
        n += simd.count(on)
    return simd.largest(most), np.float64(smallest(least)), n


@njit
def split(y: Any, v: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> Any:
    """The entries above ``low`` to kept, their places to index; and of those where y is ``low``,
    the number and Σ v."""
    n, size = 0, 0
    sums = simd.wide(simd.load_part(v, 0, simd.first(0), 0.0))
    for i in range(0, d, LANES):
        a = common.piece(y, i, d, 0.0)
        on, over = (a >= low) & (a > 0.0), a > low
        inside = simd.count(on)
        if inside == 0:
            continue
        simd.compress(kept, n, a, over)
        simd.compress(index, n, simd.add_int(lanes, i), over)
        more = simd.count(over)
        n += more
        if inside > more:
            b = common.piece(v, i, d, 0.0)
            zero = simd.spread(b, 0.0)
            sums = sums + simd.wide(simd.select(over, zero, simd.select(on, b, zero)))
            size += inside - more
    return n, size, simd.total(sums)
