"""FISTA with backtracking and adaptive restart (Niculae & Blondel 2017, App. B.4)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import decisions, simplex, transforms
from ..kernels.simplex import row_dot
from ..optimality.problem import Problem
from ..regularizers.penalty import value_of
from .base import Solver, chosen, tried


class Fista(Solver):
    """Accelerated proximal gradient steps, for a finite slope at 0.

    The step is y⁺ = P_Δ(prox_{tλR}(w + t(z − ∇Ω(w)))) from an extrapolated point w. Beck & Teboulle
    (2009), with step sizes by backtracking per row: an iteration of a row takes the step, or halves
    its size where Ω is more curved than 1/t. The momentum restarts when it points uphill
    (O'Donoghue & Candès 2015). Every ``CHECK`` iterations a Newton step is tried.
    """

    name: ClassVar[str] = "fista"
    CHECK: ClassVar[int] = 10

    def unsuitable(self, problem: Problem) -> str | None:
        if problem.proximal:
            return "the prox of λR on Δ is not known"
        if problem.legendre:
            return "the slope of Ω is infinite at 0, so no step size is safe"
        return None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y = problem.initial()
        problem.observe(y)
        descent = Descent(problem, y)
        done = torch.zeros_like(y[..., 0], dtype=torch.bool)
        iterations = torch.zeros_like(done, dtype=torch.int64)
        for k in range(1, max_iter + 1):
            descent.take(1, 1)
            y = chosen(done, y, descent.y)
            iterations = torch.where(done, iterations, k)
            problem.observe(y)
            warm = k == 1 and problem.start is not None  # the given start may be the answer
            if k % self.CHECK == 0 or k == max_iter or warm:
                y, done = tried(problem, y, done, tol)
                if decisions.all_of(done):
                    break
        return y, iterations


class Descent:
    """The iterations of FISTA; ``y`` is the current point."""

    def __init__(self, problem: Problem, y: Tensor) -> None:
        self._problem, self.y, self._previous = problem, y, y
        self._momentum = torch.ones_like(y[..., :1])
        self._taken = torch.zeros_like(self._momentum, dtype=torch.int64)
        self._halved = self._taken  # times in a row
        # at the barycentre, as the curvature of Ω may be infinite at zeros of y
        middle = problem.at(simplex.uniform(problem.z, problem.mask))
        slope = simplex.tangent(middle.slope, problem.participants())
        bent = row_dot(slope, middle.defined.curvature.matvec(slope))
        square = row_dot(slope, slope)
        self._step = torch.where((bent > 0) & (square > 0), square / bent, 1).clamp(1e-12, 1e6)

    def take(self, steps: int, iterations: int) -> None:
        """Up to ``steps`` more steps in up to ``iterations`` iterations, per row."""
        problem, last = self._problem, self._taken + steps
        for _ in range(iterations):
            going = self._taken < last
            if not transforms.waits(going) and not bool(going.any()):
                break
            following = (1 + (1 + 4 * self._momentum**2).sqrt()) / 2
            ahead = self.y + (self._momentum - 1) / following * (self.y - self._previous)
            point = simplex.normalize(ahead.clamp_min(0))  # Ω need not be defined outside Δ
            # a longer step is tried every tenth time only, as each trial is an iteration
            longer = (self._taken % 10 == 9) & (self._halved == 0)
            step = torch.where(longer, 1.5 * self._step, self._step)
            new, fits = _descended(problem, point, step)
            fits = going & (fits | (self._halved >= 59))
            uphill = row_dot(point - new, new - self.y) > 0
            self._previous = torch.where(fits, self.y, self._previous)
            self.y = torch.where(fits, new, self.y)
            self._momentum = torch.where(fits, torch.where(uphill, 1, following), self._momentum)
            shorter = torch.where(going, step / 2, self._step)
            self._step = torch.where(fits, step, shorter)
            self._taken = self._taken + fits
            self._halved = torch.where(fits, 0, self._halved + going)

    def restart(self, y: Tensor, where: Tensor) -> None:
        """Continue from ``y`` without momentum in the rows ``where``."""
        self.y = torch.where(where, y, self.y)
        self._previous = torch.where(where, y, self._previous)
        self._momentum = torch.where(where, 1, self._momentum)


def _descended(problem: Problem, point: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """A proximal gradient step from ``point``, and whether it satisfies the quadratic upper bound,
    per row."""
    smooth = problem.smooth
    slope = problem.slope(point)
    base = value_of(smooth, simplex.inward(point), None).unsqueeze(-1)
    new = problem.nearest(point + step * slope, step)
    change = new - point
    # Ω(y⁺) ≤ Ω(w) + ⟨∇Ω(w), y⁺ − w⟩ + ‖y⁺ − w‖²/(2t)
    linear = row_dot(problem.z - slope, change)
    value = value_of(smooth, simplex.inward(new), None).unsqueeze(-1)
    slack = 4 * torch.finfo(new.dtype).eps * (base.abs() + value.abs() + linear.abs())
    return new, value <= base + linear + row_dot(change, change) / (2 * step) + slack
