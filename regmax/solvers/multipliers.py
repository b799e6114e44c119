"""The method of multipliers for an Ω whose value has kinks (:mod:`regmax.regularizers.kinks`).

It solves the problem of the augmented Lagrangian, which is differentiable, and moves the centre of
each multiplier to where its maximum is attained (Rockafellar 1976, section 4):

    y ← argmax_{y ∈ Δ} ⟨y, z⟩ − Ω_ρ(y; m̄),      m̄ ← P_M(m̄ + ρ u(y)).

At a fixed point y is the maximiser for Ω itself. With large ρ a step divides the distance to it by
about ρ; ρ grows from step to step, as large ρ makes the problem hard far from the solution.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels import simplex
from ..optimality.problem import Problem
from ..regularizers.kinks import Augmented, Kinks, TooMany
from .base import Solved, solve
from .compiled import Memory, compiled
from .newton import Newton

STEPS = 20
"""Steps of the method of multipliers."""
HARDEST = 1e3
"""The curvature of the augmented terms over that of Ω, after the first steps."""
SOFT = 1e2
"""The same for the certificate, whose rounding error is proportional to it."""
ROUNDS = 4
"""Steps with a certificate."""
NEAR, LAST = 1e-11, 1e-9
"""A step of the first length is the last, unless it is rounding; one longer than the second is
not."""


def multiplied(problem: Problem, memory: Memory, tol: float) -> Solved | None:
    """Solve for an Ω with kinks: the point is one of the problem of its augmented Lagrangian, whose
    derivatives are those of Ω along the kinks. None where the value has no kinks that are known, or
    falls with one of them; the bound of a row is +inf where the steps do not converge."""
    omega, z = problem.omega, problem.z
    try:
        weights = _weights(problem)
    except TooMany:
        return None
    if weights is None:
        return None
    centres, rho = weights
    y, length, hardness = problem.initial(), torch.inf, 1.0

    def augmented(hardness: float) -> Augmented:
        return Augmented(omega, centres, [hardness * r for r in rho])

    for _ in range(STEPS):
        own = augmented(hardness)
        before, y, last = y, _near(Problem(own, z, problem.mask, y), memory), length
        known, centres = centres, _attained(own, y)
        length = float((y - before).norm(dim=-1).max())
        same = all(map(torch.equal, known, centres))
        if same or (hardness >= HARDEST and (length <= NEAR or length > last / 2)):
            break
        hardness = min(10 * hardness, HARDEST)
    for _ in range(ROUNDS):
        own = augmented(SOFT)
        found = _certified(Problem(own, z, problem.mask, y), memory, tol)
        moved, y = (found.y - y).norm(dim=-1), found.y
        if bool((moved <= NEAR).all()):
            break
        centres = _attained(own, y)
    if _falls(own, y):
        return None
    # a step is far shorter than the one before, up to rounding: so are those that would follow
    bound = torch.where(moved <= LAST, found.certificate.error_bound + 2 * moved, torch.inf)
    y, further = _rounded(problem, found.y, bound)
    bound = (bound + further).clamp_max(2**0.5)
    at = Problem(augmented(HARDEST), z, problem.mask).at(y)
    certificate = replace(found.certificate, error_bound=bound)
    return Solved(at, found.iterations, certificate, f"multipliers, then {found.path}")


def _rounded(problem: Problem, y: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """y with entries that are equal, or 0, within its error made so, and the length of the
    change."""
    near, order = y.sort(-1, descending=True)
    near = torch.where((near <= bound.unsqueeze(-1)) , 0, near)
    apart = -near.diff(dim=-1, prepend=near[..., :1]) > bound.unsqueeze(-1)
    group = apart.cumsum(-1)
    total = torch.zeros_like(y).scatter_add(-1, group, near)
    count = torch.zeros_like(y).scatter_add(-1, group, torch.ones_like(y))
    mean = (total / count.clamp_min(1)).gather(-1, group)
    found = simplex.normalize(torch.empty_like(y).scatter(-1, order, mean))
    return found, (found - y).norm(dim=-1)


def _near(problem: Problem, memory: Memory) -> Tensor:
    """The maximiser without a certificate."""
    found = compiled(problem, memory, certified=False)
    if found is not None and bool(torch.isfinite(found.certificate.error_bound).all()):
        return found.y
    return Newton().run(problem, 1e-12, 60)[0]


def _certified(problem: Problem, memory: Memory, tol: float) -> Solved:
    found = compiled(problem, memory)
    if found is not None and bool((found.certificate.error_bound <= tol).all()):
        return found
    return solve(problem, Newton(), tol, 60)


def _weights(problem: Problem) -> tuple[list[Tensor], list[float]] | None:
    """The first centres, in the middle of each M, and ρ that make the curvature of the augmented
    terms that of the rest of Ω, from two points of Δ; None where the value has no kinks."""
    a = simplex.uniform(problem.z, problem.mask)
    b = (a + simplex.normalize(torch.where(a > 0, simplex.generic(a), 0))) / 2
    here, there = (_look(problem.omega, at) for at in (a, b))
    if not here[0]:
        return None
    far = (b - a).norm(dim=-1).max()
    bent = (there[2] - here[2]).norm(dim=-1).max() / far
    rho = []
    for u, v, weight, other in zip(here[0], there[0], here[1], there[1], strict=True):
        steep = (v - u).abs().max() / far
        own = torch.maximum(weight.abs().max(), other.abs().max()) * steep.square()
        rho.append(float(bent / own) if own > 1e-12 * bent else 1.0)
    return here[3], rho


def _look(
    omega: Augmented | Problem, y: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor, list[Tensor]]:
    """u, the derivatives of Ω by the maxima, ∇L and the multipliers at y, in the middle of each
    M."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        with Kinks(None, None) as kinks:
            value = omega.value(at)
        inside = [t for t in kinks.maxima if t.requires_grad]
        if not inside:
            return [], [], y, []
        gradient, *weights = torch.autograd.grad(
            value.sum(), [at, *kinks.maxima], allow_unused=True
        )
    weights = [torch.zeros_like(u) if w is None else w for u, w in zip(kinks.u, weights, strict=True)]
    return [u.detach() for u in kinks.u], weights, gradient, kinks.multipliers


def _attained(own: Augmented, y: Tensor) -> list[Tensor]:
    """The multipliers at y."""
    at = simplex.inward(y)
    with Kinks(own.centres, own.rho) as kinks:
        own.omega.value(at)
    return kinks.multipliers


def _falls(own: Augmented, y: Tensor) -> bool:
    """Whether the value falls with a maximum."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        with Kinks(own.centres, own.rho) as kinks:
            value = own.omega.value(at)
        weights = torch.autograd.grad(value.sum(), kinks.maxima, allow_unused=True)
    known = [w for w in weights if w is not None]
    return any(bool((w < -1e-12 * (1 + w.abs().max())).any()) for w in known)
