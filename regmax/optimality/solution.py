"""The answer of a solve, with its certificate and, if asked for, the way that led to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from ..regularizers import display

TRUSTED = 1e-3
"""The distance from y up to which an estimate of the strong convexity at y is used."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """A bound on the distance to the maximiser y*, per row: ``error_bound`` ≥ ‖y − y*‖₂.

    ``support``: the support of y* by the optimality condition; it differs from that of y only in
    entries smaller than the error. ``stray``: entries > 0 that the optimality condition wants 0, by
    more than rounding of y explains. ``min_eigenvalue`` is the least curvature found along the
    support, where β had to be estimated.
    """

    gap: Tensor
    error_bound: Tensor
    estimated: bool
    support: Tensor
    stray: Tensor
    min_eigenvalue: Tensor | None = None


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
    """The points that a solver passed: its start, then one for each iteration, the last of which
    is its answer.

    ``gap``: duality gap; ``residual``: distance of the slopes of the support from their common
    value, ‖(r − τ)_S‖; ``support``: entries above 0. Each has shape (points, *batch): that of the
    scores without ``dim``, after the points, which are 1 + the iterations of the slowest row; a row
    that is done stays where it is. ``solvers`` names the solver of each point: where one takes over
    from another it begins at the start again.
    """

    solvers: list[str] = field(default_factory=list)
    name: str = ""
    _points: list[tuple[Tensor, ...]] = field(default_factory=list)

    def add(self, gap: Tensor, residual: Tensor, support: Tensor, answer: bool = False) -> None:
        """One more point; the ``answer`` of a solver takes the place of the last one it noted."""
        if answer and self.solvers and self.solvers[-1] == self.name:
            self._points.pop()
            self.solvers.pop()
        self._points.append((gap.detach(), residual.detach(), support.detach()))
        self.solvers.append(self.name)

    def restored(self, to_user: Callable[[Tensor], Tensor]) -> Trace:
        """The same, with what is said of each row as ``to_user`` lays it out."""
        points = [tuple(map(to_user, point)) for point in self._points]
        return Trace(self.solvers, self.name, points)

    @property
    def gap(self) -> Tensor:
        return self._stacked(0)

    @property
    def residual(self) -> Tensor:
        return self._stacked(1)

    @property
    def support(self) -> Tensor:
        return self._stacked(2)

    def _stacked(self, which: int) -> Tensor:
        each = [point[which] for point in self._points]
        return torch.stack(each) if each else torch.empty(0, device="cpu")

    def __len__(self) -> int:
        return len(self.solvers)

    def _repr_markdown_(self) -> str:
        """The worst gap and residual, and the mean support, of the first and last points."""
        n = len(self)
        shown = [k for k in range(n) if k < 6 or k >= n - 6]
        header = ("point", "solver", "worst gap", "worst residual", "mean support")
        rows: list[tuple[str, ...]] = []
        for k in shown if self.gap.numel() else ():
            gap, residual, support = self._points[k]
            mean = support.double().mean()
            numbers = (f"{gap.max():.1e}", f"{residual.max():.1e}", f"{mean:.4g}")
            rows.append((str(k), self.solvers[k], *numbers))
        if n > len(shown):
            rows.insert(6, ("…",) * len(header))
        return f"**{display.escaped(repr(self))}**\n\n{display.markdown(header, rows)}"

    def __repr__(self) -> str:
        return f"Trace({len(self)} points: {', '.join(dict.fromkeys(self.solvers)) or 'none'})"


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
    path: which method was taken ("closed form", "solver fista", …).
    estimated: True where Ω declares no strong convexity, so that the bound uses an estimate of it.
    status: a :class:`regmax.Status` for each row, int8.
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

    def __repr__(self) -> str:
        """A summary: an answer is data, and its tensors are at hand."""
        counts = self.status.flatten().tolist()
        said = ", ".join(f"{counts.count(s)} {s.name}" for s in Status if s in counts)
        worst = f", error_bound <= {self.error_bound.max().item():.2g}" if counts else ""
        return (
            f"Solution(y of shape {tuple(self.y.shape)} by {self.path}: {said or 'no rows'}{worst})"
        )

    def _repr_markdown_(self) -> str:
        """The rows by status, with the worst of each."""
        header = ("status", "rows", "error_bound", "gap", "iterations")
        rows = []
        for status in Status:
            on = self.status == status
            if bool(on.any()):
                bound, gap = self.error_bound[on].max(), self.gap[on].max()
                numbers = (f"{bound:.1e}", f"{gap:.1e}", str(int(self.iterations[on].max())))
                rows.append((status.name, str(int(on.sum())), *numbers))
        title = f"y of shape {tuple(self.y.shape)} by {self.path}; the worst of the rows:"
        return f"**Solution**: {display.escaped(title)}\n\n{display.markdown(header, rows)}"
