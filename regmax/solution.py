"""The answer of a solve, with its certificate and, if asked for, the way that led to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor


class Status(IntEnum):
    """What became of a row."""

    CONVERGED = 0
    """The certified error reached the tolerance."""
    BUDGET = 1
    """The iterations were spent before."""
    STALLED = 2
    """The solver could not get nearer, or what it found could not be certified."""
    EMPTY = 3
    """No entry takes part: zeros."""
    SPOILT = 4
    """A NaN or +inf among the scores: NaN."""


@dataclass(eq=False)
class Trace:
    """The points that a solver passed, one entry for each iteration, start included.

    ``gap``: duality gap; ``residual``: distance of the slopes of the support from their common
    value, ‖(r − τ)_S‖; ``support``: entries above 0. Each has shape (iterations + 1, *batch).
    ``solvers`` names the solver that made each entry.
    """

    solvers: list[str] = field(default_factory=list)
    name: str = ""
    _gap: list[Tensor] = field(default_factory=list)
    _residual: list[Tensor] = field(default_factory=list)
    _support: list[Tensor] = field(default_factory=list)

    def add(self, gap: Tensor, residual: Tensor, support: Tensor) -> None:
        """One more iteration."""
        self._gap.append(gap.detach())
        self._residual.append(residual.detach())
        self._support.append(support.detach())
        self.solvers.append(self.name)

    @property
    def gap(self) -> Tensor:
        return _stacked(self._gap)

    @property
    def residual(self) -> Tensor:
        return _stacked(self._residual)

    @property
    def support(self) -> Tensor:
        return _stacked(self._support)

    def __len__(self) -> int:
        return len(self.solvers)

    def __repr__(self) -> str:
        return f"Trace({len(self)} points: {', '.join(dict.fromkeys(self.solvers)) or 'none'})"


def _stacked(entries: list[Tensor]) -> Tensor:
    return torch.stack(entries) if entries else torch.empty(0)


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
    status: a :class:`regmax.solution.Status` for each row, int8.
    trace: the iterations, as a :class:`Trace`, where ``solve(x, trace=True)`` asked for them; a
        closed form has none.
    """

    y: Tensor
    value: Tensor
    gap: Tensor
    error_bound: Tensor
    iterations: Tensor
    converged: Tensor
    path: str
    estimated: bool
    status: Tensor
    trace: Trace | None = None
