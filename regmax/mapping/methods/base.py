"""What computes Π_Ω of rows and its products with J, found once for calls alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels import Kernel, transforms, wrappers
from ...kernels.base import Direct, Hyper
from ...optimality.jacobian import averaging, hyperparameter_product, jacobian_product, movable
from ...regularizers.identity import names_of
from ...regularizers.penalty import smooth_part
from ...regularizers.regularizer import Regularizer
from ..rows import HALF, flat, numbered

METHODS: dict[tuple[Any, ...], Any] = {}
"""What computes Π_Ω, by all that it depends on: the method of a kernel, a traced value with its
kernel, or why there is none."""
_MOST = 256
"""Of each kind at most. A kernel from the value is costly to make, and keeps 0.1 MB of code."""


def remember(key: tuple[Any, ...], found: Any) -> None:
    """Keep what computes calls alike; the oldest of its kind go."""
    kind = isinstance(found, Method | None)
    alike = [k for k, item in list(METHODS.items()) if isinstance(item, Method | None) == kind]
    for oldest in alike[: max(len(alike) - _MOST + 1, 0)]:
        METHODS.pop(oldest, None)
    METHODS[key] = found


Theta = tuple[Sequence[str], Sequence[Tensor], Sequence[bool]]
"""Tensors of Ω: their names in it, they, and which of them are wanted."""


class Missed(Exception):
    """A method cannot answer for these rows, or for Ω as it is now: another one must."""


class Method:
    """A kernel for an Ω whose γ and θ are ``numbers``, None where one is a tensor: the tensors come
    with each call. It may be None where ``direct`` is all that is needed.

    ``names``: those of θ in Ω. ``checks``: the names and the accepted ranges of the tensors.
    ``direct``: the kernel for plain rows like those of the call, without mask, which does less at
    each call. ``said``: what ``explain`` says of it, the path and the reason.
    """

    __slots__ = ("checks", "direct", "kernel", "names", "numbers", "omega", "said")

    def __init__(
        self,
        kernel: Any,
        omega: Regularizer,
        numbers: tuple[Any, ...],
        checks: tuple[tuple[str, Any], ...] = (),
        direct: Direct | None = None,
    ) -> None:
        self.kernel, self.omega, self.numbers = kernel, omega, numbers
        self.checks, self.direct, self.names = checks, direct, names_of(omega)
        self.said = "closed form", ""

    general = False
    """Whether θ is every tensor of Ω, of any shape, and not one number for each row."""

    @property
    def per_row(self) -> frozenset[str]:
        """The names of γ and of those of θ that have one number for each row."""
        return frozenset(("gamma", *self.names))

    def filled(self, tensors: Sequence[Any]) -> list[Any]:
        """γ and θ, with the tensors of a call."""
        found = iter(tensors)
        return [next(found) if t is None else t for t in self.numbers]

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Π_Ω(x), without gradients, and who takes part, None where y tells."""
        rows = x if x.ndim == 2 and x.stride(1) == 1 and not x.is_neg() else flat(x)
        if self.direct is not None and mask is None:
            y, part = self.direct.forward(rows, wide(tensors) if tensors else ())
        else:
            gamma, *theta = [laid_out(self.kernel, t, x) for t in self.filled(tensors)]
            on = None if mask is None else flat(wrappers.allocated(mask)).contiguous()
            y, part = self.kernel.forward(rows, gamma, tuple(theta), on)
        if y.shape == x.shape:
            return y, part
        return y.view(x.shape), None if part is None else part.view(x.shape)

    def backward(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Jv/γ, and if any of θ is wanted, −⟨Jv, ∂∇Ω(y; θ)/∂θ⟩ for each that is a tensor: one
        number per row, or one for all rows. If ``general``, :meth:`differentiable` serves."""
        hyper = True in wants[int(self.numbers[0] is None) :]
        v = flat(wrappers.allocated(v))
        on = None if part is None else flat(part).contiguous()
        if self.direct is not None:
            gx, each = self.direct.backward(flat(y), v, wide(tensors), on, hyper)
        else:
            gamma, *theta = [laid_out(self.kernel, t, y) for t in self.filled(tensors)]
            gx, found = self.kernel.backward(flat(y), v, gamma, tuple(theta), on, hyper)
            each = tuple(
                [t for t, own in zip(found or (), self.numbers[1:], strict=False) if own is None]
            )
        if gx.shape != y.shape:
            gx = gx.view(y.shape)
        if not each:
            return gx, each
        batch = y.shape[:-1]
        rows = batch.numel()
        return gx, [
            t.view(*batch, t.shape[1] if t.ndim > 1 else 1) if len(t) == rows else t for t in each
        ]

    def differentiable(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        """As :meth:`backward` by operations that can be differentiated again: with w = Jv, w/γ and
        −⟨w, ∂∇Ω(y; θ)/∂θ⟩, where ∇Ω has λu with u ∈ ∂R(y) for a penalty."""
        gamma, *numbers = self.filled(tensors)
        omega, dtype = self.at(numbers), y.dtype
        if dtype in HALF:
            y, v = y.float(), v.float()
        y = torch.where(torch.isnan(y.detach()), 0, y)
        first = int(self.numbers[0] is None)
        names = [k for k, t in zip(self.names, self.numbers[1:], strict=True) if t is None]
        with transforms.full_precision(y.device.type):
            theta = names, tensors[first:], wants[first:]
            w, each = self.products(omega, y, part, v, theta)
        pairs = zip((*[None] * first, *each), tensors, strict=True)
        return (w / gamma).to(dtype), [None if t is None else reduced(t, own) for t, own in pairs]

    def at(self, theta: Sequence[Any]) -> Regularizer:
        """Ω with these θ."""
        found: Regularizer = self.omega.with_tensors(dict(zip(self.names, theta, strict=True)))
        return found

    def products(
        self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor, theta: Theta
    ) -> tuple[Tensor, list[Tensor | None]]:
        """w, and −⟨w, ∂∇Ω(y; θ)/∂θ⟩ of each of ``theta``."""
        w = self.product(omega, y, part, v)
        return w, hyperparameter_product(omega, *theta, y, w, part)

    def product(self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor) -> Tensor:
        """w = Jv for γ = 1."""
        average = averaging(omega, y, part)
        return jacobian_product(smooth_part(omega, part), average, y, v, movable(y))


def reduced(t: Tensor, item: Tensor) -> Tensor:
    """One number per row, (*batch, 1), summed to the shape of the hyperparameter."""
    if t.shape != item.shape:
        t = t.sum().view(item.shape) if item.numel() == 1 else t.sum_to_size(item.shape)
    return t if t.dtype == item.dtype else t.to(item.dtype)


def method(
    kernel: Kernel | None, omega: Regularizer, numbers: Sequence[Any]
) -> tuple[Method, Hyper]:
    """The method for γ and θ, and those of them that are tensors."""
    fixed = tuple([None if isinstance(t, Tensor) else t for t in numbers])
    return Method(kernel, omega, fixed), tuple([t for t in numbers if isinstance(t, Tensor)])


def wide(theta: Sequence[Tensor]) -> Hyper:
    """Tensors of a call as ``direct`` takes them."""
    return tuple([t.detach().double().reshape(-1) for t in theta]) if theta else ()


def laid_out(kernel: Kernel, item: Any, x: Tensor) -> Any:
    """A hyperparameter as the kernel takes it."""
    return item if kernel.numbers and not isinstance(item, Tensor) else numbered(item, x)
