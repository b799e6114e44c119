"""Short rows of a threshold mapping, sixteen at a time, one in each lane.

With one row at a time, vector units are idle while each step waits for a sum. Here lane k of
a vector belongs to row k. Sums over a row are sums of vectors, and every operation serves sixteen
rows. Lanes do not mix, and a lane that is done does not change, so a row's result does not depend
on the other rows.

The entries of a row that may be positive are packed first, so that the cost depends on their number
and not on d. A tile holds vectors; entry i of the sixteen rows is ``simd.load(tile, 16 * i)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, memory, simd, tiles
from .jit import njit
from .simd import LANES
from .threshold import Description
from .tiles import LONGEST, ROW, SIZE

APART = LONGEST + 2 * LANES
"""The distance of the packed rows."""
TOP, SCALE, THETA, LOW, TAU, COUNT = range(2, 8)
"""The numbers of a lane: its row, how many entries are packed, the largest of them, the factor of
the scores, θ, the bound of the packed entries, and τ. The last has the number of rows that wait."""
NUMBERS = 8


@njit
def lane(room: Any, which: int) -> Any:
    """One of the numbers of all lanes."""
    return simd.load(room, LANES * which)


@njit
def shifted(pointer: Any, by: int) -> Any:
    """The pointer to an entry."""
    return memory.pointer(memory.address_of(pointer), by, pointer)


def alone(description: Description, relative: Any, solve: Any) -> Any:
    """One row, given a lower bound on τ in all lanes of a float32 vector. ``rows`` is scratch for
    the packed entries, y, p', float64 and float32; y may be in the place of the packed entries."""
    zero = description.zero

    @njit(apart=True)
    def alone(
        row: Any, d: int, top: float, scale: float, theta: float, tau: Any, rows: Any,
        out: Any, blank: bool,
    ) -> None:  # fmt: skip
        kept, y, dy, z, rounded = rows
        least, like = zero(theta), simd.wide(tau)
        below = max(-np.float64(simd.largest(tau)) - least, 0.0)
        low = common.floor(row, top, below * 1.00001 / scale)
        n = common.keep(row, d, low, kept)
        simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
        relative(kept, n, simd.spread(like, top), simd.spread(like, scale), z, rounded)
        each, high = simd.spread(like, theta), simd.spread(like, -least)
        solve(z, rounded, n, each, tau, high, True, y, dy)
        common.place(row, d, low, y, out, blank)

    return alone


def together(
    description: Description, relative: Any, bound: Any, solve: Any, place: int, to: int,
    single: Any,
) -> Any:  # fmt: skip
    """The rows that wait in a room, whose sixteen largest entries (by lanes) are packed. ``to`` is
    the place of y in the job, ``place`` that of the room; ``single`` computes a row that does not
    fit in a tile."""
    one, zero = description.one, description.zero
    expensive = description.corrected or description.root is not None

    @njit
    def together(job: Any, like: Any, rows: Any, group: Any) -> None:
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        room, packed, tile, y, dy, z, rounded = own(group, place)
        count, long = int(room[LANES * COUNT]), rows[0]
        for k in range(count, LANES):
            for j in range(LOW):
                room[LANES * j + k] = room[LANES * j]
            simd.store(packed, k * APART, simd.load(packed, 0))
        top, scale, theta = lane(room, TOP), lane(room, SCALE), lane(room, THETA)
        least = 0.0 - one(theta)
        high, tau = simd.spread(least, 0.0), simd.narrow(least)
        if expensive or d > common.DENSE:
            m = tiles.columns(room, packed, APART, -np.inf, tile)
            relative(tile, m, top, scale, z, rounded)
            tau = bound(rounded, m, theta, high, False)
        simd.store(room, LANES * TAU, simd.wide(tau))
        for k in range(count):
            r, t = int(room[LANES * ROW + k]), room[LANES * TAU + k]
            a, b, c = room[LANES * TOP + k], room[LANES * SCALE + k], room[LANES * THETA + k]
            row = row_of(job, r, 1 + place * LANES + k, to, like, group)
            low, entries = common.floor(row, a, -(t + zero(c)) / b), shifted(packed, k * APART)
            n = common.keep(row, d, low, entries if d <= LONGEST else long)
            room[LANES * LOW + k], room[LANES * SIZE + k] = low, n
            if n > LONGEST:
                out = common.rows_at(job, to, r, like)
                single(row, d, a, b, c, simd.spread(tau, t), rows, out, blank)
                entries[0], room[LANES * SIZE + k], room[LANES * ROW + k] = a, 1, -1
                room[LANES * TAU + k] = -np.inf
            elif d > LONGEST:
                for i in range(0, n, LANES):
                    simd.store(entries, i, simd.load(long, i))
        for k in range(count, LANES):
            packed[k * APART], room[LANES * SIZE + k] = room[LANES * TOP], 1
            room[LANES * TAU + k] = -np.inf
        m = tiles.columns(room, packed, APART, -np.inf, tile)
        relative(tile, m, top, scale, z, rounded)
        tau = simd.narrow(simd.larger(lane(room, TAU), least))
        solve(z, rounded, m, theta, tau, high, False, y, dy)
        tiles.uncolumns(y, m, packed, APART)
        for k in range(count):
            r, low = int(room[LANES * ROW + k]), room[LANES * LOW + k]
            if r >= 0:
                row = row_of(job, r, 1 + place * LANES + k, to, like, group)
                out = common.rows_at(job, to, r, like)
                common.place(row, d, low, shifted(packed, k * APART), out, blank)
        room[LANES * COUNT] = 0.0

    return together


@njit
def own(group: Any, place: int) -> Any:
    """The numbers of a room's lanes and their packed rows; and tiles, which all rooms share."""
    rooms, packs, x, y, dy, z, rounded, _ = group
    room, packed = shifted(rooms, place * NUMBERS * LANES), shifted(packs, place * LANES * APART)
    return room, packed, x, y, dy, z, rounded


@njit
def copy_of(job: Any, k: int, group: Any) -> Any:
    """The place of a masked copy of a row."""
    return shifted(group[7], k * (job[common.WIDTH] + 2 * LANES))


@njit
def row_of(job: Any, r: int, k: int, to: int, like: Any, group: Any) -> Any:
    """The scores of row r, of which there may be a k-th copy, where those that the mask excludes
    are −inf."""
    return copy_of(job, k, group) if common.given(job, to - 1) else common.rows_at(job, 0, r, like)
