"""Π_Ω of plain rows for γ and θ that are numbers: what a call needs is found once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel, transforms, wrappers
from ..kernels.base import Direct
from ..regularizers.regularizer import Regularizer
from . import levels
from .function import Product, differentiable, forward
from .rows import flat


class Plan(NamedTuple):
    """What computes Π_Ω for γ and θ that are numbers."""

    kernel: Kernel
    omega: Regularizer
    numbers: tuple[float, ...]
    """γ and θ."""
    direct: Direct | None
    """The kernel for rows like those of the call."""


def by_plan(plan: Plan, x: Tensor) -> Tensor:
    """Π_Ω of plain rows, without gradients."""
    kernel, _, numbers, direct = plan
    if direct is None:
        return forward(kernel, x, None, list(numbers))[0]
    y = direct.forward(flat(x))
    return y if y.shape == x.shape else y.view(x.shape)


class Planned(torch.autograd.Function):
    """:class:`Mapping` by a plan with ``direct``, which costs less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        y = by_plan(plan, x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        kernel, omega, numbers, direct = ctx.plan
        again = torch.is_grad_enabled() or transforms.batched(v) or type(v) is not Tensor
        if not (again or not transforms.plain()):
            gx = direct.backward(flat(y), flat(wrappers.allocated(v)))
            return gx if gx.shape == y.shape else gx.view(y.shape), None
        (y,) = transforms.living((y,))
        if transforms.under_transform((v, y)):
            return levels.apply(Product, y, None, v, kernel, omega, False, *numbers)[0], None
        wants = [False] * (len(numbers) - 1)
        return differentiable(omega, y, None, v, list(numbers), wants)[0], None
