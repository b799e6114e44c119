"""The matrix products of attention. Half-precision products are accumulated in float32, as in
PyTorch's attention, and the scores stay in float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import transforms
from ..mapping.rows import HALF
from . import gradients

F32 = torch.float32


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The arguments in the dtype that autocast gives to PyTorch's attention."""
    device = tensors[0].device.type
    if not transforms.autocasting(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    castable = (*HALF, F32)  # autocast leaves float64 alone
    return tuple(t.to(dtype) if t.dtype in castable else t for t in tensors)


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q kᵀ · scale, in float32 at least."""
    if q.dtype not in HALF:
        return q * scale @ k.mT
    if _has_kernel(q, k):
        return product(q, k.mT, F32).mul_(scale)
    return product(q.float() * scale, k.mT, F32)


def averages(weights: Tensor, v: Tensor) -> Tensor:
    """weights · v, rounded once to v's dtype."""
    if v.dtype not in HALF:
        return weights.to(v.dtype) @ v
    return product(weights, v, v.dtype)


def gradients_of_averages(weights: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Those of weights and v, given the gradient g of their averages."""
    if v.dtype not in HALF:
        return (g @ v.mT).to(weights.dtype), weights.to(v.dtype).mT @ g
    return product(g, v.mT, weights.dtype), product(weights.mT, g, F32)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in ``dtype``, accumulated in float32. One of the three is in half precision."""
    own = _OnTensorCores(dtype)
    return gradients.apply(own, a, b) if _has_kernel(a, b) else own.recorded(a, b)


def _has_kernel(a: Tensor, b: Tensor) -> bool:
    """Whether tensor cores can multiply a and b: plain CUDA tensors, under no transform."""
    if not a.is_cuda or torch.version.cuda is None or transforms.under_transform((a, b)):
        return False
    if type(a) is not Tensor or type(b) is not Tensor:
        return False
    known = "dtype" in torch.ops.aten.bmm.overloads() and _capable(a.device)
    return known and not (transforms.batched(a) or transforms.batched(b))


@functools.cache
def _capable(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


class _OnTensorCores(gradients.Operation):
    """a b in ``dtype``. One of a, b and the result is in half precision; tensor cores multiply in
    that dtype. Each gradient is such a product."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def forward(self, grad: bool, a: Tensor, b: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        half = next(d for d in (a.dtype, b.dtype, self.dtype) if d in HALF)
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        x, y = (
            t.to(half).expand(*batch, -1, -1).reshape(batch.numel(), *t.shape[-2:]) for t in (a, b)
        )
        shape = (*batch, a.shape[-2], b.shape[-1])
        # not a view: the caller may write to it
        return torch.ops.aten._unsafe_view(multiplied(x, y).to(self.dtype), shape), ()

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Tensor], a: Tensor, b: Tensor
    ) -> list[Tensor | None]:
        da = product(g, b.mT, a.dtype).sum_to_size(a.shape) if wants[0] else None
        db = product(a.mT, g, b.dtype).sum_to_size(b.shape) if wants[1] else None
        return [da, db]

    def recorded(self, a: Tensor, b: Tensor) -> Tensor:
        with transforms.full_precision(a.device.type):
            return (a.float() @ b.float()).to(self.dtype)


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """a b of half-precision matrices (n, ·, ·), accumulated and returned in float32."""
    with transforms.full_precision(a.device.type):
        return torch.bmm(a, b, out_dtype=F32)
