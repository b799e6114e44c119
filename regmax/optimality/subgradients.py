"""Whether the methods of a penalty fit its value: a certificate rests on the subgradients that they
give, and a derivative on their groups."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..kernels.neighbours import averages
from ..regularizers.arguments import first
from ..regularizers.penalty import Penalized, averaged, group_ids, proxed, valued
from ..regularizers.regularizer import like
from .certificates import penalty_subgradient
from .premises import shown
from .problem import Problem


def mistaken_penalty(problem: Problem, y: Tensor) -> str | None:
    """Why the methods of a penalty cannot all be right, or None.

    The certificate of y rests on u ∈ λ∂R(p), p at or next to y, which ``subgradient`` gave or
    ``prox`` implies: no s may have λR(s) < λR(p) + ⟨u, s − p⟩. Members of a group are equal, and
    what ``prox`` does to small changes is to average over the groups.
    """
    omega, mask = problem.omega, problem.mask
    if not isinstance(omega, Penalized):
        return None
    who = type(omega.penalty).__name__
    with torch.no_grad():
        value = valued(omega.penalty, y, mask)
        if decisions.rare("infinite penalty", ~torch.isfinite(value)):
            at = first(~torch.isfinite(value))
            return f"{who}.value is not finite at y = {shown(y[at])} (row {at})"
        if problem.structured and (said := _not_lovasz(problem, y, value)):
            return said
        u, p = penalty_subgradient(problem.at(y))
        low, s = _above_subgradient(problem, u, p)
        if decisions.rare("no subgradient", low > 0):
            at = first(low > 0)
            method = "subgradient" if problem.structured else "prox"
            return (
                f"{who}.{method} and {who}.value do not fit: at p = {shown(p[at[1:]])} it gives "
                f"the subgradient {shown(u[at[1:]])} of λR, but λR at {shown(s[at])} is less "
                f"than λR(p) + ⟨u, s − p⟩ by {low[at].item():.3g} (row {at[1:]})"
            )
        if not problem.structured:
            return None
        ids, on = group_ids(omega.penalty, y, mask), problem.participants()
        apart = on & ((averages(torch.where(on, y, 0), ids, on) - y).abs() > 1e-12)
        wrong = apart.any(-1) | _averages_otherwise(problem, y)
        if decisions.rare("wrong groups", wrong):
            at = first(wrong)
            return (
                f"{who}.groups and {who}.prox do not fit: at y = {shown(y[at])} the groups are "
                f"{ids[at].tolist()[:8]}, and they are not what prox keeps together (row {at})"
            )
    return None


def _not_lovasz(problem: Problem, y: Tensor, value: Tensor) -> str | None:
    """Where R(s + t) ≠ R(s) + R(t) though s and t have one order, which makes R no Lovász
    extension; or where ``any_subgradient`` is none: ⟨u, y⟩ ≠ R(y)."""
    penalty, mask = problem.penalized.penalty, problem.mask
    who = type(penalty).__name__
    for s in (y, torch.where(problem.participants(), simplex.generic(y), 0)):
        t = s + s.square()
        both = valued(penalty, s, mask) + valued(penalty, t, mask)
        off = (valued(penalty, s + t, mask) - both).abs() > 1e-9 * (1 + both.abs())
        if decisions.rare("not lovasz", off):
            at = first(off)
            return (
                f"{who} declares lovasz = True, and R(s + t) is not R(s) + R(t) at "
                f"s = {shown(s[at])} and t = s + s²"
            )
    u = like(penalty.any_subgradient(y, mask), y, f"{who}.any_subgradient")
    inner = (u * y).sum(-1)
    off = (inner - value).abs() > 1e-9 * (1 + value.abs() + (u * y).abs().sum(-1))
    if decisions.rare("no subgradient", off):
        at = first(off)
        return (
            f"{who}.any_subgradient gives {shown(u[at])} at y = {shown(y[at])}, whose product with "
            f"y is {inner[at].item():.6g} and not R(y) = {value[at].item():.6g}"
        )
    return None


def _above_subgradient(problem: Problem, u: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """By how much λR(p) + ⟨u, s − p⟩ exceeds λR(s), beyond rounding, at points s: (points, *batch)
    and the points. Along u − λ∇R near p, ascended for a few steps, and to some points far away."""
    omega, on, mask = problem.penalized, problem.participants(), problem.mask

    def weighted(s: Tensor) -> Tensor:
        on_s = None if mask is None else mask.expand(s.shape)
        value: Tensor = omega.per_row("lam") * valued(omega.penalty, s, on_s)
        return value

    def slope(s: Tensor) -> Tensor:
        with torch.enable_grad():
            at = s.detach().requires_grad_()
            (g,) = torch.autograd.grad(weighted(at).sum(), at, allow_unused=True)
        return torch.zeros_like(s) if g is None else torch.where(on, torch.nan_to_num(g), 0)

    u = torch.where(on, u, 0)
    if problem.structured:  # on Δ a multiple of Σs is constant
        u = simplex.tangent(u, on)
    here, tiny = weighted(p), torch.finfo(p.dtype).tiny
    points = [torch.stack([torch.zeros_like(p), 2 * p, torch.where(on, p + 1, 0)])]
    points += [simplex.uniform(p, mask).unsqueeze(0)]
    zeros = torch.where(p == 0, 1.0, 0.0)
    part = torch.stack([torch.ones_like(p), zeros, 1 - zeros])  # all entries, those at 0, others
    way, steep = torch.where(on, part * u, 0), u.norm(dim=-1, keepdim=True).clamp_min(tiny)
    for k in range(6):
        way = simplex.unit(way)
        points += [*(p + reach * way for reach in ((1e-1, 1e-3, 1e-5) if k in (0, 5) else ()))]
        points += [p - 1e-3 * way] if k == 0 else []
        rise = part * (u - slope(p + 1e-5 * way))
        if problem.structured:
            rise = part * simplex.tangent(rise, on)
        way = rise if k == 0 else way + rise / steep
    s = torch.cat(points)
    if problem.structured:
        s = p + simplex.tangent(s - p, on.expand(s.shape))
    there, linear = weighted(s), (torch.where(on, u * (s - p), 0)).sum(-1)
    size = here.abs() + there.abs() + (u * s).abs().sum(-1) + (u * p).abs().sum(-1)
    eps = torch.finfo(p.dtype).eps
    # u is a difference of numbers of the size of the scores
    lost = 64 * eps * (1 + torch.where(on, problem.slope(p), 0).abs().amax(-1))
    return here + linear - there - 512 * eps * size - lost * (s - p).norm(dim=-1), s


def _averages_otherwise(problem: Problem, y: Tensor) -> Tensor:
    """Rows in which the prox next to y is differentiable, and its derivative no average over the
    groups of y: by differences over two distances. A penalty too weak to hold a group together
    over the larger is not looked at."""
    omega, on = problem.penalized, problem.participants()
    v = y + problem.slope(y)
    way = simplex.tangent(simplex.generic(y, 3.1) - 1 / y.shape[-1], on)
    way = way / way.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    pull = omega.penalty.any_subgradient(simplex.generic(y), problem.mask)
    strength = (omega.lam * torch.where(on, pull, 0).abs()).amax(-1)
    wrong = (strength > 1e-3) & (torch.where(on, v, 0).abs().amax(-1) < 1e3)
    h = torch.stack([y.new_full((1,) * y.ndim, k) for k in (1e-6, 1e-9)])
    steps = torch.stack([v - h * way, v.expand(2, *v.shape), v + h * way])
    within = None if problem.mask is None else problem.mask.expand(steps.shape)
    low, middle, high = proxed(omega.penalty, steps, omega.lam, within)
    slope = torch.where(on, high - low, 0) / (2 * h)
    bend = torch.where(on, high - 2 * middle + low, 0).abs().amax(-1) / h.squeeze(-1)
    # of the groups of the prox itself, of which those of y may be several in one
    found = averaged(
        omega.penalty, way.expand(2, *way.shape), middle, None if within is None else within[0]
    )
    off = simplex.tangent(found - slope, on.expand(found.shape)).abs().amax(-1)
    # of one v twice
    unlike = torch.where(on, middle[0] - middle[1], 0).abs().amax(-1)
    rounding = 1e3 * torch.finfo(y.dtype).eps * (1 + torch.where(on, v, 0).abs().amax(-1))
    return wrong & ((off > 1e-2) & (bend < 1e-3)).all(0) | (unlike > rounding)
