"""Losses of plain rows by a kernel, with their reduction: what a training step needs, in one
call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import transforms
from ..mapping import compiled
from ..mapping.method import Method, laid_out
from ..mapping.rows import flat
from ..optimality.jacobian import alias
from ..regularizers.identity import names_of


def loss(module: Any, x: Tensor, target: Tensor, general: Callable[..., Any]) -> Tensor | None:
    """The loss of a :class:`regmax.FenchelYoungLoss` of logits (N, C) and indices (N,) or
    distributions (N, C) of their dtype, or None where it takes more than this. ``general`` makes a
    module of its arguments."""
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
    plan, learnt = compiled.method_of(omega, x, gamma) or (None, ())
    if plan is None or learnt or (dense and not plan.kernel.distributions):
        return None
    if not (target.is_cpu and target.layout == torch.strided and _held(x, target)):
        return None
    how = _How(own["label_smoothing"], own["ignore_index"], own["reduction"], general)
    if x.requires_grad and torch.is_grad_enabled():
        found: Tensor | None = _Loss.apply(x, target, plan, how)  # type: ignore[no-untyped-call]
        return found
    return _computed(x, target, plan, how)[0]


class _How(NamedTuple):
    label_smoothing: float
    ignore_index: int
    reduction: str
    general: Callable[..., Any]


def _held(*tensors: Tensor) -> bool:
    """Whether the tensors have memory."""
    return all(t.data_ptr() or not t.numel() for t in tensors)


def _computed(
    x: Tensor, target: Tensor, plan: Method, how: _How
) -> tuple[Tensor | None, Tensor | None]:
    """The loss, and its gradient, that of the sum for the reduction "none"."""
    epsilon, ignored, reduction, _ = how
    kernel, numbers = plan.kernel, plan.numbers
    x = flat(x)
    gamma, *theta = [laid_out(kernel, t, x) for t in numbers]
    mean = reduction == "mean"
    target = flat(target) if target.ndim == 2 else target
    found = kernel.reduced(x, target, gamma, tuple(theta), epsilon, ignored, mean)
    if found is None:
        return None, None
    values, dx, count = found
    if reduction == "none":
        return values.to(x.dtype), dx
    total = values.sum().item() / (max(count, 1) if mean else 1)
    return x.new_full((), total), dx


class _Loss(torch.autograd.Function):
    """As :class:`regmax.losses.fenchel_young._Loss`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, plan: Any, how: Any) -> Tensor | None:
        value, ctx.dx = _computed(x, target, plan, how)
        ctx.plan, ctx.how = plan, how
        ctx.save_for_backward(x, target)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, target), dx = ctx.saved_tensors, ctx.dx
        ctx.dx = None  # the receiver of the gradient may write to its memory
        again = torch.is_grad_enabled() or transforms.batched(g) or type(g) is not Tensor
        if again or not transforms.plain():
            return _again(ctx, g, x, target), None, None, None
        if dx is None:
            dx = _computed(x, target, ctx.plan, ctx.how)[1]
        if g.ndim:
            g = g.unsqueeze(-1)
        elif g.item() == 1:
            return dx, None, None, None
        return dx.mul_(g), None, None, None


def _again(ctx: Any, g: Tensor, x: Tensor, target: Tensor) -> Tensor:
    """The gradient by operations that can be transformed and differentiated."""
    omega, (gamma, *theta) = ctx.plan.omega, ctx.plan.numbers
    omega = omega.with_tensors(dict(zip(names_of(omega), theta, strict=True)))
    *how, general = ctx.how
    module = general(omega, gamma, **dict(zip(_How._fields, how, strict=False)))
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        x = alias(x)
        (found,) = torch.autograd.grad(module._general(x, target, None), x, g, create_graph=twice)
    return found
