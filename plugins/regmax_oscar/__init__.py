"""OSCAR, an ordered weighted penalty: oscarmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import regmax
from regmax.kernels import Kernel, Lazy

from .isotonic import isotonic_decreasing, kernel

KERNELS = Lazy(cpu="regmax_oscar._cpu", cuda="regmax_oscar._gpu")


class OrderedPairs(regmax.Penalty):
    """R(y) = Σ_{i<j} max(y_i, y_j) = Σ_k (m − k) y_[k], y_[1] ≥ … ≥ y_[m] the participants sorted.

    On y ≥ 0 this is the OSCAR penalty. On Δ a multiple of Σy is constant, so ``prox`` and
    ``subgradient`` are those of R up to a shift of each row, which keeps numbers small. ∂R(y) puts
    on each group of ties a vector that the group's weights majorize.
    """

    name = "oscar"

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        ordered = _low_when_masked(y, mask).sort(-1, descending=True).values
        weights, part = _weights(y, mask)
        return (weights * (ordered if part is None else torch.where(part, ordered, 0))).sum(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """Isotonic regression of sort(v) + step·(0, 1, …, m − 1), sorted back. In float64 until its
        maximum is shifted to 0: unshifted it may be step·m/2 away, and its rounding as large."""
        order = _low_when_masked(v, mask).argsort(dim=-1, descending=True)
        weights, part = _weights(v.double(), mask)
        rise = step * (weights[..., :1] - weights)
        z = isotonic_decreasing(v.double().gather(-1, order) + rise, part)
        z = z - z[..., :1]
        z = z if part is None else torch.where(part, z, 0)
        return torch.zeros_like(z).scatter(-1, order, z).to(v.dtype)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """What the weights add to a block of the isotonic regression is at most step·d."""
        return step * d

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        ordered, order = _low_when_masked(z, mask).sort(-1, descending=True)
        return torch.zeros_like(order).scatter(-1, order, _runs(ordered))

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weights m − k by rank, ties in any order."""
        order = _low_when_masked(y, mask).argsort(dim=-1, descending=True)
        return torch.zeros_like(y).scatter(-1, order, _weights(y, mask)[0])

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        # by y, ties by ``near``
        first = near.argsort(dim=-1, descending=True)
        second = _low_when_masked(y, mask).gather(-1, first)
        order = first.gather(-1, second.argsort(dim=-1, descending=True, stable=True))
        ids = _runs(_low_when_masked(y, mask).gather(-1, order))
        weights, part = _weights(y, mask)
        weights = step * (weights - weights[..., :1] / 2)
        u = near.gather(-1, order)
        if part is not None:
            u, weights = torch.where(part, u, 0), torch.where(part, weights, 0)

        def per_group(t: Tensor) -> Tensor:
            return torch.zeros_like(t).scatter_add(-1, ids, t).gather(-1, ids)

        size = per_group(torch.ones_like(u))
        mean = per_group(weights) / size
        u = u - per_group(u) / size + mean
        # Σ_{j≤k} u_j ≤ Σ_{j≤k} w_j within the group; mixing with the mean restores it
        excess = (u - weights).cumsum(-1)
        room = (weights - mean).cumsum(-1)
        last = pad(ids[..., 1:] != ids[..., :-1], (0, 1), value=True)
        start = pad(torch.where(last, excess, 0)[..., :-1], (1, 0))
        excess = (excess - per_group(start)).clamp_min(0)
        inner = ~last & (excess > 0)
        share = torch.where(inner, excess / torch.where(inner, excess + room, 1), 0)
        theta = torch.zeros_like(u).scatter_reduce(-1, ids, share, "amax").gather(-1, ids)
        u = u + theta * (mean - u)
        return torch.zeros_like(u).scatter(-1, order, u)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy
        import numpy as np

        i, j = np.triu_indices(y.size, 1)
        return cvxpy.sum(cvxpy.maximum(y[i], y[j])) if len(i) else cvxpy.Constant(0.0)


def _low_when_masked(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y.masked_fill(~mask, -torch.inf)


def _weights(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """m − k by rank, and which ranks belong to participants (None: all); 0 for the others."""
    rank = torch.arange(1, y.shape[-1] + 1, device=y.device)
    count = y.shape[-1] if mask is None else mask.sum(-1, keepdim=True)
    weights = (count - rank).clamp_min(0).to(y.dtype).expand_as(y)
    return weights, None if mask is None else rank <= count


def _runs(ordered: Tensor) -> Tensor:
    """Ids of the runs of equal values."""
    return pad((ordered[..., 1:] != ordered[..., :-1]).cumsum(-1), (1, 0))


class Oscar(regmax.Penalized):
    """Ω(y) = ½‖y‖² + λ Σ_{i<j} max(|y_i|, |y_j|), λ ≥ 0. Π_Ω is oscarmax.

    ``lam``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    Gini plus a penalty, exact: P_Δ of the isotonic regression of sort(x/γ) − λw. With
    ``exact=False`` it is P_Δ ∘ P_OSC, the approximation of Niculae & Blondel (2017, §3.2 and
    errata), for those who reproduce its numbers: it depends on where the scores' 0 is.
    """

    name = "oscar"
    mapping = "oscarmax"

    def __init__(self, lam: float | Tensor = 0.01, exact: bool = True) -> None:
        if not isinstance(exact, bool):
            raise TypeError(f"exact must be a bool; got {exact!r}")
        super().__init__(regmax.regularizer("gini"), OrderedPairs(), lam)
        self.exact = exact

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        """None where exact: the theorem's composition then applies."""
        if self.exact:
            return None
        z = _prox_absolute(x / gamma, self.lam, self.penalty, mask)
        return regmax.functional.sparsemax(gamma * z, gamma=gamma, mask=mask)

    def kernel(self, x: Tensor) -> Kernel | None:
        ours = type(self.penalty) is OrderedPairs and self.base.name == "gini"
        return KERNELS.get(x.device.type) if ours and self.exact else None

    def notes(self, x: Tensor) -> list[str]:
        return [] if self.kernel(x) else [f"isotonic regression: {kernel(x)} kernel"]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.exact else ", exact=False")


def _prox_absolute(
    v: Tensor, lam: float | Tensor, penalty: regmax.Penalty, mask: Tensor | None
) -> Tensor:
    """P_OSC(v) = argmin_z ½‖z − v‖² + λ Σ_{i<j} max(|z_i|, |z_j|), differentiable in v and λ.

    |z| = max(isotonic(sort|v| − λw), 0) with w_k = m − k (2017, Lemma 2); its Jacobian averages
    with signs over groups of equal |z| and is 0 where z = 0 (2017, Prop. 3).
    """
    size = v.abs() if mask is None else torch.where(mask, v.abs(), 0)
    order = _low_when_masked(size.detach(), mask).argsort(dim=-1, descending=True)
    weights, part = _weights(v, mask)
    target = size - lam * torch.zeros_like(size).scatter(-1, order, weights)
    with torch.no_grad():
        z = isotonic_decreasing(target.gather(-1, order), part)
        z = torch.zeros_like(z).scatter(-1, order, z).clamp_min(0)
    mean = penalty.average(target, z, mask)
    return v.detach().sign() * (z + torch.where(z > 0, mean - mean.detach(), 0))


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Oscar]
