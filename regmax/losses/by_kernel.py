"""Losses of rows by a kernel: one that Ω offers (:meth:`regmax.kernels.Kernel.loss`), or one from
its value, which computes Ω(y) with y."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..mapping.methods import from_value
from ..mapping.methods.base import Missed, laid_out
from ..mapping.methods.kernel import numbers_of
from ..mapping.methods.solver import Settings
from ..mapping.methods.traced import Fixed
from ..mapping.rows import HALF, aligned, flat
from ..regularizers.identity import by_value
from ..regularizers.regularizer import Regularizer
from .targets import F64, Target, omega_at

_VERTICES = 1024
"""Entries of a row up to which Ω is computed at all vertices."""


class Solved(NamedTuple):
    """What the derivatives of losses need."""

    dx: Any
    """y − t; 0 in rows without gradient."""
    y: Any = None
    on: Tensor | None = None
    """The participants, None for all entries."""
    plain: Tensor | None = None
    """The rows that have a gradient, None for all."""
    tied: Any = None
    """The augmented Lagrangian of Ω where y is on its kinks."""
    slopes: Tensor | None = None
    """The derivatives of the losses in γ and θ, (*batch, 2), if they are known."""


def of_rows(
    kernel: Kernel,
    omega: Regularizer,
    x: Tensor,
    gamma: Any,
    mask: Tensor | None,
    target: Target,
    skip: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Solved] | None:
    """The losses of rows by a kernel that Ω offers, or None where it computes less. ``learns``:
    with their derivatives in γ and θ."""
    t, known = target.plain(skip), type(kernel)
    if known.loss is Kernel.loss or t is None or x.dtype not in kernel.dtypes:
        return None
    if learns and known.loss_slopes is Kernel.loss_slopes:
        return None
    if t.is_floating_point() and not kernel.distributions:
        return None
    gamma, *theta = [laid_out(kernel, item, x) for item in numbers_of(omega, gamma)]
    rows, t, on = flat(x), flat(t), None if mask is None else flat(mask)
    given = rows, t, gamma, tuple(theta), on, target.epsilon or 0.0
    found = kernel.loss(*given)
    if found is None:
        return None
    (value, dx), slopes = found, None
    if learns:
        slopes = kernel.loss_slopes(dx, *given)
        if slopes is None:
            return None
        slopes = torch.where(value.isfinite().unsqueeze(-1), slopes, 0).view(*x.shape[:-1], 2)
    return value.view(x.shape[:-1]), Solved(dx.view(x.shape), slopes=slopes)


def from_its_value(
    omega: Regularizer, x: Tensor, gamma: Any, target: Target, settings: Settings
) -> tuple[Tensor, Tensor] | None:
    """L_Ω(x; e_k) of each row, in float64, and its gradient in x, by a kernel from the value; None
    where this is not known to be right, and for other targets."""
    vertex = target.vertex
    if vertex is None or target.spread is not None or target.epsilon is not None:
        return None
    if type(gamma) is not float or x.dtype in HALF or not by_value(type(omega)):  # type: ignore[arg-type]
        return None
    z = flat(x.detach().double())
    omega = omega if x.dtype == F64 else aligned(omega, z, -1)
    method = from_value.method_of(omega, z, gamma, settings, make=True)
    call: Any = None if method is None else method.direct
    if call is None or not (call.fixed.kernel.sums and call.fixed.continuous):
        return None
    if x.shape[-1] > _VERTICES and not call.fixed.kernel.alike:
        return None
    try:
        y, sums = call.solved(z, len(z))
    except Missed:
        return None
    with torch.no_grad():
        k = vertex.reshape(-1, 1)
        linear = (y * (z - z.gather(1, k))).sum(-1)
        change = _at_vertices(omega, call.fixed, k) - torch.tensor(
            sums[::2], dtype=F64, device=y.device
        )
        value = linear + gamma * torch.where(y.gather(1, k).squeeze(1) == 1, 0, change)
        return value.view(x.shape[:-1]), target.taken_from(y.view(x.shape)).to(x.dtype)


def _at_vertices(omega: Regularizer, fixed: Fixed, k: Tensor) -> Tensor:
    """Ω(e_k) of each row, computed once for each vertex."""
    if fixed.vertices is None:
        each = torch.eye(fixed.point.shape[-1], dtype=F64, device="cpu")
        fixed.vertices = omega_at(omega, each[:1] if fixed.kernel.alike else each, None)
    found = fixed.vertices
    return found if found.numel() == 1 else found[k.squeeze(1)]
