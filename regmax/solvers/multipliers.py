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
from .base import Solved, either, merged, moved, solve
from .compiled import Memory, compiled
from .newton import Newton

STEPS = 40
"""Steps of the method of multipliers."""
FACTOR, HARDEST = 3, 1e3
"""The curvature of the augmented terms over that of Ω grows by the first up to the second."""
SOFT = 1e2
"""The same for the certificate, whose rounding error is proportional to it."""
STIFF = 1e5
"""The same for the derivatives, which are exact in the limit."""
ROUNDS = 8
"""Steps with a certificate."""
SMALL = 1e-6
"""Errors up to this length say which entries are 0 and which are equal."""
NEAR, LAST = 1e-11, 1e-9
"""A step of the first length is the last, and one of the second where it is rounding."""


@dataclass(frozen=True, eq=False)
class Tied(Solved):
    """Answers on kinks of Ω, with its augmented Lagrangian there; ``bound``: the rows in which a
    kink binds y on its support."""

    augmented: Augmented
    bound: Tensor


def multiplied(problem: Problem, tol: float) -> Tied | None:
    """Answers for an Ω with kinks; None where its value has no kinks that are known. The bound of a
    row is +inf where the steps do not converge, or the value falls with a maximum."""
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
    y, hardness = problem.initial(), torch.ones_like(z[..., 0])
    length = torch.full_like(hardness, torch.inf)
    done = torch.zeros_like(hardness, dtype=torch.bool)

    def augmented(hardness: Tensor) -> Augmented:
        return Augmented(
            omega, centres, [r if r.ndim == 0 else r * _wide(hardness, r) for r in rho]
        )

    for _ in range(STEPS):
        own = augmented(hardness)
        new, there = _near(Problem(own, z, mask, y), memory)
        new = torch.where(done.unsqueeze(-1), y, new)
        last, length = length, torch.where(done, length, (new - y).norm(dim=-1))
        known, centres = centres, _centred(done, own, new)
        same = torch.stack([_rows(a == b, done) for a, b in zip(known, centres, strict=True)])
        settled = (length <= NEAR) | ((length > last / 2) & (length <= LAST))
        hard = hardness >= HARDEST
        hardness = torch.where(there & ~done, (FACTOR * hardness).clamp_max(HARDEST), hardness)
        y, done = new, done | (there & (same.all(0) | (hard & settled)))
        if bool(done.all()):
            break
    found, done = None, torch.zeros_like(done)
    stiff, soft = (torch.full_like(hardness, c) for c in (STIFF, SOFT))
    for _ in range(ROUNDS):
        own = augmented(stiff)
        end, length = _stepped(Problem(own, z, mask), y)
        new = torch.where(done.unsqueeze(-1), y, _rounded(problem, end, 2 * length)[0])
        centres = _centred(done, own, new)
        now = _certified(Problem(augmented(soft), z, mask, new), memory, tol)
        found = now if found is None else _kept(done, found, now)
        y, own = found.y, augmented(stiff)
        length = _stepped(Problem(own, z, mask), y)[1]
        done = done | (length <= NEAR)
        if bool(done.all()):
            break
    assert found is not None
    bound = found.certificate.error_bound + 2 * length
    bound = torch.where(_falls(own, y), torch.inf, bound)
    y, further = _rounded(problem, y, bound)
    certificate = replace(found.certificate, error_bound=(bound + further).clamp_max(2**0.5))
    path = f"multipliers, then {found.path}"
    return Tied(problem.at(y), found.iterations, certificate, path, own, tied_rows(own, y))


def _stepped(problem: Problem, y: Tensor) -> tuple[Tensor, Tensor]:
    """The Newton step on the support and the kinks of y, which the steps of the method approach:
    its end, and its length, an estimate of the distance to the maximiser."""
    at = problem.at(y)
    step = torch.nan_to_num(at.newton_step(at.support), nan=torch.inf)
    return moved(problem, y, torch.nan_to_num(step, posinf=0), at.support), step.norm(dim=-1)


def _wide(rows: Tensor, like: Tensor) -> Tensor:
    """One number per row, with the dimensions of a tensor of rows."""
    return rows.view(*rows.shape, *(1,) * (like.ndim - rows.ndim))


def _rows(t: Tensor, like: Tensor) -> Tensor:
    """Whether all that belongs to a row is true."""
    if t.shape[: like.ndim] != like.shape:
        return t.all().expand(like.shape)
    return t.reshape(*like.shape, -1).all(-1)


