r"""min_z 1/2 ||z - v||^2 + w sum_i |z_{i+1} - z_i|, row by row, compiled with numba.

Johnson's dynamic programme.  With f_1(x) = 1/2 (x - v_1)^2 and

    f_{k+1}(x) = 1/2 (x - v_{k+1})^2 + min_y f_k(y) + w |x - y|,

f_k' is increasing and piecewise linear, and the inner minimum clips it to [-w, w].  A deque stores
its knots, each with the change of slope a and of offset b there.  Clipping removes knots at both
ends and adds one at each, so a row of d entries costs O(d).  tm_k and tp_k are the points where
f_k' is -w and w.  z_k = clip(z_{k+1}, tm_k, tp_k)  gives the solution from the last entry to the
first.

The recursion decides only where the jumps are, and their signs.  The value of a group G with
entries a..b is computed again from its data,

    z_G = mean(v_G) + w (s_{a-1} - s_b) / |G|,      s_k = sign(z_k - z_{k+1}),  0 at the ends.

Source: N. Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation",
Journal of Computational and Graphical Statistics 22(2), 2013.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit(nogil=True, cache=True)
def _mean(v: Floats, first: int, last: int) -> float:
    """mean(v_first..v_last) = r + sum (v_i - r) / n with r = v_first, compensated (Kahan)."""
    ref = v[first]
    total = 0.0
    lost = 0.0
    for i in range(first, last + 1):
        term = (v[i] - ref) - lost
        new = total + term
        lost = (new - total) - term
        total = new
    return float(ref + total / (last - first + 1))


@njit(nogil=True, cache=True)
def _jumps(y: Floats, n: int, w: float, knots: Floats, tm: Floats, tp: Floats, s: Floats) -> None:
    """s_k = sign(z_k - z_{k+1}) for k < n - 1, by Johnson's recursion; n >= 2.

    knots is (3, 2 n'), n' >= n: position x, slope change a, offset change b.  The deque starts in
    the middle and grows by at most one knot at either side per step: 0 < l < r < 2 n - 1.
    """
    x, a, b = knots[0], knots[1], knots[2]
    left, right = n - 1, n
    tm[0], tp[0] = y[0] - w, y[0] + w
    x[left], a[left], b[left] = tm[0], 1.0, w - y[0]
    x[right], a[right], b[right] = tp[0], -1.0, w + y[0]
    for k in range(1, n):
        # f_{k+1}'(x) = x - y_{k+1} - w to the left of all knots
        slope, offset = 1.0, -w - y[k]
        # f' = -w at tm; at the last entry f' = 0
        level = -w if k < n - 1 else 0.0
        lo = left
        while lo <= right and slope * x[lo] + offset <= level:
            slope += a[lo]
            offset += b[lo]
            lo += 1
        tm[k] = (level - offset) / slope
        if k == n - 1:
            break
        # -f_{k+1}'(x) = -x + y_{k+1} - w to the right of all knots
        back, behind = -1.0, y[k] - w
        hi = right
        while hi >= lo and -back * x[hi] - behind >= w:
            back += a[hi]
            behind += b[hi]
            hi -= 1
        tp[k] = (w + behind) / -back
        left, right = lo - 1, hi + 1
        x[left], a[left], b[left] = tm[k], slope, offset + w
        x[right], a[right], b[right] = tp[k], back, behind + w
    z = tm[n - 1]
    for k in range(n - 2, -1, -1):
        # z_k = clip(z_{k+1}, tm_k, tp_k)
        s[k] = 0.0
        if z > tp[k]:
            z = tp[k]
            s[k] = -1.0
        elif z < tm[k]:
            z = tm[k]
            s[k] = 1.0


@njit(nogil=True, cache=True)
def _values(
    v: Floats, n: int, w: float, s: Floats, z: Floats, groups: Floats, last: NDArray[np.int64]
) -> None:
    """z_G = mean(v_G) + w (s_{a-1} - s_b) / |G|, s_{n-1} = 0.

    groups is (2, n') for the mean and the value, last the last entry of each group.  Two groups
    whose values contradict the sign of the jump between them are equal up to rounding and merged.
    """
    mean, value = groups[0], groups[1]
    top = -1
    begin = 0
    for i in range(n):
        if i < n - 1 and s[i] == 0.0:
            continue
        top += 1
        last[top] = i
        mean[top] = _mean(v, begin, i)
        begin = i + 1
        while True:
            first = last[top - 1] + 1 if top > 0 else 0
            before = s[first - 1] if first > 0 else 0.0
            value[top] = mean[top] + w * (before - s[i]) / (i - first + 1)
            if top == 0 or before * (value[top - 1] - value[top]) >= 0.0:
                break
            if math.isnan(value[top] - value[top - 1]):
                break
            # mean(A u B) = mean(A) + (mean(B) - mean(A)) |B| / |A u B|
            start = last[top - 2] + 1 if top > 1 else 0
            share = (i - first + 1) / (i - start + 1)
            top -= 1
            mean[top] += (mean[top + 1] - mean[top]) * share
            last[top] = i
    begin = 0
    for g in range(top + 1):
        for i in range(begin, last[g] + 1):
            z[i] = value[g]
        begin = last[g] + 1


@njit(nogil=True, cache=True)
def chain_rows(
    v: NDArray[Any], weight: Floats, mask: NDArray[np.bool_], masked: bool, out: NDArray[Any]
) -> None:
    """out[r] = prox of weight[r] * TV at v[r], among the entries in mask[r] if masked.

    v and out are (R, d) float32 or float64, weight (R,); every computation is in float64.
    """
    rows, d = v.shape
    x, y, z = np.empty(d), np.empty(d), np.empty(d)
    tm, tp, s = np.empty(d), np.empty(d), np.empty(d)
    knots, groups = np.empty((3, 2 * d)), np.empty((2, d))
    place, last = np.empty(d, np.int64), np.empty(d, np.int64)
    for r in range(rows):
        w = weight[r]
        n = 0
        usable = w >= 0.0
        for i in range(d):
            out[r, i] = 0.0
            if not masked or mask[r, i]:
                place[n] = i
                x[n] = v[r, i]
                usable = usable and math.isfinite(x[n])
                n += 1
        if not usable or w == 0.0 or n < 2:
            for i in range(n):
                out[r, place[i]] = x[i] if usable else math.nan
            continue
        # y = v - mean(v); one group iff w >= max_k |sum_{i<=k} y_i|
        centre = _mean(x, 0, n - 1)
        total, most = 0.0, 0.0
        for i in range(n):
            y[i] = x[i] - centre
            total += y[i]
            most = max(most, abs(total))
            s[i] = 0.0
        if w < most:
            _jumps(y, n, w, knots, tm, tp, s)
            s[n - 1] = 0.0
        else:
            w = 0.0
        _values(x, n, w, s, z, groups, last)
        for i in range(n):
            out[r, place[i]] = z[i] + 0.0
