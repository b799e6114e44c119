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
from .prox import Prox, penalty
from .simd import LANES
from .threshold import Description
from .tiles import LONGEST, ROW, SIZE

APART = LONGEST + 2 * LANES
"""The distance of the packed rows of a mapping on the simplex."""
TOP, SCALE, THETA, ZERO, MOST, TOTAL, LOW, TAU, COUNT = range(2, 11)
"""The numbers of a lane: its row, how many entries are packed, the largest of them, the factor of
the scores, θ, e'(0), the upper bound of y and Σ y where these are not 1, the bound of the packed
entries, and τ. The last has the number of rows that wait."""
NUMBERS = 11


@njit
def rooms(many: int, apart: int, d: int, like: Any, lanes: bool, masked: bool) -> Any:
    """Memory for :func:`group_of`, for rows of d scores that wait, if there are ``lanes``;
    ``apart``: the distance of packed rows."""
    size = LANES * apart if lanes else 1
    return (
        memory.empty(1, (many * NUMBERS + 1) * LANES, np.float64),
        memory.empty(many + 4, size, like), memory.empty(2, size, np.float64),
        common.scratch_like(many * LANES + 1 if masked and lanes else 1, d, like),
    )  # fmt: skip


@njit
def group_of(many: int, kept: Any) -> Any:
    """The pointers to ``many`` empty rooms and what they share, from :func:`rooms`."""
    numbers, entries, single, copies = kept
    for k in range(many):
        memory.row(numbers, 0)[LANES * (NUMBERS * k + COUNT)] = 0.0
    return (
        memory.row(numbers, 0), memory.row(entries, 3), memory.row(entries, 0),
        memory.row(entries, 1), memory.row(entries, 2), memory.row(single, 0),
        memory.floats(memory.address_of(memory.row(single, 1))), memory.row(copies, 0),
    )  # fmt: skip


@njit
def lane(room: Any, which: int) -> Any:
    """One of the numbers of all lanes."""
    return simd.load(room, LANES * which)


@njit
def shifted(pointer: Any, by: int) -> Any:
    """The pointer to an entry."""
    return memory.pointer(memory.address_of(pointer), by, pointer)


def entries_of(first: Prox | None) -> Any:
    """(scores, d, the largest, the factor, the depth below it at which y is 0, w, scratch, kept) →
    the entries that may be positive to kept, in their order: how many, the least of them, what
    :func:`equation`'s ``relative`` subtracts and multiplies by, by how much a bound on τ decreases,
    and whether scores of −∞ moved the others. ``first``: they become those of its prox."""
    if first is None:

        @njit
        def packed(
            row: Any, d: int, top: float, scale: float, depth: float, w: float, work: Any, kept: Any
        ) -> tuple[int, float, float, float, float, bool]:
            low = common.floor(row, top, depth)
            return common.keep(row, d, low, kept), low, top, scale, 0.0, False

        return packed
    keep, values = first.keep, first.values

    @njit
    def moved(
        row: Any, d: int, top: float, scale: float, depth: float, w: float, work: Any, kept: Any
    ) -> tuple[int, float, float, float, float, bool]:
        n, low, members, shift = keep(row, d, top, depth, w, work, kept)
        shift += values(kept, n, top, w, scale, members, work)
        return n, low, 0.0, 1.0, max(shift, 0.0) * scale, members < d

    return moved


def alone(
    description: Description, parts: tuple[Any, Any, Any], entries: Any, chained: bool
) -> tuple[Any, Any]:
    """One row, given a lower bound on τ in all lanes of a float32 vector, and what follows once its
    entries are packed. ``rows`` is scratch for these, y, p', float64 and float32; y may be in the
    place of the packed entries."""
    zero, one, (relative, _, solve) = description.zero, description.one, parts

    @njit(apart=True)
    def finish(
        row: Any, d: int, n: int, low: float, top: float, scale: float, theta: float, tau: Any,
        rows: Any, out: Any, blank: bool,
    ) -> None:  # fmt: skip
        kept, y, dy, z, rounded = rows
        like = simd.wide(tau)
        simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
        relative(kept, n, simd.spread(like, top), simd.spread(like, scale), z, rounded)
        each, high = simd.spread(like, theta), simd.spread(like, -zero(theta))
        solve(z, rounded, n, each, tau, high, True, y, dy)
        common.place(row, d, low, y, out, blank)

    @njit
    def alone(
        row: Any, d: int, top: float, scale: float, theta: float, w: float, tau: Any, rows: Any,
        work: Any, out: Any, blank: bool,
    ) -> bool:  # fmt: skip
        below = max(-np.float64(simd.largest(tau)) - zero(theta), 0.0)
        n, low, top, scale, shift, moved = entries(
            row, d, top, scale, below * 1.00001 / scale, w, work, rows[0]
        )
        if chained:
            least = 0.0 - simd.narrow(one(simd.spread(simd.wide(tau), theta)))
            tau = simd.larger(tau - shift * 1.00001, least)
        finish(row, d, n, low, top, scale, theta, tau, rows, out, blank)
        return moved

    return alone, finish


