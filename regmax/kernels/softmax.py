"""Softmax and its derivative by PyTorch's own operators, which are fast on a CPU; long rows of
float32 by compiled code, which sums them to more digits in less time.

y = exp(x/γ)/Σ exp(x/γ),          J v = y ∘ (v − ⟨y, v⟩).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .base import Hyper, Kernel, Number, Numbers
from .cpu.flash import FlashAttention

LONG = 4096
"""Above this length PyTorch's sum of float32 loses digits."""


@functools.cache
def _compiled() -> Any:
    try:
        from .cpu.losses import CompiledLosses
    except ModuleNotFoundError:  # numba
        return None
    return CompiledLosses("regmax.kernels.cpu.exponential", theta=1.0, names=("forward",))


def _long(x: Tensor) -> Any:
    """The kernel of long rows of float32 on the CPU, or None."""
    fits = x.shape[-1] > LONG and x.dtype == torch.float32 and x.device.type == "cpu"
    return _compiled() if fits else None


class _Softmax(Kernel):
    name = "PyTorch"
    numbers = True
    distributions = True
    attention = FlashAttention()

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, None]:
        long = _long(x)
        if long is not None:
            return long.forward(x, _tensor(gamma, x), (), mask)[0], None
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

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Number,
        theta: Numbers,
        mask: Tensor | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Tensor, Tensor] | None:
        if x.device.type != "cpu" or _compiled() is None:
            return None
        given = x, target, _tensor(gamma, x), ()
        found: tuple[Tensor, Tensor] | None = _compiled().loss(*given, mask, epsilon)
        return found

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
        if x.device.type != "cpu" or _compiled() is None:
            return None
        numbers = _tensor(gamma, x), ()
        found: Tensor | None = _compiled().loss_slopes(dx, x, target, *numbers, mask, epsilon)
        return found

    def reduced(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Number,
        theta: Numbers,
        epsilon: float,
        ignored: int,
        mean: bool,
    ) -> tuple[Tensor, Tensor, int] | None:
        if x.device.type != "cpu" or _compiled() is None:
            return None
        found: tuple[Tensor, Tensor, int] | None = _compiled().reduced(
            x, target, _tensor(gamma, x), (), epsilon, ignored, mean
        )
        return found

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

    def compile(self, dtype: torch.dtype) -> None:
        if _compiled() is not None:
            _compiled().compile_losses(dtype)


def _is_one(gamma: Number) -> bool:
    """Whether γ is known, without a synchronisation, to be 1 for all rows."""
    if not isinstance(gamma, Tensor):
        return gamma == 1.0
    return gamma.device.type == "cpu" and gamma.numel() == 1 and gamma.item() == 1.0


def _tensor(gamma: Number, x: Tensor) -> Tensor:
    """γ as compiled code takes it."""
    return gamma if isinstance(gamma, Tensor) else x.new_full((1,), gamma, dtype=torch.float64)


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


KERNEL = _Softmax()
