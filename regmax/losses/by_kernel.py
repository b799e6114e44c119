"""Losses by a kernel: of plain rows with their reduction, which is what a training step needs; and
row by row.

The kernel may be one that Ω offers (:meth:`regmax.kernels.Kernel.loss`), or one from its value,
which computes Ω(y) with y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel, transforms
from ..mapping.methods import choose, from_value
from ..mapping.methods.base import Method, Missed, laid_out
from ..mapping.methods.kernel import numbers_of
from ..mapping.methods.solver import Settings
from ..mapping.methods.traced import Fixed
from ..mapping.rows import HALF, aligned, flat
from ..nn import gradients
from ..regularizers.identity import names_of, valued
from ..regularizers.regularizer import Regularizer
from .targets import F64, Target, omega_at

_VERTICES = 1024
"""Entries of a row up to which Ω is computed at all vertices."""


class Solved(NamedTuple):
    """What the derivatives of losses need."""

    dx: Any
    """y − t; 0 in rows without gradient."""
    slopes: Tensor | None = None
    """The derivatives of the losses in γ and θ, (*batch, 2)."""


@dataclass
class Reduced(gradients.Operation):
    """The loss of logits (N, C) and indices (N,) or distributions (N, C) of their dtype, with its
    reduction; None where the kernel refuses it. ``general`` computes it with operations that can
    be differentiated again."""

    method: Method
    target: Tensor
    label_smoothing: float
    ignore_index: int
    reduction: str
    general: Callable[..., Any]
    dx: Tensor | None = None
    """The gradient, that of the sum for the reduction "none"; backward gives it away."""

    @property
    def held(self) -> Sequence[Any]:
        return (self.target,)

    def forward(self, grad: bool, x: Tensor) -> Any:
        kernel, mean = self.method.kernel, self.reduction == "mean"
        x, target = flat(x), self.target
        numbers = [laid_out(kernel, t, x) for t in self.method.numbers]
        target = flat(target) if target.ndim == 2 else target
        given = (numbers[0], tuple(numbers[1:]), self.label_smoothing, self.ignore_index, mean)
        found = kernel.reduced(x, target, *given)
        if found is None:
            return None, ()
        values, self.dx, count = found
        if self.reduction == "none":
            return values.to(x.dtype), ()
        return x.new_full((), values.sum().item() / (max(count, 1) if mean else 1)), ()

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Any], x: Tensor
    ) -> list[Tensor | None]:
        if self.dx is None:  # a second backward
            self.forward(True, x)
        assert self.dx is not None
        dx, self.dx = self.dx, None
        return [scaled(dx, g, x.dtype)]

    def recorded(self, x: Tensor) -> Tensor:
        omega, (gamma, *theta) = self.method.omega, self.method.numbers
        omega = omega.with_tensors(dict(zip(names_of(omega), theta, strict=True)))
        how = {k: getattr(self, k) for k in ("label_smoothing", "ignore_index", "reduction")}
        found: Tensor = self.general(omega, gamma, **how)._general(x, self.target, None)
        return found


def scaled(dx: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """g·dx of each row, in the memory of dx where it has this dtype."""
    if g.ndim == 0 and dx.dtype == dtype and g.item() == 1:
        return dx
    out = dx if dx.dtype == dtype else dx.new_empty(dx.shape, dtype=dtype)
    return torch.mul(dx, g.unsqueeze(-1).to(dx.dtype), out=out)


def reduced(module: Any, x: Tensor, target: Tensor, general: Callable[..., Any]) -> Reduced | None:
    """The task of a :class:`regmax.FenchelYoungLoss`, or None where it takes more than this.
    ``general`` makes a module of its arguments."""
    plain = transforms.PLAIN
    if torch.compiler.is_compiling() or type(x) not in plain or type(target) not in plain:
        return None
    if x.is_nested or target.is_nested:
        return None
    dense = target.dtype == x.dtype and not target.requires_grad
    if x.ndim != 2 or not (dense or target.dtype == torch.int64):
        return None
    if target.shape != (x.shape if dense else x.shape[:1]):
        return None
    own, parts = module.__dict__, module._modules["mapping"].__dict__  # getattr takes longer
    gamma, settings, omega = parts.get("gamma"), parts["settings"], parts["_modules"]["omega"]
    if type(gamma) is not float or own["dim"] not in (1, -1) or "at" in own or "parts" in own:
        return None
    if own["_buffers"]["weight"] is not None or settings.solver != "auto" or settings.certify:
        return None
    method, learnt = choose.known_kernel(omega, x, gamma) or (None, ())
    if method is None or learnt or (dense and not method.kernel.distributions):
        return None
    if not (target.is_cpu and target.layout == torch.strided):
        return None
    if not all(t.data_ptr() or not t.numel() for t in (x, target)):  # one without memory
        return None
    how = own["label_smoothing"], own["ignore_index"], own["reduction"]
    return Reduced(method, target, *how, general)


def of_rows(
    kernel: Kernel,
    omega: Regularizer,
    x: Tensor,
    gamma: Any,
    mask: Tensor | None,
    target: Target,
    learns: bool,
) -> tuple[Tensor, Solved] | None:
    """The losses of rows by a kernel that Ω offers, or None where it computes less. ``learns``:
    with their derivatives in γ and θ."""
    t, known = target.plain(), type(kernel)
    if known.loss is Kernel.loss or t is None or x.dtype not in kernel.dtypes:
        return None
    by_y = known.loss_slopes is Kernel.loss_slopes
    if t.is_floating_point() and (not kernel.distributions or (learns and by_y)):
        return None
    numbers = numbers_of(omega, gamma)
    gamma, *theta = [laid_out(kernel, item, x) for item in numbers]
    rows, t, on = flat(x), flat(t), None if mask is None else flat(mask)
    given = rows, t, gamma, tuple(theta), on, target.epsilon or 0.0
    found = kernel.loss(*given)
    if found is None:
        return None
    value, dx = found[0].view(x.shape[:-1]), found[1].view(x.shape)
    slopes = None
    if learns and by_y:
        slopes = _slopes(omega, numbers, x, dx, target, mask)
    elif learns:
        slopes = kernel.loss_slopes(found[1], *given)
        if slopes is None:
            return None
    if slopes is not None:
        slopes = slopes.view(*x.shape[:-1], slopes.shape[-1])
        slopes = torch.where(value.isfinite().unsqueeze(-1), slopes, 0)
    return value, Solved(dx, slopes=slopes)


def _slopes(
    omega: Regularizer, numbers: Any, x: Tensor, dx: Tensor, target: Target, mask: Tensor | None
) -> Tensor:
    """The derivatives of γ(Ω(t) − Ω(y)) in γ and θ by autograd, (*batch, n), from y − t."""
    target, plain = target.spread_out(x.to(dx), mask), (dx != 0).any(-1, keepdim=True)
    y = (dx - target.taken_from(torch.zeros_like(dx))).clamp_min_(0)
    y = torch.where(plain, y, 1 / y.shape[-1])
    with torch.enable_grad():
        each = [torch.as_tensor(t, device=y.device).detach().to(y) for t in numbers]
        each = [t.expand_as(plain).clone().requires_grad_() for t in each]
        gamma, *theta = each
        own = omega.with_tensors(dict(zip(names_of(omega), theta, strict=True)))
        change = target.value(own, y, mask) - omega_at(own, y, mask)
        found = torch.autograd.grad((gamma.squeeze(-1) * change).sum(), each)
    return torch.where(plain, torch.cat(found, -1), 0).double()


def from_its_value(
    omega: Regularizer,
    x: Tensor,
    gamma: Any,
    target: Target,
    settings: Settings,
) -> tuple[Tensor, Solved] | None:
    """L_Ω(x; e_k) of each row, in float64, and its gradient in x, by a kernel from the value; None
    where this is not known to be right, and for other targets."""
    vertex = target.vertex
    if vertex is None or target.spread is not None or target.epsilon is not None:
        return None
    if type(gamma) is not float or x.dtype in HALF or not valued(type(omega)):  # type: ignore[arg-type]
        return None
    z = flat(x.detach().double())
    omega = omega if x.dtype == F64 else aligned(omega, z, -1)
    method = from_value.method_of(omega, z, gamma, settings, make=True)
    call: Any = None if method is None else method.direct
    if call is None or not call.fixed.continuous or call.fixed.entry.rest is not None:
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
        if not bool(value.isfinite().all()):
            return None  # scores of −∞ and rows without an answer
        value, dx = value.view(x.shape[:-1]), target.taken_from(y.view(x.shape)).to(x.dtype)
        if target.skip is not None:
            dx = dx.masked_fill_(target.skip.unsqueeze(-1), 0)
        return target.without_skipped(value), Solved(dx)


def _at_vertices(omega: Regularizer, fixed: Fixed, k: Tensor) -> Tensor:
    """Ω(e_k) of each row, computed once for each vertex."""
    if fixed.vertices is None:
        each = torch.eye(fixed.point.shape[-1], dtype=F64, device="cpu")
        fixed.vertices = omega_at(omega, each[:1] if fixed.kernel.alike else each, None)
    found = fixed.vertices
    return found if found.numel() == 1 else found[k.squeeze(1)]