def _centred(done: Tensor, own: Augmented, y: Tensor) -> list[Tensor]:
    """The multipliers at y, and the centres of rows that are done."""
    at = simplex.inward(y)
    with Kinks(own.centres, own.rho) as kinks:
        own.omega.value(at)
    return [
        m if r.ndim == 0 else torch.where(_wide(done, m), c, m)
        for c, m, r in zip(own.centres, kinks.multipliers, own.rho or (), strict=True)
    ]


def _kept(rows: Tensor, one: Solved, other: Solved) -> Solved:
    """Row by row ``one`` where ``rows``, else ``other``."""
    return Solved(
        either(rows, one.at, other.at),
        torch.where(rows, one.iterations, other.iterations),
        merged(rows, one.certificate, other.certificate),
        other.path,
    )


def _rounded(problem: Problem, y: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """y with entries that are equal, or 0, within its error made so, and the length of the
    change."""
    bound = torch.where(bound <= SMALL, bound, 0)
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


def _near(problem: Problem, memory: Memory) -> tuple[Tensor, Tensor]:
    """The maximiser, or a point that is nearer to it than the start, and whether it is the
    maximiser."""
    found = compiled(problem, memory, certified=False)
    stuck = torch.ones_like(problem.z[..., 0], dtype=torch.bool)
    y, there = problem.initial(), stuck
    if found is not None:
        y, there = found.y, found.certificate.error_bound == 0
        stuck = ~there & (y == problem.initial()).all(-1)
    if bool(stuck.any()):
        y = torch.where(stuck.unsqueeze(-1), Newton().run(problem, 1e-12, 60)[0], y)
    return y, there | stuck


def _certified(problem: Problem, memory: Memory, tol: float) -> Solved:
    """The maximiser with its certificate."""
    found = compiled(problem, memory)
    if found is None:
        return solve(problem, Newton(), tol, 60)
    good = found.certificate.error_bound <= tol
    return found if bool(good.all()) else _kept(good, found, solve(problem, Newton(), tol, 60))


def _scales(problem: Problem) -> tuple[list[Tensor], list[Tensor]] | None:
    """The first centres, in the middle of each M, and ρ that make the curvature of the augmented
    terms that of the rest of Ω, from two points of Δ; None where the value has no kinks."""
    a = simplex.uniform(problem.z, problem.mask)
    b = (a + simplex.normalize(torch.where(a > 0, simplex.generic(a), 0))) / 2
    (first, slope, weights), (second, other, more) = (_look(problem.omega, y) for y in (a, b))
    far, batch = (b - a).norm(dim=-1), a.shape[:-1]
    bent, rho, alive = (other - slope).norm(dim=-1) / far, [], False
    for u, v, w, x in zip(first.u, second.u, weights, more, strict=True):
        if w is None or x is None:
            rho.append(bent.new_tensor(torch.inf))
            continue
        if u.shape[: len(batch)] != batch:
            return None
        steep, w = (v - u).detach().abs(), torch.maximum(w.abs(), x.abs())
        steep, w = (t.reshape(*batch, -1).amax(-1) for t in (steep, w.expand_as(u)))
        own = w * (steep / far).square()
        known = own > 1e-9 * bent  # not so where a maximum only scales what is computed
        alive = alive or bool(known.any())
        each = torch.where(known & (bent > 0), bent / own, 1)
        rho.append(each.view(*batch, *(1,) * (u.ndim - len(batch))))
    return (first.multipliers, rho) if alive else None


def _look(
    omega: Regularizer,
    y: Tensor,
    centres: list[Tensor] | None = None,
    rho: list[Tensor] | None = None,
) -> tuple[Kinks, Tensor, list[Tensor | None]]:
    """The maxima in the value of Ω at y, and the gradients in y and in each maximum; None in one
    that does not depend on y."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        with Kinks(centres, rho) as kinks:
            value = omega.value(at)
        moves = [u.requires_grad and _depends(u, at) for u in kinks.u]
        inputs = [at, *(t for t, of_y in zip(kinks.maxima, moves, strict=True) if of_y)]
        gradient, *found = torch.autograd.grad(
            value.sum(), inputs, allow_unused=True, materialize_grads=True
        )
    return kinks, gradient, [found.pop(0) if of_y else None for of_y in moves]


def _depends(u: Tensor, y: Tensor) -> bool:
    (g,) = torch.autograd.grad(u.sum(), y, retain_graph=True, allow_unused=True)
    return g is not None


def _falls(own: Augmented, y: Tensor) -> Tensor:
    """Rows in which the value falls with a maximum."""
    _, _, weights = _look(own.omega, y, own.centres, own.rho)
    falls = torch.zeros_like(y[..., 0], dtype=torch.bool)
    for w in weights:
        if w is not None:
            falls = falls | ~_rows(w >= -1e-12 * (1 + w.abs().max()), falls)
    return falls
