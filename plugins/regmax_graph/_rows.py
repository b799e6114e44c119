"""One operation on many rows, and the scratch memory that it needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jit import njit
from ._split import groups_row, prox_row, subgradient_row
from .arguments import PROX, SUBGRADIENT


@njit
def scratch(d: int, m: int) -> Any:
    """Scratch memory of the functions of a row, for d nodes and m edges."""
    return (
        np.empty((2, d), np.float64),
        np.empty((3, m), np.float64),
        np.empty((4, 2 * d + 2), np.float64),
        np.empty((10, d), np.int64),
        np.empty(2 * d + 2, np.int64),
    )


@njit
def do_rows(asked: int, first: int, last: int, masked: bool, arrays: Any, s: Any) -> None:
    """Write out[r] or ids[r] for the rows first … last − 1.

    ``arrays``: v, near, step (R,), mask, weights, ends, arcs, out and ids; rows are (R, d).
    Those that the operation ``asked`` does not need are not read.
    """
    v, near, step, mask, weights, ends, arcs, out, ids = arrays
    label = s[3][9]
    for r in range(first, last):
        for i in range(v.shape[1]):
            label[i] = -1 if masked and mask[r, i] == 0 else 0
        if asked == PROX:
            prox_row(v[r], step[r], weights, ends, arcs, label, out[r], s)
        elif asked == SUBGRADIENT:
            subgradient_row(v[r], near[r], step[r], weights, ends, arcs, label, out[r], s)
        else:
            groups_row(v[r], weights, arcs, label, ids[r], s[3])
