"""The Triton kernel that regularizers offer for threshold mappings."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import Hyper, Kernel, Number, Numbers
from . import jacobian, threshold
from .attention_launch import ThresholdAttention
from .equation import Description, described


class ThresholdKernel(Kernel):
    """Π_Ω as its descriptions say, any floating dtype: the first that covers a number, or the last.

    ``attention``: whether there is attention with this Ω. ``limit`` and ``pack``, for tests and
    tuning: the longest row for one program, and the shortest whose candidates are packed.
    """

    name = "triton"
    numbers = True
    distributions = True
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    def __init__(
        self, *own: Description, attention: bool = True, limit: int | None = None,
        pack: int | None = None,
    ) -> None:  # fmt: skip
        self.own, self.limit, self.pack = own, limit, pack
        self.attention = ThresholdAttention(*own) if attention else None

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        own, first = described(self.own, theta)
        return threshold.forward(own, x, gamma, first, mask, self.limit, self.pack)

    def loss(
        self, x: Tensor, target: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Tensor, Tensor] | None:  # fmt: skip
        if not target.is_floating_point():
            target = target.reshape(-1).contiguous()
        elif epsilon > 0:
            return None
        own, first = described(self.own, theta)
        given = x, gamma, first, mask, self.limit, self.pack, target, epsilon
        dx, found = threshold.forward(own, *given)
        assert found is not None
        return found, dx

    def backward(
        self, y: Tensor, v: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper | None]:
        own, first = described(self.own, theta)
        wanted = hyper and first is not None
        g, dtheta = jacobian.backward(own, y, v, gamma, first, wanted, self.limit)
        if dtheta is None:
            return g, () if hyper else None
        return g, (dtheta,)
