"""Π_Ω by a closed form in PyTorch, a prox and a closed form, or a solver, as a method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import transforms
from ..optimality.jacobian import averaging, hyperparameter_product, jacobian_product, movable
from ..regularizers.penalty import penalty_of, smooth_part
from ..regularizers.regularizer import frozen
from . import kinks, levels
from .forward import Forward, Settings, compute
from .function import Mapping
from .method import Method
from .operator import not_recordable
from .rows import Rows


class Computed(Method):
    """What :func:`regmax.mapping.forward.compute` does. θ is every tensor of Ω, of any shape.

    ``result``: the answer for these rows, if it is known; a solver's factorisation serves backward.
    """

    __slots__ = ("_inverse", "_names", "_per_row", "_result", "_settings")
    general = True

    def __init__(self, rows: Rows, settings: Settings, result: Forward | None = None) -> None:
        inside = rows.omega.tensors(fixed=True)
        gamma = None if isinstance(rows.gamma, Tensor) else rows.gamma
        super().__init__(None, frozen(rows.omega), (gamma, *(None for _ in inside)))
        self._names, self._settings, self._result = tuple(inside), settings, result
        self._per_row = frozenset(("gamma", *rows.omega.per_row_tensors()))
        self._inverse = None if result is None else result.inverse(movable(result.y))

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def per_row(self) -> frozenset[str]:
        return self._per_row

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        result, self._result = self._result, None
        if result is not None:
            return result.y.clone(), mask  # a plugin may own it
        gamma, *theta = self.filled(tensors)
        omega = self.omega.with_tensors(dict(zip(self._names, theta, strict=True)))
        rows = Rows(x, gamma, mask, omega, x[..., :1], None, None, x.ndim - 1, x.dtype)
        return kinks.under_transform(rows, compute(rows, self._settings)), mask

    def backward(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        gamma, *theta = self.filled(tensors)
        omega = self.omega.with_tensors(dict(zip(self._names, theta, strict=True)))
        average, support = averaging(penalty_of(omega), y, part), movable(y)
        with transforms.full_precision(y.device.type):
            smooth = smooth_part(omega, part)
            if self._inverse is None:
                w = jacobian_product(smooth, average, y, v, support)
            else:
                w = self._inverse(v if average is None else average(v))
                w = w if average is None else average(w)
                # a solver looks at Ω away from 0, derivatives at y itself
                small = ((y > 0) & (y <= torch.finfo(y.dtype).eps ** 2)).any(-1, keepdim=True)
                if bool(small.any()):
                    w = torch.where(small, jacobian_product(smooth, average, y, v, support), w)
            return w / gamma, hyperparameter_product(omega, self._names, theta, wants, y, w, part)


def tensors_of(rows: Rows) -> list[Tensor]:
    """The tensors that :class:`Computed` takes for these rows."""
    gamma = [rows.gamma] if isinstance(rows.gamma, Tensor) else []
    return [*gamma, *rows.omega.tensors(fixed=True).values()]


def found(rows: Rows, settings: Settings) -> Tensor:
    """Π_Ω(x) without gradients, under any transform or tracer."""
    x, tensors = rows.x.detach(), [t.detach() for t in tensors_of(rows)]
    reason = None
    if transforms.tracing() or x.is_meta:
        reason = not_recordable(rows.omega, settings)
        if reason is not None and transforms.compiling():
            raise NotImplementedError(reason)
        if reason is not None and x.is_meta:
            return torch.empty_like(x)
    try:
        y: Tensor = levels.apply(Mapping, x, rows.mask, Computed(rows, settings), None, *tensors)
    except RuntimeError as error:
        if "escaped from inside a function being vmapped" in str(error):
            raise NotImplementedError(
                f"{rows.omega!r} depends on a tensor that vmap maps over and that is not one of "
                "its attributes (a closure, or a tensor in a container or an object). Store the "
                "tensor as an attribute of the Regularizer (self.w = w), an nn.Parameter or a "
                "buffer, or in a nested module"
            ) from error
        if reason is not None:
            raise NotImplementedError(reason) from error
        raise
    return y
