"""Fenchel–Young losses on a domain D other than the simplex, for targets in D:

L(x; t) = max_{y ∈ D} (⟨y, x⟩ − γΩ(y)) + γΩ(t) − ⟨t, x⟩,        ∇_x L = Π(x) − t

and for a class c, of which y_c = 1 is asked and nothing of the others, with D_c = {y ∈ D, y_c = 1},

L(x; c) = max_D(x) − max_{D_c}(x),        ∇_x L = Π_D(x) − Π_{D_c}(x)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Bounded, Domain, Projected
from ..domains.sets import empty
from ..kernels import transforms
from ..kernels.wrappers import is_dtensor
from ..mapping import evaluate
from ..mapping.maximum import smooth_max
from ..mapping.methods.solver import Settings
from ..mapping.rows import prepare
from ..regularizers.arguments import first
from ..regularizers.regularizer import Regularizer, per_row
from .targets import F64, Target, omega_at


def losses(
    omega: Regularizer,
    x: Tensor,
    gamma: Any,
    dim: int,
    mask: Tensor | None,
    target: Target,
    settings: Settings,
    domain: Domain,
) -> Tensor:
    """L of each row along ``dim``, in float64. A target outside of D is refused, or NaN where it
    cannot be read. +inf if it is not 0 at a masked entry; 0 in rows without participants and in
    those that the target skips, which may have any class. The mask has the shape of x.
    """
    if is_dtensor(x):
        raise NotImplementedError(f"domain= takes plain tensors; got {type(x).__name__}")
    if settings.certify:
        evaluate.mapping(omega, x, gamma, dim, mask, settings, domain)
        settings = replace(settings, certify=False)
    rows = prepare(omega, x, gamma, dim, mask, True, domain)
    bounds = rows.bounds
    assert bounds is not None
    c = target.vertex
    if c is not None and not isinstance(bounds, Bounded):
        kind = "a point of the domain" if isinstance(bounds, Projected) else "a plan"
        raise ValueError(
            f"target must be {kind}, floating and of the shape of input; got indices of shape "
            f"{tuple(c.shape[:-1])}"
        )
    exact = F64
    if c is not None:
        t = torch.zeros_like(rows.x).scatter(-1, c, 1)
    else:
        assert target.given is not None
        t = rows.inner(target.given.movedim(-1, dim)).to(rows.x)
        # as exact as the dtype of the target can be
        exact = target.given.dtype if target.given.is_floating_point() else F64
    hidden = torch.zeros_like(t[..., 0], dtype=torch.bool)
    if rows.mask is not None:
        out = ~rows.mask if mask is None else ~rows.inner(mask) | ~rows.mask
        hidden = (out & (t != 0)).any(-1)
        t = torch.where(rows.mask, t, 0)
    inner = None
    if c is None:
        slack = 8 * torch.finfo(exact).eps * t.shape[-1] ** 0.5
        excess = bounds.excess(t.detach())
        if isinstance(bounds, Projected):
            off = excess > slack * t.norm(dim=-1).clamp_min(1)
        else:
            high = bounds.high.detach().amax(-1).clamp_min(1)
            size = high if bounds.total is None else bounds.total.detach().squeeze(-1)
            off = (bounds.off(t.detach()).amax(-1) > slack * high) | (excess > slack * size)
    else:
        assert isinstance(bounds, Bounded)
        inner = bounds.holding(t)
        off = empty(inner).squeeze(-1)
    hidden = hidden if target.skip is None else hidden | target.skip
    off = off & ~hidden
    for none in (rows.empty, rows.spoilt):
        off = off if none is None else off & ~none.squeeze(-1)
    if transforms.may_look(off) and bool(off.any()):
        at = first(off)
        if c is not None:
            raise ValueError(
                f"target: class {c[at].item()} cannot have y = 1 in the domain, at row {at}; a "
                "target may also be a point of the domain, floating and of the shape of input"
            )
        raise ValueError(
            f"target must lie in the domain; got one of sum {t[at].sum().item():g}, in "
            f"[{t[at].min().item():g}, {t[at].max().item():g}], at row {at}"
        )
    if inner is None and any(t.requires_grad for t in bounds.tensors.values()):
        rows = rows.literal  # a multiple of Σy − Σt, 0 here, has a derivative in the total
    # both parts are relative to the shift, times a total that they share
    shift, rows = rows.shift, replace(rows, shift=torch.zeros_like(rows.shift))
    value = smooth_max(rows, *evaluate.argmax(rows, settings))
    if inner is None:
        value = value - rows.restore_rows((t * rows.x).sum(-1))
        value = value + per_row(rows.gamma) * omega_at(rows.omega, t, rows.mask)
        if bounds.total is not None:
            total = bounds.total - bounds.total.detach()
            value = value + rows.restore_rows((shift * total).squeeze(-1))
    else:
        assert isinstance(bounds, Bounded)
        inside = replace(rows, bounds=inner.where(~(off | hidden), bounds))
        value = value - smooth_max(inside, *evaluate.argmax(inside, settings))
    value = torch.where(off, torch.nan, torch.where(hidden, torch.inf, value))
    return target.without_skipped(rows.restore_rows(value).to(F64))
