"""A pytest plugin (``-p entmax_adapter``): the names of the ``entmax`` package, computed by regmax.

With it the tests that ship in that package's wheel test ``regmax.functional``, ``regmax.losses``,
domains, and the example plugin ``regmax_normmax``. ``k``, how many scores entmax sorts, is ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import entmax.activations
import entmax.losses
import entmax.root_finding
import torch
from torch import nn

import regmax
from regmax import functional, losses
from regmax_normmax import Norm


def mapped(f: Any) -> Any:
    return lambda X, dim=-1, k=None: f(X, dim=dim)


def module(f: Any) -> Any:
    class Mapped(nn.Module):
        def __init__(self, dim: int = -1, k: int | None = None) -> None:
            super().__init__()
            self.forward = partial(f, dim=dim)

    return Mapped


def threshold(f: Any, a: float) -> Any:
    """τ = max(X) − max(y)^a, a = α − 1, and the size of the support of y, for scores aX."""

    def found(X: Any, dim: int = -1, k: int | None = None) -> Any:
        y = f(X / a, dim=dim)
        top = (t.amax(dim, keepdim=True) for t in (X, y**a))
        return next(top) - next(top), (y > 0).sum(dim, keepdim=True)

    return found


def loss(make: Any) -> Any:
    """Its constructor: "elementwise_mean" is the default, an index may be a tensor."""
    return lambda k=None, ignore_index=-100, reduction="elementwise_mean": make(
        ignore_index=int(ignore_index), reduction=reduction.removeprefix("elementwise_")
    )


sparsemax, entmax15 = functional.sparsemax, functional.entmax15
NAMES: dict[Any, dict[str, Any]] = {
    entmax.activations: {
        "sparsemax": mapped(sparsemax),
        "entmax15": mapped(entmax15),
        "Sparsemax": module(sparsemax),
        "Entmax15": module(entmax15),
        "_sparsemax_threshold_and_support": threshold(sparsemax, 1.0),
        "_entmax_threshold_and_support": threshold(entmax15, 0.5),
    },
    entmax.losses: {
        "SparsemaxLoss": loss(losses.SparsemaxLoss),
        "Entmax15Loss": loss(losses.Entmax15Loss),
        "SparsemaxBisectLoss": loss(losses.SparsemaxLoss),
        "EntmaxBisectLoss": loss(losses.EntmaxLoss),
        "NormmaxBisectLoss": loss(partial(regmax.FenchelYoungLoss, Norm())),
    },
    entmax.root_finding: {
        "sparsemax_bisect": mapped(sparsemax),
        "entmax_bisect": lambda X, alpha=1.5, dim=-1: functional.entmax(X, alpha=alpha, dim=dim),
        "normmax_bisect": lambda X, alpha=2, dim=-1: regmax.RegularizedMax(Norm(alpha), dim=dim)(X),
        "budget_bisect": lambda X, budget=2, dim=-1: sparsemax(
            X, dim=dim, domain=regmax.Simplex(budget, upper=1.0)
        ),
    },
}
for module_, names in NAMES.items():
    for name, ours in names.items():
        assert hasattr(module_, name), f"{module_.__name__} has no {name}"
        setattr(module_, name, ours)


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)  # its tests draw without a seed
