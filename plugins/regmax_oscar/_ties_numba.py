r"""The means of v over the ties of z, row by row, by hashing in O(d) a row, compiled with numba.

The Jacobian of the prox of an ordered weighted norm averages over the ties of its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def tie_means(
    v: NDArray[Any], z: NDArray[Any], mask: NDArray[np.bool_], masked: bool, out: NDArray[Any]
) -> None:
    """out[r, i] = the mean of v[r, j] over j with z[r, j] = z[r, i], among mask[r] if masked; 0
    elsewhere. v, z and out are (R, d); sums are in float64, relative to the first of a group."""
    rows, d = v.shape
    bits = 1
    # ends: bits grow
    while 1 << bits < 2 * d:
        bits += 1
    shift, last = np.uint64(64 - bits), (1 << bits) - 1
    table, group = np.empty(1 << bits, np.int32), np.empty(d, np.int32)
    value, first, total = np.empty(d), np.empty(d), np.empty(d)
    size = np.empty(d, np.int64)
    for r in range(rows):
        table[:] = -1
        count = 0
        for i in range(d):
            out[r, i] = 0.0
            if masked and not mask[r, i]:
                continue
            key = np.float64(z[r, i]) + 0.0  # −0 is 0
            word = np.float64(key).view(np.uint64)
            word = (word ^ (word >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
            at = np.int64(word >> shift)
            # ends: half of the table is empty
            while table[at] >= 0 and value[table[at]] != key:
                at = (at + 1) & last
            k = table[at]
            if k < 0:
                k = count
                count += 1
                table[at] = k
                value[k], first[k], total[k], size[k] = key, v[r, i], 0.0, 0
            total[k] += np.float64(v[r, i]) - first[k]
            size[k] += 1
            group[i] = k
        for k in range(count):
            first[k] += total[k] / size[k]
        for i in range(d):
            if not masked or mask[r, i]:
                out[r, i] = first[group[i]]
