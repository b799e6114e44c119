"""Newton's method on y = P(y + ηr), from where an augmented Lagrangian leads: for any smooth convex
Ω with a finite slope, on a domain of which only the projection P is known."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import decisions
from ..kernels.simplex import row_dot
from ..optimality.problem import Problem
from ..optimality.projected import hessian, inverse_of, projected, sized
from .base import slack

SOFT, HARD = 1e-2, 1e-4
"""η h at the start and the end of the augmented Lagrangian, h the least curvature of an entry."""
STEP = 1e-3
"""η h of Newton's method: a larger one moves P too far, a smaller one hides r in rounding."""
ROUNDS = (0, 8, 16, 32, 64)
"""Steps of the augmented Lagrangian, after each of which Newton's method is tried."""
NEWTON = 30
EXACT = 1e-12
"""A fixed point to this is one."""


def augmented(problem: Problem, max_iter: int) -> tuple[Tensor, Tensor]:
    """(y, iterations) of max_{y ∈ D} ⟨y, z⟩ − Ω(y).

    Newton steps lead to the least

        φ(y) = Ω(y) − ⟨y, z⟩ + ‖v − P(v)‖²/2η,    v = y + ηn,

    whose gradient is m − r with m = (v − P(v))/η and whose curvature is H + (I − P')/η. There n
    becomes m (Rockafellar 1976). From any y, φ falls; near y*, Newton's method on y = P(y + ηr),
    r = z − ∇Ω(y), is exact in a few steps, and keeps the digits of small entries. An entry that P
    does not make negative is not.
    """
    domain, z, on = problem.projection, problem.z, problem.participants()
    y = domain.middle(z) if problem.start is None else problem.start
    h = sized(hessian(problem.at(y)))
    first = y + torch.where(on, problem.slope(y), 0) / h
    n, eta = (first - domain.nearest(first)) * h, SOFT / h
    answer, done = y, torch.zeros_like(y[..., :1], dtype=torch.bool)
    iterations = torch.zeros_like(y[..., 0], dtype=torch.int64)
    for steps in ROUNDS:
        for _ in range(steps):
            y, n, eta = _descended(problem, y, n, eta, h)
            problem.observe(y)
        found, met, spent = _newton(problem, y, h)
        answer = torch.where(done, answer, torch.where(met, found, y))
        iterations = iterations + torch.where(done.squeeze(-1), 0, steps + spent.squeeze(-1))
        done = done | met
        if decisions.all_of(done) or int(iterations.max()) >= max_iter:
            break

    v = answer + STEP / h * torch.where(on, problem.slope(answer), 0)
    found = domain.nearest(v)
    finite = torch.isfinite(problem.objective(found)).unsqueeze(-1)
    return torch.where(finite, found, domain.nearest(answer)), iterations


def _lowest(problem: Problem, p: Tensor) -> Tensor:
    """0 in rows in which P(v) is not negative, (*batch, 1): y is not either."""
    negative = (p < -1e-9 * (1 + p.abs().amax(-1, keepdim=True))).any(-1, keepdim=True)
    return torch.where(negative, -torch.inf, 0).to(p)


def _descended(
    problem: Problem, y: Tensor, n: Tensor, eta: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y after a step that lowers φ, and n and η, which change where φ is lowest."""
    domain, on = problem.projection, problem.participants()
    at, v = problem.at(y), y + eta * n
    p, a = projected(domain, v)
    g = torch.where(on, at.slope - (v - p) / eta, 0)
    low = _lowest(problem, torch.minimum(p, domain.nearest(y + g / h)))  # v may be inside of D
    free = on & ((y > low) | (g > 0))
    g = torch.where(free, g, 0)
    eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    matrix = hessian(at) + (eye - a) / eta.unsqueeze(-1)
    matrix = torch.where(free.unsqueeze(-1) & free.unsqueeze(-2), matrix, eye)
    scale = matrix.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(y.dtype).tiny).rsqrt()
    matrix = matrix * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    matrix = matrix + 4 * torch.finfo(y.dtype).eps * eye
    step = torch.linalg.solve_ex(matrix, (scale * g).unsqueeze(-1))[0].squeeze(-1) * scale
    step = torch.nan_to_num(torch.where(free, step, 0))

    def phi(y: Tensor) -> Tensor:
        v = y + eta * n
        far = (v - domain.nearest(v)).square().sum(-1, keepdim=True) / (2 * eta)
        return far - problem.objective(y).unsqueeze(-1)

    value, falls = phi(y), row_dot(g, step)
    t, found, best = torch.ones_like(value), torch.zeros_like(value, dtype=torch.bool), y
    for _ in range(40):
        new = torch.maximum(y + t * step, low)
        good = ~found & (phi(new) <= value - 1e-4 * t * falls + slack(value))
        best, found = torch.where(good, new, best), found | good
        if decisions.all_of(found):
            break
        t = torch.where(found, t, t / 2)
    v = best + eta * n
    p = domain.nearest(v)
    off, left = ((best - p).norm(dim=-1, keepdim=True), step.norm(dim=-1, keepdim=True))
    lowest = left <= 0.1 * off
    n = torch.where(lowest, (v - p) / eta, n)
    return best, n, torch.where(lowest, (eta / 10).clamp_min(HARD / h), eta)


def _newton(problem: Problem, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y after steps on y = P(y + ηr), the rows (*batch, 1) in which it holds but for rounding, and
    their steps."""
    domain, on, eta = problem.projection, problem.participants(), STEP / h
    done = torch.zeros_like(y[..., :1], dtype=torch.bool)
    spent, last = torch.zeros_like(done, dtype=torch.int64), torch.full_like(y[..., :1], torch.inf)
    for _ in range(NEWTON):
        at = problem.at(y)
        r = torch.where(on, at.slope, 0)
        p, a = projected(domain, y + eta * r)
        inverse = inverse_of(a, hessian(at), eta)
        step = torch.nan_to_num((inverse @ (p - y).unsqueeze(-1)).squeeze(-1))
        size = y.norm(dim=-1, keepdim=True) + eta * r.norm(dim=-1, keepdim=True)
        off, left = (p - y).norm(dim=-1, keepdim=True), step.norm(dim=-1, keepdim=True)
        # next to a y with a slope of 1e40, the step that leaves it is rounding
        small = EXACT * torch.minimum(size, last)
        ends = (off <= small) & (left <= small / STEP) & (size < torch.inf)
        spent, last = spent + ~done, size
        new = torch.maximum(y + step, _lowest(problem, p))
        new = torch.where((y == 0) & (p > 0), p, new)  # its curvature there may be infinite
        new = torch.where(torch.isfinite(new).all(-1, keepdim=True), new, y)
        y, done = torch.where(done, y, new), done | ends
        if decisions.all_of(done):
            break
    return y, done, spent
