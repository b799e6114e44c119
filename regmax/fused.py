"""Π_Ω by its kernel: one pass forward, one backward, nothing saved but y.

For plain PyTorch. What transforms and tracers look at goes through :mod:`regmax.engine`, which asks
the same kernels for values; the gradient of a gradient is made of the operations of
:mod:`regmax.adjoint`, here as there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import adjoint, checks, simplex, transforms, wrappers
from .expressions import Scaled
from .kernels import Kernel, asked
from .penalty import (
    averaging,
    jacobian_product,
    penalty_of,
    smooth_part,
    structured,
    unpenalized,
)
from .regularizer import Regularizer

HALF = (torch.float16, torch.bfloat16)
REPLACED = ("value", "masked_value", "grad", "curvature", "closed_form", "composed")


def kernel_of(omega: Regularizer, x: Tensor) -> Kernel | None:
    """The kernel that Ω offers for tensors like x, unless its class redefines what it computes."""
    if not (asked() and omega.exact and _trusted(type(omega))):  # type: ignore[arg-type]
        return None
    return omega.kernel(x)


@functools.cache
def _trusted(cls: type[Regularizer]) -> bool:
    """Whether ``kernel`` comes with the definitions that it computes, or after them."""
    own = depth(cls, "kernel") < cls.__mro__.index(Regularizer)
    return own and all(depth(cls, "kernel") <= depth(cls, name) for name in REPLACED)


def depth(cls: type[Any], name: str) -> int:
    """How far up the classes that ``cls`` inherits from ``name`` is defined."""
    order = cls.__mro__
    return next((i for i, c in enumerate(order) if name in vars(c)), len(order))


@functools.cache
def _declared(cls: type[Regularizer]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """γ and the hyperparameters: their names, and what is accepted."""
    names = tuple(cls.hyperparameters or ())
    return ("gamma", *names), (checks.POSITIVE, *(cls.ranges.get(name) for name in names))


def argmax(omega: Regularizer, x: Any, gamma: float | Tensor, dim: int, mask: Any) -> Tensor | None:
    """Π_Ω(x) with its gradients, or None where no kernel takes it."""
    if type(x) not in transforms.PLAIN or transforms.baking():
        return None
    whole, factors = omega, []
    omega = unpenalized(omega)
    while isinstance(omega, Scaled):
        factors.append(omega.c)
        omega = omega.base
    kernel = kernel_of(omega, x)
    if kernel is None:
        return None
    names, ranges = _declared(type(omega))  # type: ignore[arg-type]
    given = [gamma, *(getattr(omega, name) for name in names[1:])]
    if transforms.watched((x, *given, *factors)):
        return None
    x, dim = checks.scores(x, dim)
    checks.entries(x, dim, whole.entries, whole)
    takes_part = checks.mask(mask, x)
    rows = x if x.dtype in kernel.dtypes else x.float()
    # hyperparameters are rounded to the dtype that is computed in
    like = rows if rows.dtype not in HALF else rows.new_empty((), dtype=torch.float32).expand_as(x)
    numbers = [
        _checked(name, item, accepted, like, dim)
        for name, item, accepted in zip(names, given, ranges, strict=True)
    ]
    for c in factors:
        numbers[0] = numbers[0] * _checked("c", c, Scaled.ranges["c"], like, dim)
    if dim != x.ndim - 1:
        rows = rows.movedim(dim, -1)
        takes_part = None if takes_part is None else takes_part.movedim(dim, -1)
    y = _with_gradients(kernel, omega, rows, takes_part, numbers)
    if dim != x.ndim - 1:
        y = y.movedim(-1, dim)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _with_gradients(
    kernel: Kernel, omega: Regularizer, rows: Tensor, mask: Tensor | None, numbers: list[Any]
) -> Tensor:
    if torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in (rows, *numbers)
    ):
        y: Tensor = _Fused.apply(rows, mask, kernel, omega, *numbers)  # type: ignore[no-untyped-call]
        return y
    return _forward(kernel, rows.detach(), mask, numbers)[0]


def apply(kernel: Kernel, omega: Regularizer, x: Tensor, gamma: Any, mask: Any) -> Tensor:
    """Π_Ω of rows as Ω sees them, with gradients."""
    numbers = [gamma, *(getattr(omega, name) for name in omega.hyperparameters or ())]
    return _with_gradients(kernel, omega, x, mask, numbers)


def _checked(name: str, item: Any, accepted: Any, rows: Tensor, dim: int) -> Any:
    if (
        isinstance(item, Tensor)
        and item.ndim == 0
        and item.dtype == rows.dtype
        and item.device.type == rows.device.type == "cpu"
        and accepted is not None
    ):
        return checks.hyperparameter(name, item, *accepted)  # nothing to lay out
    return checks.per_row(name, item, accepted, rows, dim)


def values(kernel: Kernel, omega: Regularizer, x: Tensor, gamma: Any, mask: Any) -> Tensor:
    """Π_Ω of rows as Ω sees them, without gradients."""
    numbers = [gamma, *(getattr(omega, name) for name in omega.hyperparameters or ())]
    return _forward(kernel, x.detach(), mask, numbers)[0]


@functools.lru_cache(maxsize=256)
def _constant(value: float, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((1,), value, dtype=torch.float64, device=device)


def _per_row(item: float | Tensor, x: Tensor) -> Tensor:
    """A hyperparameter in float64, one number or one for each row of x."""
    if not isinstance(item, Tensor):
        return _constant(item, x.device)
    t = wrappers.allocated(item.detach()).double()
    t = t.resolve_neg() if t.is_neg() else t
    if t.numel() == 1:
        return t.reshape(1)
    return t.expand(*x.shape[:-1], 1).reshape(-1)


def _rows(t: Tensor) -> Tensor:
    """(R, d), the entries of a row adjacent in memory."""
    if t.ndim == 2 and t.stride(1) == 1 and not t.is_neg():
        return t
    t = wrappers.allocated(t).resolve_neg() if t.is_neg() else wrappers.allocated(t)
    t = t.reshape(-1, t.shape[-1]) if t.ndim != 2 else t
    return t if t.stride(1) == 1 else t.contiguous()


def _forward(
    kernel: Kernel, x: Tensor, mask: Tensor | None, numbers: list[Any]
) -> tuple[Tensor, Tensor | None]:
    gamma, *theta = (_per_row(item, x) for item in numbers)
    on = None if mask is None else _rows(wrappers.allocated(mask)).contiguous()
    y, part = kernel.forward(_rows(x), gamma, tuple(theta), on)
    if y.shape == x.shape:
        return y, part
    return y.view(x.shape), None if part is None else part.view(x.shape)


class _Fused(torch.autograd.Function):
    """Forward and backward by the kernel; a second backward by differentiable operations."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, kernel: Kernel, omega: Regularizer, *numbers: Any
    ) -> Tensor:
        y, part = _forward(kernel, x, mask, list(numbers))
        ctx.kernel, ctx.omega = kernel, omega
        ctx.fixed = tuple(None if isinstance(t, Tensor) else t for t in numbers)
        # γ's gradient needs x: y, rounded, does not tell x/γ
        scores = x if ctx.needs_input_grad[4] else None
        ctx.save_for_backward(y, part, scores, *(t for t in numbers if isinstance(t, Tensor)))
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, part, x, *tensors = ctx.saved_tensors
        saved = iter(tensors)
        numbers = [next(saved) if t is None else t for t in ctx.fixed]
        wants = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled() or transforms.watched((v,)) or transforms.batched(v):
            gx, dtheta = differentiable(ctx.omega, y, part, v, numbers, wants[1:])
        else:
            gx, dtheta = compiled(ctx.kernel, y, part, v, numbers, wants[1:])
        dgamma = None if x is None else reduced(_along(gx, x, y) / -numbers[0], numbers[0])
        return gx, None, None, None, dgamma, *dtheta


