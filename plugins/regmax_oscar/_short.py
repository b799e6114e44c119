"""Short rows of float32, sixteen at a time, one in each lane: oscarmax, the prox and J v.

The formulas are those of :mod:`._numba`. Adjacent violators are pooled in passes over the sorted
row, forth and back, until no lane has any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, projection, simd, tiles
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.prox import HIGHEST
from regmax.kernels.cpu.simd import LANES

from ._network import BLOCK, sort
from ._passes import count_above

INDEX = 127
"""float64 holds a float32, and the place of an entry in the bits that this leaves 0."""


@njit
def _keys(tile: Any, m: int, keys: Any) -> None:
    """The entries with their places as numbers that differ, sorted in descending order."""
    whole = (m + BLOCK - 1) // BLOCK * BLOCK
    for i in range(0, whole, LANES):
        low = simd.spread(simd.load(keys, 0), -1e39)
        x = simd.larger(simd.wide(simd.load(tile, i)), low) if i < m else low  # no infinities
        simd.store(keys, i, simd.from_bits(simd.as_bits(x) | (i // LANES)))
    sort(keys, whole)


@njit
def _value(keys: Any, i: int) -> Any:
    """The entries of a rank."""
    return simd.from_bits(simd.as_bits(simd.load(keys, i)) & ~INDEX)


@njit
def _pool(sums: Any, sizes: Any, m: int, mu: Any, step: int) -> bool:
    """One pass over the blocks of x_[k] + μk, in the order of ``step``: a block is pooled with the
    next one while their values are out of order. Returns whether any were.

    After it a block is at the last of its entries that was met; elsewhere sums and sizes are 0.
    The mean ranks of neighbours A and B are (|A| + |B|)/2 apart.
    """
    i, sign = 0 if step > 0 else m - LANES, step // LANES
    total, size = simd.load(sums, i) * sign, simd.load(sizes, i)
    zero = simd.spread(total, 0.0)
    half, some = mu * 0.5, zero < zero
    for _ in range(LANES, m, LANES):
        more, number = simd.load(sums, i + step) * sign, simd.load(sizes, i + step)
        rise = (size * (number * half)) * (size + number) + (more * size - total * number)
        joined = rise >= zero
        some = some | (joined & (size * number > zero))
        simd.store(sums, i, simd.select(joined, zero, total * sign))
        simd.store(sizes, i, simd.select(joined, zero, size))
        total = more + simd.select(joined, total, zero)
        size = number + simd.select(joined, size, zero)
        i += step
    simd.store(sums, i, total * sign)
    simd.store(sizes, i, size)
    return simd.count(some) > 0


@njit
def _regression(keys: Any, m: int, n: Any, mu: Any, sums: Any, sizes: Any) -> None:
    """The blocks of the regression, each at its first rank: Σ x_[k] and the number of entries."""
    one = simd.spread(n, 1.0)
    for i in range(0, m, LANES):
        on = n > i // LANES
        simd.store(sums, i, simd.select(on, _value(keys, i), 0.0))
        simd.store(sizes, i, simd.select(on, one, 0.0))
    moving = True
    # ends: each round pools two blocks of some lane
    while moving:
        _pool(sums, sizes, m, mu, LANES)
        moving = _pool(sums, sizes, m, mu, -LANES)


@njit
def _levels(sums: Any, sizes: Any, m: int, mu: Any, scale: Any) -> Any:
    """Replace the sums by the values of the entries, minus the largest, times ``scale``; returns
    the threshold of P_Δ for these."""
    total, size = simd.load(sums, 0), simd.load(sizes, 0)
    first, middle = total / size, size * 0.5
    zero = simd.spread(first, 0.0)
    value, mass, number = zero, zero - 1.0, zero
    for i in range(0, m, LANES):
        total, size = simd.load(sums, i), simd.load(sizes, i)
        level = (total / size - first) + mu * ((size * 0.5 - middle) + i // LANES)
        value = simd.select(size > 0.0, level * scale, value)
        simd.store(sums, i, value)
        on = value * number > mass
        mass = mass + simd.select(on, value * size, zero)
        number = number + simd.select(on, size, zero)
    return mass / number


@njit
def _enter(job: Any, like: Any, r: int, k: int, room: Any) -> bool:
    """Let row r be that of lane k, with the entries that matter packed; False if it is done."""
    d, prox = job[common.WIDTH], common.given(job, 5)
    row = common.participants(job, r, 3, like, tiles.copy(room, d, like, k))
    out = common.rows_at(job, 4, r, like)
    best, bad = common.scan(row, d)
    top = np.float64(simd.largest(best))
    gamma, lam = common.number_at(job, 1, r), common.number_at(job, 2, r)
    if bad or not (gamma > 0.0 and (lam >= 0.0 or top == -np.inf)):
        common.fill(out, d, np.nan)
        return False
    if top == -np.inf:
        common.fill(out, d, top if prox else 0.0)
        return False
    mu = min(gamma * lam, HIGHEST)
    if prox:
        depth = gamma * common.number_at(job, 5, r)
    else:
        depth = -gamma * projection.bound((simd.wide(best) - top) / gamma)
    low, n, before = -simd.greatest(row), d, 2 * d
    # ends: n decreases by an eighth
    while n > LANES // 2 and 8 * n < 7 * before:
        higher, before = common.floor(row, top, depth + mu * (n - 1)), n
        if higher > low:
            low = higher
            n = count_above(row, d, low)[0]
    room[LANES * tiles.ROW + k], room[LANES * tiles.TOP + k] = r, top
    room[LANES * tiles.LOW + k], room[LANES * tiles.RATE + k] = low, mu
    room[LANES * tiles.SCALE + k] = 1.0 if prox else min(1.0 / gamma, HIGHEST)
    room[LANES * tiles.SIZE + k] = common.keep(row, d, low, tiles.packed(room, d, like, k))
    return True


@njit
def _unsorted(keys: Any, tile: Any, m: int, apart: int, out: Any) -> None:
    """The entries by rank, to their places in the rows of lanes."""
    for i in range(m):
        out[i % LANES * apart + (keys[i] & INDEX)] = tile[i]


@njit
def _together(job: Any, like: Any, count: int, room: Any, wide: Any) -> None:
    """The rows of lanes, of which there are ``count``."""
    d, prox, blank = job[common.WIDTH], common.given(job, 5), job[common.BLANK] != 0
    keys, sums, sizes = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
    tile, m = tiles.tile(room, d, like), tiles.fill(room, d, like, count)
    _keys(tile, m, keys)
    mu = simd.load(tiles.numbers(room, tiles.RATE), 0)
    _regression(keys, m, simd.load(tiles.numbers(room, tiles.SIZE), 0), mu, sums, sizes)
    tau = _levels(sums, sizes, m, mu, simd.load(tiles.numbers(room, tiles.SCALE), 0))
    for i in range(0, m, LANES):
        t = simd.load(sums, i)
        simd.store(tile, i, simd.narrow(t if prox else simd.larger(t - tau, 0.0)))
    bits, apart = memory.pointer(memory.address_of(keys), 0, job), d + 2 * LANES
    _unsorted(bits, tile, m, apart, tiles.packed(room, d, like, 0))
    for k in range(count):
        n, low = int(room[LANES * tiles.SIZE + k]), room[LANES * tiles.LOW + k]
        row, y = tiles.row_of(job, k, 3, like, room), tiles.packed(room, d, like, k)
        out = common.rows_at(job, 4, int(room[LANES * tiles.ROW + k]), like)
        common.place(row, d, low, y, out, blank and not prox)
        for i in range(0, d if prox and n < d else 0, LANES):
            on = common.piece(row, i, d, -np.inf) >= low
            v = common.piece(out, i, d, 0.0)
            common.store_piece(out, i, d, simd.select(on, v, -np.inf))


@njit
def _ties(keys: Any, values: Any, m: int, sums: Any, sizes: Any) -> Any:
    """Σ v and the number of the entries of each group so far, by rank; returns both for a row, the
    number of groups, and Σ_G (Σ v) (mean rank)."""
    zero = simd.spread(simd.load(keys, 0), 0.0)
    before, total, size = zero, zero, zero
    whole, number, groups, across = zero, zero, zero, zero
    for i in range(0, m, LANES):
        y, v = _value(keys, i), simd.wide(simd.load(values, i))
        same = y == before
        # the group before ends here: its mean rank is i − (|G| + 1)/2
        done = simd.select(same, zero, total)
        across = across + done * (i // LANES - 0.5 * (size + 1.0))
        on = y > 0.0
        v = simd.select(on, v, zero)
        total, size = v + simd.select(same, total, zero), simd.select(same, size, zero) + 1.0
        simd.store(sums, i, total)
        simd.store(sizes, i, size)
        whole = whole + v
        number = number + simd.select(on, zero + 1.0, zero)
        groups = groups + simd.select(on, simd.select(same, zero, zero + 1.0), zero)
        before = y
    across = across + simd.select(before > 0.0, total, zero) * (m // LANES - 0.5 * (size + 1.0))
    return whole, number, groups, across


@njit
def _averages(
    keys: Any, values: Any, m: int, scale: Any, centred: bool, sums: Any, sizes: Any
) -> Any:
    """values ← the means of v over groups, minus that of all if ``centred``, times ``scale``;
    returns the derivative in λ."""
    whole, number, groups, across = _ties(keys, values, m, sums, sizes)
    zero = simd.spread(whole, 0.0)
    several = groups > 1.0
    mean = whole / number if centred else zero
    after, value = zero - 1.0, zero
    for i in range(m - LANES, -1, -LANES):
        y = _value(keys, i)
        own = (simd.load(sums, i) / simd.load(sizes, i) - mean) * scale
        value = simd.select(y == after, value, simd.select(several, own, zero))
        simd.store(values, i, simd.narrow(value))
        after = y
    # u is −rank up to a constant
    found = across - whole * ((number - 1.0) * 0.5)
    return simd.select(several, found, zero)


@njit
def _averaged(job: Any, like: Any, count: int, room: Any, wide: Any) -> None:
    """J v of the rows of lanes, of which there are ``count``."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    hyper, prox = common.given(job, 5), common.given(job, 7)
    keys, sums, sizes = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
    for k in range(count, LANES):
        for j in range(tiles.NUMBERS):
            room[LANES * j + k] = room[LANES * j]
        room[LANES * tiles.SIZE + k] = 0
    values = tiles.tile(room, d, like)
    apart, v = d + 2 * LANES, tiles.copy(room, d, like, 0)
    m = tiles.columns(room, tiles.packed(room, d, like, 0), apart, 0.0, values)
    if m > 0:
        _keys(values, m, keys)
    bits = memory.pointer(memory.address_of(keys), 0, job)
    for i in range(m):
        values[i] = v[i % LANES * apart + (bits[i] & INDEX)]
    scale = simd.load(tiles.numbers(room, tiles.SCALE), 0)
    found = _averages(keys, values, m, scale, not prox, sums, sizes)
    simd.store(room, LANES * tiles.TAU, found)
    _unsorted(bits, values, m, apart, v)
    for k in range(count):
        r, w = int(room[LANES * tiles.ROW + k]), tiles.copy(room, d, like, k)
        y, out = common.rows_at(job, 0, r, like), common.rows_at(job, 4, r, like)
        common.place_support(y, d, w, out, blank)
        if hyper:
            common.set_number(job, 5, r, room[LANES * tiles.TAU + k])


