"""A quadratic model of Ω, maximised over the points of Δ that have given groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cpu import common, memory
from ..cpu.jit import njit
from .dense import factor, hessian, tangent_product

Y, SLOPE, HESSIAN, POINT, PULL, GROUPS, OUT = range(7)
"""Places in a job: y and there z − ∇Ω and ∇²Ω; a point with the groups; λu, u ∈ ∂R of that point;
the number of each entry's group; the maximiser."""


@njit
def _collected(
    d: int, y: Any, slope: Any, h: Any, p: Any, pull: Any, ids: Any, place: Any, size: Any, v: Any,
    form: Any, ld: int,
) -> int:  # fmt: skip
    """How many groups are positive at p, and the model in the sums of these groups."""
    n = 0
    for i in range(d):
        place[d + i] = -1
    for i in range(d):
        place[i] = -1
        if p[i] > 0.0:
            k = ids[i]
            if place[d + k] < 0:
                place[d + k], size[n], v[n] = n, 0.0, 0.0
                for j in range(d):
                    form[n * ld + j] = 0.0
                n += 1
            place[i] = place[d + k]
            size[place[i]] += 1.0
    for i in range(d):
        a = place[i]
        if a < 0:
            continue
        bent = slope[i] - pull[i]
        for j in range(d):
            own = 0.5 * (h[i * d + j] + h[j * d + i])
            bent -= own * (p[j] - y[j])
            if place[j] >= 0:
                form[a * ld + place[j]] += own / (size[a] * size[place[j]])
        v[a] += bent / size[a]
    return n


def forward(job: Any, like: Any) -> None:
    """x = p + w, w the maximiser of the model among the changes that keep the groups of p; NaN
    where ∇²Ω is not positive definite along them."""
    d = job[common.WIDTH]
    room, places = common.scratch(4, d), memory.empty(3, 2 * d, np.int64)
    ld = room.shape[1]
    square = memory.empty(2, ld * ld, np.float64)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            place, on = memory.row(places, 0), memory.row(places, 1)
            size, v = memory.row(room, 0), memory.row(room, 1)
            ones, zeros = memory.row(room, 2), memory.row(room, 3)
            form, a = memory.row(square, 0), memory.row(square, 1)
            p, out = common.rows_at(job, POINT, r, like), common.rows_at(job, OUT, r, like)
            n = _collected(
                d, common.rows_at(job, Y, r, like), common.rows_at(job, SLOPE, r, like),
                common.rows_at(job, HESSIAN, r, like), p, common.rows_at(job, PULL, r, like),
                common.ints_at(job, GROUPS, r), place, size, v, form, ld,
            )  # fmt: skip
            good = True
            if n > 1:
                for k in range(n):
                    on[k], zeros[k] = k, 0.0
                hessian(n, on, zeros, form, ld, a)
                good = factor(a, n, ld)
                if good:
                    tangent_product(n, a, ld, v, ones)
            for i in range(d):
                out[i] = p[i]
                if not good:
                    out[i] = np.nan
                elif n > 1 and place[i] >= 0:
                    out[i] += v[place[i]] / size[place[i]]
        first, last = common.take(job)
