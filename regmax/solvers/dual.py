"""Root of the dual for separable Ω, given by value alone."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..curvature import Diagonal
from ..optimality import Problem
from .base import Solver, newton


class DualRoot(Solver):
    """For Ω(y) = Σ g_i(y_i): find τ with Σ_i y_i(τ) = 1, where y_i(τ) maximises
    y (z_i − τ) − g_i(y) over [0, 1], that is g_i'(y_i) = z_i − τ unless a bound holds.

    (Blondel, Martins & Niculae 2019, Prop. 5.) Both the inner inverse of g' and the outer root are
    Newton iterations kept inside a bracket that shrinks, so neither can fail on a convex Ω; the
    inner one works on log y, so that the slope of g at 0 may be infinite. A Newton step on the
    support is tried at every τ: once the support is right it ends the search.
    """

    name: ClassVar[str] = "dual"

    def unsuitable(self, problem: Problem) -> str | None:
        if problem.structured:
            return "a penalty is not separable"
        return None if problem.separable else "Ω is not separable"

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        on, z = problem.participants(), problem.z
        ones = torch.ones_like(z)
        count = on.sum(-1, keepdim=True).to(z.dtype)
        # at ``low`` some y_i is 1; at ``high`` each is at most 1/d
        low = torch.where(on, problem.slope(ones), -torch.inf).amax(-1, keepdim=True)
        high = torch.where(on, problem.slope(ones / count), -torch.inf).amax(-1, keepdim=True)
        logs = torch.where(on, -count.log(), -torch.inf).expand_as(z)
        tau = high
        done = torch.zeros_like(low, dtype=torch.bool)
        iterations = torch.zeros_like(low, dtype=torch.int64)
        best = torch.where(on, 1 / count, 0).expand_as(z)
        bound = torch.full_like(z[..., 0], torch.inf)
        for k in range(1, min(max_iter, 200) + 1):
            y, logs = _inverse(problem, tau, logs, on)
            total = y.sum(-1, keepdim=True)
            excess = total - 1
            candidate = newton(problem, torch.where(total > 0, y / total, best))
            trial_bound = problem.certify(candidate).error_bound
            better = ~done.squeeze(-1) & (trial_bound < bound)
            best = torch.where(better.unsqueeze(-1), candidate, best)
            bound = torch.where(better, trial_bound, bound)
            iterations = torch.where(done, iterations, k)
            low = torch.where(excess > 0, tau, low)
            high = torch.where(excess <= 0, tau, high)
            narrow = high - low <= 2 * torch.finfo(z.dtype).eps * tau.abs()
            done = done | narrow | (bound <= tol).unsqueeze(-1)
            if bool(done.all()):
                break
            # dy_i/dτ = −1/g''(y_i) on the interior
            h = _diagonal(problem, y)
            inside = on & (y > 0) & (y < 1)
            slope = torch.where(inside, 1 / h, 0).sum(-1, keepdim=True)
            trial = tau + excess / slope
            safe = (trial > low) & (trial < high) & torch.isfinite(trial)
            tau = torch.where(done, tau, torch.where(safe, trial, (low + high) / 2))
        return best, iterations.squeeze(-1)


def _diagonal(problem: Problem, y: Tensor) -> Tensor:
    curvature = problem.curvature(y)
    h = curvature.h if isinstance(curvature, Diagonal) else curvature.matvec(torch.ones_like(y))
    return h.clamp_min(torch.finfo(y.dtype).tiny)


def _inverse(problem: Problem, tau: Tensor, start: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """y_i(τ) and its logarithm, from the last τ's."""
    eps = torch.finfo(tau.dtype).eps
    lowest = torch.full_like(start, 2 * torch.log(torch.tensor(eps)).item())
    low, high = lowest, torch.zeros_like(start)
    logs = start.clamp(lowest, high)
    zero = ~on | (problem.slope(torch.zeros_like(start)) <= tau)  # z_i − g_i'(0) ≤ τ
    one = on & (problem.slope(torch.ones_like(start)) >= tau)
    settled = zero | one
    for _ in range(100):
        y = logs.exp()
        rise = problem.slope(y) - tau  # decreases in y
        low = torch.where(rise > 0, logs, low)
        high = torch.where(rise <= 0, logs, high)
        step = rise / (_diagonal(problem, y) * y)  # Newton on log y
        trial = logs + step
        near = step.abs() <= eps**0.5
        safe = near | ((trial > low) & (trial < high) & torch.isfinite(trial))
        trial = torch.where(safe, trial, (low + high) / 2).clamp(lowest, torch.zeros_like(logs))
        logs = torch.where(settled, logs, trial)
        settled = settled | near
        if bool(settled.all()):
            break
    y = torch.where(zero, 0, torch.where(one, 1, logs.exp()))
    return y, logs
