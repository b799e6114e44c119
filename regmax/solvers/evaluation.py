"""Ω, ∇Ω and ∇²Ω by PyTorch at the points that compiled Newton steps ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import simplex
from ..kernels.products import evaluated
from ..optimality.problem import Problem
from ..regularizers.autodiff import Local, products
from ..regularizers.curvature import Dense, Diagonal

TOGETHER = 16
"""Rows up to this number are evaluated at all points of a certificate at once."""

Evaluated = tuple[Tensor, Tensor, Tensor]
"""Ω, ∇Ω and products with ∇²Ω at points, row by row."""


class Unfit(Exception):
    """The value of Ω is no number of each row, or computes in float32."""


def around(problem: Problem, ways: Tensor, points: Tensor, code: Any) -> Evaluated:
    """:func:`evaluated_at` at the points (rows, points, d) of certificates."""
    z, count = problem.z, len(points)
    each = points.movedim(1, 0).reshape(code.COUNT, *z.shape)
    # the numbers of the first go into the bound, whose bits depend on no other row
    among = each[:1].clone()
    among.view(count, -1)[1::2] = simplex.generic(z.reshape(count, -1)[:1])
    if count <= TOGETHER:
        return evaluated_at(problem, torch.cat([each, among]), ways, 2)
    value, gradient, hessian = evaluated_at(problem, each[:2], ways, 2)
    more = evaluated_at(problem, torch.cat([each[2:], among]), ways, 0)
    return torch.cat([value, more[0]], 1), torch.cat([gradient, more[1]], 1), hessian


def local_at(found: Evaluated, units: int, shape: torch.Size) -> Local:
    """∇Ω and ∇²Ω at the first of the points of a certificate."""
    _, gradient, hessian = found
    d = shape[-1]
    h = hessian[:, : units * d].reshape(*shape[:-1], units, d)
    curvature = Dense((h + h.mT) / 2) if units == d else Diagonal(h[..., 0, :])
    return Local(gradient[:, :d].reshape(shape), curvature)


def evaluated_at(problem: Problem, points: Tensor, ways: Tensor, bent: int = 1) -> Evaluated:
    """Ω and ∇Ω at points (n, *batch, d), and ∇²Ω times each of the ``ways`` at the first ``bent``
    of them: the numbers of each row one after another. Of a few rows there are copies for the ways,
    of many the backward pass is run for all ways at once."""
    d, units = points.shape[-1], len(ways)
    rows = points[0].numel() // d
    copies = units if rows <= TOGETHER else 1
    with torch.enable_grad():
        at = torch.cat([points[:bent].repeat_interleave(copies, 0), points[bent:]])
        at = simplex.inward(at).requires_grad_()
        value = evaluated(problem.omega.value, at)
        if value.shape != at.shape[:-1]:
            raise Unfit
        (g,) = torch.autograd.grad(value.sum(), at, create_graph=bent > 0)
    h = at.new_zeros(bent, units, rows, d)
    if g.requires_grad and copies > 1:
        v = torch.nn.functional.pad(ways.repeat(bent, 1), (0, 0, 0, len(at) - bent * units))
        v = v.view(len(at), *(1,) * (points.ndim - 2), d).expand_as(g)
        with torch.enable_grad():
            total = (g * v).sum()
        (found,) = torch.autograd.grad(total, at, allow_unused=True)
        h = h if found is None else found[: bent * units].reshape(h.shape)
    elif g.requires_grad:
        v = ways.view(units, *(1,) * (points.ndim - 1), d).expand(units, *g.shape)
        h = products(g, at, v)[:, :bent].reshape(units, bent, rows, d).movedim(1, 0)
    end = bent * copies
    value, g = (torch.cat([t[:end:copies], t[end:]]) for t in (value.detach(), g.detach()))
    n = len(value)
    return (
        value.reshape(n, rows).T.contiguous(),
        g.reshape(n, rows, d).movedim(0, 1).reshape(rows, n * d).contiguous(),
        h.movedim(2, 0).reshape(rows, bent * units * d).contiguous(),
    )
