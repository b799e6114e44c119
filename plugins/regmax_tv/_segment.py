r"""The prox of total variation on segments of a row between low entries, compiled with numba.

A segment is a run of neighbours v_1, …, v_n. An outer neighbour that is lower in the answer pulls
its end down, one that is higher pulls it up:

    min_z ½ ‖z − v‖² + w Σ_i |z_{i+1} − z_i| + w (left z_1 + right z_n),  left, right ∈ {−1, 0, 1}.

Here v is ``scores``, (kept, top): v_i = kept_i − top; and (left, right) are ``pulls``. Let u be v
minus the pulls of its ends, minus its mean. A segment is one group iff every partial sum
of u is in [−w, w]. Otherwise Johnson's dynamic programme finds the jumps and their signs in O(n):
with f_1(x) = ½ (x − v_1)² + w left x and

    f_{k+1}(x) = ½ (x − v_{k+1})² + min_y f_k(y) + w |x − y|,

f_k' is increasing and piecewise linear, and the inner minimum clips it to [−w, w]. A deque stores
its knots, each with the change of slope a and of offset b there. Clipping removes knots at both
ends and adds one at each. low_k and high_k are the points where f_k' is −w and w.
z_k = clip(z_{k+1}, low_k, high_k) gives the solution from the last entry to the first.

The value of a group G = {a, …, b} is computed again from its data,

    z_G = mean(v_G) + w (s_{a−1} − s_b)/|G|,      s_k = sign(z_k − z_{k+1}).

Source: N. Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation",
Journal of Computational and Graphical Statistics 22(2), 2013.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import simd
from regmax.kernels.cpu.elementary import multiply_add
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES


@njit
def mean_of(scores: Any, first: int, size: int) -> float:
    """The mean of size entries of v = r + Σ (v_i − r)/size, r = v_first."""
    kept, top = scores
    ref = np.float64(kept[first])
    if size == 1:
        return ref - top
    full = size - size % LANES
    rest = 0.0
    for i in range(first + full, first + size):
        rest += np.float64(kept[i]) - ref
    if full:
        sums = simd.wide(simd.load(kept, first)) - ref
        for i in range(first + LANES, first + full, LANES):
            sums = sums + (simd.wide(simd.load(kept, i)) - ref)
        rest += simd.total(sums)
    return (ref - top) + rest / size


@njit
def value_of(mean: float, sides: int, size: int, w: float) -> float:
    """z_G, rounded as ``_levels`` of :mod:`._numba` rounds it."""
    return multiply_add(sides / size, w, mean)


@njit
def _close(
    scores: Any, begin: int, end: int, w: float, jumps: Any, groups: Any, base: int, count: int
) -> int:
    """Add the group begin, …, end − 1 between two jumps, given by their signs; returns the new
    count.

    ``groups``: the start of each, mean(v_G), and s_{a−1} − s_b. Two groups whose values contradict
    the sign of the jump between them are equal up to rounding and merged.
    """
    (before, after), (start, mean, sides) = jumps, groups
    start[count], mean[count] = begin, mean_of(scores, begin, end - begin)
    sides[count] = before - after
    # ends: the count decreases
    while count > base:
        here, there = start[count], start[count - 1]
        value = value_of(mean[count], sides[count], end - here, w)
        other = value_of(mean[count - 1], sides[count - 1], here - there, w)
        if before * (other - value) >= 0.0:
            break
        # mean(A ∪ B) = mean(A) + (mean(B) − mean(A)) |B| / |A ∪ B|
        mean[count - 1] += (mean[count] - mean[count - 1]) * ((end - here) / (end - there))
        before += sides[count - 1]
        count -= 1
        sides[count] = before - after
    return count + 1


@njit
def _programme(
    scores: Any, first: int, n: int, w: float, pulls: Any, centre: float, space: Any, groups: Any,
    base: int,
) -> Any:  # fmt: skip
    """Johnson's recursion on v − centre, n ≥ 2; writes groups[base:] and returns the new count.

    ``space``: x, a, b of 2 n knots; low, high and s of n entries.
    """
    (kept, top), (left, right), (x, a, b, low, high, signs) = scores, pulls, space
    # at most one knot more at either side in each step: 0 < lo < hi < 2 n
    lo, hi = n - 1, n
    y = (np.float64(kept[first]) - top) - centre - w * left
    low[0], high[0] = y - w, y + w
    x[lo], a[lo], b[lo] = low[0], 1.0, w - y
    x[hi], a[hi], b[hi] = high[0], -1.0, w + y
    for k in range(1, n - 1):
        y = (np.float64(kept[first + k]) - top) - centre
        # f'(t) = t − y − w to the left of all knots; it is −w at low
        slope, offset = 1.0, -w - y
        # ends: a knot is removed
        while lo <= hi and slope * x[lo] + offset <= -w:
            slope += a[lo]
            offset += b[lo]
            lo += 1
        # −f'(t) = −t + y − w to the right of all knots
        back, behind = -1.0, y - w
        # ends: a knot is removed
        while hi >= lo and back * x[hi] + behind <= -w:
            back += a[hi]
            behind += b[hi]
            hi -= 1
        lo -= 1
        hi += 1
        below, above = (-w - offset) / slope, (w + behind) / -back
        low[k], high[k] = below, above
        x[lo], a[lo], b[lo] = below, slope, offset + w
        x[hi], a[hi], b[hi] = above, back, behind + w
    # f' = 0 at the last entry
    y = (np.float64(kept[first + n - 1]) - top) - centre - w * right
    slope, offset = 1.0, -w - y
    # ends: a knot is removed
    while lo <= hi and slope * x[lo] + offset <= 0.0:
        slope += a[lo]
        offset += b[lo]
        lo += 1
    z = -offset / slope
    for j in range(n - 2, -1, -1):
        # z_j = clip(z_{j+1}, low_j, high_j)
        sign = 0
        if z > high[j]:
            z = high[j]
            sign = -1
        elif z < low[j]:
            z = low[j]
            sign = 1
        signs[j] = sign
    begin, before, count = first, -left, base
    for j in range(n - 1):
        sign = signs[j]
        if sign != 0:
            end = first + j + 1
            count = _close(scores, begin, end, w, (before, sign), groups, base, count)
            begin, before = end, sign
    return _close(scores, begin, first + n, w, (before, right), groups, base, count)


@njit
def solve(
    scores: Any, first: int, n: int, w: float, pulls: Any, space: Any, groups: Any, at: int
) -> Any:
    """Write the groups of v[first : first + n] to groups[at:]; returns the new count."""
    (kept, top), (left, right), (start, mean, sides) = scores, pulls, groups
    start[at] = first
    centre = mean_of(scores, first, n)
    # the partial sums of v − centre with pulled ends, minus their mean
    slope = w * (left + right) / n
    total, most = -w * left, 0.0
    for i in range(first, first + n - 1):
        total += ((np.float64(kept[i]) - top) - centre) + slope
        most = max(most, abs(total))
    if most > w:
        return _programme(scores, first, n, w, pulls, centre, space, groups, at)
    mean[at], sides[at] = centre, -left - right
    return at + 1
