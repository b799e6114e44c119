"""Ordered weights: OSCAR (oscarmax), OWL (given weights) and clique total variation."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy, ProxKernel
from regmax.kernels.base import on_cpu

from .isotonic import isotonic_decreasing
from .owl import OWL, CliqueTV, Ordered, low_when_masked, participating, ranks

KERNELS = Lazy(cpu="regmax_oscar._cpu", cuda="regmax_oscar._gpu")


class OrderedPairs(Ordered):
    """R(y) = Σ_{i<j} max(y_i, y_j) over the pairs of participants.

    It is Σ_k (m − k) y_[k] for m participants. On y ≥ 0 this is the OSCAR penalty. It has no
    arguments and takes rows of any length.
    """

    name = "oscar"
    formula = r"\sum_{i<j} \max(y_i, y_j)"

    def ranked(self, y: Tensor, mask: Tensor | None) -> Tensor:
        rank, count = ranks(y, mask)
        return (count - rank).clamp_min(0).to(y.dtype).expand_as(y)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        return step * d

    def kernel(self, base: regmax.Regularizer, x: Tensor) -> Kernel | None:
        ours = type(self) is OrderedPairs and type(base) is _gini()
        return KERNELS.get(x.device.type) if ours else None

    def prox_kernel(self, x: Tensor) -> ProxKernel | None:
        found = KERNELS.get(x.device.type)
        return found if isinstance(found, ProxKernel) else None

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy
        import numpy as np

        i, j = np.triu_indices(y.size, 1)
        return cvxpy.sum(cvxpy.maximum(y[i], y[j])) if len(i) else cvxpy.Constant(0.0)


@functools.cache
def _gini() -> type[regmax.Regularizer]:
    return type(regmax.regularizer("regmax.gini"))


class Oscar(regmax.Penalized):
    """Ω(y) = ½‖y‖² + λ Σ_{i<j} max(|y_i|, |y_j|), λ ≥ 0. Π_Ω is oscarmax.

    ``lam``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    Gini plus a penalty. The mapping is exact: P_Δ of the isotonic regression of sort(x/γ) − λw.
    With ``exact=False`` it is P_Δ ∘ P_OSC, the approximation of Niculae & Blondel (2017, §3.2 and
    errata), to reproduce its numbers. The approximation changes if a constant is added to x.
    """

    name = "oscar"
    mapping = "oscarmax"

    def __init__(self, lam: float | Tensor = 0.01, exact: bool = True) -> None:
        if not isinstance(exact, bool):
            raise TypeError(f"exact must be a bool; got {exact!r}")
        super().__init__(regmax.regularizer("regmax.gini"), OrderedPairs(), lam)
        self.exact = exact

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        """None if ``exact``; the composition of the theorem then applies."""
        if self.exact:
            return None
        z = _prox_absolute(x / gamma, self.lam, self.penalty, mask)
        return regmax.RegularizedMax(self.base, gamma)(gamma * z, mask)

    def kernel(self, x: Tensor) -> Kernel | None:
        """The kernel of the penalty if ``exact``, as ``closed_form`` then returns None."""
        return super().kernel(x) if self.exact else None

    def notes(self, x: Tensor) -> list[str]:
        name = "numba" if on_cpu("regmax_oscar._cpu", x) else "torch"
        return [] if self.kernel(x) else [f"isotonic regression: {name} kernel"]


def _prox_absolute(v: Tensor, lam: float | Tensor, penalty: Any, mask: Tensor | None) -> Tensor:
    """P_OSC(v) = argmin_z ½‖z − v‖² + λ Σ_{i<j} max(|z_i|, |z_j|), differentiable in v and λ.

    |z| = max(isotonic(sort|v| − λw), 0) with w_k = m − k (2017, Lemma 2); its Jacobian averages
    with signs over groups of equal |z| and is 0 where z = 0 (2017, Prop. 3).
    """
    size = v.abs() if mask is None else torch.where(mask, v.abs(), 0)
    order = low_when_masked(size.detach(), mask).argsort(dim=-1, descending=True)
    weights, part = penalty.ranked(v, mask), None if mask is None else participating(mask)
    target = size - lam * torch.zeros_like(size).scatter(-1, order, weights)
    with torch.no_grad():
        z = isotonic_decreasing(target.gather(-1, order), part)
        z = torch.zeros_like(z).scatter(-1, order, z).clamp_min(0)
    mean = penalty.average(target, z, mask)
    return v.detach().sign() * (z + torch.where(z > 0, mean - mean.detach(), 0))


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Oscar]


@regmax.hookimpl
def regmax_penalties() -> list[type[regmax.Penalty]]:
    return [OrderedPairs, OWL, CliqueTV]
