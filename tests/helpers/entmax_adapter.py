"""A pytest plugin (``-p entmax_adapter``): the names of the ``entmax`` package, computed by regmax.

With it the tests that ship in that package's wheel test ``regmax.functional``, ``regmax.losses``,
domains, and the example plugin ``regmax_normmax``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import entmax.activations
import entmax.losses
import entmax.root_finding
import torch
from torch import Tensor, nn

import regmax
from regmax import functional, losses
from regmax_normmax import Norm


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return functional.sparsemax(X, dim=dim)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return functional.entmax15(X, dim=dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int = 50) -> Tensor:
    return functional.sparsemax(X, dim=dim)


def entmax_bisect(X: Tensor, alpha: Any = 1.5, dim: int = -1, n_iter: int = 50) -> Tensor:
    return functional.entmax(X, alpha=alpha, dim=dim)


def normmax_bisect(X: Tensor, alpha: Any = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    return regmax.RegularizedMax(Norm(alpha), dim=dim)(X)


def budget_bisect(X: Tensor, budget: Any = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    return functional.sparsemax(X, dim=dim, domain=regmax.Simplex(budget, upper=1.0))


class Sparsemax(nn.Module):
    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, X: Tensor) -> Tensor:
        return functional.sparsemax(X, dim=self.dim)


class Entmax15(Sparsemax):
    def forward(self, X: Tensor) -> Tensor:
        return functional.entmax15(X, dim=self.dim)


def sparsemax_threshold(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """τ = max(X) − max(y), and the size of the support."""
    y = functional.sparsemax(X, dim=dim)
    return X.amax(dim, keepdim=True) - y.amax(dim, keepdim=True), (y > 0).sum(dim, keepdim=True)


def entmax15_threshold(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """τ = max(X) − sqrt(max(y)), for scores that are halved already."""
    y = functional.entmax15(2 * X, dim=dim)
    top = y.amax(dim, keepdim=True).sqrt()
    return X.amax(dim, keepdim=True) - top, (y > 0).sum(dim, keepdim=True)


def loss(name: str) -> Any:
    """The constructor of a loss: "elementwise_mean" is its default, an index may be a tensor."""

    def make(
        alpha: Any = None,
        k: int | None = None,
        n_iter: int = 50,
        ignore_index: Any = -100,
        reduction: str = "elementwise_mean",
    ) -> nn.Module:
        given = {} if alpha is None else {"alpha": alpha}
        kind = {"NormmaxLoss": partial(regmax.FenchelYoungLoss, Norm(**given))}.get(name)
        kind = kind or partial(getattr(losses, name), **given)
        reduction = {"elementwise_mean": "mean"}.get(reduction, reduction)
        found: nn.Module = kind(ignore_index=int(ignore_index), reduction=reduction)
        return found

    make.__name__ = name  # in the names of tests
    return make


for module, names in {
    entmax.activations: {
        "sparsemax": sparsemax,
        "entmax15": entmax15,
        "Sparsemax": Sparsemax,
        "Entmax15": Entmax15,
        "_sparsemax_threshold_and_support": sparsemax_threshold,
        "_entmax_threshold_and_support": entmax15_threshold,
    },
    entmax.losses: {
        "SparsemaxLoss": loss("SparsemaxLoss"),
        "Entmax15Loss": loss("Entmax15Loss"),
        "SparsemaxBisectLoss": loss("SparsemaxLoss"),
        "EntmaxBisectLoss": loss("EntmaxLoss"),
        "NormmaxBisectLoss": loss("NormmaxLoss"),
    },
    entmax.root_finding: {
        "sparsemax_bisect": sparsemax_bisect,
        "entmax_bisect": entmax_bisect,
        "normmax_bisect": normmax_bisect,
        "budget_bisect": budget_bisect,
    },
}.items():
    for name, ours in names.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, ours)


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)  # its tests draw without a seed
