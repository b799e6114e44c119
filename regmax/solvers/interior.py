"""Primal–dual interior point, for any smooth convex Ω, infinite slopes at 0 included, on any
domain."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ..domains import Bounded, Projected
from ..domains.base import Face
from ..kernels import decisions, transforms
from ..kernels.simplex import row_dot
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from .base import Solver, chosen, earliest, newton

Multipliers = list[Tensor]
"""Of the lower bounds, and of the upper ones if there are any."""


class Interior(Solver):
    """A primal–dual interior point method, for any smooth Ω.

    Newton on the perturbed KKT system (Boyd & Vandenberghe 2004, §11.7)

        ∇Ω(y) − z + τ1 − s = 0,   1ᵀy = 1,   y_i s_i = μ,   y, s > 0

    with μ → 0. Eliminating s gives (H + diag(s/y)) Δy + Δτ 1 = q, 1ᵀΔy = 0: Proposition 1's
    operator with s/y added to the curvature. Upper bounds have multipliers as well, and τ = 0
    without a sum; Σy ≤ k counts where y without it exceeds k.
    """

    name: ClassVar[str] = "interior"
    domains: ClassVar[bool] = True
    SOON: ClassVar[int] = 60
    CHECK: ClassVar[int] = 4
    PATIENCE: ClassVar[int] = 2

    def unsuitable(self, problem: Problem) -> str | None:
        return "a penalty has no Hessian" if problem.structured else None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        bounds = problem.bounds
        if isinstance(bounds, Bounded) and bounds.at_most:
            apart = replace(problem, bounds=replace(bounds, total=None, at_most=False))
            y, steps = self.run(apart, tol, max_iter)
            tight = replace(problem, bounds=replace(bounds, at_most=False))
            other, more = self.run(tight, tol, max_iter)
            over = bounds.excess(y).unsqueeze(-1) > 0
            return torch.where(over, other, y), torch.where(over.squeeze(-1), more, steps)
        on = problem.movable()
        y = problem.domain.middle(problem.z)
        s = [torch.where(on, torch.ones_like(y), 0) for _ in problem.domain.rooms(y)]
        tau = torch.where(on, problem.slope(y), -torch.inf).amax(-1, keepdim=True)
        if bounds is not None:
            tau = torch.where(torch.isfinite(tau) & (bounds.total is not None), tau, 0)
        best = problem.initial()  # an answer, perhaps, but not an interior point to start from
        problem.observe(best)
        bound = certify(problem.at(best)).error_bound
        iterations = torch.zeros_like(bound, dtype=torch.int64)
        count = (on.sum(-1, keepdim=True) * len(s)).clamp_min(1)
        idle = torch.zeros_like(iterations)
        least = torch.full_like(bound, torch.inf)
        stopped = bound <= tol  # a stopped row does not change any more
        end = 0 if decisions.all_of(stopped) else min(max_iter, 300)
        for k in range(1, end + 1):
            mu = 0.1 * _product(problem, y, s) / count
            y, s, tau = _step(problem, y, s, tau, mu, on)
            iterations = torch.where(stopped, iterations, k)
            problem.observe(y)
            if k % self.CHECK and k < end:
                continue
            spent = mu.squeeze(-1) < torch.finfo(y.dtype).eps ** 2  # further steps change nothing
            active, last = ~stopped, bound
            for candidate in (problem.inside(y), _finish(problem, y, s, on)):
                trial = certify(problem.at(candidate)).error_bound
                better = active & (trial < bound)
                best = chosen(better, candidate, best)
                bound = torch.where(better, trial, bound)
            gains = (bound < 0.5 * last) | (mu.squeeze(-1) < 0.5 * least)
            least = torch.minimum(least, mu.squeeze(-1))
            idle = torch.where(gains, 0, idle + 1)
            stopped = stopped | (bound <= tol) | spent | (idle > self.PATIENCE)
            if problem.finished(stopped, k // self.CHECK, every=3):
                break
        return problem.inside(best), iterations


def _product(problem: Problem, y: Tensor, s: Multipliers) -> Tensor:
    """Σ y_i s_i, over both bounds."""
    each = [row_dot(room, t) for room, t in zip(problem.domain.rooms(y), s, strict=True)]
    return sum(each[1:], each[0])


def _finish(problem: Problem, y: Tensor, s: Multipliers, on: Tensor) -> Tensor:
    """One Newton step on the face {i : y_i > s_i} given by y and its multipliers."""
    domain, free = problem.domain, on
    for room, t in zip(domain.rooms(y), s, strict=True):
        free = free & (room > t)
    free = free | (problem.infinite_slope & ~domain.capped(y))  # such an entry is not at 0
    return newton(problem.at(problem.inside(domain.settled(y, free))))


def _residual(
    problem: Problem, y: Tensor, s: Multipliers, tau: Tensor, mu: Tensor, on: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Dual residual, complementarity, and the norm of both."""
    dual = tau - problem.slope(y) - s[0]
    dual = torch.where(on, dual if len(s) == 1 else dual + s[1], 0)
    rooms = problem.domain.rooms(y)
    central = [torch.where(on, room * t - mu, 0) for room, t in zip(rooms, s, strict=True)]
    squares = row_dot(dual, dual)
    for each in central:
        squares = squares + row_dot(each, each)
    return dual, central, squares.sqrt()


