"""Newton's method on y = P(y + ηr), from where an augmented Lagrangian leads: for any smooth convex
Ω, on a domain of which only the projection P is known."""

from __future__ import annotations

import torch
from torch import Tensor

from ..domains import Projected
from ..kernels import decisions
from ..kernels.rowwise import matvec
from ..kernels.simplex import row_dot
from ..optimality.problem import Problem
from ..optimality.projected import hessian, inverse_of, projected, sized

SOFT, HARD = 1e-2, 1e-4
"""η h at the start and the end of the augmented Lagrangian, h the least curvature of an entry."""
STEP = 1e-3
"""η h of Newton's method: a larger one moves P too far, a smaller one hides r in rounding."""
ROUNDS = (0, 8, 16, 32, 64)
"""Steps of the augmented Lagrangian, after each of which Newton's method is tried."""
NEWTON = 30
FREE, LIFT = 12, 1e-3
"""Steps with small entries raised to a part of the largest."""
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
    domain, z, on = problem.bounds, problem.z, problem.participants()
    assert isinstance(domain, Projected)
    y = domain.middle(z) if problem.start is None else problem.start
    if problem.legendre:
        y = torch.where(on, y.clamp_min(1e-3 / z.shape[-1]), 0)
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
        if problem.legendre and not decisions.all_of(done | met):
            other, also, more = _newton(problem, _free(problem, y, h, FREE), h)
            found, spent = torch.where(met, found, other), spent + torch.where(met, 0, FREE + more)
            met = met | also
        answer = torch.where(done, answer, torch.where(met, found, y))
        iterations = iterations + torch.where(done.squeeze(-1), 0, steps + spent.squeeze(-1))
        done = done | met
        if decisions.all_of(done) or int(iterations.max()) >= max_iter:
            break

    def beyond(y: Tensor) -> Tensor:
        v = y + STEP / h * torch.where(on, problem.slope(y), 0)
        return domain.nearest(v)

    if not problem.legendre:
        return beyond(answer), iterations
    # small entries that P holds at 0 are told by the others
    small = done & (answer <= 1e-6 * answer.amax(-1, keepdim=True))
    told = torch.where(small, _free(problem, answer, h, 2), answer)
    left = [(beyond(y) - y).norm(dim=-1, keepdim=True) for y in (told, answer)]
    answer = torch.where(left[0] < left[1], told, answer)
    return torch.where(small, answer, domain.nearest(answer)), iterations


def _lowest(problem: Problem, p: Tensor) -> Tensor:
    """0 in rows in which P(v) is not negative, (*batch, 1): y is not either."""
    negative = (p < -1e-9 * (1 + p.abs().amax(-1, keepdim=True))).any(-1, keepdim=True)
    return torch.where(negative & (not problem.legendre), -torch.inf, 0).to(p)


def _descended(
    problem: Problem, y: Tensor, n: Tensor, eta: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y after a step that lowers φ, and n and η, which change where φ is lowest."""
    domain, on = problem.bounds, problem.participants()
    assert isinstance(domain, Projected)
    at, v = problem.at(y), y + eta * n
    p, a = projected(domain, v)
    low = _lowest(problem, p)
    g = torch.where(on, at.slope - (v - p) / eta, 0)
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
    slack = 64 * torch.finfo(y.dtype).eps * (1 + value.abs())
    for _ in range(40):
        new = _moved(problem, y, t * step, low)
        good = ~found & (phi(new) <= value - 1e-4 * t * falls + slack)
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


def _moved(problem: Problem, y: Tensor, step: Tensor, low: Tensor) -> Tensor:
    if problem.legendre:  # an entry that falls does so in log y
        ratio = torch.where(y > 0, step / torch.where(y > 0, y, 1), 0).clamp_max(0)
        return torch.where(step < 0, y * ratio.exp(), y + step)
    return torch.maximum(y + step, low)


def _free(problem: Problem, y: Tensor, h: Tensor, steps: int) -> Tensor:
    """y > 0 after steps of Newton's method on the affine map that P is where small entries are not
    held at 0: the large ones then tell what these are."""
    domain, on, eta = problem.bounds, problem.participants(), STEP / h
    assert isinstance(domain, Projected)
    for _ in range(steps):
        at = problem.at(y)
        r = torch.where(on, at.slope, 0)
        lifted = domain.nearest(torch.where(on, torch.maximum(y, LIFT * y.amax(-1, True)), 0))
        v = lifted + LIFT / 10 * y.amax(-1, True) * r / (1 + r.abs().amax(-1, True))
        p, a = projected(domain, v)
        beyond = p + matvec(a, y + eta * r - v) - y
        step = torch.nan_to_num(matvec(inverse_of(a, hessian(at), eta), beyond))
        ratio = torch.where(y > 0, step / torch.where(y > 0, y, 1), 0)
        y = y * ratio.clamp(-50, 1).exp()
    return y


def _newton(problem: Problem, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y after steps on y = P(y + ηr), the rows (*batch, 1) in which it holds but for rounding, and
    their steps."""
    domain, on, eta = problem.bounds, problem.participants(), STEP / h
    assert isinstance(domain, Projected)
    done = torch.zeros_like(y[..., :1], dtype=torch.bool)
    spent = torch.zeros_like(done, dtype=torch.int64)
    for _ in range(NEWTON):
        at = problem.at(y)
        r = torch.where(on, at.slope, 0)
        p, a = projected(domain, y + eta * r)
        inverse = inverse_of(a, hessian(at), eta)
        step = torch.nan_to_num((inverse @ (p - y).unsqueeze(-1)).squeeze(-1))
        size = y.norm(dim=-1, keepdim=True) + eta * r.norm(dim=-1, keepdim=True)
        off, left = (p - y).norm(dim=-1, keepdim=True), step.norm(dim=-1, keepdim=True)
        ends = (off <= EXACT * size) & (left <= EXACT * size / STEP)
        spent = spent + ~done
        if problem.legendre:
            # in log y; an entry that P holds at 0 falls, but not while one that fell too far grows
            ratio = torch.where(y > 0, step / torch.where(y > 0, y, 1), 0)
            small = y < EXACT / (2 * y.shape[-1] ** 0.5) * size
            held = (ratio < -0.5) & ((ratio > 0.01).any(-1, keepdim=True) | small)
            new = torch.where(ratio > 1, y + step, y * ratio.clamp(-0.9, 1).exp())
            new = torch.where(held, y, torch.where(y > 0, new, step.clamp_min(0)))
        else:
            new = torch.maximum(y + step, _lowest(problem, p))
            new = torch.where((y == 0) & (p > 0), p, new)  # its curvature there may be infinite
        y, done = torch.where(done, y, new), done | ends
        if decisions.all_of(done):
            break
    return y, done, spent
