"""Answers for an Ω whose value has kinks (:mod:`regmax.regularizers.kinks`), by Newton's method on
y and the multipliers.

Each step maximises over Δ a quadratic model of Ω(y) = G(y, a), a = max_{m ∈ M} ⟨m, u(y)⟩, in which
the kinks stay (:mod:`.model`): sequential quadratic programming (Nocedal & Wright 2006, section
18.1). With H = ∇²_y L(y, m), C = ∂u/∂y and W = ∂G/∂a, and the multipliers m of the step before,

    y ← y + argmin_s ½ sᵀHs − ⟨z − ∇_y L(y, m) + CᵀWm, s⟩ + Σ W max_{m ∈ M} ⟨m, u + Cs⟩.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import rowwise, simplex
from ...kernels.neighbours import averages
from ...optimality.certificates import certify
from ...optimality.jacobian import movable
from ...optimality.problem import Problem
from ...regularizers.autodiff import Local
from ...regularizers.curvature import Dense
from ...regularizers.kinks import Augmented, Multipliers
from ...regularizers.penalty import Penalized
from ..base import Solved, moved
from .model import Model, Sets, gram, maximised, newton_step
from .points import Known, Look, known_maxima, look_at

STEPS = 40
"""Newton steps, with those that are shortened."""
STIFF = 1e5
"""The curvature of the augmented terms over that of Ω in derivatives, exact in the limit."""
SMALL = 1e-6
"""Errors up to this length say which entries are 0 and which are equal."""
NEAR, LAST = 1e-12, 1e-9
"""A step of the first length is the last, and one of the second where it is rounding."""
LEVEL = 1e-7
"""The last step changes the slope by this at most: where Ω is stiff, a short step is not small."""
EQUAL = 1e-9
"""Multipliers that differ by this at most have the same ∇²L."""
MET = 1e-12
"""y lies on a kink up to this distance, which is rounding."""
SHORT = 128
"""Rows up to this length are solved so first; longer ones if they are not solved as smooth ones."""


@dataclass(frozen=True, eq=False)
class Tied(Solved):
    """Answers on kinks of Ω, with its augmented Lagrangian there; ``bound``: the rows in which a
    kink binds y on its support; ``bent``: ∇²_y L, and the curvature of the augmented terms."""

    augmented: Augmented
    bound: Tensor
    bent: tuple[Tensor, Tensor]


def multiplied(problem: Problem) -> Tied | None:
    """Answers for an Ω with kinks; None where its value has no kinks that are known. The bound of a
    row is +inf where a step is not found, or the value falls with a maximum."""
    if problem.structured or problem.trace is not None:
        return None
    if isinstance(problem.omega, Penalized):
        problem = replace(problem, omega=problem.omega.of(problem.mask))
    try:
        known = known_maxima(problem)
        return None if known is None else _solved(problem, known)
    except Exception:  # of the user's code: the other solvers raise it again
        return None


def _solved(problem: Problem, known: Known) -> Tied:
    """The answers, by steps that are shortened where the objective falls."""
    shape, d = problem.z.shape, problem.z.shape[-1]
    z, on = problem.z.reshape(-1, d), problem.participants().reshape(-1, d)
    each = zip(known.sets, known.centres, known.moves, strict=True)
    parts = [(own, m.shape[len(shape) - 1 :]) for own, m, of_y in each if of_y]
    if not known.steep:
        parts.append((Multipliers(0.0, torch.inf), torch.Size([d])))
    sets = Sets(parts)
    y = x = problem.initial().reshape(-1, d)
    m = known.joined(known.centres, len(z)).to(z.dtype)
    count = m.shape[-1]
    m = start = torch.cat([m, m.new_zeros(len(z), sets.total - count)], -1)
    part, best = torch.ones_like(z[:, :1]), torch.full_like(z[:, 0], -torch.inf)
    length, iterations = -best, torch.zeros_like(best, dtype=torch.int64)
    done = lost = torch.zeros_like(best, dtype=torch.bool)
    at = model = first = None
    used = m
    for _ in range(STEPS):
        look = look_at(problem, known, x.view(shape), known.split(m, known.centres))
        objective = simplex.row_dot(x, z).squeeze(-1) - look.value
        worse = ~done & ~(objective >= best - 1e-13 * (1 + objective.abs()))
        keep = worse | done
        first = first or look
        at = look if at is None else Look(*_kept(keep, at, look))
        used = _rows(keep, used, m)
        y, best = _rows(keep, y, x), torch.where(keep, best, objective)
        part = torch.where(worse.unsqueeze(-1), part / 4, 1)
        new = _maximised(at, z, y, m, sets, on)
        model = new if model is None else Model(*_kept(keep, model, new))
        m, x = model.m, _rows(done, x, moved(problem, y, part * model.s, on))
        last, length = length, torch.where(done, length, (x - y).norm(dim=-1))
        iterations = iterations + ~done
        lost = lost | ~done & ~(model.solved & torch.isfinite(x).all(-1))
        settled = (length <= NEAR) | ((length > last / 2) & (length <= LAST))
        change = rowwise.times(at.hessian, model.s).abs().amax(-1)  # far at stiff zeros
        settled = settled & (change <= LEVEL * (1 + z.abs().amax(-1)))
        done = done | lost | (settled & ~worse)
        if bool(done.all()):
            break
    assert at is not None
    assert first is not None
    assert model is not None
    stale = ~lost & ((model.m - used).abs() > EQUAL).any(-1)
    if bool(stale.any()):  # y was at hand before its multipliers were: ∇²L is that of the latter
        fresh = look_at(problem, known, x.view(shape), known.split(model.m, known.centres))
        at = Look(*_kept(~stale, at, fresh))
    # derivatives of other rows pass through what is known of these rows too: it must be finite
    at = Look(*_kept(lost, first, at))
    there = Model(torch.zeros_like(z), start, _walled(first, y, sets)[0], ~lost)
    model = Model(*_kept(lost, there, model))
    missed = lost.view(shape[:-1])
    x = torch.where(missed.unsqueeze(-1), problem.initial(), x.view(shape))
    return _tied(problem, known, sets, at, x, model, length, missed, iterations)


def _rows(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *(1,) * (b.ndim - 1)), a, b)


def _kept(rows: Tensor, a: NamedTuple, b: NamedTuple) -> list[Tensor]:
    """a in ``rows``, else b."""
    return [_rows(rows, own, other) for own, other in zip(a, b, strict=True)]


def _walled(at: Look, y: Tensor, sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    """u, C and W with those of y ≥ 0 at the end, where ``sets`` has them."""
    u, c, w = at.u, at.c, at.bending()
    if sets.total > u.shape[-1]:
        d = y.shape[-1]
        walls = -torch.eye(d, dtype=y.dtype, device=y.device).expand(len(y), d, d)
        u, c = torch.cat([u, -y], -1), torch.cat([c, walls], 1)
        w = torch.cat([w, torch.ones_like(y)], -1)
    return u, c, w


def _maximised(at: Look, z: Tensor, y: Tensor, m: Tensor, sets: Sets, on: Tensor) -> Model:
    """The solution of the model at y, from multipliers m."""
    known = at.w * m[:, : at.w.shape[-1]]
    r = z - at.gradient + rowwise.times(at.c.mT, known)
    u, c, w = _walled(at, y, sets)
    return maximised(at.hessian, r, u, c, w, m, sets, on)


def _tied(
    problem: Problem, known: Known, sets: Sets, at: Look, x: Tensor, model: Model, length: Tensor,
    missed: Tensor, iterations: Tensor,
) -> Tied:  # fmt: skip
    """The answers x with their certificates.

    L(·, m) ≤ Ω for any m ∈ M if G does not fall with a. With f = ⟨·, z⟩ − Ω and f_m the same for
    L(·, m), f(y) + β/2 ‖y − y*‖² ≤ f(y*) ≤ f_m(y*), and f(y) = f_m(y) − δ with
    δ = Ω(y) − L(y, m): δ adds √(δ/β) at most to the bound on the distance for L(·, m). It counts as
    0 on a kink that y meets up to rounding; to the bound comes twice the length of the Newton step
    that lies on all these kinks, and of the last step.
    """
    shape, batch, d = x.shape, x.shape[:-1], x.shape[-1]
    flat, rest = x.reshape(-1, d), at.u.shape[-1]
    centres = known.split(model.m, known.centres)
    local = Local(at.gradient.view(shape), Dense(at.hessian.view(*shape, d)))
    y = _rounded(x, 2 * length.view(batch) + torch.finfo(x.dtype).eps, known.steep)[0]
    own = Problem(Augmented(problem.omega, centres, None), problem.z, problem.mask)
    certificate = certify(own.at(y), tested=True)
    _, c, w = _walled(at, flat, sets)
    rho = STIFF * sets.rho(at.hessian, c, w)
    over = sets.over(torch.cat([model.u[:, :rest], -flat], -1)[:, : sets.total])
    met = over.abs() <= MET
    gap = torch.where(met, 0, w * sets.missing(over, model.m))[:, :rest].sum(-1)
    scale = (w * rho).clamp_min(0).sqrt()  # w < 0 where the value falls with a maximum
    normals = sets.tangent(met, c) * scale.unsqueeze(-1)
    pull = rowwise.times(normals.mT, torch.where(met, scale * over, 0))
    step, good = newton_step(at.hessian + gram(normals), pull, problem.participants().view(-1, d))
    away = torch.where(good, step.norm(dim=-1), torch.inf)

    beta = certificate.min_eigenvalue
    beta = torch.ones_like(gap) if beta is None else (beta.view(-1) / 2).clamp(1e-300, 1)
    bound = certificate.error_bound + (2 * (length + away) + (gap / beta).sqrt()).view(batch)
    falls = ~(at.w >= -1e-12 * (1 + at.w.abs().amax(-1, keepdim=True))).all(-1).view(batch)
    bound = torch.where(missed | falls, torch.inf, bound)
    y, further = _rounded(y, bound, known.steep)
    bound = torch.where(bound < torch.inf, (bound + further).clamp_max(2**0.5), bound)

    held = [x.new_tensor(torch.inf) for _ in centres]
    augmented = Augmented(problem.omega, centres, known.split(rho, held))
    bends = sets.tangent(sets.free(model.m), c) * scale.unsqueeze(-1)
    walls = gram(bends[:, :rest]).view(*shape, d)
    bent = (at.hessian.view(*shape, d), walls)
    answer = problem.at(y)
    answer.__dict__["verified"] = local
    return Tied(
        answer,
        iterations.view(batch),
        replace(certificate, error_bound=bound),
        "newton steps on kinks",
        augmented,
        _bound(*bent, y) & (bound < torch.inf),
        bent,
    )


def _bound(hessian: Tensor, walls: Tensor, y: Tensor) -> Tensor:
    """Rows in which kinks of Ω bind y on its support."""
    support = movable(y)
    along = torch.where(support, simplex.generic(y), 0)
    soft, stiff = (
        torch.where(support, rowwise.matvec(k, along), 0).abs() for k in (hessian, walls)
    )
    return (stiff > 1e-6 * (stiff + soft)).any(-1)


def _rounded(y: Tensor, bound: Tensor, steep: bool) -> tuple[Tensor, Tensor]:
    """y with entries that are equal, or 0, within its error made so, and the length of the
    change."""
    bound = torch.where(bound <= SMALL, bound, 0)
    near, order = y.sort(-1, descending=True)
    if not steep:
        near = torch.where(near <= bound.unsqueeze(-1), 0, near)
    apart = -near.diff(dim=-1, prepend=near[..., :1]) > bound.unsqueeze(-1)
    mean = averages(near, apart.cumsum(-1), torch.ones_like(apart))
    found = simplex.normalize(torch.empty_like(y).scatter(-1, order, mean))
    return found, (found - y).norm(dim=-1)
