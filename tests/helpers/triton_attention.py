"""Calls of ``regmax.nn.attention`` that take the Triton kernel: interpreted without a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import regmax
from regmax.kernels import Lazy
from regmax.nn import AdaptiveEntmax

SMALL = (16, 16)
TOLERANCE = 2e-5


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, with small blocks, on each device."""
    torch.manual_seed(0)
    get = Lazy.get
    monkeypatch.setattr(Lazy, "get", lambda lazy, device: get(lazy, "cuda"))
    for name in ("entropy", "gini", "tsallis"):
        kernel = importlib.import_module(f"regmax_{name}._gpu").KERNEL
        monkeypatch.setattr(kernel.attention, "blocks", SMALL)


def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """The calls of the kernel: their steps, and what they compute."""
    from regmax.kernels.triton.attention_launch import ThresholdAttention

    steps: list[str] = []
    arrangements: list[Any] = []
    for step in ("forward", "backward"):
        inner = getattr(ThresholdAttention, step)

        def call(kernel: Any, how: Any, *args: Any, inner: Any = inner, step: str = step) -> Any:
            steps.append(step)
            arrangements.append(how)
            return inner(kernel, how, *args)

        monkeypatch.setattr(ThresholdAttention, step, call)
    return steps, arrangements


def omega_of(alpha: Any, heads: int, dtype: torch.dtype, device: str) -> Any:
    """Tsallis, or with an α for each head that is learnt."""
    if alpha != "learnt":
        return regmax.regularizer("tsallis", alpha=alpha)
    omega = AdaptiveEntmax(heads).to(device, dtype)
    with torch.no_grad():
        omega.a.copy_(torch.linspace(-3, 3, heads)[:, None, None])
    return omega


def dense(lengths: Any, causal: bool) -> torch.Tensor:
    """Which keys each query of packed sequences sees, (L, S)."""
    blocks = [torch.ones(n, m, dtype=torch.bool) for n, m in zip(*lengths, strict=True)]
    return torch.block_diag(*(b.tril() if causal else b for b in blocks)).bool()
