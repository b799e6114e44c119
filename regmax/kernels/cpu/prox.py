"""The prox of a penalty λR as a step of a threshold mapping: Π_{Ω+λR}(x) = Π_Ω(γ prox_{λR}(x/γ))
(:mod:`regmax.regularizers.penalty`), and J = P J_Ω P, P the averages over the groups of y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import common
from .jit import njit

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
