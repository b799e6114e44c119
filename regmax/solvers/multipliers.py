"""Answers for an Ω whose value has kinks (:mod:`regmax.regularizers.kinks`), by Newton's method on
y and the multipliers.

Each step maximises over Δ a quadratic model of Ω(y) = G(y, a), a = max_{m ∈ M} ⟨m, u(y)⟩, in which
the kinks stay (:mod:`.kinked`): sequential quadratic programming (Nocedal & Wright 2006, section
18.1). With H = ∇²_y L(y, m), C = ∂u/∂y and W = ∂G/∂a, and the multipliers m of the step before,

    y ← y + argmin_s ½ sᵀHs − ⟨z − ∇_y L(y, m) + CᵀWm, s⟩ + Σ W max_{m ∈ M} ⟨m, u + Cs⟩.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import rowwise, simplex
from ..kernels.products import evaluated
from ..optimality.certificates import certify
from ..optimality.jacobian import movable
from ..optimality.problem import Problem
from ..regularizers.autodiff import Local
from ..regularizers.curvature import Dense
from ..regularizers.kinks import Augmented, Capped, Kinks, Range, TooMany
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from .base import Solved, merged, moved
from .compiled import Memory, certified
from .evaluation import Unfit
from .kinked import Model, Sets, gram, maximised, newton_step

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
MET = 1e-12
"""y lies on a kink up to this distance, which is rounding."""
SHORT = 128
"""Rows up to this length are solved so first; longer ones if they are not solved as smooth ones."""
MOST = 1 << 26
"""Numbers of ∂u/∂y, for all rows, up to this number."""


@dataclass(frozen=True, eq=False)
class Tied(Solved):
    """Answers on kinks of Ω, with its augmented Lagrangian there; ``bound``: the rows in which a
    kink binds y on its support; ``bent``: ∇²_y L, and the curvature of the augmented terms."""

    augmented: Augmented
    bound: Tensor
    bent: tuple[Tensor, Tensor]


class Known(NamedTuple):
    """The maxima in a value for scores of one shape: first centres; the sets M; which depend on y.
    Then whether the slope of Ω is infinite at 0, and whether its value computes in float64."""

    centres: list[Tensor]
    sets: list[Range | Capped]
    moves: list[bool]
    steep: bool
    fine: bool

    def joined(self, ts: list[Tensor], rows: int) -> Tensor:
        """Of each row, one after another, what belongs to maxima that depend on y."""
        own = [t.reshape(rows, -1) for t, of_y in zip(ts, self.moves, strict=True) if of_y]
        return torch.cat(own, -1)

    def split(self, t: Tensor, others: list[Tensor]) -> list[Tensor]:
        """The inverse; ``others`` belong to maxima that do not depend on y."""
        found, end = [], 0
        for centre, of_y, other in zip(self.centres, self.moves, others, strict=True):
            if of_y:
                begin, end = end, end + centre.numel() // len(t)
                other = t[:, begin:end].reshape(centre.shape).to(centre.dtype)
            found.append(other)
        return found


class Look(NamedTuple):
    """Ω at one point of each row: its value, ∇_y L and ∇²_y L, and of all maxima u, ∂u/∂y and
    ∂G/∂a."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor
    u: Tensor
    c: Tensor
    w: Tensor

    def bending(self) -> Tensor:
        """∂G/∂a, and 0 for a maximum that only scales what is computed."""
        least = self.hessian.diagonal(dim1=-2, dim2=-1).amin(-1, keepdim=True).clamp_min(1e-6)
        return torch.where(self.w.abs() * self.c.square().sum(-1) > 1e-9 * least, self.w, 0)


def multiplied(problem: Problem, tol: float, memory: Memory) -> Tied | None:
    """Answers for an Ω with kinks; None where its value has no kinks that are known. The bound of a
    row is +inf where a step is not found, or the value falls with a maximum."""
    if isinstance(problem.omega, Penalized) or problem.trace is not None:
        return None
    try:
        known = _known(problem, memory)
        return None if known is None else _solved(problem, known, tol)
    except Exception:  # of the user's code: the other solvers raise it again
        return None