def together(
    description: Description, parts: tuple[Any, Any, Any], place: int, to: int, entries: Any,
    finish: Any, chained: bool,
) -> Any:  # fmt: skip
    """The rows that wait in a room, whose sixteen largest entries (by lanes) are packed. ``to`` is
    the place of y in the job, ``place`` that of the room; ``finish`` computes a row that does not
    fit in a tile."""
    one, zero, (relative, bound, solve) = description.one, description.zero, parts

    @njit
    def together(job: Any, like: Any, rows: Any, work: Any, group: Any) -> None:
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        room, packed, tile, y, dy, z, rounded = own(group, place, APART)
        count, long = int(room[LANES * COUNT]), rows[0]
        for k in range(count, LANES):
            for j in range(LOW):
                room[LANES * j + k] = room[LANES * j]
            simd.store(packed, k * APART, simd.load(packed, 0))
        top, scale, theta = lane(room, TOP), lane(room, SCALE), lane(room, THETA)
        least = 0.0 - one(theta)
        high = simd.spread(least, 0.0)
        m = tiles.columns(room, packed, APART, -np.inf, tile)
        relative(tile, m, top, scale, z, rounded)
        tau = bound(rounded, m, theta, high, False)
        simd.store(room, LANES * TAU, simd.wide(tau))
        for k in range(count):
            r, t = int(room[LANES * ROW + k]), room[LANES * TAU + k]
            a, b, c = room[LANES * TOP + k], room[LANES * SCALE + k], room[LANES * THETA + k]
            row = row_of(job, r, 1 + place * LANES + k, to, like, group)
            kept = shifted(packed, k * APART)
            n, low, a, b, shift, moved = entries(
                row, d, a, b, -(t + zero(c)) / b, penalty(job, r, chained), work,
                kept if d <= LONGEST else long,
            )  # fmt: skip
            t -= shift * 1.00001
            room[LANES * TAU + k] = t
            if moved:
                common.set_number(job, to + 1, 0, 1.0)
            room[LANES * LOW + k], room[LANES * SIZE + k] = low, n
            room[LANES * TOP + k], room[LANES * SCALE + k] = a, b
            if n > LONGEST:
                out = common.rows_at(job, to, r, like)
                finish(row, d, n, low, a, b, c, simd.spread(tau, t), rows, out, blank)
                kept[0], room[LANES * SIZE + k], room[LANES * ROW + k] = a, 1, -1
                room[LANES * TAU + k] = -np.inf
            elif d > LONGEST:
                for i in range(0, n, LANES):
                    simd.store(kept, i, simd.load(long, i))
        for k in range(count, LANES):
            packed[k * APART], room[LANES * SIZE + k] = room[LANES * TOP], 1
            room[LANES * TOP + k], room[LANES * SCALE + k] = room[LANES * TOP], room[LANES * SCALE]
            room[LANES * TAU + k] = -np.inf
        m = tiles.columns(room, packed, APART, -np.inf, tile)
        relative(tile, m, lane(room, TOP), lane(room, SCALE), z, rounded)
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
def own(group: Any, place: int, apart: int) -> Any:
    """The numbers of a room's lanes and their packed rows; and tiles, which all rooms share."""
    rooms, packs, x, y, dy, z, rounded, _ = group
    room, packed = shifted(rooms, place * NUMBERS * LANES), shifted(packs, place * LANES * apart)
    return room, packed, x, y, dy, z, rounded


@njit
def waiting(group: Any, place: int) -> int:
    """How many rows wait in a room."""
    return int(group[0][LANES * (place * NUMBERS + COUNT)])


@njit
def copy_of(job: Any, k: int, group: Any) -> Any:
    """The place of a masked copy of a row."""
    return shifted(group[7], k * (job[common.WIDTH] + 2 * LANES))


@njit
def row_of(job: Any, r: int, k: int, to: int, like: Any, group: Any) -> Any:
    """The scores of row r, of which there may be a k-th copy, where those that the mask excludes
    are −inf."""
    return copy_of(job, k, group) if common.given(job, to - 1) else common.rows_at(job, 0, r, like)
