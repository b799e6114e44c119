"""Π_Ω of plain rows for γ a number: what a call needs is found once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel, transforms, wrappers
from ..kernels.base import Direct, Hyper
from ..regularizers.regularizer import Regularizer
from .function import forward, gradients, reduced
from .rows import flat


class Plan(NamedTuple):
    """What computes Π_Ω for the same γ and θ, but for those of θ that are tensors."""

    kernel: Kernel
    omega: Regularizer
    numbers: tuple[Any, ...]
    """γ and θ, None for a tensor."""
    checks: tuple[tuple[str, Any], ...]
    """The names and the accepted ranges of the tensors."""
    direct: Direct | None
    """The kernel for rows like those of the call."""

    def filled(self, theta: Hyper) -> list[Any]:
        """γ and θ with the tensors of a call."""
        found = iter(theta)
        return [next(found) if t is None else t for t in self.numbers]


def by_plan(plan: Plan, x: Tensor, theta: Hyper = ()) -> tuple[Tensor, Tensor | None]:
    """Π_Ω of plain rows, without gradients, and who takes part, as a kernel gives it."""
    if plan.direct is None:
        return forward(plan.kernel, x, None, plan.filled(theta))
    y, part = plan.direct.forward(flat(x), wide(theta))
    return y if y.shape == x.shape else y.view(x.shape), part


def wide(theta: Hyper) -> Hyper:
    """Hyperparameters of a call as kernels take them."""
    return tuple([t.detach().double().reshape(-1) for t in theta]) if theta else ()


class Planned(torch.autograd.Function):
    """:class:`Mapping` by a plan with ``direct``, which costs less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, *theta: Tensor) -> Tensor:
        ctx.plan = plan
        y, part = by_plan(plan, x, theta)
        ctx.save_for_backward(y, part, *theta)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, part, *theta = ctx.saved_tensors
        kernel, omega, numbers, _, direct = ctx.plan
        wants = ctx.needs_input_grad[2:]
        again = torch.is_grad_enabled() or transforms.batched(v) or type(v) is not Tensor
        if again or not transforms.plain():
            y, part, *theta = transforms.living((y, part, *theta))
            each = iter(wants)
            asked = [t is None and next(each) for t in numbers[1:]]
            filled = ctx.plan.filled(theta)
            part = None if part is None else part.view(y.shape)
            gx, found = gradients(kernel, omega, y, part, v, filled, asked)
            dtheta = [found[k] for k, t in enumerate(numbers[1:]) if t is None]
            return gx, None, *dtheta
        v = flat(wrappers.allocated(v))
        gx, slopes = direct.backward(flat(y), v, wide(theta), part, True in wants)
        gx = gx if gx.shape == y.shape else gx.view(y.shape)
        if not slopes:
            return gx, None, *[None for _ in theta]
        batch = y.shape[:-1]
        given = zip(slopes, theta, wants, strict=True)
        return gx, None, *[reduced(s.view(*batch, 1), t) if w else None for s, t, w in given]