def _step(
    problem: Problem, y: Tensor, s: Multipliers, tau: Tensor, mu: Tensor, on: Tensor
) -> tuple[Tensor, Multipliers, Tensor]:
    dual, central, norm = _residual(problem, y, s, tau, mu, on)
    rooms = [torch.where(on, room, 1) for room in problem.domain.rooms(y)]
    matrix, q = problem.curvature(y), -dual
    for sign, room, t, each in zip((1, -1), rooms, s, central, strict=False):
        matrix, q = matrix.plus_diagonal(t / room), q - sign * (each / room)
    assert not isinstance(problem.bounds, Projected)
    face = Face(on, None if problem.bounds is None else problem.bounds.fixed)
    dy = torch.nan_to_num(problem.domain.jacobian(matrix, q, face))
    ds = [
        torch.where(on, -(each + sign * t * dy) / room, 0)
        for sign, room, t, each in zip((1, -1), rooms, s, central, strict=False)
    ]
    # the multiplier of 1ᵀΔy = 0, from the first equation of the system
    dtau = torch.where(on, q - matrix.matvec(dy), 0).sum(-1, keepdim=True)
    dtau = dtau / on.sum(-1, keepdim=True).clamp_min(1)
    if face.fixed is not None:
        dtau = torch.where(face.fixed, dtau, 0)

    def largest(v: Tensor, dv: Tensor) -> Tensor:
        ratio = torch.where(on & (dv < 0), -v / torch.where(dv < 0, dv, -1), torch.inf)
        return ratio.amin(-1, keepdim=True)

    ends = [largest(t, dt) for t, dt in zip(s, ds, strict=True)]
    ends += [largest(room, sign * dy) for sign, room in zip((1, -1), rooms, strict=False)]
    longest = (0.99 * functools.reduce(torch.minimum, ends)).clamp_max(1)
    t = longest
    halves = 0.5 ** torch.arange(30, dtype=y.dtype, device=y.device)
    fits = torch.zeros_like(t, dtype=torch.bool)
    for some in halves.view(-1, *(1,) * y.ndim).split(15 if transforms.waits(y) else 1):
        shorter = some * longest
        ahead = [a + shorter * da for a, da in zip(s, ds, strict=True)]
        left = _residual(problem, y + shorter * dy, ahead, tau + shorter * dtau, mu, on)
        ok = left[2] <= (1 - 0.01 * shorter) * norm
        t = torch.where(fits, t, torch.where(ok.any(0), earliest(ok, shorter), shorter[-1]))
        fits = fits | ok.any(0)
        if transforms.waits(y) or bool(fits.all()):
            break
    return y + t * dy, [a + t * da for a, da in zip(s, ds, strict=True)], tau + t * dtau
