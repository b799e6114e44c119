"""The method of multipliers for an Ω whose value has kinks (:mod:`regmax.regularizers.kinks`).

It solves the problem of the augmented Lagrangian, which is differentiable, and moves the centre of
each multiplier to where its maximum is attained (Rockafellar 1976, section 4):

    y ← argmax_{y ∈ Δ} ⟨y, z⟩ − Ω_ρ(y; m̄),      m̄ ← P_M(m̄ + ρ u(y)).

At a fixed point y is the maximiser for Ω itself. With large ρ a step divides the distance to it by
about ρ; ρ grows from step to step, as large ρ makes the problem hard far from the solution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernels import simplex
from ..optimality.jacobian import tied_rows
from ..optimality.problem import Problem
from ..regularizers.kinks import Augmented, Kinks, TooMany
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from .base import Solved, solve
from .compiled import Memory, compiled
from .newton import Newton

STEPS = 40
"""Steps of the method of multipliers."""
FACTOR, HARDEST = 3, 1e3
"""The curvature of the augmented terms over that of Ω grows by the first up to the second."""
SOFT = 1e2
"""The same for the certificate, whose rounding error is proportional to it."""
ROUNDS = 8
"""Steps with a certificate."""
NEAR, LAST = 1e-11, 1e-9
"""A step of the first length is the last, unless it is rounding; one longer than the second is
not."""


@dataclass(frozen=True, eq=False)
class Tied(Solved):
    """Answers on kinks of Ω, with its augmented Lagrangian there; None where no kink binds one."""

    augmented: Augmented | None


def multiplied(problem: Problem, tol: float) -> Tied | None:
    """Answers for an Ω with kinks; None where its value has no kinks that are known, or falls with
    one of them. Where the steps do not converge the bound of a row is +inf."""
    omega, z, mask = problem.omega, problem.z, problem.mask
    if isinstance(omega, Penalized) or problem.trace is not None:
        return None
    memory: Memory = {}
    try:
        scales = _scales(problem)
    except TooMany:
        return None
    if scales is None:
        return None
    centres, rho = scales
    y, length, hardness = problem.initial(), torch.inf, 1.0

    def augmented(hardness: float) -> Augmented:
        return Augmented(omega, centres, [hardness * r for r in rho])

    for _ in range(STEPS):
        own = augmented(hardness)
        before, last, known = y, length, centres
        y, there = _near(Problem(own, z, mask, y), memory)
        centres = _attained(own, y)
        length = float((y - before).norm(dim=-1).max())
        same = all(map(torch.equal, known, centres))
        near = hardness >= HARDEST and (length <= NEAR or last / 2 < length <= LAST)
        if there and (same or near):
            break
        if there:
            hardness = min(FACTOR * hardness, HARDEST)
    for _ in range(ROUNDS):
        own = augmented(SOFT)
        found = _certified(Problem(own, z, mask, y), memory, tol)
        moved, y = (found.y - y).norm(dim=-1), found.y
        if bool((moved <= NEAR).all()):
            break
        centres = _attained(own, y)
    if _falls(own, y):
        return None
    # a step is far shorter than the one before, up to rounding: so are those that would follow
    bound = torch.where(moved <= LAST, found.certificate.error_bound + 2 * moved, torch.inf)
    y, further = _rounded(problem, y, bound)
    certificate = replace(found.certificate, error_bound=(bound + further).clamp_max(2**0.5))
    tied: Augmented | None = augmented(HARDEST)
    if tied is not None and not bool(tied_rows(tied, y).any()):
        tied = None
    path = f"multipliers, then {found.path}"
    return Tied(problem.at(y), found.iterations, certificate, path, tied)


def _rounded(problem: Problem, y: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """y with entries that are equal, or 0, within its error made so, and the length of the
    change."""
    bound = torch.where(torch.isfinite(bound), bound, 0)
    near, order = y.sort(-1, descending=True)
    if not problem.legendre:
        near = torch.where(near <= bound.unsqueeze(-1), 0, near)
    apart = -near.diff(dim=-1, prepend=near[..., :1]) > bound.unsqueeze(-1)
    group = apart.cumsum(-1)
    total = torch.zeros_like(y).scatter_add(-1, group, near)
    count = torch.zeros_like(y).scatter_add(-1, group, torch.ones_like(y))
    mean = (total / count.clamp_min(1)).gather(-1, group)
    found = simplex.normalize(torch.empty_like(y).scatter(-1, order, mean))
    return found, (found - y).norm(dim=-1)


def _near(problem: Problem, memory: Memory) -> tuple[Tensor, bool]:
    """The maximiser, or a point that is nearer to it than the start, and whether it is the
    maximiser."""
    found = compiled(problem, memory, certified=False)
    if found is not None:
        return found.y, bool((found.certificate.error_bound == 0).all())
    return Newton().run(problem, 1e-12, 60)[0], True


def _certified(problem: Problem, memory: Memory, tol: float) -> Solved:
    found = compiled(problem, memory)
    if found is not None and bool((found.certificate.error_bound <= tol).all()):
        return found
    return solve(problem, Newton(), tol, 60)


def _scales(problem: Problem) -> tuple[list[Tensor], list[float]] | None:
    """The first centres, in the middle of each M, and ρ that make the curvature of the augmented
    terms that of the rest of Ω, from two points of Δ; None where the value has no kinks."""
    a = simplex.uniform(problem.z, problem.mask)
    b = (a + simplex.normalize(torch.where(a > 0, simplex.generic(a), 0))) / 2
    (first, slope, weights), (second, other, more) = (_look(problem.omega, y) for y in (a, b))
    if not first.maxima:
        return None
    far = (b - a).norm(dim=-1).max()
    bent, rho = (other - slope).norm(dim=-1).max() / far, []
    for u, v, w, x in zip(first.u, second.u, weights, more, strict=True):
        steep = (v - u).detach().abs().max() / far
        own = torch.maximum(w.abs().max(), x.abs().max()) * steep.square()
        rho.append(float(bent / own) if own > 1e-12 * bent else 1.0)
    return first.multipliers, rho


def _look(
    omega: Regularizer,
    y: Tensor,
    centres: list[Tensor] | None = None,
    rho: list[float] | None = None,
) -> tuple[Kinks, Tensor, list[Tensor]]:
    """The maxima in the value of Ω at y, and the gradients in y and in the maxima."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        with Kinks(centres, rho) as kinks:
            value = omega.value(at)
        inputs = [at, *(t for t in kinks.maxima if t.requires_grad)]
        gradient, *found = torch.autograd.grad(
            value.sum(), inputs, allow_unused=True, materialize_grads=True
        )
    weights = [found.pop(0) if t.requires_grad else torch.zeros_like(t) for t in kinks.maxima]
    return kinks, gradient, weights


def _attained(own: Augmented, y: Tensor) -> list[Tensor]:
    """The multipliers at y."""
    at = simplex.inward(y)
    with Kinks(own.centres, own.rho) as kinks:
        own.omega.value(at)
    found: list[Tensor] = kinks.multipliers
    return found


def _falls(own: Augmented, y: Tensor) -> bool:
    """Whether the value falls with a maximum."""
    _, _, weights = _look(own.omega, y, own.centres, own.rho)
    return any(bool((w < -1e-12 * (1 + w.abs().max())).any()) for w in weights)
