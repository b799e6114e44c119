"""Bounds on ‖y − y*‖ from the optimality condition, Ω's value and its strong convexity."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..domains import Projected
from ..kernels import decisions, simplex, transforms
from ..kernels.simplex import row_dot
from ..regularizers.curvature import Diagonal
from ..regularizers.penalty import proxed
from . import projected
from .problem import Point, Problem
from .properties import magnitude, softest
from .solution import TRUSTED
from .solution import Certificate as Certificate

STIFF = 1e6
"""From this curvature along the whole support on, a certificate tests how far it extends."""

STRAY = 1e-3
"""ρ_i < −STRAY (1 + |z_i|) at an entry > 0 is more than rounding of that entry explains."""


NEGLIGIBLE = 16
"""A point is as good as one whose entries differ from its own by this number of ε²."""


class _Residual(NamedTuple):
    """The optimality condition at a point of Δ next to y: ρ = r − τ and its rounding, the duality
    gap, how far the point is from y, and τ(k − Σy)."""

    point: Tensor
    rho: Tensor
    rounding: Tensor
    gap: Tensor
    off: Tensor
    spare: float | Tensor


def certify(at: Point, tested: bool = False) -> Certificate:
    """Bound ‖y − y*‖ from Ω's value (autograd supplies ∇Ω) and its β, declared or estimated.

    Strong convexity gives β e² ≤ Σ_i (r_i − τ)(y*_i − y_i) for every τ, with e = ‖y − y*‖. An
    entry with r_i < τ adds at most |r_i − τ| y_i, any other at most |r_i − τ| e; so with
    a = ‖(r − τ)_A‖, b = Σ_B |r_i − τ| y_i and B the entries with r_i < τ where that is less,
    e ≤ (a + sqrt(a² + 4βb)) / (2β). With B = ∅ it is the distance of 0 to the subdifferential
    over β, with A = ∅ the bound of the duality gap. Rounding of r is added to a. All of it is
    evaluated at the point of Δ next to y, whose distance to y is added to the bound.

    ``tested``: an estimate of β is tested, by secants, as far from y as the bound that it gives.
    The certificate of an answer is.
    """
    p, y = at.problem, at.y
    if isinstance(p.bounds, Projected):
        return projected.certify(at)
    on = p.participants()
    with torch.no_grad():
        residual = _raised(at) if tested else _residual(at)
        doubt = residual.rounding
        if p.proximal:  # ρ is as good as what Dykstra's algorithm stops at
            settled = 64 * torch.finfo(y.dtype).eps * (1 + p.z.norm(dim=-1, keepdim=True))
            doubt = doubt + settled + 4 * residual.off.unsqueeze(-1)
        inner, push = p.domain.sided(residual.point, residual.rho)
        away, _ = p.domain.sided(y, residual.rho)
        wants = push > doubt
        min_eigenvalue, estimated = None, p.beta is None
        if p.beta is not None:
            bound = _bound(p, residual, p.beta)
        else:
            # entries that may enter the support count: Ω may be flat there (Σ y³ at 0); with
            # them y can move against what ρ misses on the support
            missed = torch.where(inner > 1e-6, residual.rho, 0).norm(dim=-1, keepdim=True)
            may_enter = push > -residual.rounding - 2 * y.shape[-1] ** 0.5 * missed
            wide = on & ((inner > 0) & (away > 0) | may_enter)
            min_eigenvalue = _least_curvature(at.base, wide)
            info = torch.finfo(y.dtype)
            beta = (min_eigenvalue / 2).clamp(info.tiny, 1 / info.eps).unsqueeze(-1)
            bound = _bound(p, residual, beta)
            if tested:
                stiff = torch.isfinite(min_eigenvalue) & (min_eigenvalue > STIFF)
                bound = _with_secants(at.base, residual, wide, beta, bound, stiff)
            # the curvature at y says nothing of places far from y
            bound = torch.where(bound <= TRUSTED, bound, torch.inf)
        diameter = p.domain.diameter
        if not isinstance(diameter, Tensor):
            diameter = bound.new_full((), diameter)
        known = bound <= TRUSTED * diameter.clamp_max(1)
        bound = torch.minimum(bound, diameter)
        bound = torch.where(p.domain.vertex(y, residual.rho, residual.rounding), 0, bound)
        bound = bound + residual.off + 4 * torch.finfo(y.dtype).eps
        bound = torch.where(torch.isfinite(bound), bound, torch.inf)
        support = at.support
        # within the error of y, and where that is small: a wrong answer is not made a right one
        close = (known & (bound <= TRUSTED)).unsqueeze(-1)
        if not p.structured:
            leaves = (push < -residual.rounding) | ((inner == 0) & ~wants)
            support = support & ~(close & (away <= bound.unsqueeze(-1)) & leaves & _bounded(at))
        support = support | (close & on & wants & (away == 0))
        stray = _stray(at, residual, bound) & known.unsqueeze(-1)
    return Certificate(residual.gap.squeeze(-1), bound, estimated, support, stray, min_eigenvalue)


def _stray(at: Point, residual: _Residual, bound: Tensor) -> Tensor:
    p, y = at.problem, at.y
    bound = torch.where(bound <= TRUSTED, bound, 0).unsqueeze(-1)
    far = -STRAY * (1 + p.z.abs())
    away, push = p.domain.sided(y, residual.rho)
    stray = p.participants() & (away > 0) & (away <= bound) & (push < far) & _bounded(at)
    fixed = at.face.fixed
    if fixed is not None:  # caps that add up to k but for rounding leave one entry beside its own
        ulps = torch.finfo(y.dtype).eps * y.shape[-1] ** 0.5 * y.sum(-1, keepdim=True)
        beside = fixed & p.domain.capped(y) & (away > 0) & (away <= ulps)
        stray = stray & ~(beside & (beside.sum(-1, keepdim=True) == 1))
    # ρ is at the lifted point, and Ω may be steep below it
    if transforms.waits(y) or bool(stray.any()):
        slope, tiny = p.base.definition.grad, torch.finfo(y.dtype).tiny
        more = slope(simplex.inward(residual.point)) - slope(simplex.positive(y, tiny))
        stray = stray & (p.domain.sided(y, residual.rho + more)[1] < far)
    return stray


def _bounded(at: Point) -> Tensor:
    """The entries that may be at their nearer bound: not at 0 where the slope of Ω is infinite."""
    return at.problem.domain.capped(at.y) | ~at.problem.infinite_slope


def _raised(at: Point) -> _Residual:
    """The residual at y. Where it points up at a tiny entry, whose logarithm magnifies rounding, it
    is that at a point as good as y, where this entry is larger."""
    p, eps = at.problem, torch.finfo(at.y.dtype).eps
    found = _residual(at)
    below = (found.point < eps**1.5) & (found.rho > found.rounding) & p.participants()
    if decisions.rare("tiny entries", below & p.infinite_slope):
        raised = found.point + NEGLIGIBLE * eps**2 * below
        again = _residual(p.at(raised))
        found = again._replace(off=again.off + found.off + (raised - found.point).norm(dim=-1))
    return found


def _residual(at: Point) -> _Residual:
    p, y = at.problem, at.y
    eps = torch.finfo(y.dtype).eps
    on = p.participants()
    off, close = p.domain.excess(y), p.domain.feasible(y)
    if decisions.rare("off the simplex", ~close):
        near = torch.where(close.unsqueeze(-1), y, p.inside(y))
        off, y = torch.where(close, off, (near - y).norm(dim=-1)), near
        at = p.at(y)
    # zeros of y are lifted by so little that |r_i| y_i stays far below rounding
    lift = eps**2 / p.z.abs().amax(-1, keepdim=True).clamp_min(1)
    point = torch.where(on, torch.maximum(y, lift), 0)
    u = None
    if p.structured:
        u = p.penalty_subgradient(point)
    elif p.proximal:
        u, w, further = _by_prox(at)
        point, off = p.inside(w), off + further
    if p.beta is None and u is None:
        gradient = at.verified.gradient
    else:
        gradient = p.base.definition.grad(simplex.inward(point))
    r, size = p.z - gradient, p.z.abs() + gradient.abs()
    rounded = None if u is not None else _rounded(at, r, 4 * p.eps * size)
    if rounded is not None:
        r, off = r - rounded, off + 32 * eps * y.norm(dim=-1)
    if u is not None:
        r, size = r - u, size + u.abs()
    along = torch.where(on, point * r, 0).sum(-1, keepdim=True)
    tau = p.domain.multiplier(r, point, along)
    gap = (p.domain.most(r, tau) - along).clamp_min(0)
    rounding = 4 * p.eps * size
    if p.beta is None and rounded is None:  # rounding of y, multiplied by the curvature at it
        free = at.base.support
        size = magnitude(at.base.verified.curvature, torch.where(free, at.base.y, 0))
        rounding = rounding + eps * torch.where(free, size, 0)
    return _Residual(point, r - tau, rounding, gap, off, p.domain.spare(point, tau))


def _rounded(at: Point, r: Tensor, rounding: Tensor) -> Tensor | None:
    """What rounding of y may explain of r − τ for a separable Ω, if it is more than that of r.

    One ulp beside 1, the slope of log y − log(1 − y) changes by 1. The point that is certified then
    lies within 32 ulps of y, where the slope has the sign of y* − y.
    """
    p = at.problem
    if p.beta is not None and not p.defines_curvature:
        return None
    known, eps = at.defined.curvature, 2 * torch.finfo(r.dtype).eps
    if not isinstance(known, Diagonal):
        return None
    if not decisions.rare("stiff", eps * at.y * known.h > rounding, harmless=True):
        return None
    curvature = at.verified.curvature
    if not isinstance(curvature, Diagonal):
        return None
    noise, face = eps * at.y * curvature.h, at.face
    firm = face.free & ~(noise > rounding)
    tau = torch.where(firm, r, -torch.inf).amax(-1, keepdim=True)
    tau = tau if face.fixed is None else torch.where(face.fixed, tau, 0)
    moved = torch.minimum(torch.maximum(r - tau, -noise), noise)
    return torch.where(torch.isfinite(tau), moved, 0)


def _by_prox(at: Point) -> tuple[Tensor, Tensor, Tensor]:
    """u ∈ λ∂R(p), the point p of Δ next to y, and how far y is from what u was taken at.

    With ρ = z − ∇base(y) − τ, the optimum is where ρ = u + c, u ∈ λ∂R(y), c ≤ 0 and c = 0
    where y > 0: the fixed point y of the prox of λR + the indicator of y ≥ 0, at y + ρ.
    Dykstra's algorithm finds it from the two, with u = w − p for p = prox_λR(w); where R does
    not push an entry up from 0, the first round is the last.
    """
    problem, omega, y = at.problem, at.problem.penalized, at.y
    eps = torch.finfo(y.dtype).eps
    on = problem.participants()
    slope = problem.base_slope(y)
    whole = problem.z - problem.definition.grad(at.inward)
    tau = torch.where(on & (y > 0), y * whole, 0).sum(-1, keepdim=True)
    target = torch.where(on, y + slope - tau, 0)
    w = torch.where(y > 0, target, target.clamp_min(0))
    c, u, p = target - w, torch.zeros_like(y), y
    rounding = 64 * eps * (1 + target.norm(dim=-1))
    done = torch.zeros_like(y[..., :1], dtype=torch.bool)
    for k in range(30):
        w = w + u
        near = proxed(omega.penalty, w, omega.lam, problem.mask)
        near = torch.where(on & torch.isfinite(near), near, 0)
        u, p = torch.where(done, u, w - near), torch.where(done, p, near)
        done = done | ((p - y).norm(dim=-1, keepdim=True) <= rounding.unsqueeze(-1))
        w = torch.where(y > 0, p + c, (p + c).clamp_min(0))
        c = p + c - w
        tested = k == 0 or not transforms.waits(y)
        if tested and not decisions.rare("rounds of Dykstra's algorithm", ~done, harmless=True):
            break
    near = problem.inside(p)
    # away from Δ the subgradients of p are not those of the point next to it
    small = (near - p).norm(dim=-1) <= rounding
    return u, p, torch.where(small, (near - y).norm(dim=-1), torch.inf)


def penalty_subgradient(at: Point) -> tuple[Tensor, Tensor]:
    """λu, u ∈ ∂R(w), that the certificate of y rests on, and w, at or next to y."""
    p = at.problem
    if p.structured:
        near = p.inside(at.y)
        return p.penalty_subgradient(near), near
    u, w, _ = _by_prox(at)
    return u, w


def _bound(p: Problem, residual: _Residual, beta: Tensor) -> Tensor:
    on, rho, rounding = p.participants(), residual.rho, residual.rounding
    eps = torch.finfo(rho.dtype).eps
    # an entry is in B when it has so little room, where ρ_i points, that |ρ_i| times it costs less
    room = p.domain.room(residual.point, rho)
    below = (room <= eps) | (rho.abs() > 2 * beta * room)
    a_i = torch.where(on & ~below, rho.abs() + rounding, 0)
    a_i = torch.where(on & below & (rho.abs() < rounding), rounding, a_i)
    b_i = torch.where(on & below, (rho.abs() + rounding) * room, 0)
    a, b = a_i.norm(dim=-1), b_i.sum(-1) + residual.spare
    distance = (a + (a * a + 4 * beta.squeeze(-1) * b).sqrt()) / (2 * beta.squeeze(-1))
    noise = row_dot(p.domain.width(residual.point), rounding)
    by_gap = ((residual.gap + noise) / beta).sqrt().squeeze(-1)
    return torch.minimum(distance, by_gap)


def _with_secants(
    at: Point,
    residual: _Residual,
    support: Tensor,
    beta: Tensor,
    bound: Tensor,
    stiff: Tensor,
) -> Tensor:
    """The bound with a β that holds as far from y as the bound reaches, +inf where none does.

    Curvature may be large at y and small next to it (√(t² + ε), at t = 0), where y* may lie.
    """
    p, y = at.problem, at.y
    ways, settled = _ways(at, residual, support), torch.zeros_like(stiff)
    for _ in range(8):
        reach = (2 * bound).clamp(min=1e-7)
        found = _secant(at, ways, reach)
        if decisions.rare("stiff", stiff & ~settled):
            for part in (2, 0.06, 0.002):
                near = _softer(at, support, ways, part * bound)
                soft = _secant(at, near, 2 * bound)
                found = torch.where(stiff, torch.minimum(found, soft), found)
        tested = torch.where(stiff, 2 * bound, reach)
        beta = torch.minimum(beta, found.unsqueeze(-1) / 2).clamp_min(torch.finfo(y.dtype).tiny)
        longer = torch.maximum(bound, _bound(p, residual, beta))
        bound = torch.where(settled, bound, longer)
        settled = settled | (bound <= tested)
        if not decisions.rare("longer bound", ~settled):
            break
    return torch.where(settled, bound, torch.inf)


def _ways(at: Point, residual: _Residual, support: Tensor) -> Tensor:
    """Directions, (ways, *batch, d), of length 1, along which y* may lie or Ω bends least: the
    Newton step, the softest direction of the support, both ways, and the ways to the
    barycentre and to the best vertex."""
    p, y = at.problem, at.y
    inverse = at.inverse(support, verified=True)
    step = torch.nan_to_num(inverse(torch.where(support, residual.rho, 0)))
    soft = softest(inverse, p.domain.tangent(simplex.generic(y), at.on(support)), 4)
    vertex, middle = p.domain.best(residual.rho), p.domain.middle(y)
    return simplex.unit(torch.stack([step, -step, soft, -soft, vertex - y, middle - y]))


def _softer(at: Point, support: Tensor, ways: Tensor, reach: Tensor) -> Tensor:
    """Directions of small curvature at the points y + reach · way: a kink may lie between."""
    p, y = at.problem, at.y
    found = []
    for way in ways:
        w = simplex.inward(p.inside(y + reach.unsqueeze(-1) * way))
        curvature = p.by_value.look(w).curvature
        found.append(softest(p.domain.inverse(curvature, at.on(support)), w - y, 2))
    return simplex.unit(torch.stack(found))


def _secant(at: Point, ways: Tensor, reach: Tensor) -> Tensor:
    """The least ⟨∇Ω(w) − ∇Ω(y), w − y⟩ / ‖w − y‖² at points w of Δ that far from y."""
    p, y = at.problem, at.y
    eps = torch.finfo(y.dtype).eps
    w = p.inside(y + reach.unsqueeze(-1) * ways)
    along = w - y
    far = along.norm(dim=-1)
    here = at.verified.gradient
    there = p.definition.grad(simplex.inward(w))
    squares = far.square().clamp_min(torch.finfo(y.dtype).tiny)
    found = torch.where(along == 0, 0, (there - here) * along).sum(-1) / squares
    noise = torch.where(along == 0, 0, (there.abs() + here.abs()) * along.abs()).sum(-1)
    found = torch.where(far > reach / 4, found + 4 * eps * noise / squares, torch.inf)
    return torch.nan_to_num(found, nan=0.0, posinf=torch.inf).amin(0)


def _least_curvature(at: Point, support: Tensor) -> Tensor:
    """The least curvature of Ω along ``support``, at y and half-way from y to the barycentre
    of the support: at a zero of y, Ω may be much more curved than at y* (y^1.5), or less
    (y³). A lower bound at those two points, and so an estimate of β around them."""
    y = at.y
    half = (y + at.problem.domain.middle(y, support)) / 2
    beyond = at.problem.by_value.look(simplex.inward(half)).curvature
    low = torch.minimum(
        at.inverse(support, verified=True).min_eigenvalue,
        at.problem.domain.inverse(beyond, at.on(support)).min_eigenvalue,
    )
    # S is one entry: nothing bends along it, but a hollow may
    if transforms.waits(low) or bool(torch.isinf(low).any()):
        bent = row_dot(y, at.verified.curvature.matvec(y)).squeeze(-1)
        low = torch.where(torch.isinf(low) & (bent < 0), bent, low)
    return low
