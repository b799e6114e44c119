"""The matrix products of attention. Half-precision products are accumulated in float32, as in
PyTorch's attention, and the scores stay in float32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..mapping.rows import HALF

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
        return _product(q, k.mT, F32).mul_(scale)
    return _product(q.float() * scale, k.mT, F32)


def averages(weights: Tensor, v: Tensor) -> Tensor:
    """weights · v, rounded once to v's dtype."""
    if v.dtype not in HALF:
        return weights.to(v.dtype) @ v
    return _product(weights, v, v.dtype)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b, accumulated in float32."""
    if _has_kernel(a, b):
        made: Tensor = _Product.apply(a, b, dtype)  # type: ignore[no-untyped-call]
        return made
    with transforms.full_precision(a.device.type):
        return (a.float() @ b.float()).to(dtype)


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


class _Product(torch.autograd.Function):
    """a b on tensor cores. One of a, b and the result is in half precision; the cores multiply in
    that dtype. Each gradient is such a product."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(a, b)
        half = next(d for d in (a.dtype, b.dtype, dtype) if d in HALF)
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        x, y = (
            t.to(half).expand(*batch, -1, -1).reshape(batch.numel(), *t.shape[-2:]) for t in (a, b)
        )
        shape = (*batch, a.shape[-2], b.shape[-1])
        # not a view: the caller may write to it
        made: Tensor = torch.ops.aten._unsafe_view(multiplied(x, y).to(dtype), shape)
        return made

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wants_a, wants_b, _ = ctx.needs_input_grad
        da = _product(g, b.mT, a.dtype).sum_to_size(a.shape) if wants_a else None
        db = _product(a.mT, g, b.dtype).sum_to_size(b.shape) if wants_b else None
        return da, db, None


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """a b of half-precision matrices (n, ·, ·), accumulated and returned in float32."""
    with transforms.full_precision(a.device.type):
        return torch.bmm(a, b, out_dtype=F32)
