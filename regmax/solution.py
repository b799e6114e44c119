"""The answer of a solve, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Solution:
    """Π_Ω(x) and how far, at most, it is from the truth.

    Attributes
    ----------
    y: the maximiser, shaped like the scores; carries gradients as the layer's output does.
    value: max_Ω(x) = ⟨y, x⟩ − γΩ(y), one number per row, as every field below.
    gap: duality gap of the row.
    error_bound: certified bound on ‖y − y*‖₂.
    iterations: steps of the solver; 0 for a closed form.
    converged: whether ``error_bound`` reached the tolerance.
    path: which road was taken ("closed form", "solver fista", …).
    estimated: True where Ω declares no strong convexity, so that the bound uses an estimate of it.
    """

    y: Tensor
    value: Tensor
    gap: Tensor
    error_bound: Tensor
    iterations: Tensor
    converged: Tensor
    path: str
    estimated: bool
