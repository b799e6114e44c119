r"""Fusedmax, the prox of total variation and their derivatives, compiled with numba.

    y = P_Δ(p/γ),  p the prox of w TV at x,  w = γλ        (Niculae & Blondel 2017, Prop. 2)
    J v = P v − mean(v_S) on the support S of y,  P the averages over the groups (Prop. 3)

Few entries matter. As |p − x| ≤ 2w, the threshold of P_Δ is at most 2w below that of x itself. An
entry 2w or more below a level t is not in {p > t}, whatever its value. So it splits the row, and
pulls the neighbour on either side down by w. The other entries form short segments of neighbours,
each solved alone (:mod:`._segment`); P_Δ is Newton's iteration on the groups of all segments.

The prox for another base with y_i = 0 where p_i is γρ or more below the largest: the same with
t = max x − 2w − γρ. Entries that are cut are −∞ in the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, projection, simd
from regmax.kernels.cpu.simd import LANES

from ._passes import pack, pack_where, scan
from ._rows import backward_row, forward_row, whole_row

HIGHEST = np.finfo(np.float64).max ** 0.5  # upper limit of γλ, so that products do not overflow


def forward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    prox, whole_rows = common.given(job, 6), common.given(job, 7)
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
            reach = common.number_at(job, 6, r) if prox else -1.0
            n, row = d, scores
            if gap and not bad:
                if not whole_rows:
                    common.set_number(job, 5, 0, 1.0)
                row = memory.row(own, 2)
                n = pack(scores, d, -np.inf, lanes, row, place)
            if prox:
                common.fill(out, d, -np.inf)
            elif not blank:
                common.fill(out, d, 0.0)
            if bad or not gamma > 0.0 or (n > 0 and not lam >= 0.0):
                common.fill(out, d, np.nan)
            elif n == 0:
                pass
            elif whole_rows:
                whole_row(row, n, lam, place, gap, space, groups, out)
            elif lam == 0.0 and not prox:
                z, rest = memory.row(wide, 0), memory.row(wide, 1)
                projection.forward(scores, d, gamma, z, rest, kept, out, blank)
            else:
                w = min(gamma * lam, HIGHEST)
                forward_row(
                    row,
                    n,
                    best,
                    gamma,
                    w,
                    reach,
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


def backward(job: Any, like: Any) -> None:
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    wide, own = common.scratch(1, d), common.scratch_like(2, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    moved, hyper = common.given(job, 4), common.given(job, 6)
    prox = common.given(job, 7)
    low = -np.inf if prox and common.given(job, 8) else 0.0
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
            dlam = backward_row(
                y,
                n,
                common.rows_at(job, 1, r, like),
                1.0 if prox else common.number_at(job, 2, r),
                low,
                not prox,
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
