"""Shannon entropy: softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.simplex import softmax
from regmax.regularizers.curvature import Diagonal

KERNELS = Lazy(cpu="regmax.kernels.softmax", cuda="regmax_entropy._gpu")


class Entropy(regmax.Regularizer):
    """Ω(y) = Σ y_i log y_i, the negative Shannon entropy. Π_Ω is softmax with temperature γ.

    1-strongly convex in ‖·‖₁, hence in ‖·‖₂ (Niculae & Blondel 2017, §2.3).
    """

    name = "entropy"
    mapping = "softmax"
    formula = r"\sum_i y_i \log y_i"
    hyperparameters = ()
    permutation_invariant = True
    separable = True
    ignores_zeros = True
    strong_convexity = 1.0

    def value(self, y: Tensor) -> Tensor:
        entropy: Tensor = torch.special.entr(y).sum(-1)
        return -entropy

    def grad(self, y: Tensor) -> Tensor:
        return y.log() + 1

    def curvature(self, y: Tensor) -> Diagonal:
        return Diagonal((-y.log()).exp())  # 1/y, with a derivative that does not overflow

    def inverse(self, u: Tensor) -> Tensor:
        return (u - 1).exp()

    def min_positive(self, tiny: float) -> float:
        return tiny

    def support_radius(self) -> float:
        return 800.0  # exp(−800) is 0

    def kernel(self, x: Tensor) -> Kernel | None:
        return KERNELS.get(x.device.type)

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """exp(x/γ) / Σ exp(x/γ)."""
        return softmax(_masked(x / gamma, mask))

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        e = _masked(x / gamma, mask).exp()
        (total,) = self.row_sums(e)
        return e / total

    def conjugate(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """γ log Σ exp(x/γ)."""
        total: Tensor = gamma * _masked(x / gamma, mask).logsumexp(-1, keepdim=True)
        return total.squeeze(-1)

    def conjugate_at(
        self, x: Tensor, y: Tensor, gamma: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """x_i − γ log y_i, which is the same for all i, at the largest entry."""
        top = _masked(x, mask).amax(-1, keepdim=True)
        value: Tensor = top - gamma * y.amax(-1, keepdim=True).log()
        return value.squeeze(-1)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        return -cvxpy.sum(cvxpy.entr(y))


def _masked(z: Tensor, mask: Tensor | None) -> Tensor:
    return z if mask is None else z.masked_fill(~mask, -torch.inf)


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Entropy]
