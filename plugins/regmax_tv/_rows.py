"""Rows of fusedmax, the prox of total variation and their derivatives; see :mod:`._numba`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, projection, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from ._passes import all_above, pack
from ._segment import mean_of, solve, value_of

SHORT = 1024  # up to this length, packing costs no more than the test whether it is needed


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
    # ends: the size decreases
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
def groups_of(
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
    # ends: the next segment begins after this one
    while first < n:
        last = n - 1 if dense else first
        left, right = 0, 0
        if not dense:
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
            count = solve(kept, top, first, size, w, left, right, space, groups, count)
        first = last + 1
    start[count] = n
    return count


@njit
def levels(groups: Any, count: int, w: float, scale: float, close: bool, spare: Any) -> float:
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
def _project(groups: Any, count: int, w: float, scale: float, least: float, spare: Any) -> None:
    """Replace the means of the groups by their values in y. ``least`` is a lower bound on the
    threshold of P_Δ, in units of x/γ."""
    start, mean, _ = groups
    zero = simd.spread(simd.load(mean, 0), 0.0)
    highest = levels(groups, count, w, scale, w * scale <= 16.0, spare)
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
def forward_row(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    w: float,
    reach: float,
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
    """out = fusedmax of d finite scores, or where ``reach`` ≥ 0 the prox of those that matter, with
    ρ = reach; entry i is written to out[place[i]] if ``moved``."""
    _, mean, _ = groups
    top = np.float64(simd.largest(best))
    scale = 1.0 / gamma
    fused = reach < 0.0
    bound = projection.bound((simd.wide(best) - top) * scale) if fused else -reach
    low = -np.inf
    if bound > -np.inf:
        low = common.floor(row, top, 4.0 * w - gamma * bound)
    if low <= -simd.greatest(row):
        low = -np.inf  # all are finite
    dense = d > SHORT and all_above(row, d, low)
    n = d
    if dense:
        kept = row
    else:
        n = pack(row, d, low, lanes, kept, index)
    count = groups_of(kept, top, index, dense, n, d, w, space, groups)
    if not fused:
        levels(groups, count, w, 1.0, w * scale <= 16.0, spare)
    elif count == 1:
        mean[0] = 1.0 / n
    else:
        _project(groups, count, w, scale, bound - 2.0 * w * scale, spare)
    _write(groups, count, dense, index, place, moved, out)


@njit
def _write(
    groups: Any, count: int, dense: bool, index: Any, place: Any, moved: bool, out: Any
) -> None:
    """Write the values of the groups to their entries."""
    start, mean, _ = groups
    for g in range(count):
        t = mean[g]
        if dense and not moved:
            for j in range(start[g], start[g + 1]):
                out[j] = t
            continue
        for j in range(start[g], start[g + 1]):
            i = j if dense else index[j]
            out[place[i] if moved else i] = t


@njit
def whole_row(
    row: Any,
    d: int,
    w: float,
    place: Any,
    moved: bool,
    space: Any,
    groups: Any,
    out: Any,
) -> None:
    """out = the prox of d finite scores, without a shift."""
    start, mean, sides = groups
    count = 1
    if w < np.inf:
        count = solve(row, 0.0, 0, d, w, 0, 0, space, groups, 0)
        start[count] = d
        for g in range(count):
            mean[g] = value_of(mean[g], sides[g], start[g + 1] - start[g], w)
    else:
        start[0], start[1], mean[0] = 0, d, mean_of(row, 0, d, 0.0)
    _write(groups, count, True, place, place, moved, out)


@njit
def backward_row(
    y: Any,
    d: int,
    v: Any,
    gamma: float,
    low: float,
    centred: bool,
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
    """out = Jv/γ for d participants y, or P v/γ unless ``centred``, with the groups of the entries
    above ``low``; returns the derivative in λ if ``hyper``, else 0.

    v_i and out_i are at place[i] if ``moved``.
    """
    n = pack(y, d, low, lanes, kept, index)
    if n == 0:
        return 0.0
    # v minus its first entry, as J 1 = 0: a large constant in v then causes no rounding error
    i = index[0]
    own = float(v[place[i] if moved else i])
    ref = own if centred else 0.0
    count = 0
    total, sums = 0.0, own - ref
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
    for _ in range(2 if centred else 0):  # the second pass removes the rounding error of the first
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