@njit
def _enter_with_v(job: Any, like: Any, r: int, k: int, room: Any) -> bool:
    """Let row r be that of lane k, with y > 0 and v there packed."""
    d, prox, blank = job[common.WIDTH], common.given(job, 7), job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
    ys, vs = tiles.packed(room, d, like, k), tiles.copy(room, d, like, k)
    room[LANES * tiles.ROW + k] = r
    room[LANES * tiles.SIZE + k] = common.keep_support(y, v, d, ys, vs, blank)
    room[LANES * tiles.SCALE + k] = 1.0 if prox else 1.0 / common.number_at(job, 2, r)
    return True


def _by_sixteen(enter: Any, together: Any) -> Any:
    """The function of a job whose rows ``enter`` lanes, and are computed sixteen ``together``."""

    @tiles.short
    def rows(job: Any, like: Any) -> None:
        d = job[common.WIDTH]
        rooms, wide = tiles.room(d, like), memory.empty(3, LANES * (d + LANES), np.float64)
        count = 0
        first, last = common.take(job)
        while first < last:
            for r in range(first, last):
                count += enter(job, like, r, count, memory.row(rooms, 0))
                if count == LANES:
                    together(job, like, count, memory.row(rooms, 0), wide)
                    count = 0
            first, last = common.take(job)
        if count > 0:
            together(job, like, count, memory.row(rooms, 0), wide)

    def function(job: Any, like: Any) -> None:
        rows(job, like)

    return function


forward, backward = _by_sixteen(_enter, _together), _by_sixteen(_enter_with_v, _averaged)
