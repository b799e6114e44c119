"""What a solver is, and the frame around each of them: run, Newton polish, certificate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import shown, simplex
from ..optimality import Certificate, Problem


class Solver(ABC):
    """Finds argmax_{y ∈ Δ} ⟨y, z⟩ − Ω(y) for a batch of rows.

    A solver finds the support and the neighbourhood of y*; :func:`solve` polishes with Newton
    steps, certifies every row, and differentiation never sees the solver.
    """

    name: ClassVar[str] = ""

    def __repr__(self) -> str:
        return shown.called(self, shown.arguments(self))

    @abstractmethod
    def unsuitable(self, problem: Problem) -> str | None:
        """Why this solver cannot take the problem, or None."""

    @abstractmethod
    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        """(y, iterations): y in Δ of the shape of ``problem.z``, iterations int64 per row.

        A row stops when its error is at most ``tol``, as far as the solver can tell; the others go
        on, ``max_iter`` iterations at most. Rows are independent of each other. A solver starts at
        ``problem.initial()`` where it can, and tells ``problem.observe(y)`` of it and of each
        iteration.
        """


@dataclass(frozen=True, eq=False)
class Solved:
    """What :func:`solve` found; ``problem`` remembers J at y, which backward can use again."""

    y: Tensor
    iterations: Tensor
    certificate: Certificate
    path: str
    problem: Problem


def solve(problem: Problem, solver: Solver, tol: float, max_iter: int) -> Solved:
    """Run ``solver``, polish its answer, certify it. No gradients are recorded."""
    if problem.trace is not None:
        problem.trace.name = solver.name
    with torch.no_grad():
        y, iterations = solver.run(problem, tol, max_iter)
        y, certificate = polish(problem, y, tol)
        problem.observe(y, answer=True)
    return Solved(y, iterations, certificate, f"solver {solver.name}", problem)


def polish(
    problem: Problem, y: Tensor, tol: float = 0.0, steps: int = 6
) -> tuple[Tensor, Certificate]:
    """Newton steps on the support, kept per row while the certified bound falls: one where it is
    not far below ``tol``, and more where it is above.

    y ← y + J (z − ∇Ω(y)): quadratic convergence, to the last bits.
    """
    best = problem.certify(y)
    better = torch.ones_like(best.error_bound, dtype=torch.bool)
    for k in range(steps):
        enough = tol if k else 1e-4 * tol  # what a solver left at its last bits is not touched
        better = better & (best.error_bound > enough)
        if not bool(better.any()):
            break
        current = newton(problem, y)
        trial = problem.certify(current)
        better = better & (trial.error_bound < best.error_bound)
        if not bool(better.any()):
            break
        y, best = chosen(better, current, y), merged(better, trial, best)
    return y, best


def chosen(better: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Row by row a where ``better``, else b; a itself where all are, so that what is remembered of
    a is not lost."""
    return a if bool(better.all()) else torch.where(better.unsqueeze(-1), a, b)


def merged(better: Tensor, a: Certificate, b: Certificate) -> Certificate:
    """The certificates of :func:`chosen`."""
    lowest = b.lowest
    if a.lowest is not None and b.lowest is not None:
        lowest = torch.where(better, a.lowest, b.lowest)
    return Certificate(
        torch.where(better, a.gap, b.gap),
        torch.where(better, a.error_bound, b.error_bound),
        b.estimated,
        lowest,
    )


def newton(problem: Problem, y: Tensor) -> Tensor:
    """One Newton step that stays in Δ: an entry that it would make negative leaves the support.

    Where the slope of Ω is infinite at 0 no entry can leave; the step is then taken in log y,
    where entropies are nearly linear: y ∝ y exp(Δy/y).
    """
    support = problem.support(y)
    return moved(problem, y, torch.nan_to_num(problem.newton_step(y, support)), support)


def moved(problem: Problem, y: Tensor, step: Tensor, support: Tensor) -> Tensor:
    """The point of Δ that a step on the support leads to."""
    if problem.steep:
        inside = torch.where(support, y, 1)
        logs = torch.where(support, inside.log() + step / inside, -torch.inf)
        return simplex.normalize(logs.softmax(-1))
    return simplex.normalize((y + step).clamp_min(0))
