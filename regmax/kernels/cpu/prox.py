"""The prox of a penalty λR as a step of a threshold mapping: Π_{Ω+λR}(x) = Π_Ω(γ prox_{λR}(x/γ))
(:mod:`regmax.regularizers.penalty`), and J = P J_Ω P, P the averages over the groups of y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import common, memory, simd
from .jit import njit
from .simd import LANES

LAMBDA = 2
"""The place of λ in a job of ``forward``; one more in that of ``backward``."""
HIGHEST = float(np.finfo(np.float64).max ** 0.5)
"""The upper limit of γλ, so that products do not overflow."""


@dataclass(frozen=True)
class Prox:
    """What a penalty gives. Entries keep their order."""

    room: Any
    """(d, pointer of the row's type) → arrays of scratch."""
    work: Any
    """These arrays → pointers, which the other functions take."""
    keep: Any
    """(scores, d, the largest, depth, w, scratch, kept) → how many entries are kept, the least of
    them, the number of finite scores, and how far the prox lowers a score at most; w = γλ. If y is
    0 where a score is ``depth`` or more below the largest, y is 0 at the others after the prox."""
    values: Any
    """(kept, n, the largest, w, factor, the number of finite scores, scratch): the packed entries
    become those of the prox of w R, less the largest of these, times the factor; returns this
    largest less that of the scores."""
    averages: Any
    """(y, v, d, who takes part or any pointer, whether that is given, scratch, ys, vs) → y > 0 and
    the averages of v over groups, less a constant; how many there are."""
    across: Any
    """(y, w, n, scratch) → ⟨w, u⟩, u ∈ ∂R(y), for what ``averages`` packed, and w = Jv."""


@njit
def penalty(job: Any, r: int, chained: bool) -> float:
    """w = γλ of a row, NaN if λ is below 0 or NaN; 0 without a prox."""
    if not chained:
        return 0.0
    gamma, lam = common.number_at(job, 1, r), common.number_at(job, LAMBDA, r)
    if not lam >= 0.0:
        return np.nan
    return min(gamma * lam, HIGHEST) if lam > 0.0 else 0.0


@njit
def _no_room(d: int, like: Any) -> int:
    return 0


@njit
def _as_it_is(arrays: int) -> int:
    return arrays


def scratch(first: Prox | None) -> tuple[Any, Any]:
    """``room`` and ``work``, of which there is nothing without a prox."""
    return (_no_room, _as_it_is) if first is None else (first.room, first.work)


def functions(first: Prox) -> tuple[Callable[..., None], Callable[..., None]]:
    """``forward(job, like)`` and ``backward(job, like)`` of the prox alone, as
    :class:`regmax.kernels.cpu.chain.Step` takes them."""
    room, work_of, keep, values = first.room, first.work, first.keep, first.values
    averages, across = first.averages, first.across

    def forward(job: Any, like: Any) -> None:
        d = job[common.WIDTH]
        own, arrays = common.scratch_like(2, d, like), room(d, like)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                row = common.participants(job, r, 3, like, memory.row(own, 0))
                kept, out = memory.row(own, 1), common.rows_at(job, 4, r, like)
                best, bad = common.scan(row, d)
                top, w = np.float64(simd.largest(best)), penalty(job, r, True)
                gamma = common.number_at(job, 1, r)
                if bad or not (gamma > 0.0 and w >= 0.0) or top == -np.inf:
                    wrong = bad or not gamma > 0.0 or top > -np.inf
                    common.fill(out, d, np.nan if wrong else -np.inf)
                    continue
                depth, work = gamma * common.number_at(job, 6, r), work_of(arrays)
                n, low, members, _ = keep(row, d, top, depth, w, work, kept)
                values(kept, n, top, w, 1.0, members, work)
                if members < d:
                    common.set_number(job, 5, 0, 1.0)
                common.place(row, d, low, kept, out, False)
                for i in range(0, d if n < d else 0, LANES):
                    on = common.piece(row, i, d, -np.inf) >= low
                    v = common.piece(out, i, d, 0.0)
                    common.store_piece(out, i, d, simd.select(on, v, -np.inf))
            begin, end = common.take(job)
        memory.keep((own, arrays))

    def backward(job: Any, like: Any) -> None:
        d, blank = job[common.WIDTH], job[common.BLANK] != 0
        own, arrays = common.scratch_like(2, d, like), room(d, like)
        given, hyper = common.given(job, 2), common.given(job, 4)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
                ys, vs, work = memory.row(own, 0), memory.row(own, 1), work_of(arrays)
                on = common.octets_at(job, 2, r)
                n = averages(y, v, d, on, given, work, ys, vs)
                if hyper:
                    total = 0.0
                    for i in range(n):
                        total += np.float64(vs[i])
                    for i in range(n):
                        vs[i] -= total / n
                    common.set_number(job, 4, r, -across(ys, vs, n, work))
                common.place_support(y, d, vs, common.rows_at(job, 3, r, like), blank)
            begin, end = common.take(job)
        memory.keep((own, arrays))

    return forward, backward
