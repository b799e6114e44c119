"""Proposition 1 on the support (Niculae & Blondel 2017): J = ∂Π_Ω/∂z, and ∂Π_Ω/∂θ for any θ of Ω.

For any θ that x, γ or Ω depend on,

    dy* = J d( x/γ − ∇Ω(y*; θ) )|_{y* fixed},       J symmetric positive semidefinite,

so backward is v ↦ Jv followed by the vector–Jacobian product of x/γ − ∇Ω(y*; θ). With a penalty,
J averages over the groups of y* first. :func:`dense_jacobian` is the formula as printed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..domains.base import Face, Faced
from ..kernels import simplex, transforms
from ..kernels.rowwise import matvec
from ..regularizers.autodiff import alias
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Average, Curvature, Dense
from ..regularizers.penalty import averaged, group_ids, smooth_part, structured
from ..regularizers.regularizer import Regularizer, like


def movable(y: Tensor) -> Tensor:
    """The support of y, without those of one entry: at a vertex J = 0, whatever the curvature."""
    support = y > 0
    return support & (support.sum(-1, keepdim=True) > 1)


def averaging(omega: Regularizer, y: Tensor, mask: Tensor | None) -> Average | None:
    """P, the averages over the groups of y that the penalty of Ω makes; None without one."""
    if not structured(omega):
        return None
    at, penalty = y.detach(), omega.penalty
    return Average(
        lambda v: averaged(penalty, v, at, mask), lambda: group_ids(penalty, at, mask), mask
    )


def jacobian_product(
    smooth: Regularizer, average: Average | None, y: Tensor, v: Tensor, support: Tensor
) -> Tensor:
    """J v, J = ∂Π_Ω/∂z on ``support``, for Ω = ``smooth``: differentiable in y, v and its tensors.

    With a penalty the groups of y move as one, and J = P (PHP)⁺ P with their averages P. (For a
    permutation-invariant base H and P commute, and this is J_base P.)
    """
    curvature = smooth.curvature(smooth.lifted(y))
    if average is None:
        w = curvature.jacobian(v, support)
    else:
        w = average(curvature.averaged(average).jacobian(average(v), support))
    if torch.is_grad_enabled() and y.requires_grad and not w.requires_grad:
        w = w + 0 * y  # of a piecewise linear mapping: derivatives of 0, as those of relu
    return w


def restricted(domain: Faced, curvature: Curvature, average: Average | None, face: Face) -> Inverse:
    """J on a face as :func:`jacobian_product` applies it, without derivatives."""
    if average is None:
        return domain.inverse(curvature, face)
    inverse = domain.inverse(curvature.averaged(average), face)
    return Inverse(lambda v: average(inverse(average(v))), lambda: inverse.min_eigenvalue)


def tied_products(hessian: Tensor, walls: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(Jv, J_ρ v) where y lies on kinks of Ω, and J_ρ of its augmented Lagrangian, whose curvature
    is H + ``walls``, is J but for some 1/ρ along their normals.

    y moves along the kinks alone: w = Jv solves Hw + Cᵀμ + τ1 = v, Cw = 0, with H of the Lagrangian
    and the normals C of the kinks. Each product with J_ρH divides the error by about ρ. The sum of
    what they remove is Cᵀμ/ρ, which belongs to a change of the kinks with θ.
    """
    support = movable(y)
    inverse = Dense(hessian + walls).inverse(support)
    products = [inverse(torch.where(support, v, 0))]
    for _ in range(8):
        products.append(inverse(matvec(hessian, products[-1])))
    *before, w = products
    return w, w + sum(each - w for each in before)


def slope(omega: Regularizer, inside: dict[str, Tensor], y: Tensor, mask: Tensor | None) -> Tensor:
    """∇Ω(y; θ), and λu with u ∈ ∂R(y) where Ω is structured, of the tensors ``inside`` Ω."""
    own = omega.with_tensors(inside)
    smooth = smooth_part(own, mask)
    found = smooth.grad(smooth.lifted(y))
    if structured(own) and not all(name.startswith("base.") for name in inside):
        u = own.penalty.any_subgradient(y, mask)
        found = found + own.lam * like(u, y, f"{type(own.penalty).__name__}.value")
    return found


def hyperparameter_product(
    omega: Regularizer,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    y: Tensor,
    w: Tensor,
    mask: Tensor | None = None,
) -> list[Tensor | None]:
    """−(∂∇Ω(y; θ)/∂θ)ᵀ w with y and w held fixed, for every tensor θ of Ω that wants it."""
    found: list[Tensor | None] = [None for _ in tensors]
    if not any(wanted):
        return found
    keep = torch.is_grad_enabled()
    chosen = {name: t for name, t, wants in zip(names, tensors, wanted, strict=True) if wants}
    if transforms.under_transform((y, w, *chosen.values())):
        pull = torch.func.vjp(lambda inside: slope(omega, inside, y, mask), chosen)[1]
        (pulled,) = pull(0 - w)
        return [pulled.get(name) for name in names]
    with torch.enable_grad():
        aliases = {name: alias(t) for name, t in chosen.items()}  # y depends on t too: not counted
        gradient = slope(omega, aliases, y, mask)
        if gradient.requires_grad:
            products = torch.autograd.grad(
                gradient, list(aliases.values()), 0 - w, create_graph=keep, allow_unused=True
            )
            each = dict(zip(aliases, products, strict=True))
            found = [each.get(name) for name in names]
    return found


def dense_jacobian(omega: Regularizer, y: Tensor) -> Tensor:
    """∂Π_Ω/∂z of one row y (d,), from (I + A(B − I)) J = A as printed: an oracle.

    A = diag(s) − ssᵀ/|S| is the Jacobian of P_Δ on the support S of y, B = ∇²Ω(y) by autograd.
    """
    s = (y > 0).to(y.dtype)
    a = torch.diag(s) - torch.outer(s, s) / s.sum()
    b: Tensor = torch.autograd.functional.hessian(omega.value, simplex.inward(y))
    b = b * torch.outer(s, s)  # A hides the rest, where B may be infinite
    eye = torch.eye(len(y), dtype=y.dtype, device=y.device)
    j: Tensor = torch.linalg.solve(eye + a @ (b - eye), a)
    return j
