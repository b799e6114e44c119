r"""The prox of total variation on segments of a row between low entries, compiled with numba.

A segment is a run of neighbours v_1, …, v_n. An outer neighbour that is lower in the answer pulls
its end down, one that is higher pulls it up:

    min_z ½ ‖z − v‖² + w Σ_i |z_{i+1} − z_i| + w (left z_1 + right z_n),  left, right ∈ {−1, 0, 1}.

As |z − v| ≤ 2w, neighbours whose v differ by more than 4w have a jump of known sign between them:
the segment is split there. Let u be v minus the pulls of its ends, minus its mean. A part is one
group iff every partial sum of u is in [−w, w]. Otherwise Johnson's dynamic programme finds the
jumps and their signs in O(n): with f_1(x) = ½ (x − v_1)² + w left x and

    f_{k+1}(x) = ½ (x − v_{k+1})² + min_y f_k(y) + w |x − y|,

f_k' is increasing and piecewise linear, and the inner minimum clips it to [−w, w]. A deque stores
its knots, each with the change of slope a and of offset b there. Clipping removes knots at both
ends and adds one at each. low_k and high_k are the points where f_k' is −w and w.
z_k = clip(z_{k+1}, low_k, high_k) gives the solution from the last entry to the first. If both ends
of [low_k, high_k] lead to the same z_j, the entries up to j are final. Their memory is then reused,
as the first access to new memory is slow.

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

SURE = 1.0 + 1e-9
"""A margin for rounding where a jump is known beforehand."""
WINDOW = 512
"""The number of entries before the first test for final entries."""


@njit
def mean_of(kept: Any, first: int, size: int, top: float) -> float:
    """The mean of kept − top over size entries = r + Σ (v_i − r)/size, r = v_first."""
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
    """z_G, rounded as :func:`regmax_tv._rows.levels` rounds it."""
    return multiply_add(sides / size, w, mean)


@njit
def _close(
    kept: Any,
    top: float,
    begin: int,
    end: int,
    w: float,
    before: int,
    after: int,
    groups: Any,
    base: int,
    count: int,
) -> int:
    """Add the group begin, …, end − 1 between jumps of signs ``before`` and ``after``; returns the
    new count.

    ``groups``: the start of each, mean(v_G), and s_{a−1} − s_b. Two groups whose values contradict
    the sign of the jump between them are equal up to rounding and merged.
    """
    start, mean, sides = groups
    start[count], mean[count] = begin, mean_of(kept, begin, end - begin, top)
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
def _settle(
    kept: Any,
    top: float,
    at: int,
    n: int,
    z: float,
    w: float,
    state: Any,
    space: Any,
    groups: Any,
    base: int,
) -> Any:
    """Add the groups that end before entry n of the window, whose value is z.

    ``state``: the start of the open group, the sign of the jump before it, the count of groups.
    """
    low, high, s = space[3], space[4], space[5]
    for j in range(n - 1, -1, -1):
        # z_j = clip(z_{j+1}, low_j, high_j)
        sign = 0
        if z > high[j]:
            z = high[j]
            sign = -1
        elif z < low[j]:
            z = low[j]
            sign = 1
        s[j] = sign
    begin, before, count = state
    for j in range(n):
        sign = s[j]
        if sign != 0:
            count = _close(kept, top, begin, at + j + 1, w, before, sign, groups, base, count)
            begin, before = at + j + 1, sign
    return begin, before, count


@njit
def _settled(low: Any, high: Any, last: int) -> Any:
    """The last entry j of the window 0 … last whose z does not depend on later entries, and z; j is
    −1 if there is none."""
    a, b = low[last], high[last]
    for j in range(last - 1, 0, -1):
        a = min(max(a, low[j]), high[j])
        b = min(max(b, low[j]), high[j])
        if a == b:
            return j, a
    return -1, a


@njit
def _centred(x: Any, a: Any, b: Any, lo: int, hi: int, to: int) -> None:
    """Move the knots lo … hi to ``to``."""
    if to < lo:
        for j in range(hi + 1 - lo):
            x[to + j], a[to + j], b[to + j] = x[lo + j], a[lo + j], b[lo + j]
    elif to > lo:
        for j in range(hi - lo, -1, -1):
            x[to + j], a[to + j], b[to + j] = x[lo + j], a[lo + j], b[lo + j]


@njit
def _programme(
    kept: Any,
    top: float,
    first: int,
    n: int,
    w: float,
    left: int,
    right: int,
    centre: float,
    space: Any,
    groups: Any,
    base: int,
) -> Any:
    """Johnson's recursion on v − centre, n ≥ 2; writes groups[base:] and returns the new count.

    ``space``: x, a, b of 2 n knots; low, high and s of n entries, for the window that begins at
    entry ``done``.
    """
    x, a, b, low, high, _ = space
    state = first, -left, base
    done, limit = 0, WINDOW
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
        last = k - done
        low[last], high[last] = below, above
        x[lo], a[lo], b[lo] = below, slope, offset + w
        x[hi], a[hi], b[hi] = above, back, behind + w
        if last >= limit:
            j, z = _settled(low, high, last)
            if j > 0:
                state = _settle(kept, top, first + done, j, z, w, state, space, groups, base)
                for i in range(j, last + 1):
                    low[i - j], high[i - j] = low[i], high[i]
                done += j
                to = n - (hi + 1 - lo) // 2
                _centred(x, a, b, lo, hi, to)
                lo, hi = to, to + hi - lo
            if 2 * (k - done) > limit:
                limit *= 2
    # f' = 0 at the last entry
    y = (np.float64(kept[first + n - 1]) - top) - centre - w * right
    slope, offset = 1.0, -w - y
    # ends: a knot is removed
    while lo <= hi and slope * x[lo] + offset <= 0.0:
        slope += a[lo]
        offset += b[lo]
        lo += 1
    z = -offset / slope
    state = _settle(kept, top, first + done, n - 1 - done, z, w, state, space, groups, base)
    begin, before, count = state
    return _close(kept, top, begin, first + n, w, before, right, groups, base, count)


@njit
def solve(
    kept: Any,
    top: float,
    first: int,
    n: int,
    w: float,
    left: int,
    right: int,
    space: Any,
    groups: Any,
    at: int,
) -> Any:
    """Write the groups of the segment kept[first : first + n] − top to groups[at:]; returns the new
    count."""
    start, mean, sides = groups
    begin = first
    step = w * SURE
    a = np.float64(kept[first])
    for i in range(first, first + n - 1):
        b = np.float64(kept[i + 1])
        gap = a - b
        low, high = (left, left) if i == begin else (-1, 1)
        sign = int(gap > step * (3 + high)) - int(-gap > step * (3 - low))
        if sign != 0:
            if i == begin:
                start[at], mean[at], sides[at] = i, a - top, -left - sign
                at += 1
            else:
                at = _part(kept, top, begin, i + 1 - begin, w, left, sign, space, groups, at)
            begin, left = i + 1, -sign
        a = b
    return _part(kept, top, begin, first + n - begin, w, left, right, space, groups, at)


@njit
def _part(
    kept: Any,
    top: float,
    first: int,
    n: int,
    w: float,
    left: int,
    right: int,
    space: Any,
    groups: Any,
    at: int,
) -> Any:
    """As ``solve``, without a split."""
    start, mean, sides = groups
    start[at] = first
    if n <= 2:  # most segments
        a, b = np.float64(kept[first]) - top, np.float64(kept[first + n - 1]) - top
        gap = (a - w * left) - (b - w * right)
        if n == 1 or abs(gap) <= 2.0 * w:
            mean[at], sides[at] = a + (b - a) / 2.0, -left - right
            return at + 1
        sign = 1 if gap > 0.0 else -1
        start[at + 1] = first + 1
        mean[at], mean[at + 1] = a, b
        sides[at], sides[at + 1] = -left - sign, sign - right
        return at + 2
    centre = mean_of(kept, first, n, top)
    # the partial sums of v − centre with pulled ends, minus their mean
    slope = w * (left + right) / n
    total, most = -w * left, 0.0
    for i in range(first, first + n - 1):
        total += ((np.float64(kept[i]) - top) - centre) + slope
        most = max(most, abs(total))
    if most > w:
        return _programme(kept, top, first, n, w, left, right, centre, space, groups, at)
    mean[at], sides[at] = centre, -left - right
    return at + 1
