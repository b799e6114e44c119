r"""min_z 1/2 ||z - v||^2 subject to z_1 >= .. >= z_d, row by row, compiled with numba.

Pool adjacent violators: a stack of blocks, each with its mean. Each entry is pushed as a new block.
While the last block's mean exceeds that of the block before it, the two are pooled,

    mean(A u B) = mean(A) + (mean(B) - mean(A)) |B| / |A u B|.

O(d) a row.  The value of a block of more than one entry is then computed again from its data.

Source: M. J. Best and N. Chakravarti, "Active set algorithms for isotonic regression; a unifying
framework", Mathematical Programming 47, 1990.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]


@njit(nogil=True, cache=True)
def _mean(v: Floats, first: int, size: int) -> float:
    """mean(v_first..) over size entries = r + sum (v_i - r) / size, r = v_first, by Kahan."""
    ref = v[first]
    total = 0.0
    lost = 0.0
    for i in range(first, first + size):
        term = (v[i] - ref) - lost
        new = total + term
        lost = (new - total) - term
        total = new
    return float(ref + total / size)


@njit(nogil=True, cache=True)
def _push(mean: Floats, size: Sizes, top: int, value: float, count: int) -> int:
    """Push a block on the stack of top blocks; pool while mean_{top-1} < mean_top; returns top."""
    # ends: the stack shrinks
    while top > 0 and mean[top - 1] < value:
        top -= 1
        count += size[top]
        # mean(A u B) = mean(B) + (mean(A) - mean(B)) |A| / |A u B|
        value += (mean[top] - value) * (size[top] / count)
    mean[top] = value
    size[top] = count
    return top + 1


@njit(nogil=True, cache=True)
def isotonic_rows(
    v: NDArray[Any], mask: NDArray[np.bool_], masked: bool, out: NDArray[Any]
) -> None:
    """out[r] = the decreasing regression of v[r], among the entries in mask[r] if masked.

    v and out are (R, d) float32 or float64; every computation is in float64.
    """
    rows, d = v.shape
    x, mean = np.empty(d), np.empty(d)
    place, size = np.empty(d, np.int64), np.empty(d, np.int64)
    for r in range(rows):
        n = 0
        usable = True
        for i in range(d):
            out[r, i] = 0.0
            if not masked or mask[r, i]:
                place[n] = i
                x[n] = v[r, i]
                usable = usable and math.isfinite(x[n])
                n += 1
        if not usable:
            for i in range(n):
                out[r, place[i]] = math.nan
            continue
        blocks = 0
        for i in range(n):
            blocks = _push(mean, size, blocks, x[i], 1)
        # z_B = mean(v_B) from the data; blocks out of order by rounding are pooled again
        first = 0
        top = 0
        for g in range(blocks):
            count = size[g]
            top = _push(mean, size, top, _mean(x, first, count), count)
            first += count
        first = 0
        for g in range(top):
            for i in range(first, first + size[g]):
                out[r, place[i]] = mean[g] + 0.0
            first += size[g]
