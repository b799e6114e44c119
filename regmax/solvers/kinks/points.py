"""The maxima in the value of an Ω with kinks (:mod:`regmax.regularizers.kinks`): which they are,
and Ω with them at a point."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import decisions, simplex
from ...kernels.products import evaluated
from ...optimality.jacobian import movable
from ...optimality.problem import Problem
from ...regularizers.kinks import Kinks, Multipliers, TooMany
from ...regularizers.regularizer import Regularizer

CLOSE = 1e-6
"""y is next to a kink up to this distance, if the maximum has at least this weight."""
MOST = 1 << 26
"""Numbers of ∂u/∂y, for all rows, up to this number."""


class Unfit(Exception):
    """The value of Ω is no number of each row."""


class Known(NamedTuple):
    """The maxima in a value for scores of one shape: first centres; the sets M; which depend on y;
    and whether the slope of Ω is infinite at 0 in all entries."""

    centres: list[Tensor]
    sets: list[Multipliers]
    moves: list[bool]
    steep: bool

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


def near_kinks(omega: Regularizer, y: Tensor) -> Tensor:
    """Rows in which y is next to a kink of Ω that bends it on the support of y, or may be."""
    with torch.enable_grad():
        at = simplex.inward(y).requires_grad_()
        try:
            with Kinks(None, None) as kinks:
                value = omega.value(at)
        except TooMany:
            return torch.ones_like(y[..., 0], dtype=torch.bool)
        moves = [_depends(u, at) for u in kinks.u]
        each = zip(kinks.u, kinks.sets, kinks.maxima, moves, strict=True)
        found = [(u, own, t) for u, own, t, of_y in each if of_y]
        near = torch.zeros_like(y[..., 0], dtype=torch.bool)
        if not found:
            return near
        maxima = [t for *_, t in found]
        w = torch.autograd.grad(value.sum(), maxima, retain_graph=True, materialize_grads=True)
        for (u, own, _), weight in zip(found, w, strict=True):
            met = (own.over(u.detach()).abs() <= CLOSE) & (weight.abs() > CLOSE)
            (c,) = torch.autograd.grad(u, at, met * simplex.generic(u), retain_graph=True)
            near = near | ((c != 0) & movable(y)).any(-1)
    return near


def known_maxima(problem: Problem) -> Known | None:
    """The maxima of Ω; None without one that bends Ω at one of two points of Δ."""
    omega, a = problem.omega, simplex.uniform(problem.z, None)
    with torch.enable_grad(), Kinks(None, None) as kinks:
        at = a.clone().requires_grad_()
        omega.value(at)
        moves = [_depends(u, at) for u in kinks.u]
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
    known = Known(centres, kinks.sets, moves, decisions.all_of(problem.infinite_slope))
    for y in (a, (a + simplex.generic(a)) / 2):
        with Kinks(None, held) as there:
            omega.value(y)
        if bool((look_at(problem, known, y, there.multipliers).bending() != 0).any()):
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
    if not u.requires_grad:
        return False
    (g,) = torch.autograd.grad(u.sum(), y, retain_graph=True, allow_unused=True)
    return g is not None


def look_at(problem: Problem, known: Known, y: Tensor, m: list[Tensor]) -> Look:
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
