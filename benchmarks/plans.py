"""Doubly stochastic matrices: the domain beside twenty steps of Sinkhorn's algorithm."""

from __future__ import annotations

import functools
import importlib
import importlib.util

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
    found = [
        Step(name, function, (x.detach().requires_grad_(),), v, error=_error)
        for name, function in functions.items()
    ]
    if len(x) > 1 or importlib.util.find_spec("ot") is None:
        return found
    for name in ("sinkhorn", "smooth_ot_semi_dual"):
        found.append(Step(f"POT {name}", functools.partial(pot, name), (x.detach(),), error=_error))
    return found


def pot(name: str, x: Tensor) -> Tensor:
    """The plan of a function of POT: entropy, or the squares of ``smooth_ot_semi_dual``."""
    ot = importlib.import_module("ot")
    sums, cost, most = torch.ones(x.shape[-1]).numpy(), -x[0].cpu().double().numpy(), 10**6
    if name == "smooth_ot_semi_dual":
        found = ot.smooth.smooth_ot_semi_dual(sums, sums, cost, 1.0, reg_type="l2", stopThr=1e-9)
    else:
        found = ot.sinkhorn(sums, sums, cost, 1.0, numItermax=most, stopThr=1e-9)
    return torch.from_numpy(found).unsqueeze(0)


def _error(step: Step) -> float:
    assert step.y is not None
    y = step.y.detach()
    return max(float((y.sum(dim) - 1).abs().max()) for dim in (-1, -2))
