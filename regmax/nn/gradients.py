"""Operations with hand-written gradients. The derivatives of these are those of autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..regularizers.autodiff import alias


class Operation(ABC):
    """A function of tensors and other arguments, all ``given`` in one order. It keeps none of
    them itself, and serves one call of :func:`apply`. Autocast is off inside."""

    @property
    def held(self) -> Sequence[Any]:
        """Tensors of the caller that it keeps: backward raises where they were written to."""
        return ()

    @abstractmethod
    def forward(self, grad: bool, *given: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The result, and what ``backward`` needs beside ``given``; nothing without ``grad``."""

    @abstractmethod
    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Any], *given: Any
    ) -> Sequence[Tensor | None] | None:
        """The gradients of ``given``, where ``wants`` is True, for the gradient g of the result.
        None: they are those of ``recorded``."""

    @abstractmethod
    def recorded(self, *given: Any) -> Tensor:
        """The result by operations that autograd records."""


def apply(operation: Operation, *given: Any) -> Tensor:
    """The result of an operation on plain tensors, with its gradients."""
    if torch.is_grad_enabled() and any(learns(t) for t in given):
        out: Tensor = _ByHand.apply(operation, *given)  # type: ignore[no-untyped-call]
        return out
    with torch.no_grad(), transforms.full_precision(_device(given)):
        return operation.forward(False, *given)[0]


class _ByHand(torch.autograd.Function):
    """An operation. Derivatives of its gradients, and gradients of a batch of vectors, are those of
    ``recorded``."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, *given: Any) -> Tensor:
        with transforms.full_precision(_device(given)):
            out, kept = operation.forward(True, *given)
        ctx.operation, ctx.count = operation, len(kept)
        ctx.others = [None if isinstance(t, Tensor) else (t,) for t in given]
        held = (t for t in operation.held if isinstance(t, Tensor) and not t.is_inference())
        ctx.save_for_backward(*kept, *(t for t in given if isinstance(t, Tensor)), *held)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        saved = ctx.saved_tensors
        kept, tensors = saved[: ctx.count], iter(saved[ctx.count :])
        given = [next(tensors) if other is None else other[0] for other in ctx.others]
        wants, found = ctx.needs_input_grad[1:], None
        with transforms.full_precision(g.device.type):
            if not torch.is_grad_enabled() and transforms.plain() and not transforms.batched(g):
                found = ctx.operation.backward(wants, g, kept, *given)
            if found is None:
                found = _recorded(ctx.operation, given, wants, g)
        pairs = zip(found, given, strict=True)
        return None, *(None if t is None else t.to(item.dtype) for t, item in pairs)


def _recorded(
    operation: Operation, given: list[Any], wants: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """The gradients by autograd, with a graph where it records one. One of ``given`` may depend on
    another: only the direct dependence is wanted."""
    again = torch.is_grad_enabled()
    pairs = zip(given, wants, strict=True)
    own = [alias(t) if w else t for t, w in pairs] if again else leaves(given, wants)
    with torch.enable_grad():
        out = operation.recorded(*own)
    learnt = [t for t, w in zip(own, wants, strict=True) if w]
    found = iter(torch.autograd.grad(out, learnt, g, create_graph=again, allow_unused=True))
    return [next(found) if w else None for w in wants]


def learns(item: Any) -> bool:
    """Whether an argument is a tensor that requires grad."""
    return isinstance(item, Tensor) and item.requires_grad


def leaves(given: Sequence[Any], wants: Sequence[bool]) -> list[Any]:
    """The arguments, their tensors without graph; those that are wanted require grad."""
    pairs = zip(given, wants, strict=True)
    return [t.detach().requires_grad_(w) if isinstance(t, Tensor) else t for t, w in pairs]


def through(out: Tensor, own: Sequence[Any], g: Tensor) -> list[Tensor | None]:
    """The gradients of the leaves ``own``, given that of ``out``; None for others."""
    learnt = [t for t in own if learns(t)]
    found = iter(torch.autograd.grad(out, learnt, g, allow_unused=True) if learnt else ())
    return [next(found) if learns(t) else None for t in own]


def _device(given: Sequence[Any]) -> str:
    return next(t.device.type for t in given if isinstance(t, Tensor))
