"""Π_{base+λR} = Π_base ∘ prox_{γλR} with gradients, by the kernels of both.

The chain rule needs only the groups of s = prox_{γλR}(x): J = J_base · P, with P the
averages over these, and ∂s/∂(γλ) = −P u, u ∈ ∂R(s) (Niculae & Blondel 2017, Prop. 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import Kernel, transforms
from ..kernels.simplex import row_dot
from ..regularizers.identity import plain, unscaled, unweighted
from ..regularizers.penalty import Penalized, averaged
from ..regularizers.regularizer import Regularizer
from . import compiled, generated
from .compiled import kernel_of
from .forward import Forward, Settings, with_kernel
from .function import reduced
from .rows import Rows, numbered


def argmax(rows: Rows) -> Tensor | None:
    """Π_Ω(x), or None where Ω is not such a composition or its base has no kernel."""
    omega, kernel = rows.omega, base_kernel(rows.omega, rows.x)
    if kernel is None or not isinstance(omega, Penalized):
        return None
    s = _prox(rows, omega)
    if s is None:
        return None
    base, gamma = unscaled(omega.base, rows.gamma)
    return _averaged_first(omega, compiled.apply(kernel, base, s, gamma, rows.mask), rows.mask)


def of_generated(rows: Rows, settings: Settings) -> tuple[Tensor, Forward] | None:
    """The same where a kernel is made of the value of the base: one that treats all entries alike
    shows that the base is permutation-invariant."""
    omega = rows.omega
    if not (isinstance(omega, Penalized) and plain(type(omega))):  # type: ignore[arg-type]
        return None
    penalty, base = unweighted(omega.penalty, 1.0)[0], replace(rows, omega=omega.base)
    if not (omega.penalty.lovasz and with_kernel(type(penalty)) and generated.may_be(base)):
        return None
    if generated.undecided(base):  # nothing is recorded before it is known that both are used
        with torch.no_grad(), transforms.unhooked():
            s = _prox(rows, omega)
            if s is not None:
                generated.argmax(replace(base, x=s), settings, alike=True)
        if not generated.may_be(base):
            return None
    s = _prox(rows, omega)
    made = None if s is None else generated.argmax(replace(base, x=s), settings, alike=True)
    if made is None:
        return None
    y, result = made
    y = _averaged_first(omega, y, rows.mask)
    return y, replace(result, path=f"prox, then {result.path}")


def _averaged_first(omega: Penalized, y: Tensor, mask: Tensor | None) -> Tensor:
    """y, whose gradient is averaged over its groups before the base multiplies it by J, which may
    magnify what cancels in a group (α > 2, next to a zero)."""
    if y.requires_grad:
        penalty, ties = unweighted(omega.penalty, 1.0)[0], y.detach()
        y.register_hook(lambda v: None if v is None else averaged(penalty, v, ties, mask))
    return y


def scores(omega: Penalized, x: Tensor, gamma: float | Tensor, mask: Tensor | None) -> Tensor:
    """γ prox_{λR}(x/γ), its maximum shifted to 0, by compiled code where there is some. Scores so
    low that the base maps them to 0 may be lower, and are finite."""
    penalty, lam = unweighted(omega.penalty, omega.lam)
    kernel = compiled.prox_of(penalty, x)
    if kernel is None:
        return omega.composed(x, gamma, mask)
    reach = omega.base.support_radius()
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    on = None if mask is None else mask.expand_as(x).reshape(rows.shape).contiguous()
    g, weight, radius = (numbered(t, x) for t in (gamma, lam, reach))
    s = kernel.prox(rows, g, weight, radius, on)[0].view(x.shape).clamp(min=-2 * gamma * reach)
    return s if mask is None else torch.where(mask, s, 0)


def base_kernel(omega: Regularizer, x: Tensor) -> Kernel | None:
    """The kernel of the base, where Π_Ω is Π_base ∘ prox and Ω has no kernel of its own."""
    if not (isinstance(omega, Penalized) and plain(type(omega))):  # type: ignore[arg-type]
        return None
    if not omega.composes or kernel_of(omega, x) is not None:
        return None
    return kernel_of(unscaled(omega.base, 1.0)[0], x)


def _prox(rows: Rows, omega: Penalized) -> Tensor | None:
    """prox_{γλR}(x) with gradients, or None where the penalty itself learns."""
    penalty, weight = unweighted(omega.penalty, _double(rows.gamma) * _double(omega.lam))
    if any(t.requires_grad for t in _held_by(penalty)):
        return None
    given = (rows.x, weight, rows.mask, omega, rows.gamma, penalty)
    s: Tensor = _Prox.apply(*given)  # type: ignore[no-untyped-call]
    return s


def _held_by(penalty: nn.Module) -> Iterator[Tensor]:
    """The tensors of a penalty."""
    for module in penalty.modules():
        for item in (*vars(module).values(), *module.parameters(False), *module.buffers(False)):
            if isinstance(item, Tensor):
                yield item


def _double(item: Any) -> Any:
    return item.double() if isinstance(item, Tensor) else item


class _Prox(torch.autograd.Function):
    """prox_{weight·R}(x), its maximum shifted to 0."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: float | Tensor,
        mask: Tensor | None,
        omega: Penalized,
        gamma: float | Tensor,
        penalty: Any,
    ) -> Tensor:
        s = scores(omega, x, gamma, mask)
        ctx.penalty = penalty
        ctx.number = weight if isinstance(weight, Tensor) else None
        ctx.save_for_backward(s, mask)
        return s

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        s, mask = ctx.saved_tensors
        s = s.detach()
        w = averaged(ctx.penalty, v, s, mask)
        if mask is not None:
            w = torch.where(mask, w, 0)
        along = None
        if ctx.needs_input_grad[1]:
            u = ctx.penalty.any_subgradient(s, mask)
            # 0 where the row's maximum is: w adds up to 0 but for rounding
            u = u - u.gather(-1, s.argmax(-1, keepdim=True))
            along = reduced(-row_dot(w.double(), u.double()), ctx.number)
        return w, along, None, None, None, None
