"""Primal–dual interior point, for any smooth convex Ω, infinite slopes at 0 included."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import decisions, simplex, transforms
from ..kernels.simplex import row_dot
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from .base import Solver, earliest, newton


class Interior(Solver):
    """A primal–dual interior point method, for any smooth Ω.

    Newton on the perturbed KKT system (Boyd & Vandenberghe 2004, §11.7)

        ∇Ω(y) − z + τ1 − s = 0,   1ᵀy = 1,   y_i s_i = μ,   y, s > 0

    with μ → 0. Eliminating s gives (H + diag(s/y)) Δy + Δτ 1 = q, 1ᵀΔy = 0: Proposition 1's
    operator with s/y added to the curvature. If the slope is infinite at 0, plain Newton steps in
    log y from the barycentre are tried too: for an Ω close to an entropy they converge faster.
    """

    name: ClassVar[str] = "interior"
    SOON: ClassVar[int] = 60
    DIRECT: ClassVar[int] = 20
    CHECK: ClassVar[int] = 4
    PATIENCE: ClassVar[int] = 2

    def unsuitable(self, problem: Problem) -> str | None:
        return "a penalty has no Hessian" if problem.structured else None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        on = problem.participants()
        y = simplex.uniform(problem.z, problem.mask)
        s = torch.where(on, torch.ones_like(y), 0)
        tau = torch.where(on, problem.slope(y), -torch.inf).amax(-1, keepdim=True)
        best = problem.initial()  # an answer, perhaps, but not an interior point to start from
        problem.observe(best)
        bound = certify(problem.at(best)).error_bound
        iterations = torch.zeros_like(bound, dtype=torch.int64)
        count = on.sum(-1, keepdim=True)
        direct, idle = y, torch.zeros_like(iterations)
        least = torch.full_like(bound, torch.inf)
        stopped = bound <= tol  # a stopped row does not change any more
        end = 0 if decisions.all_of(stopped) else min(max_iter, 300)
        for k in range(1, end + 1):
            mu = 0.1 * row_dot(y, s) / count
            y, s, tau = _step(problem, y, s, tau, mu, on)
            iterations = torch.where(stopped, iterations, k)
            problem.observe(y)
            if k % self.CHECK and k < end:
                continue
            spent = mu.squeeze(-1) < torch.finfo(y.dtype).eps ** 2  # further steps change nothing
            candidates = [simplex.normalize(y), _finish(problem, y, s, on)]
            if problem.legendre and k <= self.DIRECT * self.CHECK:
                direct = newton(problem.at(direct))
                candidates.append(direct)
            active, last = ~stopped, bound
            for candidate in candidates:
                trial = certify(problem.at(candidate)).error_bound
                better = active & (trial < bound)
                best = torch.where(better.unsqueeze(-1), candidate, best)
                bound = torch.where(better, trial, bound)
            gains = (bound < 0.5 * last) | (mu.squeeze(-1) < 0.5 * least)
            least = torch.minimum(least, mu.squeeze(-1))
            idle = torch.where(gains, 0, idle + 1)
            stopped = stopped | (bound <= tol) | spent | (idle > self.PATIENCE)
            if problem.finished(stopped, k // self.CHECK, every=3):
                break
        return simplex.normalize(best), iterations


def _finish(problem: Problem, y: Tensor, s: Tensor, on: Tensor) -> Tensor:
    """One Newton step on the support {i : y_i > s_i} given by y and its multipliers."""
    if not problem.legendre:
        y = torch.where(on & (y > s), y, 0)
    total = y.sum(-1, keepdim=True)
    y = torch.where(total > 0, y / total.clamp_min(1e-30), simplex.uniform(y, on))
    return newton(problem.at(y))


def _residual(
    problem: Problem, y: Tensor, s: Tensor, tau: Tensor, mu: Tensor, on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Dual residual, complementarity, and the norm of both."""
    dual = torch.where(on, tau - problem.slope(y) - s, 0)
    central = torch.where(on, y * s - mu, 0)
    return dual, central, (row_dot(dual, dual) + row_dot(central, central)).sqrt()


def _step(
    problem: Problem, y: Tensor, s: Tensor, tau: Tensor, mu: Tensor, on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dual, central, norm = _residual(problem, y, s, tau, mu, on)
    inside = torch.where(on, y, 1)
    matrix = problem.curvature(y).plus_diagonal(s / inside)
    q = -dual - central / inside
    dy = torch.nan_to_num(matrix.jacobian(q, on))
    ds = torch.where(on, -(central + s * dy) / inside, 0)
    # the multiplier of 1ᵀΔy = 0, from the first equation of the system
    dtau = torch.where(on, q - matrix.matvec(dy), 0).sum(-1, keepdim=True)
    dtau = dtau / on.sum(-1, keepdim=True)

    def largest(v: Tensor, dv: Tensor) -> Tensor:
        ratio = torch.where(on & (dv < 0), -v / torch.where(dv < 0, dv, -1), torch.inf)
        return ratio.amin(-1, keepdim=True)

    longest = (0.99 * torch.minimum(largest(y, dy), largest(s, ds))).clamp_max(1)
    t = longest
    halves = 0.5 ** torch.arange(30, dtype=y.dtype, device=y.device)
    fits = torch.zeros_like(t, dtype=torch.bool)
    for some in halves.view(-1, *(1,) * y.ndim).split(15 if transforms.waits(y) else 1):
        shorter = some * longest
        left = _residual(problem, y + shorter * dy, s + shorter * ds, tau + shorter * dtau, mu, on)
        ok = left[2] <= (1 - 0.01 * shorter) * norm
        t = torch.where(fits, t, torch.where(ok.any(0), earliest(ok, shorter), shorter[-1]))
        fits = fits | ok.any(0)
        if transforms.waits(y) or bool(fits.all()):
            break
    return y + t * dy, s + t * ds, tau + t * dtau
