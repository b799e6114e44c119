r"""Fusedmax and its derivative, compiled with numba.

    y = P_Δ(p/γ),  p the prox of w TV at x,  w = γλ        (Niculae & Blondel 2017, Prop. 2)
    J v = P v − mean(v_S) on the support S of y,  P the averages over the groups (Prop. 3)

Few entries matter. As |p − x| ≤ 2w, the threshold of P_Δ is at most 2w below that of x itself. An
entry 2w or more below a level t is not in {p > t}, whatever its value. So it splits the row, and
pulls the neighbour on either side down by w. The other entries form short segments of neighbours,
each solved alone (:mod:`._segment`); P_Δ is Newton's iteration on the groups of all segments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, projection, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from ._passes import all_above, pack, pack_where, scan
from ._segment import solve

SHORT = 1024  # up to this length, packing costs no more than the test whether it is needed
HIGHEST = np.finfo(np.float64).max ** 0.5  # upper limit of γλ, so that products do not overflow


@njit
def _sizes(start: Any, i: int) -> Any:
    """|G| of sixteen groups."""
    return simd.to_float(simd.sub_int(simd.load(start, i + 1), simd.load(start, i)))


@njit
def _threshold(p: Any, start: Any, n: int, tau: float) -> float:
    """τ with Σ |G| (p_G − τ)₊ = 1 by Newton from a lower bound, until the support does not change.

    p is padded with −inf to a whole number of vectors.
    """
    zero = simd.spread(simd.load(p, 0), 0.0)
    before = np.inf
    while True:
        sums, sizes = zero, zero
        for i in range(0, n, LANES):
            t, size = simd.load(p, i) - tau, _sizes(start, i)
            on = t > 0.0
            sums = sums + simd.select(on, t * size, 0.0)
            sizes = sizes + simd.select(on, size, 0.0)
        inside = simd.total(sizes)
        tau += (simd.total(sums) - 1.0) / inside
        if inside >= before:  # the last step also removed the rounding error of τ
            return tau
        before = inside


@njit
def _groups(
    kept: Any,
    top: float,
    index: Any,
    dense: bool,
    n: int,
    d: int,
    w: float,
    space: Any,
    groups: Any,
) -> Any:
    """Writes the groups of all segments of the entries index[:n] of d; returns their number."""
    start, mean, sides = groups
    count = 0
    first = 0
    while first < n:
        last = n - 1 if dense else first
        left, right = 0, 0
        if not dense:
            while last + 1 < n and index[last + 1] == index[last] + 1:
                last += 1
            left, right = int(index[first] > 0), int(index[last] < d - 1)
        if last == first:
            start[count], sides[count] = first, -left - right
            mean[count] = np.float64(kept[first]) - top
            count += 1
        else:
            size = last + 1 - first
            count = solve(kept, top, first, size, w, left, right, space, groups, count)
        first = last + 1
    return count


@njit
def _project(groups: Any, count: int, w: float, scale: float, least: float, spare: Any) -> None:
    """Replace the means of the groups by their values in y. ``least`` is a lower bound on the
    threshold of P_Δ, in units of x/γ."""
    start, mean, sides = groups
    zero = simd.spread(simd.load(mean, 0), 0.0)
    most = zero - np.inf
    close = w * scale <= 16.0
    for i in range(0, count, LANES):
        value = simd.load(mean, i) + simd.to_float(simd.load(sides, i)) / _sizes(start, i) * w
        if close:
            simd.store(mean, i, value)
        most = simd.larger(simd.select(simd.first(count - i), value, -np.inf), most)
    highest = simd.largest(most)
    if close:
        for i in range(0, count, LANES):
            simd.store(mean, i, (simd.load(mean, i) - highest) * scale)
    else:  # differences first: most groups have the same multiple of w, which would absorb the rest
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
    simd.store(mean, count, zero - np.inf)
    tau = max(least - highest * scale - 1e-9 * (1.0 + w * scale), -1.0)
    tau = _threshold(mean, start, count, tau)
    sums = zero
    for i in range(0, count, LANES):
        t = simd.larger(simd.load(mean, i) - tau, 0.0)
        sums = sums + simd.select(t > 0.0, t * _sizes(start, i), 0.0)
        simd.store(mean, i, t)
    whole = simd.total(sums)
    if abs(whole - 1.0) > common.EPS * math.sqrt(count):
        for i in range(0, count, LANES):
            simd.store(mean, i, simd.load(mean, i) / whole)


@njit
def _forward_row(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    w: float,
    lanes: Any,
    place: Any,
    moved: bool,
    kept: Any,
    index: Any,
    space: Any,
    groups: Any,
    spare: Any,
    out: Any,
) -> None:
    """out = fusedmax of d finite scores; entry i is written to out[place[i]] if ``moved``."""
    start, mean, _ = groups
    top = np.float64(simd.largest(best))
    scale = 1.0 / gamma
    bound = projection.bound((simd.wide(best) - top) * scale)
    low = common.floor(row, top, 4.0 * w - gamma * bound)
    if low <= -simd.greatest(row):
        low = -np.inf  # all are finite
    dense = d > SHORT and all_above(row, d, low)
    n = d
    if dense:
        kept = row
    else:
        n = pack(row, d, low, lanes, kept, index)
    count = _groups(kept, top, index, dense, n, d, w, space, groups)
    start[count] = n
    if count == 1:
        mean[0] = 1.0 / n
    else:
        _project(groups, count, w, scale, bound - 2.0 * w * scale, spare)
    if dense and not moved:
        for g in range(count):
            t = mean[g]
            for j in range(start[g], start[g + 1]):
                out[j] = t
        return
    for g in range(count):
        t = mean[g]
        for j in range(start[g], start[g + 1]):
            i = j if dense else index[j]
            out[place[i] if moved else i] = t


def forward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(3, d), common.scratch_like(3, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    signs = memory.empty(2, d + 2 * LANES, np.int8)
    knots = common.scratch(3, 2 * d)
    spares = common.scratch(1, LANES)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            lanes = simd.lanes()
            index, place = memory.row(whole, 0), memory.row(whole, 1)
            kept, spare = memory.row(own, 0), memory.row(spares, 0)
            space = (
                memory.row(knots, 0),
                memory.row(knots, 1),
                memory.row(knots, 2),
                memory.row(wide, 0),
                memory.row(wide, 1),
                memory.row(signs, 0),
            )
            groups = memory.row(whole, 2), memory.row(wide, 2), memory.row(signs, 1)
            scores = common.participants(job, r, 3, like, memory.row(own, 1))
            out = common.rows_at(job, 4, r, like)
            best, bad, gap = scan(scores, d)
            gamma, lam = common.number_at(job, 1, r), common.number_at(job, 2, r)
            n, row = d, scores
            if gap and not bad:
                common.set_number(job, 5, 0, 1.0)
                row = memory.row(own, 2)
                n = pack(scores, d, -np.inf, lanes, row, place)
            if lam == 0.0 or bad or n == 0:
                projection.forward(
                    scores, d, gamma, memory.row(wide, 0), kept, out, job[common.BLANK] != 0
                )
            elif not (gamma > 0.0 and lam > 0.0):
                common.fill(out, d, np.nan)
            else:
                w = min(gamma * lam, HIGHEST)
                if not blank:
                    common.fill(out, d, 0.0)
                _forward_row(
                    row,
                    n,
                    best,
                    gamma,
                    w,
                    lanes,
                    place,
                    gap,
                    kept,
                    index,
                    space,
                    groups,
                    spare,
                    out,
                )
        begin, end = common.take(job)


@njit
def _backward_row(
    y: Any,
    d: int,
    v: Any,
    gamma: float,
    hyper: bool,
    lanes: Any,
    place: Any,
    moved: bool,
    kept: Any,
    index: Any,
    start: Any,
    mean: Any,
    out: Any,
) -> float:
    """out = Jv/γ for d participants y; returns the derivative in λ if ``hyper``, else 0.

    v_i and out_i are at place[i] if ``moved``.
    """
    n = pack(y, d, 0.0, lanes, kept, index)
    if n == 0:
        return 0.0
    # v minus its first entry, as J 1 = 0: a large constant in v then causes no rounding error
    i = index[0]
    ref = np.float64(v[place[i] if moved else i])
    count = 0
    total, sums = 0.0, 0.0
    start[0] = 0
    for j in range(1, n):
        if index[j] != index[j - 1] + 1 or kept[j] != kept[j - 1]:
            mean[count] = sums / (j - start[count])
            total += sums
            sums = 0.0
            count += 1
            start[count] = j
        i = index[j]
        sums += np.float64(v[place[i] if moved else i]) - ref
    mean[count] = sums / (n - start[count])
    total += sums
    count += 1
    start[count] = n
    for _ in range(2):  # the second pass removes the rounding error of the first
        average = total / n
        total = 0.0
        for k in range(count):
            mean[k] -= average
            total += mean[k] * (start[k + 1] - start[k])
    for k in range(count):
        w = mean[k] / gamma
        for j in range(start[k], start[k + 1]):
            i = index[j]
            out[place[i] if moved else i] = w
    if not hyper:
        return 0.0
    # ⟨w, u⟩ = Σ (w_{i+1} − w_i) sign(y_{i+1} − y_i)
    across = 0.0
    for k in range(count):
        first, last = start[k], start[k + 1] - 1
        if index[first] > 0:
            if k > 0 and index[first - 1] == index[first] - 1:
                step = mean[k] - mean[k - 1]
                across += step if kept[first] > kept[first - 1] else -step
            else:
                across += mean[k]
        if index[last] < d - 1 and (k == count - 1 or index[last + 1] != index[last] + 1):
            across += mean[k]
    return -across


def backward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(1, d), common.scratch_like(2, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    moved, hyper = common.given(job, 4), common.given(job, 6)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            lanes = simd.lanes()
            place = memory.row(whole, 1)
            y, out = common.rows_at(job, 0, r, like), common.rows_at(job, 5, r, like)
            if not blank:
                common.fill(out, d, 0.0)
            n = d
            if moved:
                on = common.octets_at(job, 4, r)
                n = pack_where(y, on, d, lanes, memory.row(own, 1), place)
                y = memory.row(own, 1)
            dlam = _backward_row(
                y,
                n,
                common.rows_at(job, 1, r, like),
                common.number_at(job, 2, r),
                hyper,
                lanes,
                place,
                moved,
                memory.row(own, 0),
                memory.row(whole, 0),
                memory.row(whole, 2),
                memory.row(wide, 0),
                out,
            )
            if hyper:
                common.set_number(job, 6, r, dlam)
        begin, end = common.take(job)
