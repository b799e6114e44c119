"""Softmax and its derivative by PyTorch's own operators, which are fast on a CPU; long rows of
float32 by compiled code, which sums them to more digits in less time.

y = exp(x/γ)/Σ exp(x/γ),          J v = y ∘ (v − ⟨y, v⟩).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .base import Hyper, Kernel, Number, Numbers
from .cpu.flash import FlashAttention

LONG = 4096
"""Above this length PyTorch's sum of float32 loses digits."""


class _Softmax(Kernel):
    name = "PyTorch"
    numbers = True
    attention = FlashAttention()

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if mask is not None:
            x = x.masked_fill(~mask, -torch.inf)
        y = _divided(x, gamma).softmax(-1)
        if y.shape[-1] > LONG:
            y.div_(y.sum(-1, keepdim=True))
        first = y[:, :1]
        bad = torch.isnan(first)
        if x.device.type != "cpu" or bool(bad.any()):  # a NaN score, or no participants
            y = torch.where(bad & (x == -torch.inf).all(-1, keepdim=True), 0, y)
        return y, None

    def operator(self, x: Tensor, *numbers: Number) -> Tensor | None:
        if numbers != (1.0,) or x.shape[-1] > LONG or x.numel() == 0:
            return None
        y = x.softmax(-1)
        return y if math.isfinite(y.detach()[..., 0].sum().item()) else None

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        w: Tensor = torch._softmax_backward_data(v, y, -1, y.dtype)
        if not _is_one(gamma):
            w = w.div_(_column(gamma, w))
        bad = torch.isnan(w[:, :1])
        if w.device.type != "cpu" or bool(bad.any()):
            w = torch.where(torch.isnan(y[:, :1]), 0, w)
        return w, () if hyper else None


def _is_one(gamma: Number) -> bool:
    """Whether γ is known, without a synchronisation, to be 1 for all rows."""
    if not isinstance(gamma, Tensor):
        return gamma == 1.0
    return gamma.device.type == "cpu" and gamma.numel() == 1 and gamma.item() == 1.0


def _column(gamma: Number, x: Tensor) -> Number:
    return gamma.to(x.dtype).unsqueeze(-1) if isinstance(gamma, Tensor) else gamma


def _divided(x: Tensor, gamma: Number) -> Tensor:
    """x/γ up to a shift of each row: x if γ = 1, else (x − max x)/γ."""
    if _is_one(gamma):
        return x
    top = x.amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0)
    if isinstance(gamma, Tensor):
        gamma = torch.where(gamma > 0, gamma, torch.nan)
    return (x - top) / _column(gamma, x)


def _compiled() -> Kernel:
    """The same with compiled losses and long rows of float32, for the CPU; without numba as it
    is."""
    try:
        from .cpu.losses import CompiledLosses
    except ModuleNotFoundError:
        return PLAIN

    class Compiled(_Softmax, CompiledLosses):
        # after a prox of all entries, PyTorch's operators are the fastest
        forward_after, backward_after = Kernel.forward_after, Kernel.backward_after

        def forward(
            self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            if x.shape[-1] <= LONG or x.dtype != torch.float32:
                return super().forward(x, gamma, theta, mask)
            return CompiledLosses.forward(self, x, _tensor(gamma, x), (), mask)

        def _run(self, task: Any, x: Tensor, target: Tensor, given: Any, *more: Any) -> int:
            gamma, *others = given
            return super()._run(task, x, target, (_tensor(gamma, x), *others), *more)

    return Compiled("regmax.kernels.cpu.exponential", theta=1.0, names=("forward",))


def _tensor(gamma: Number, x: Tensor) -> Tensor:
    """γ as compiled code takes it."""
    return gamma if isinstance(gamma, Tensor) else x.new_full((1,), gamma, dtype=torch.float64)


PLAIN = _Softmax()
KERNEL = _compiled()
