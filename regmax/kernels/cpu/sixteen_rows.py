"""Short rows of a threshold mapping, sixteen at a time, one in each lane.

With one row at a time, vector units are idle while each step waits for a sum. Here lane k of
a vector belongs to row k. Sums over a row are sums of vectors, and every operation serves sixteen
rows. Lanes do not mix, and a lane that is done does not change, so a row's result does not depend
on the other rows.

The entries of a row that may be positive are packed first, so that the cost depends on their number
and not on d. A tile holds vectors; entry i of the sixteen rows is ``simd.load(tile, 16 * i)``. The
longest of sixteen rows sets the cost of all. Where hyperparameters or masks are those of each row,
supports differ much, so more rows wait, and those with about as many packed entries are computed
together.
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

PLACE, TOP, SCALE, THETA, ZERO, MOST, TOTAL, LOW, TAU, COUNT = range(2, 12)
"""The numbers of a lane: its row, how many entries are packed, its place in the room, the largest
entry, the factor of the scores, θ, e'(0), the upper bound of y and Σ y where these are not 1, the
bound of the packed entries, and τ. The last has the number of rows that wait."""
NUMBERS = 12
MOST_ROWS, MOST_SCORES = 4 * LANES, 1 << 15
"""How many rows wait at most, and scores in these if they are more than sixteen rows."""
SHARED, PACKS, COPIES, PLACES, APART, ROWS, ENOUGH = range(7)
"""The parts of :func:`group_of`."""
IDLE = 8
"""Rows are sorted if they have so many entries less than the longest of their sixteen, in the
mean."""


@njit
def sizes_of(d: int, longest: int, lanes: bool) -> tuple[int, int]:
    """How many rows of d scores a room has place for, if there are ``lanes``; and the distance of
    their packed entries, of which ``longest`` fit in a tile."""
    rows = min(max(MOST_SCORES // (LANES * max(d, 1)), 1), MOST_ROWS // LANES) * LANES
    return rows if lanes else 0, min(d, longest) + 2 * LANES


@njit
def rooms(many: int, sizes: tuple[int, int], d: int, like: Any, masked: bool) -> Any:
    """Memory for :func:`group_of`."""
    rows, apart = sizes
    size = LANES * apart if rows > 0 else 1
    return (
        memory.empty(1, (many * rows + 2 * LANES) * NUMBERS, np.float64),
        memory.empty(many * rows // LANES + 5, size, like), memory.empty(2, size, np.float64),
        common.scratch_like(many * rows + 1 if masked else 1, d, like),
        memory.empty(1, MOST_ROWS + apart, np.int64),
    )  # fmt: skip


@njit
def group_of(job: Any, many: int, sizes: tuple[int, int], to: int, kept: Any) -> Any:
    """What ``many`` empty rooms share; the first of their packed entries, masked copies, and places
    in an order; :func:`sizes_of`; and how many rows wait for each other: more than sixteen if their
    numbers or masks differ, before y, array ``to``, and so how many entries may be positive."""
    rows, apart = sizes
    numbers, entries, single, copies, places = kept
    for place in range(many):
        memory.row(numbers, 0)[(LANES + place * rows) * NUMBERS + LANES * COUNT] = 0.0
    shared = (
        memory.row(numbers, 0), memory.row(entries, 3), memory.row(entries, 0),
        memory.row(entries, 1), memory.row(entries, 2), memory.row(single, 0),
        memory.floats(memory.address_of(memory.row(single, 1))),
    )  # fmt: skip
    own = common.given(job, to - 1)
    for k in range(1, to - 1):
        own = own or common.differs(job, k)
    return (
        shared, memory.row(entries, 4), memory.row(copies, 0), memory.row(places, 0), apart, rows,
        rows if own else LANES,
    )  # fmt: skip


@njit
def lane(room: Any, which: int) -> Any:
    """One of the numbers of all lanes."""
    return simd.load(room, LANES * which)


@njit
def shifted(pointer: Any, by: int) -> Any:
    """The pointer to an entry."""
    return memory.pointer(memory.address_of(pointer), by, pointer)


@njit
def room_of(group: Any, place: int) -> Any:
    """The numbers of the rows in a room, by sixteen."""
    return shifted(group[SHARED][0], (LANES + place * group[ROWS]) * NUMBERS)


@njit
def packed_of(group: Any, place: int) -> Any:
    """The packed entries of the rows in a room."""
    return shifted(group[PACKS], place * group[ROWS] * group[APART])


@njit
def numbers_of(room: Any, k: int) -> Any:
    """The numbers of the k-th row in a room: the j-th is at ``LANES * j``."""
    lane = k & (LANES - 1)
    return shifted(room, (k - lane) * NUMBERS + lane)


@njit
def waiting(group: Any, place: int) -> int:
    """How many rows wait in a room."""
    return int(room_of(group, place)[LANES * COUNT])


@njit
def copy_of(job: Any, place: int, k: int, group: Any) -> Any:
    """Where a masked copy of the k-th row of a room is."""
    return shifted(group[COPIES], (1 + place * group[ROWS] + k) * (job[common.WIDTH] + 2 * LANES))


@njit
def row_of(job: Any, room: Any, k: int, place: int, to: int, like: Any, group: Any) -> Any:
    """The scores of a lane; those that the mask excludes are −inf."""
    if common.given(job, to - 1):
        return copy_of(job, place, int(room[LANES * PLACE + k]), group)
    return common.rows_at(job, 0, int(room[LANES * ROW + k]), like)


def together(place: int, longest: int, pack: Any, finish: Any) -> Any:
    """The rows that wait in a room: ``pack`` keeps the entries of sixteen that may be positive, and
    ``finish`` computes y of sixteen, of those with about as many entries where more rows wait."""

    @njit
    def sort(room: Any, count: int, longest: int, places: Any) -> None:
        """places[:count] = the rows by the number of their packed entries."""
        ends = shifted(places, MOST_ROWS)
        for n in range(longest + 2):
            ends[n] = 0
        for k in range(count):
            ends[int(numbers_of(room, k)[LANES * SIZE]) + 1] += 1
        for n in range(longest + 1):
            ends[n + 1] += ends[n]
        for k in range(count):
            n = int(numbers_of(room, k)[LANES * SIZE])
            places[ends[n]] = k
            ends[n] += 1

    @njit
    def fill(room: Any, packed: Any, apart: int, count: int) -> None:
        """The other lanes have the numbers of the first, and its largest entry."""
        for k in range(count, LANES):
            for j in range(COUNT):
                room[LANES * j + k] = room[LANES * j]
            packed[k * apart], room[LANES * SIZE + k] = room[LANES * TOP], 1

    @njit
    def together(job: Any, like: Any, arrays: Any, group: Any) -> None:
        lanes, kept, _, _, _, _, _ = group[SHARED]
        places, apart = group[PLACES], group[APART]
        room, packed = room_of(group, place), packed_of(group, place)
        count, idle = waiting(group, place), 0.0
        for start in range(0, count, LANES):
            here, some = numbers_of(room, start), min(count - start, LANES)
            of_these = shifted(packed, start * apart)
            for k in range(some, LANES):
                for j in range(COUNT):
                    here[LANES * j + k] = here[LANES * j]
                for i in range(0, int(here[LANES * SIZE]), LANES):
                    simd.store(of_these, k * apart + i, simd.load(of_these, i))
            pack(job, like, arrays, group, here, of_these, some)
            fill(here, of_these, apart, some)
            if count > LANES:
                sizes = lane(here, SIZE)
                idle += simd.largest(sizes) * LANES - simd.total(sizes)
        moves = idle > IDLE * count
        if moves:
            sort(room, count, min(job[common.WIDTH], longest), places)
        for start in range(0, count, LANES):
            here, some = numbers_of(room, start), min(count - start, LANES)
            of_these = shifted(packed, start * apart)
            if moves:
                for k in range(some):
                    r = places[start + k]
                    own = numbers_of(room, r)
                    for j in range(COUNT):
                        lanes[LANES * j + k] = own[LANES * j]
                    for i in range(0, int(own[LANES * SIZE]), LANES):
                        simd.store(kept, k * apart + i, simd.load(packed, r * apart + i))
                fill(lanes, kept, apart, some)
                here, of_these = lanes, kept
            finish(job, like, arrays, group, here, of_these, some)
        room[LANES * COUNT] = 0.0

    return together


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


def steps(
    description: Description, parts: tuple[Any, Any, Any], place: int, to: int, entries: Any,
    single: Any, chained: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """``pack`` and ``finish`` of :func:`together`, for rows whose sixteen largest entries (by
    lanes) are packed. ``to`` is the place of y in the job, ``place`` that of the room; ``single``
    computes a row that does not fit in a tile."""
    one, zero, (relative, bound, solve) = description.one, description.zero, parts

    @njit
    def pack(
        job: Any, like: Any, arrays: Any, group: Any, room: Any, packed: Any, count: int
    ) -> None:
        (rows, work), (_, _, tile, _, _, z, rounded) = arrays, group[SHARED]
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        theta, apart, long = lane(room, THETA), group[APART], rows[0]
        least = 0.0 - one(theta)
        m = tiles.columns(room, packed, apart, -np.inf, tile)
        relative(tile, m, lane(room, TOP), lane(room, SCALE), z, rounded)
        tau = bound(rounded, m, theta, simd.spread(least, 0.0), False)
        simd.store(room, LANES * TAU, simd.wide(tau))
        for k in range(count):
            r, t = int(room[LANES * ROW + k]), room[LANES * TAU + k]
            a, b, c = room[LANES * TOP + k], room[LANES * SCALE + k], room[LANES * THETA + k]
            row = row_of(job, room, k, place, to, like, group)
            kept = shifted(packed, k * apart)
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
                single(row, d, n, low, a, b, c, simd.spread(tau, t), rows, out, blank)
                kept[0], room[LANES * SIZE + k], room[LANES * ROW + k] = a, 1, -1
                room[LANES * TAU + k] = -np.inf
            elif d > LONGEST:
                for i in range(0, n, LANES):
                    simd.store(kept, i, simd.load(long, i))

    @njit
    def finish(
        job: Any, like: Any, arrays: Any, group: Any, room: Any, packed: Any, count: int
    ) -> None:
        _, _, tile, y, dy, z, rounded = group[SHARED]
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        theta, apart = lane(room, THETA), group[APART]
        least = 0.0 - one(theta)
        for k in range(count, LANES):
            room[LANES * TAU + k] = -np.inf
        m = tiles.columns(room, packed, apart, -np.inf, tile)
        relative(tile, m, lane(room, TOP), lane(room, SCALE), z, rounded)
        tau = simd.narrow(simd.larger(lane(room, TAU), least))
        solve(z, rounded, m, theta, tau, simd.spread(least, 0.0), False, y, dy)
        tiles.uncolumns(y, m, packed, apart)
        for k in range(count):
            r, low = int(room[LANES * ROW + k]), room[LANES * LOW + k]
            if r >= 0:
                row = row_of(job, room, k, place, to, like, group)
                out = common.rows_at(job, to, r, like)
                common.place(row, d, low, shifted(packed, k * apart), out, blank)

    return pack, finish
