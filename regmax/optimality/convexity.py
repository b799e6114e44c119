"""Refuse an Ω that is not strictly convex where a solver starts or ends, or whose β is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..kernels.simplex import row_dot
from ..regularizers.arguments import first
from ..regularizers.curvature import DENSE_LIMIT, Diagonal
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import who
from .problem import Point, Problem


def check_start(p: Problem) -> None:
    """Refuse an Ω that is not strictly convex where a solver starts: one row is looked at,
    among those with the most participants, in all directions or, where these are too many to
    factorise, in one. At the answer :func:`check_convex` looks at all rows."""
    start, on = p.first, p.participants()
    count = on.sum(-1).reshape(-1)
    chosen = torch.arange(len(count), device=count.device) == count.argmax()
    curvature = start.defined.curvature
    with torch.no_grad():
        if on.shape[-1] <= DENSE_LIMIT or isinstance(curvature, Diagonal):
            low = curvature.inverse(on & chosen.view(on.shape[:-1]).unsqueeze(-1)).min_eigenvalue
        else:
            along = simplex.tangent(simplex.generic(start.y), on)
            low = row_dot(along, curvature.matvec(along)).squeeze(-1)
    check_convex(start, torch.where(chosen.view(low.shape), low, torch.inf))
    if p.beta is not None or on.shape[-1] < 2 or not p.separable:
        return
    # where entries differ too: along e_i − e_j of the two that bend least
    apart = p.at(simplex.normalize(torch.where(on, simplex.generic(start.y), 0)))
    h = torch.where(on, apart.diagonal[1], torch.inf)
    low = torch.where(chosen, h.topk(2, largest=False).values.mean(-1).reshape(-1), torch.inf)
    check_convex(apart, low.view(on.shape[:-1]))


def check_convex(at: Point, low: Tensor | None = None) -> None:
    """Refuse an Ω whose curvature along the support of y is not positive: negative, or 0 where
    rounding does not hide what it is. A declared β is not doubted here: see
    :func:`check_strong_convexity`.

    ``low``: the least curvature, where it is known.
    """
    p = at.problem
    if p.beta is not None:
        return
    if low is None:
        low = at.inverse(at.support, verified=p.overridden).min_eigenvalue
    wrong = (low <= 0) & (p.participants().sum(-1) > 1)  # of one participant Δ is a point
    if not decisions.rare("no curvature", wrong):
        return
    hidden = _hidden(at)
    wrong = wrong & ((low < -hidden) | (hidden <= 1e-6))
    if bool(wrong.any()):
        row = first(wrong)
        raise RegularizerError(
            f"{who(p.smooth)} is not strictly convex: its curvature along the "
            f"support is {low[row].item():.3g} at row {row}, and must be positive"
        )


def _hidden(at: Point) -> Tensor:
    """Curvature that rounding may hide beside the largest at y, one number per row."""
    y = at.y
    signs = torch.where(simplex.generic(y) * y.shape[-1] > 1, 1.0, -1.0).to(y.dtype)
    with torch.no_grad():
        size = at.defined.curvature.matvec(torch.where(at.support, signs, 0))
    noise: Tensor = 64 * torch.finfo(y.dtype).eps * y.shape[-1] * size.abs().amax(-1)
    return torch.nan_to_num(noise, nan=torch.inf)


def check_strong_convexity(at: Point) -> None:
    """Refuse a declared β that is more than the curvature of Ω at y along its softest
    direction on the support."""
    p = at.problem
    if p.beta is None:
        return
    with torch.no_grad():
        support = at.support
        inverse = at.base.inverse(support, verified=True)
        soft = simplex.tangent(simplex.generic(at.y), support)
        for _ in range(8):
            soft = torch.nan_to_num(inverse(simplex.unit(soft)))
        soft = simplex.unit(soft)
        bent = row_dot(soft, at.base.verified.curvature.matvec(soft))
        bent = bent.squeeze(-1)
        least = p.beta.squeeze(-1) * (1 - 1e-6) - _hidden(at.base)
        wrong = (bent < least) & (support.sum(-1) > 1) & (soft.norm(dim=-1) > 0.5)
    if decisions.rare("too much strong_convexity", wrong):
        row = first(wrong)
        raise RegularizerError(
            f"{who(p.smooth)}.strong_convexity is {p.beta[row].item():.6g}, "
            f"and the curvature of Ω is {bent[row].item():.6g} at row {row}: it must be at "
            "most the least curvature on Δ, or None"
        )
