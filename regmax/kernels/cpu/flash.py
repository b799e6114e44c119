"""Long softmax attention on the CPU by PyTorch's own blocks, without scores in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import Arrangement, AttentionKernel, Hyper, Number

_ATEN = torch.ops.aten
FEWEST = 1 << 23
"""With fewer scores, all of them in memory take no more time."""


class FlashAttention(AttentionKernel):
    """Softmax attention; γ multiplies the scale, or divides the queries."""

    dtypes = (torch.float32, torch.float64)

    def takes(
        self, how: Arrangement, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: object
    ) -> bool:
        return (
            mask is None
            and sink is None
            and how.offsets is None
            and not how.dropout
            and how.diagonal in (None, 0)
            and q.device.type == "cpu"
            and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
            and q.shape[1] == k.shape[1]
            and q.shape[-1] == v.shape[-1]
            and q.shape[:3].numel() * k.shape[2] > FEWEST
            # rows of these are NaN, and not always so here
            and bool(torch.isfinite(q.sum() + k.sum() + v.sum()))
        )

    def forward(
        self, how: Arrangement, grad: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None, gamma: Number, *theta: Number,
    ) -> tuple[Tensor, Hyper]:  # fmt: skip
        q, scale = _divided(q, gamma, how.scale)
        causal = how.diagonal is not None
        out, log = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )
        return out, (out, log) if grad else ()

    def backward(
        self, how: Arrangement, wants: tuple[bool, ...], g: Tensor, kept: Hyper, q: Tensor,
        k: Tensor, v: Tensor, mask: Tensor | None, sink: Number | None, gamma: Number,
        *theta: Number,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        q, scale = _divided(q, gamma, how.scale)
        causal = how.diagonal is not None
        dq, dk, dv = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            g.contiguous(), q, k, v, *kept, 0.0, causal, scale=scale
        )
        dgamma = None
        if isinstance(gamma, Tensor):
            dq = dq / gamma[..., None, None].to(q.dtype)
            dgamma = -(dq * q).sum((-2, -1)) if wants[5] else None
        found = (dq, dk, dv, None, None, dgamma)
        return tuple(t if w else None for t, w in zip(found, wants, strict=True))


def _divided(q: Tensor, gamma: Number, scale: float) -> tuple[Tensor, float]:
    """Queries and scale for γ = 1."""
    if isinstance(gamma, Tensor):
        return q / torch.where(gamma > 0, gamma, torch.nan)[..., None, None].to(q.dtype), scale
    return q, scale / gamma