def _along(gx: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """⟨gx, x⟩, one number per row, with x relative to its smallest supported entry: where α-entmax
    is steep, at that entry, what rounding leaves of ⟨gx, 1⟩ is large."""
    on = y.detach() > 0
    least = torch.where(on, y.detach(), torch.inf).argmin(-1, keepdim=True)
    x = torch.where(on, x - x.detach().gather(-1, least), 0)
    return simplex.row_dot(gx.double(), x.double())  # neither may overflow


def reduced(t: Tensor, item: Tensor) -> Tensor:
    """One number per row, (*batch, 1), summed to the shape of the hyperparameter."""
    total = t.sum().view(item.shape) if item.numel() == 1 else t.sum_to_size(item.shape)
    return total.to(item.dtype)


def compiled(
    kernel: Kernel, y: Tensor, part: Tensor | None, v: Tensor, numbers: list[Any], wants: Any
) -> tuple[Tensor, list[Tensor | None]]:
    """The gradients of x and θ for y's gradient v, by the kernel; ``numbers`` are γ and θ."""
    gamma, *theta = (_per_row(item, y) for item in numbers)
    v = _rows(wrappers.allocated(v))
    gx, dtheta = kernel.backward(
        _rows(y), v, gamma, tuple(theta), None if part is None else _rows(part), any(wants)
    )
    if gx.shape != y.shape:
        gx = gx.view(y.shape)
    if dtheta is None:
        return gx, [None] * len(theta)
    shape = (*y.shape[:-1], 1)
    return gx, [
        reduced(t.view(shape), item) if want else None
        for t, item, want in zip(dtheta, numbers[1:], wants, strict=True)
    ]


def differentiable(
    omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor, numbers: list[Any], wants: Any
) -> tuple[Tensor, list[Tensor | None]]:
    """The same by operations that can be differentiated again: with w = Jv, w/γ and
    −⟨w, ∂∇Ω(y; θ)/∂θ⟩, and −⟨w, u⟩ for the weight of a penalty, u ∈ ∂R(y)."""
    gamma, *theta = numbers
    dtype = y.dtype
    if dtype in HALF:
        y, v = y.float(), v.float()
    names = omega.hyperparameters or ()
    omega = omega.with_tensors(dict(zip(names, theta, strict=True)))
    smooth = smooth_part(omega, part)
    y = torch.where(torch.isnan(y.detach()), 0, y)
    with transforms.full_precision(y.device.type):
        average = averaging(penalty_of(omega), y, part)
        w = jacobian_product(smooth, average, y, v, adjoint.movable(y))
        tensors = smooth.tensors(fixed=True)
        items = list(tensors.values())
        learnt = tuple(t.requires_grad for t in items)
        products = adjoint.hyperparameter_product(smooth, tuple(tensors), items, learnt, y, w)
        found = dict(zip(tensors, products, strict=True))
        if structured(omega):
            u = omega.penalty.any_subgradient(y, part)
            found["lam"] = -simplex.row_dot(w, u)
    each = [
        reduced(t, item) if want and (t := found.get(name)) is not None else None
        for name, item, want in zip(names, theta, wants, strict=True)
    ]
    return (w / gamma).to(dtype), each
