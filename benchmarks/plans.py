"""Doubly stochastic matrices: the domain beside twenty steps of Sinkhorn's algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

import regmax
import regmax.functional

from .timing import Step

SINKHORN = "torch Sinkhorn, 20 steps"


def sinkhorn(x: Tensor) -> Tensor:
    """Rows and columns of exp(x) are divided by their sums in turn, as logarithms."""
    for _ in range(20):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp()


def steps(x: Tensor) -> list[Step]:
    """Each on the plans x; its error is that of the sums."""
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype).to(x)
    functions = {
        SINKHORN: sinkhorn,
        "regmax softmax": lambda x: regmax.functional.softmax(x, domain=regmax.Transport()),
        "regmax sparsemax": lambda x: regmax.functional.sparsemax(x, domain=regmax.Transport()),
    }
    return [
        Step(name, function, (x.detach().requires_grad_(),), v, error=_error)
        for name, function in functions.items()
    ]


def _error(step: Step) -> float:
    assert step.y is not None
    y = step.y.detach()
    return max(float((y.sum(dim) - 1).abs().max()) for dim in (-1, -2))
