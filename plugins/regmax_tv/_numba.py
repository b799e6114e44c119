r"""Fusedmax and the prox of total variation, compiled with numba: the prox as a step of threshold
mappings (:class:`regmax.kernels.cpu.prox.Prox`), alone and on whole rows.

Few entries matter. As |p − x| ≤ 2w, p the prox of w TV at x and w = γλ, the threshold of a mapping
is at most 2w below that of x itself. An entry 2w or more below a level t is not in {p > t},
whatever its value. So it splits the row, and pulls the neighbour on either side down by w. The
other entries form short segments of neighbours, each solved alone (:mod:`._segment`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, prox, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from ._segment import mean_of, solve, value_of


@njit
def _pack(row: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> int:
    """The n entries x_i > low, in their order, to kept[:n], and their i to index[:n]."""
    n = 0
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v > low
        simd.compress(kept, n, v, on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    return n


@njit
def _pack_where(row: Any, mask: Any, d: int, lanes: Any, kept: Any, index: Any) -> int:
    """As ``_pack``, the entries where mask is not 0."""
    full = d - d % LANES
    n = 0
    for i in range(0, full, LANES):
        on = simd.differ(simd.load(mask, i), 0)
        simd.compress(kept, n, simd.load(row, i), on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    for i in range(full, d):
        kept[n] = row[i]
        index[n] = i
        n += mask[i] != 0
    return n


@njit
def _keep(row: Any, d: int, low: float, lanes: Any, kept: Any, index: Any) -> tuple[int, bool]:
    """As ``common.keep``, and their i to index[:n]; and whether any entry is −inf."""
    n, gaps, least = 0, -(-d % LANES), -simd.greatest(row)  # beyond the end are −inf too
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        on = v >= low
        gaps += simd.count(v < least)
        simd.compress(kept, n, v, on)
        simd.compress(index, n, simd.add_int(lanes, i), on)
        n += simd.count(on)
    return n, gaps > 0


@njit
def room(d: int, like: Any) -> Any:
    """Scratch for rows of d entries."""
    wide, own = common.scratch(3, d), common.scratch_like(1, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    signs, knots = memory.empty(2, d + 2 * LANES, np.int8), common.scratch(3, 2 * d)
    return wide, own, whole, signs, knots, common.scratch(1, LANES)


@njit
def work(arrays: Any) -> Any:
    """Pointers: the places of packed entries among those that take part, and in the row; the groups
    (their starts, means and sides) and what finding them needs; a row and a vector."""
    wide, own, whole, signs, knots, spares = arrays
    index, place, start = memory.row(whole, 0), memory.row(whole, 1), memory.row(whole, 2)
    mean, sides = memory.row(wide, 2), memory.row(signs, 1)
    space = (
        memory.row(knots, 0), memory.row(knots, 1), memory.row(knots, 2),
        memory.row(wide, 0), memory.row(wide, 1), memory.row(signs, 0),
    )  # fmt: skip
    return index, place, (start, mean, sides), space, memory.row(own, 0), memory.row(spares, 0)


@njit
def _sizes(start: Any, i: int) -> Any:
    """|G| of sixteen groups."""
    return simd.to_float(simd.sub_int(simd.load(start, i + 1), simd.load(start, i)))


@njit
def _groups(scores: Any, index: Any, n: int, d: int, w: float, space: Any, groups: Any) -> Any:
    """Writes the groups of all segments of the entries index[:n] of d; returns their number."""
    (kept, top), (start, mean, sides) = scores, groups
    count = 0
    first = 0
    # ends: the next segment begins after this one
    while first < n:
        last = first
        # ends: last grows
        while last + 1 < n and index[last + 1] == index[last] + 1:
            last += 1
        left, right = int(index[first] > 0), int(index[last] < d - 1)
        if last == first:
            start[count], sides[count] = first, -left - right
            mean[count] = np.float64(kept[first]) - top
            count += 1
        else:
            size = last + 1 - first
            count = solve(scores, first, size, w, (left, right), space, groups, count)
        first = last + 1
    start[count] = n
    return count


@njit
def _levels(groups: Any, count: int, w: float, scale: float, close: bool, spare: Any) -> float:
    """Replace the means of the groups by their values minus the highest, times ``scale``; returns
    the highest. ``close``: w is not so large that it absorbs the differences of the means."""
    start, mean, sides = groups
    most = simd.spread(simd.load(mean, 0), -np.inf)
    for i in range(0, count, LANES):
        value = simd.load(mean, i) + simd.to_float(simd.load(sides, i)) / _sizes(start, i) * w
        if close:
            simd.store(mean, i, value)
        most = simd.larger(simd.select(simd.first(count - i), value, -np.inf), most)
    highest = simd.largest(most)
    if close:
        for i in range(0, count, LANES):
            simd.store(mean, i, (simd.load(mean, i) - highest) * scale)
        return highest
    # differences first: most groups have the same multiple of w, which would absorb the rest
    for i in range(0, count, LANES):
        pull = simd.to_float(simd.load(sides, i)) / _sizes(start, i)
        on = (simd.load(mean, i) + pull * w >= highest) & simd.first(count - i)
        if simd.count(on):
            simd.compress(spare, 0, simd.load(mean, i), on)
            simd.compress(spare, LANES, pull, on)
            break
    ahead, pulled = spare[0], spare[LANES]
    for i in range(0, count, LANES):
        pull = simd.to_float(simd.load(sides, i)) / _sizes(start, i)
        simd.store(mean, i, ((simd.load(mean, i) - ahead) + (pull - pulled) * w) * scale)
    return highest


@njit
def kept_of(
    row: Any, d: int, top: float, depth: float, w: float, scratch: Any, kept: Any
) -> tuple[int, float, int, float]:
    """``keep`` of :class:`~regmax.kernels.cpu.prox.Prox`: the threshold moves by up to 2w, and so
    do entries."""
    index, place, _, _, others, _ = scratch
    low, lanes, members = common.floor(row, top, depth + 4.0 * w), simd.lanes(), d
    n, gap = _keep(row, d, low, lanes, kept, index)
    if gap:
        members = _pack(row, d, -np.inf, lanes, others, place)
        _keep(others, members, low, lanes, kept, index)
    return n, low, members, 2.0 * w


@njit
def values(
    kept: Any, n: int, top: float, w: float, scale: float, members: int, scratch: Any
) -> float:
    """``values`` of :class:`~regmax.kernels.cpu.prox.Prox`."""
    index, _, groups, space, _, spare = scratch
    start, mean, _ = groups
    count = _groups((kept, top), index, n, members, w, space, groups)
    highest: float = _levels(groups, count, w, scale, w * scale <= 16.0, spare)
    for g in range(count):
        t = mean[g]
        for j in range(start[g], start[g + 1]):
            kept[j] = t
    return highest


@njit
def averages(y: Any, v: Any, d: int, on: Any, given: bool, scratch: Any, ys: Any, vs: Any) -> int:
    """``averages`` of :class:`~regmax.kernels.cpu.prox.Prox`. v is less its first entry there: a
    large constant in v then causes no rounding error."""
    index, place, groups, _, members, _ = scratch
    lanes, m = simd.lanes(), d
    if given:
        m = _pack_where(y, on, d, lanes, members, place)
        n = _pack(members, m, 0.0, lanes, ys, index)
    else:
        n = _pack(y, d, 0.0, lanes, ys, index)
    groups[0][0] = m  # for ``across``
    if n == 0:
        return 0
    i = index[0]
    ref = np.float64(v[place[i] if given else i])
    sums, begin = 0.0, 0
    for j in range(1, n):
        if index[j] != index[j - 1] + 1 or ys[j] != ys[j - 1]:
            t = sums / (j - begin)
            for k in range(begin, j):
                vs[k] = t
            sums = 0.0
            begin = j
        i = index[j]
        sums += np.float64(v[place[i] if given else i]) - ref
    t = sums / (n - begin)
    for k in range(begin, n):
        vs[k] = t
    return n


@njit
def across(y: Any, w: Any, n: int, scratch: Any) -> float:
    """⟨w, u⟩ = Σ (w_{i+1} − w_i) sign(y_{i+1} − y_i), both 0 between the packed entries."""
    index, _, groups, _, _, _ = scratch
    d, total = groups[0][0], 0.0
    for j in range(n):
        here = np.float64(w[j])
        if index[j] > 0:
            if j > 0 and index[j - 1] == index[j] - 1:
                step = here - np.float64(w[j - 1])
                if y[j] > y[j - 1]:
                    total += step
                elif y[j] < y[j - 1]:
                    total -= step
            else:
                total += here
        if index[j] < d - 1 and (j == n - 1 or index[j + 1] != index[j] + 1):
            total += here
    return total


PROX = prox.Prox(room, work, kept_of, values, averages, across)
forward, backward = prox.functions(PROX)


def whole(job: Any, like: Any) -> None:
    """The prox of weight·TV without a shift. The arrays are x, the weight, the mask and z; masked
    entries are 0, and others NaN where one is not finite or the weight is not in [0, ∞]."""
    d, masked = job[common.WIDTH], common.given(job, 2)
    arrays = room(d, like)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            _, place, groups, space, others, _ = work(arrays)
            row, out, n = common.rows_at(job, 0, r, like), common.rows_at(job, 3, r, like), d
            if masked:
                on = common.octets_at(job, 2, r)
                n, row = _pack_where(row, on, d, simd.lanes(), others, place), others
                common.fill(out, d, 0.0)
            start, mean, sides = groups
            w, finite = common.number_at(job, 1, r), True
            for i in range(n):
                finite = finite and abs(row[i]) < np.inf
            count = 1 if n > 0 else 0
            if count and finite and w < np.inf:
                count = solve((row, 0.0), 0, n, w, (0, 0), space, groups, 0)
                start[count] = n
                for g in range(count):
                    mean[g] = value_of(mean[g], sides[g], start[g + 1] - start[g], w)
            elif count:
                start[0], start[1], mean[0] = 0, n, mean_of((row, 0.0), 0, n)
            for g in range(count):
                t = mean[g] if finite and w >= 0.0 else np.nan
                for j in range(start[g], start[g + 1]):
                    out[place[j] if masked else j] = t
        begin, end = common.take(job)
    memory.keep(arrays)
