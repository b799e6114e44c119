"""The optimality condition on a domain of which only the projection P is known.

y maximises ⟨y, z⟩ − Ω(y) over D if and only if r = z − ∇Ω(y) is normal to D at y, which is

    y = P(y + ηr)    for one η > 0, and then for all.

With P' the Jacobian of P there, 0 ≤ P' ≤ I, and H = ∇²Ω(y), w = Jv solves

    (I − P'(I − ηH)) w = ηP'v.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..domains import Projected, unconstrained
from ..kernels.rowwise import matvec
from ..regularizers.cholesky import least_eigenvalue
from .problem import Point, Problem
from .solution import TRUSTED, Certificate


def hessian(at: Point, verified: bool = False) -> Tensor:
    """∇²Ω(y), (*batch, d, d), 0 where entries do not take part."""
    local = at.verified if verified else at.defined
    h = unconstrained.block(local.curvature, at.problem.participants())
    return torch.nan_to_num(h)


def sized(h: Tensor) -> Tensor:
    """The least curvature along an entry, (*batch, 1): steps are compared with its inverse."""
    diagonal = h.diagonal(dim1=-2, dim2=-1)
    least = torch.where(diagonal > 0, diagonal, torch.inf).amin(-1, keepdim=True)
    return torch.where(torch.isfinite(least), least, 1)


def projected(domain: Projected, v: Tensor) -> tuple[Tensor, Tensor]:
    """P(v), and P' (*batch, d, d)."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        p = domain.nearest(v)
        if not p.requires_grad:
            raise TypeError(
                f"{type(domain.of).__name__}.project must be differentiable in v, by operations of "
                "PyTorch; its result has no gradient"
            )
        rows = [
            torch.autograd.grad(p[..., i].sum(), v, retain_graph=True)[0]
            for i in range(v.shape[-1])
        ]
    return p.detach(), torch.stack(rows, -2)


def slope(problem: Problem, y: Tensor) -> Tensor:
    """r, by the value of Ω alone; with a penalty λR its subgradient is taken off."""
    r = problem.z - problem.definition.grad(problem.projection.lifted(y))
    if problem.structured:
        r = r - problem.penalty_subgradient(y)
    return torch.where(problem.participants(), r, 0)


def certify(at: Point) -> Certificate:
    """Bound ‖y − y*‖ from P, Ω's value and its strong convexity.

    For any v, n = (v − p)/η is normal to D at p = P(v), so that p is the optimum for the scores
    ∇Ω(p) + n, and β‖p − y*‖ ≤ ‖r(p) − n‖. v = y + ηr makes p close to y; the least bound for a few
    η counts. What P(p) − p shows of the error of P is added, and the rounding of r, n and p. Where
    P is no projection nothing is certified: ``regmax.testing.check_domain`` tests it.
    """
    p, y = at.problem, at.y
    domain, eps = p.projection, torch.finfo(at.y.dtype).eps
    with torch.no_grad():
        r, h = slope(p, y), hessian(at, verified=True)
        eta = 1 / sized(h)
        beta = p.beta
        estimated = beta is None
        low = _least(at, h, y + 0.01 * eta * r) if beta is None else None
        if low is not None:
            beta = (low / 2).clamp_min(torch.finfo(y.dtype).tiny).unsqueeze(-1)
        assert beta is not None
        bound = gap = torch.full_like(y[..., 0], torch.inf)
        for step in (1.0, 1e-2, 1e-4, 1e-6):
            v = y + step * eta * r
            near = domain.nearest(v)
            size = v.abs().amax(-1, keepdim=True)
            # an entry that is exactly 0 was held there; the others are rounded as v is
            off = (domain.nearest(near) - near).abs() + torch.where(near == 0, 0, 4 * eps * size)
            n = (v - near) / (step * eta)
            there = slope(p, near)
            rounding = 4 * p.eps * (p.z.abs() + (p.z - there).abs()) + off / (step * eta)
            rounding = rounding + (slope(p, near + off) - there).abs()
            rounding = torch.where(p.participants(), rounding, 0)
            missed, off = (there - n).norm(dim=-1) + rounding.norm(dim=-1), off.norm(dim=-1)
            far = missed / beta.squeeze(-1) + (near - y).norm(dim=-1) + off
            far = torch.where(torch.isfinite(far), far, torch.inf)
            loss = (n * (near - y)).sum(-1).clamp_min(0) + missed * far
            bound, gap = torch.where(far < bound, far, bound), torch.where(far < bound, loss, gap)
        if estimated:  # the curvature at y says nothing of places far from y
            bound = torch.where(bound <= TRUSTED, bound, torch.inf)
        stray = torch.zeros_like(y, dtype=torch.bool)
    return Certificate(gap, bound, estimated, at.support, stray, low)


