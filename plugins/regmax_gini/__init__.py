"""Gini entropy (the squared 2-norm): sparsemax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.simplex import project
from regmax.regularizers.curvature import Diagonal

KERNELS = Lazy(cpu="regmax_gini._cpu", cuda="regmax_gini._gpu")


class Gini(regmax.Regularizer):
    """Ω(y) = ½‖y‖². Π_Ω(x) = P_Δ(x/γ) is sparsemax (Niculae & Blondel 2017, §2.3)."""

    name = "gini"
    mapping = "sparsemax"
    formula = r"\tfrac{1}{2} \lVert y \rVert_2^2"
    hyperparameters = ()
    permutation_invariant = True
    separable = True
    ignores_zeros = True
    strong_convexity = 1.0

    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2

    def grad(self, y: Tensor) -> Tensor:
        return y.clone()

    def curvature(self, y: Tensor) -> Diagonal:
        return Diagonal(torch.ones_like(y))

    def inverse(self, u: Tensor) -> Tensor:
        return u.clamp_min(0)

    def min_positive(self, tiny: float) -> float:
        return tiny

    def support_radius(self) -> float:
        return 1.0

    def kernel(self, x: Tensor) -> Kernel | None:
        return KERNELS.get(x.device.type)

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """P_Δ(x/γ)."""
        return project(x / gamma, mask)

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        """(x/γ − τ)₊, τ by Newton's method from below, from the largest τ of a part of the row."""
        z = (x / gamma).masked_fill(~mask, -torch.inf)
        low = torch.full_like(z[..., :1], -1.0)
        low = self.row_max(_threshold(z, low, super().row_sums))
        return (z - _threshold(z, low, self.row_sums)).clamp_min(0)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        return 0.5 * cvxpy.sum_squares(y)


def _threshold(z: Tensor, low: Tensor, row_sums: Callable[..., tuple[Tensor, ...]]) -> Tensor:
    """τ with Σ (z − τ)₊ = 1, at least ``low``: τ ← (Σ_S z − 1)/|S| on the entries above τ increases
    to it (Michelot 1986)."""
    tau, size = low, torch.zeros_like(low)
    # ends: τ never decreases, so that the support only shrinks
    while True:
        inside = z > tau
        total, count = row_sums(torch.where(inside, z, 0), inside.to(z.dtype))
        if bool((count == size).all()):
            return tau
        size, tau = count, torch.maximum(tau, (total - 1) / count.clamp_min(1))


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Gini]
