"""Losses of an own Ω by a kernel that an earlier call made of it (:mod:`regmax.mapping.own`).

The kernel computes Ω(y) with y.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..mapping import own
from ..mapping.forward import Settings
from ..mapping.rows import HALF, aligned, computes
from ..mapping.traced import Fixed
from ..regularizers.regularizer import Regularizer
from .support import flat
from .targets import F64, Target, omega_at

_VERTICES = 1024
"""Entries of a row up to which Ω is computed at all vertices."""


def loss(
    omega: Regularizer, x: Tensor, gamma: Any, target: Target, settings: Settings
) -> tuple[Tensor, Tensor] | None:
    """L_Ω(x; e_k) of each row, in float64, and its gradient in x; None where this is not known to
    be right, and for other targets."""
    vertex = target.vertex
    if vertex is None or target.spread is not None or target.epsilon is not None:
        return None
    if type(gamma) is not float or x.dtype in HALF or not own.by_value(type(omega)):  # type: ignore[arg-type]
        return None
    z = flat(x.detach().double())
    omega = omega if x.dtype == F64 else aligned(omega, z, -1)
    call = own.found(omega, z, gamma, settings, make=True)
    if call is None or not (call.fixed.kernel.sums and call.fixed.continuous):
        return None
    if x.shape[-1] > _VERTICES and not call.fixed.kernel.alike:
        return None
    try:
        y, sums = call.solved(omega.value, z, settings.tolerance(F64), len(z))
    except own.Missed:
        return None
    with torch.no_grad():
        k = vertex.reshape(-1, 1)
        linear = (y * (z - z.gather(1, k))).sum(-1)
        change = _at_vertices(omega, call.fixed, k) - torch.tensor(
            sums[::2], dtype=F64, device=y.device
        )
        value = linear + gamma * torch.where(y.gather(1, k).squeeze(1) == 1, 0, change)
        return value.view(x.shape[:-1]), target.taken_from(y.view(x.shape)).to(x.dtype)


def uniform(omega: Regularizer, x: Tensor) -> tuple[Regularizer, Tensor]:
    """Ω, and rows like x at which it can be evaluated: in float64 where it needs that."""
    y = x.new_full((), 1 / x.shape[-1]).expand_as(x)
    if x.dtype == F64 or omega.hyperparameters is not None or computes(omega, y):
        return omega, y
    y = y.double()
    return aligned(omega, y, -1), y


def _at_vertices(omega: Regularizer, fixed: Fixed, k: Tensor) -> Tensor:
    """Ω(e_k) of each row, computed once for each vertex."""
    if fixed.vertices is None:
        each = torch.eye(fixed.point.shape[-1], dtype=F64, device="cpu")
        fixed.vertices = omega_at(omega, each[:1] if fixed.kernel.alike else each, None)
    found = fixed.vertices
    return found if found.numel() == 1 else found[k.squeeze(1)]
