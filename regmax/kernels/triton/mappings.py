"""The Triton kernels that regularizers offer: threshold mappings, and chains followed by P_Δ."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import Hyper, Kernel, Number, Numbers
from . import chain, jacobian, losses, threshold
from .attention_launch import ThresholdAttention


class ThresholdKernel(Kernel):
    """Π_Ω for an Ω whose mapping is a power above a threshold, any floating dtype.

    ``kind``: "gini" or "entropy" (no hyperparameter), "tsallis" (α) or "pnorm" (p). ``limit`` and
    ``pack``, for tests and tuning: the longest row for one program, and the shortest whose
    candidates are packed.
    """

    name = "triton"
    numbers = True
    distributions = True
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    def __init__(self, kind: str, limit: int | None = None, pack: int | None = None) -> None:
        self.kind, self.limit, self.pack = kind, limit, pack
        self.attention = None if kind == "pnorm" else ThresholdAttention(kind)

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        first = theta[0] if theta else None
        return threshold.forward(self.kind, x, gamma, first, mask, self.limit, self.pack)

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Tensor, Tensor] | None:
        if not target.is_floating_point():
            target = target.reshape(-1).contiguous()
        elif epsilon > 0:
            return None
        first = theta[0] if theta else None
        dx, found = threshold.forward(
            self.kind,
            x,
            gamma,
            first,
            mask,
            self.limit,
            self.pack,
            target,
            epsilon,
        )
        assert found is not None
        return found, dx

    def loss_slopes(
        self,
        dx: Tensor,
        x: Tensor,
        target: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None,
        epsilon: float,
    ) -> Tensor | None:
        if target.is_floating_point():
            return None
        first = theta[0] if theta else None
        return losses.slopes(self.kind, dx, x, target, gamma, first, mask, epsilon)

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        first = theta[0] if theta else None
        wanted = hyper and first is not None
        g, dtheta = jacobian.backward(self.kind, y, v, gamma, first, wanted, self.limit)
        if dtheta is None:
            return g, () if hyper else None
        return g, (dtheta,)


class ChainKernel(Kernel):
    """P_Δ of a prox on neighbours: by position (total variation) or, ``ranked``, by rank (OSCAR).

    Computes in float64 for every dtype. The caller rounds to half precision, so that rounding does
    not merge groups. ``block``, for tests and tuning: the longest row in registers, and the entries
    of a block of a longer one.
    """

    name = "triton"
    numbers = True
    dtypes = (torch.float32, torch.float64)

    def __init__(self, ranked: bool, block: int | None = None) -> None:
        self.ranked, self.block = ranked, block

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return chain.forward(x, gamma, theta[0], mask, self.ranked, self.block)

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        g, dlam = chain.backward(y, v, gamma, mask, self.ranked, hyper, self.block)
        return g, None if dlam is None else (dlam,)
