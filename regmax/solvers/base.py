"""What a solver is, and the frame around each of them: run, Newton polish, certificate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..optimality import Certificate, Problem


class Solver(ABC):
    """Finds argmax_{y ∈ Δ} ⟨y, z⟩ − Ω(y) for a batch of rows.

    A solver finds the support and the neighbourhood of y*; :func:`solve` polishes with Newton
    steps, certifies every row, and differentiation never sees the solver.
    """

    name: ClassVar[str] = ""

    @abstractmethod
    def unsuitable(self, problem: Problem) -> str | None:
        """Why this solver cannot take the problem, or None."""

    @abstractmethod
    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        """(y, iterations): y in Δ of the shape of ``problem.z``, iterations int64 per row.

        A row stops when its certified error bound is at most ``tol``; the others go on. Rows are
        independent of each other.
        """


@dataclass(frozen=True, eq=False)
class Solved:
    """What :func:`solve` found."""

    y: Tensor
    iterations: Tensor
    certificate: Certificate
    path: str


def solve(problem: Problem, solver: Solver, tol: float, max_iter: int) -> Solved:
    """Run ``solver``, polish its answer, certify it. No gradients are recorded."""
    with torch.no_grad():
        y, iterations = solver.run(problem, tol, max_iter)
        y, certificate = polish(problem, y)
    return Solved(y, iterations, certificate, f"solver {solver.name}")


def polish(problem: Problem, y: Tensor, steps: int = 6) -> tuple[Tensor, Certificate]:
    """Newton steps on the support, kept per row while the certified bound falls.

    y ← y + J (z − ∇Ω(y)): quadratic convergence, to the last bits.
    """
    best = problem.certify(y)
    better = torch.ones_like(best.error_bound, dtype=torch.bool)
    for _ in range(steps):
        current = newton(problem, y)
        trial = problem.certify(current)
        better = better & (trial.error_bound < best.error_bound)
        if not bool(better.any()):
            break
        y = torch.where(better.unsqueeze(-1), current, y)
        best = Certificate(
            torch.where(better, trial.gap, best.gap),
            torch.where(better, trial.error_bound, best.error_bound),
            best.estimated,
        )
    return y, best


def newton(problem: Problem, y: Tensor) -> Tensor:
    """One Newton step that stays in Δ: an entry that it would make negative leaves the support.

    Where the slope of Ω is infinite at 0 no entry can leave; the step is then taken in log y,
    where entropies are nearly linear: y ∝ y exp(Δy/y).
    """
    support = problem.support(y)
    step = torch.nan_to_num(problem.newton_step(y, support))
    if problem.steep:
        inside = torch.where(support, y, 1)
        return torch.where(support, inside.log() + step / inside, -torch.inf).softmax(-1)
    moved = (y + step).clamp_min(0)
    return moved / moved.sum(-1, keepdim=True)
