"""Derivatives of Π_Ω under transforms, and those of max_Ω."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..optimality.jacobian import alias, averaging, jacobian_product, movable
from ..regularizers.penalty import penalty_of, smooth_part, structured, value_of
from ..regularizers.regularizer import Regularizer, frozen


def newton_steps(y: Tensor, z: Tensor, omega: Regularizer, mask: Tensor | None) -> Tensor:
    """y = Π_Ω(x), found without gradients, as PyTorch operations that any transform can
    differentiate: in x, γ, and all that Ω depends on, also in what is no attribute of it.

    k Newton steps y ← y + J(y) (z − ∇Ω(y)) from y0 = y, a constant, have value y and the
    derivatives of Π_Ω up to order 2^k − 1, because Newton's method squares the distance. k = 3
    gives order 7.
    """
    if structured(omega):
        z = omega.reduced(z, y, mask)
    smooth = smooth_part(omega, mask)
    support, average = movable(y), averaging(penalty_of(omega), y, mask)
    for _ in range(3):
        slope = z - smooth.grad(smooth.lifted(y))
        step = jacobian_product(smooth, average, y, slope, support)
        y = y + (step - step.detach())
    return y


def objective(
    omega: Regularizer,
    x: Tensor,
    gamma: float | Tensor,
    y: Tensor,
    mask: Tensor | None,
    at: Tensor | None = None,
) -> Tensor:
    """⟨y, x⟩ − γΩ(y), one number per row, with Ω evaluated ``at`` y lifted off 0 unless given."""
    gamma = gamma.squeeze(-1) if isinstance(gamma, Tensor) else gamma
    linear = simplex.row_dot(y, x).squeeze(-1)
    return linear - gamma * value_of(omega, simplex.inward(y) if at is None else at, mask)


def envelope(
    value: Tensor,
    x: Tensor,
    gamma: float | Tensor,
    omega: Regularizer,
    y: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """max_Ω(x), whose value is known, with the derivatives of ⟨y, x⟩ − γΩ(y) for fixed y (Danskin).

    To differentiate through y as well would add J·0, with whatever rounding leaves of that 0.
    """
    if not torch.is_grad_enabled():
        return value
    tensors = omega.tensors(fixed=True)
    given = gamma if isinstance(gamma, Tensor) else x.new_full((), gamma)
    out: Tensor = _Envelope.apply(  # type: ignore[no-untyped-call]
        value, y, frozen(omega), mask, tuple(tensors), x, given, *tensors.values()
    )
    return out


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor,
        y: Tensor,
        omega: Regularizer,
        mask: Tensor | None,
        names: tuple[str, ...],
        *arguments: Tensor,
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, y, ctx.omega, mask, ctx.names, *arguments = inputs
        ctx.save_for_backward(y, mask, *arguments)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, mask, *arguments = ctx.saved_tensors
        wants_x, *wanted = ctx.needs_input_grad[5:]
        keep = torch.is_grad_enabled()
        x, *numbers = arguments
        found: list[Any] = [None for _ in numbers]
        free = [i for i, wants in enumerate(wanted) if wants]
        if free:
            with torch.enable_grad(), transforms.full_precision(y.device.type):
                for i in free:
                    numbers[i] = alias(numbers[i])
                gamma, *tensors = numbers
                omega = ctx.omega.with_tensors(dict(zip(ctx.names, tensors, strict=True)))
                total = objective(omega, x, gamma, y, mask)
                chosen = [numbers[i] for i in free]
                grads = torch.autograd.grad(total, chosen, v, create_graph=keep, allow_unused=True)
            for i, t in zip(free, grads, strict=True):
                found[i] = t
        return None, None, None, None, None, y * v.unsqueeze(-1) if wants_x else None, *found
