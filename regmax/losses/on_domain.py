"""Fenchel–Young losses on a domain D other than the simplex, for targets in D:

L(x; t) = max_{y ∈ D} (⟨y, x⟩ − γΩ(y)) + γΩ(t) − ⟨t, x⟩,        ∇_x L = Π(x) − t
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..kernels import transforms
from ..kernels.wrappers import is_dtensor
from ..mapping import evaluate
from ..mapping.maximum import smooth_max
from ..mapping.methods.solver import Settings
from ..mapping.rows import prepare
from ..regularizers import arguments
from ..regularizers.arguments import first
from ..regularizers.regularizer import Regularizer
from .targets import F64, omega_at


def losses(
    omega: Regularizer,
    x: Tensor,
    gamma: Any,
    dim: int,
    mask: Tensor | None,
    target: Tensor,
    settings: Settings,
    domain: Domain,
) -> Tensor:
    """L of each row along ``dim``, in float64; a target outside of D is refused, or NaN where it
    cannot be read. +inf if the target is not 0 at a masked entry; 0 in rows without participants.
    """
    if is_dtensor(x):
        raise NotImplementedError(f"domain= takes plain tensors; got {type(x).__name__}")
    if target.dtype in (torch.bool, torch.int64) or target.shape != x.shape:
        raise ValueError(
            "target must be floating and have the shape of input where the loss has a domain: "
            f"{tuple(x.shape)}; got {target.dtype}, {tuple(target.shape)}"
        )
    if settings.certify:
        evaluate.mapping(omega, x, gamma, dim, mask, settings, domain)
        settings = replace(settings, certify=False)
    rows = prepare(omega, x, gamma, dim, mask, True, domain)
    bounds, t = rows.bounds, rows.inner(target).to(rows.x)
    assert bounds is not None
    on = None if rows.mask is None else arguments.expanded(mask, x)
    hidden = torch.zeros_like(t[..., 0], dtype=torch.bool)
    if rows.mask is not None:
        out = ~rows.mask if on is None else ~rows.inner(on) | ~rows.mask
        hidden = (out & (t != 0)).any(-1)
        t = torch.where(rows.mask, t, 0)
    # as exact as the dtype of the target can be
    slack = 8 * torch.finfo(target.dtype).eps * t.shape[-1] ** 0.5
    high = bounds.high.detach().amax(-1).clamp_min(1)
    size = high if bounds.total is None else bounds.total.detach().squeeze(-1)
    off = (bounds.off(t.detach()).amax(-1) > slack * high) | (
        bounds.excess(t.detach()) > slack * size
    )
    off = off & ~hidden
    for none in (rows.empty, rows.spoilt):
        off = off if none is None else off & ~none.squeeze(-1)
    if transforms.may_look(off) and bool(off.any()):
        at = first(off)
        raise ValueError(
            f"target must lie in the domain; got one of sum {t[at].sum().item():g}, in "
            f"[{t[at].min().item():g}, {t[at].max().item():g}], at row {at}"
        )
    y, result = evaluate.argmax(rows, settings)
    gammas = rows.gamma.squeeze(-1) if isinstance(rows.gamma, Tensor) else rows.gamma
    value = smooth_max(rows, y, result) - rows.restore_rows((t * rows.x).sum(-1))
    if bounds.total is not None:
        value = value - rows.restore_rows(rows.shift.squeeze(-1) * t.sum(-1))
    value = value + gammas * omega_at(rows.omega, t, rows.mask)
    value = torch.where(off, torch.nan, torch.where(hidden, torch.inf, value))
    return rows.restore_rows(value).to(F64)
