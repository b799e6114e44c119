"""Dual proximal gradient steps for Ω = base + λR, R given by its prox."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..kernels.simplex import row_dot
from ..optimality.problem import Problem
from ..regularizers.penalty import Penalized, proxed, value_of
from .base import Solver, slack, solve, tried
from .newton import Newton


class Proximal(Solver):
    """Accelerated steps of the dual, for any base and any penalty.

    By Fenchel duality

        max_{y ∈ Δ} ⟨y, z⟩ − base(y) − λR(y) = min_u max_base(z − u) + (λR)*(u),

    and y = Π_base(z − u). FISTA on u (Beck & Teboulle 2009): the gradient of max_base is Π_base,
    with Lipschitz constant 1/β, and the prox of the conjugate is v − t prox_{λR/t}(v/t) (Moreau's
    identity). The momentum restarts when it points uphill. Every ``CHECK`` iterations a Newton step
    is tried, which reaches y* if the support is right and R is smooth on it.
    """

    name: ClassVar[str] = "proximal"
    CHECK: ClassVar[int] = 10

    def unsuitable(self, problem: Problem) -> str | None:
        return "the penalty is a Lovász extension: use fista" if problem.structured else None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        omega, z, on = problem.omega, problem.z, problem.participants()
        if not isinstance(omega, Penalized):  # u = 0
            y, _ = _Mapping(problem)(z)
            return y, torch.ones_like(z[..., 0], dtype=torch.int64)
        base = _Mapping(problem)
        u = previous = torch.zeros_like(z)
        momentum, step = torch.ones_like(z[..., :1]), base.step
        y = problem.initial()
        problem.observe(y)
        done = torch.zeros_like(z[..., 0], dtype=torch.bool)
        iterations = torch.zeros_like(done, dtype=torch.int64)
        for k in range(1, max_iter + 1):
            following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
            ahead = u + (momentum - 1) / following * (u - previous)
            primal, value = base(z - ahead)
            for _ in range(60):
                v = ahead + step * primal
                p = proxed(omega.penalty, v / step, omega.lam / step, problem.mask)
                new = torch.where(on, v - step * torch.nan_to_num(p), 0)
                if base.declared:
                    break
                # max_base(z − u⁺) ≤ max_base(z − w) − ⟨y, u⁺ − w⟩ + ‖u⁺ − w‖²/(2t)
                change = new - ahead
                most = value - row_dot(primal, change) + row_dot(change, change) / (2 * step)
                fits = (base(z - new)[1] <= most + slack(value)) | (step <= 1e-12)
                if decisions.all_of(fits):
                    break
                step = torch.where(fits, step, step / 2)
            uphill = row_dot(ahead - new, new - u) > 0
            previous, u = u, new
            momentum = torch.where(uphill, 1, following)
            y = torch.where(done.unsqueeze(-1), y, primal)
            iterations = torch.where(done, iterations, k)
            problem.observe(y)
            if k % self.CHECK == 0 or k == max_iter or k == 1:
                y, done = tried(problem, y, done, tol)
                if decisions.all_of(done):
                    break
        return y, iterations


class _Mapping:
    """Π_base and max_base without gradients; ``step``: the declared β, or an initial step size."""

    def __init__(self, problem: Problem) -> None:
        base = problem.base
        self._base, self._mask = base.omega, problem.mask
        self.declared = base.beta is not None
        if base.beta is not None:
            self.step = base.beta
        else:
            middle = base.at(simplex.uniform(problem.z, problem.mask))
            low = middle.inverse(problem.participants()).min_eigenvalue
            self.step = torch.nan_to_num(low, nan=1.0).clamp(1e-6, 1e6).unsqueeze(-1)
        self._solver = Newton()
        self._last: Tensor | None = None

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        top = scores if self._mask is None else scores.masked_fill(~self._mask, -torch.inf)
        shifted = scores - top.amax(-1, keepdim=True)
        if self._mask is not None:
            shifted = torch.where(self._mask, shifted, 0)
        y = self._base.closed_form(shifted, 1.0, self._mask)
        if y is None:
            inner = Problem(self._base, shifted, self._mask, self._last)
            y = solve(inner, self._solver, 1e-12, 50).y
            self._last = y
        value = row_dot(y, scores) - value_of(self._base, simplex.inward(y), None).unsqueeze(-1)
        return y, value