def near_kinks(omega: Regularizer, y: Tensor) -> Tensor:
    """Rows in which y is next to a kink of Ω that bends it on the support of y, or may be."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        try:
            with Kinks(None, None) as kinks:
                value = omega.value(at)
        except TooMany:
            return torch.ones_like(y[..., 0], dtype=torch.bool)
        moves = [u.requires_grad and _depends(u, at) for u in kinks.u]
        each = zip(kinks.u, kinks.sets, kinks.maxima, moves, strict=True)
        found = [(u, own, t) for u, own, t, of_y in each if of_y]
        near = torch.zeros_like(y[..., 0], dtype=torch.bool)
        if not found:
            return near
        maxima = [t for *_, t in found]
        w = torch.autograd.grad(value.sum(), maxima, retain_graph=True, materialize_grads=True)
        for (u, own, _), weight in zip(found, w, strict=True):
            met = (own.over(u.detach()).abs() <= SMALL) & (weight.abs() > SMALL)
            (c,) = torch.autograd.grad(u, at, met * simplex.generic(u), retain_graph=True)
            near = near | ((c != 0) & movable(y)).any(-1)
    return near


def _known(problem: Problem, memory: Memory) -> Known | None:
    """The maxima of Ω, as they were at the same numbers of its tensors."""
    key = ("kinks", problem.z.shape)
    tensors = list(problem.omega.tensors(fixed=True).values())
    if key not in memory or not all(map(torch.equal, tensors, memory[key][0])):
        if len(memory) >= 16:
            memory.clear()
        memory[key] = [t.detach().clone() for t in tensors], _looked(problem)
    known: Known | None = memory[key][1]
    return known


def _looked(problem: Problem) -> Known | None:
    """The maxima of Ω; None without one that bends Ω at one of two points of Δ."""
    omega, a = problem.omega, simplex.uniform(problem.z, None)
    with torch.enable_grad(), Kinks(None, None) as kinks:
        at = a.clone().requires_grad_()
        omega.value(at)
        moves = [u.requires_grad and _depends(u, at) for u in kinks.u]
    if not any(moves):
        return None
    held = [a.new_tensor(torch.inf) for _ in moves]
    with Kinks(kinks.multipliers, held) as fixed:
        omega.value(a)
    moves = [of_y and not off for of_y, off in zip(moves, _off(omega, held, a), strict=True)]
    if not any(moves):
        return None
    each = zip(kinks.multipliers, fixed.multipliers, moves, strict=True)
    centres = [middle if of_y else vertex for middle, vertex, of_y in each]
    fine = problem.eps <= torch.finfo(a.dtype).eps
    known = Known(centres, kinks.sets, moves, problem.legendre, fine)
    for y in (a, (a + simplex.generic(a)) / 2):
        with Kinks(None, held) as there:
            omega.value(y)
        if bool((_look(problem, known, y, there.multipliers).bending() != 0).any()):
            return known
    return None


def _off(omega: Regularizer, held: list[Tensor], like: Tensor) -> list[bool]:
    """Which maxima have no kink on Δ, such as that of max(y, tiny): u is affine, as a point in
    general position tells, and on one side of the kink at all vertices."""
    d, somewhere = like.shape[-1], simplex.generic(like)
    vertices = torch.eye(d, dtype=like.dtype, device=like.device)
    vertices = vertices.view(d, *(1,) * (like.ndim - 1), d).expand(d, *like.shape)
    vertices = simplex.inward(vertices)
    with Kinks(None, held) as ends:
        omega.value(vertices)
    with Kinks(None, held) as there:
        omega.value(somewhere)
    weights, found = somewhere.reshape(-1, d)[0], []
    for u, at, own in zip(ends.u, there.u, ends.sets, strict=True):
        over = own.over(u)
        one_side = bool(((over > 0).all(0) | (over < 0).all(0)).all())
        found.append(one_side and u.shape == (d, *at.shape) and _affine(u, at, weights))
    return found


def _affine(ends: Tensor, at: Tensor, weights: Tensor) -> bool:
    """Whether u at a point is the average of its values at the vertices."""
    mean = torch.tensordot(weights.to(ends.dtype), ends, 1)
    return bool(((mean - at).abs() <= 1e-9 * (1 + at.abs())).all())


def _depends(u: Tensor, y: Tensor) -> bool:
    (g,) = torch.autograd.grad(u.sum(), y, retain_graph=True, allow_unused=True)
    return g is not None


def _look(problem: Problem, known: Known, y: Tensor, m: list[Tensor]) -> Look:
    """One pass for d copies of each row: ∇²_y L and ∂u/∂y times each unit vector."""
    omega, d = problem.omega, y.shape[-1]
    n = y.numel() // d
    with torch.enable_grad():
        at = simplex.inward(y).expand(d, *y.shape).clone().requires_grad_()
        with Kinks(m, None) as kinks:
            value = evaluated(omega.value, at)
        moving = [k for k, of_y in enumerate(known.moves) if of_y]
        if value.shape != at.shape[:-1] or len(kinks.u) != len(m):
            raise Unfit
        us, maxima = ([ts[k] for k in moving] for ts in (kinks.u, kinks.maxima))
        if any(u.shape[: y.ndim] != at.shape[:-1] for u in us):
            raise Unfit
        if sum(u.numel() for u in us) > MOST:
            raise TooMany
        ways = torch.eye(d, dtype=y.dtype, device=y.device).view(d, *(1,) * (y.ndim - 1), d)
        gradient, *w = torch.autograd.grad(
            value.sum(), [at, *maxima], create_graph=True, allow_unused=True, materialize_grads=True
        )
        v = [torch.zeros_like(u, requires_grad=True) for u in us]
        (pulled,) = torch.autograd.grad(us, at, v, create_graph=True)
        total = ((gradient + pulled) * ways).sum()
        hessian, *c = torch.autograd.grad(
            total, [at, *v], allow_unused=True, materialize_grads=True
        )
    with torch.no_grad():
        own = evaluated(omega.value, simplex.inward(y)).reshape(n)
        h = hessian.reshape(d, n, d).movedim(0, -1)
        found = Look(
            own,
            gradient[0].reshape(n, d),
            (h + h.mT) / 2,
            torch.cat([u[0].reshape(n, -1) for u in us], -1),
            torch.cat([t.reshape(d, n, -1) for t in c], -1).permute(1, 2, 0),
            torch.cat([t[0].reshape(n, -1) for t in w], -1),
        )
        return Look(*(t.to(y.dtype).contiguous() for t in found))  # u may be in float32


def _solved(problem: Problem, known: Known, tol: float) -> Tied:
    """The answers, by steps that are shortened where the objective falls."""
    shape, d = problem.z.shape, problem.z.shape[-1]
    z, on = problem.z.reshape(-1, d), problem.participants().reshape(-1, d)
    each = zip(known.sets, known.centres, known.moves, strict=True)
    parts = [(own, m.shape[len(shape) - 1 :]) for own, m, of_y in each if of_y]
    if not known.steep:
        parts.append((Range(0.0, torch.inf), torch.Size([d])))
    sets = Sets(parts)
    y = x = problem.initial().reshape(-1, d)
    m = known.joined(known.centres, len(z)).to(z.dtype)
    count = m.shape[-1]
    m = torch.cat([m, m.new_zeros(len(z), sets.total - count)], -1)
    part, best = torch.ones_like(z[:, :1]), torch.full_like(z[:, 0], -torch.inf)
    length, iterations = -best, torch.zeros_like(best, dtype=torch.int64)
    done = lost = torch.zeros_like(best, dtype=torch.bool)
    at = model = None
    for _ in range(STEPS):
        look = _look(problem, known, x.view(shape), known.split(m, known.centres))
        objective = simplex.row_dot(x, z).squeeze(-1) - look.value
        worse = ~done & ~(objective >= best - 1e-13 * (1 + objective.abs()))
        keep = worse | done
        at = look if at is None else Look(*_kept(keep, at, look))
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
    assert model is not None
    missed = lost.view(shape[:-1])
    x = torch.where(missed.unsqueeze(-1), problem.initial(), x.view(shape))
    return _tied(problem, known, sets, at, x, model, length, missed, iterations, tol)


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
    missed: Tensor, iterations: Tensor, tol: float,
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
    certificate = certified(own, y, at.hessian, known.steep) if known.fine else None
    if certificate is None:
        certificate = certify(own.at(y), tested=True)
    elif not bool((missed | (certificate.error_bound <= tol)).all()):
        other = certify(own.at(y), tested=True)
        certificate = merged(certificate.error_bound <= tol, certificate, other)

    _, c, w = _walled(at, flat, sets)
    rho = STIFF * sets.rho(at.hessian, c, w)
    over = sets.over(torch.cat([model.u[:, :rest], -flat], -1)[:, : sets.total])
    met = over.abs() <= MET
    gap = torch.where(met, 0, w * sets.missing(over, model.m))[:, :rest].sum(-1)
    scale = (w * rho).sqrt()
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
        _bound(*bent, y),
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
    group = apart.cumsum(-1)
    total = torch.zeros_like(y).scatter_add(-1, group, near)
    count = torch.zeros_like(y).scatter_add(-1, group, torch.ones_like(y))
    mean = (total / count.clamp_min(1)).gather(-1, group)
    found = simplex.normalize(torch.empty_like(y).scatter(-1, order, mean))
    return found, (found - y).norm(dim=-1)
