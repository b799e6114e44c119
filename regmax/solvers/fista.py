"""FISTA with backtracking and adaptive restart (Niculae & Blondel 2017, App. B.4)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from .. import simplex
from ..optimality import Problem
from ..penalty import Penalized, smooth_part
from ..simplex import row_dot
from .base import Solver, newton


class Fista(Solver):
    """y⁺ = P_Δ(prox_{tλR}(w + t(z − ∇Ω(w)))) from an extrapolated point w.

    Beck & Teboulle (2009), step sizes by backtracking per row; the momentum restarts when it
    points uphill (O'Donoghue & Candès 2015). Every ``CHECK`` iterations a Newton step on the
    current support is tried: once the support is right it ends the search.
    """

    name: ClassVar[str] = "fista"
    CHECK: ClassVar[int] = 10

    def unsuitable(self, problem: Problem) -> str | None:
        if problem.steep:
            return "the slope of Ω is infinite at 0, so no step size is safe"
        return None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y = simplex.uniform(problem.z, problem.mask)
        previous, momentum = y, torch.ones_like(y[..., :1])
        step = torch.ones_like(momentum)
        done = torch.zeros_like(momentum, dtype=torch.bool)
        iterations = torch.zeros(y.shape[:-1], dtype=torch.int64, device=y.device)
        for k in range(1, max_iter + 1):
            following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
            ahead = y + (momentum - 1) / following * (y - previous)
            point = simplex.project(ahead, problem.mask)  # Ω need not be defined outside Δ
            new, step = _descend(problem, point, step)
            uphill = row_dot(point - new, new - y) > 0
            previous = torch.where(done, previous, y)
            y = torch.where(done, y, new)
            momentum = torch.where(uphill, 1, following)
            iterations = torch.where(done.squeeze(-1), iterations, k)
            if k % self.CHECK == 0 or k == max_iter:
                candidate = newton(problem, y)
                bound, other = problem.certify(y), problem.certify(candidate)
                better = other.error_bound < bound.error_bound
                reached = torch.minimum(bound.error_bound, other.error_bound) <= tol
                y = torch.where(~done & (better & reached).unsqueeze(-1), candidate, y)
                done = done | reached.unsqueeze(-1)
                if bool(done.all()):
                    break
        return y, iterations


def _descend(problem: Problem, point: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """A proximal gradient step from ``point`` that meets the quadratic upper bound, per row."""
    smooth = smooth_part(problem.omega)
    slope = problem.slope(point)
    base = smooth.value(simplex.inward(point)).unsqueeze(-1)
    step = step * 1.2
    new = point
    for _ in range(60):
        new = _proximal(problem, point + step * slope, step)
        change = new - point
        # Ω(y⁺) ≤ Ω(w) + ⟨∇Ω(w), y⁺ − w⟩ + ‖y⁺ − w‖²/(2t)
        linear = row_dot(problem.z - slope, change)
        value = smooth.value(simplex.inward(new)).unsqueeze(-1)
        slack = 4 * torch.finfo(new.dtype).eps * (base.abs() + value.abs() + linear.abs())
        ok = value <= base + linear + row_dot(change, change) / (2 * step) + slack
        if bool(ok.all()):
            break
        step = torch.where(ok, step, step / 2)
    return new, step


def _proximal(problem: Problem, v: Tensor, step: Tensor) -> Tensor:
    """prox of step·λR plus the indicator of Δ: P_Δ ∘ prox (2017, Prop. 2)."""
    omega = problem.omega
    if isinstance(omega, Penalized):
        v = omega.penalty.prox(v, step * omega.lam, problem.mask)
    return simplex.project(v, problem.mask)