def _least(at: Point, h: Tensor, v: Tensor) -> Tensor:
    """The least curvature of Ω at y and half-way to another point of D, along the directions in
    which P moves at v, (*batch); +inf where it moves in none."""
    p, domain = at.problem, at.problem.projection
    half = p.at((at.y + domain.middle(at.y)) / 2)
    size, z = torch.linalg.eigh(torch.nan_to_num(projected(domain, v)[1]))
    moves = (size > 1e-6).unsqueeze(-2)
    cap = 1e8 * sized(h)  # more would hide the least in rounding
    least = torch.full_like(at.y[..., 0], torch.inf)
    for each in (h, hessian(half, verified=True)):
        diagonal = each.diagonal(dim1=-2, dim2=-1)
        scale = (cap / torch.maximum(diagonal, cap)).sqrt().unsqueeze(-1)
        along = torch.where(moves, scale * z, 0)
        inner, part = along.mT @ each @ along, moves.squeeze(-2)
        found = least_eigenvalue(inner, torch.zeros_like(at.y), part)
        least = torch.minimum(least, torch.where(part.any(-1), found, torch.inf))
    return least


def system(at: Point) -> tuple[Tensor, Tensor, Tensor]:
    """η, P' and (I − P'(I − ηH))⁻¹ at the optimum."""
    p, h = at.problem, hessian(at)
    eta = 1 / sized(h)
    a = projected(p.projection, at.y + eta * torch.where(p.participants(), at.slope, 0))[1]
    return eta, a, inverse_of(a, h, eta)


def inverse_of(a: Tensor, h: Tensor, eta: Tensor) -> Tensor:
    """(I − A(I − ηH))⁻¹."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    matrix = eye - a + eta.unsqueeze(-1) * (a @ h)
    size = matrix.abs().amax(-2, keepdim=True)  # H may be large for some entries
    size = torch.where(size > 0, size, 1)
    inverse: Tensor = torch.linalg.inv_ex(matrix / size)[0] / size.mT
    return inverse


def followed(problem: Problem, y: Tensor) -> Tensor:
    """y, found without gradients, as PyTorch operations with the first and second derivatives of
    Π_Ω, in all that z, Ω and D depend on.

    Each of two Newton steps on y = P(y + ηr) with the matrix at y has the value 0, and one more
    derivative right: the first leaves an error of second order, which the matrix at y multiplies by
    one of first order.
    """
    smooth, z, on, domain = problem.smooth, problem.z, problem.participants(), problem.projection
    if problem.structured:
        z = problem.penalized.reduced(z, y, problem.mask)
    with torch.no_grad():
        eta, _, inverse = system(Problem(smooth, z.detach(), problem.mask, bounds=domain).at(y))
    for _ in range(2):
        r = torch.where(on, z - smooth.grad(domain.lifted(y)), 0)
        step = matvec(inverse, domain.nearest(y + eta * r) - y)
        y = y + (step - step.detach())
    return y


def product(at: Point, v: Tensor) -> Tensor:
    """J v."""
    eta, a, inverse = system(at)
    return matvec(inverse, eta * matvec(a, v))
