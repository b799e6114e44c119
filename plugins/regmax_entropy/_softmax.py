"""Softmax and its derivative by PyTorch's own operators, which are fast on a CPU.

y = exp(x/γ)/Σ exp(x/γ),          J v = y ∘ (v − ⟨y, v⟩).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regmax.kernels import Kernel
from regmax.kernels.base import Hyper, Number, Numbers

LONG = 4096
"""Above this length PyTorch's sequential sum loses digits."""


class _Softmax(Kernel):
    name = "PyTorch"
    numbers = True

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, None]:
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
        self, x: Tensor, k: Tensor, gamma: Number, theta: Numbers
    ) -> tuple[Tensor, Tensor] | None:
        logarithms = _divided(x, gamma).log_softmax(-1)
        value = -logarithms.gather(-1, k).double()
        y = logarithms.exp_()
        if y.shape[-1] > LONG:
            total = y.sum(-1, keepdim=True)
            y, value = y.div_(total), value + total.double().log()
        if not math.isfinite(value.sum().item()):
            return None
        y.scatter_add_(-1, k, y.new_full((), -1).expand_as(k))
        return (gamma * value.squeeze(-1) if not _is_one(gamma) else value.squeeze(-1)), y

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


KERNEL = _Softmax()
