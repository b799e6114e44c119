"""OSCAR, an ordered weighted penalty: oscarmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.checks import hyperparameter

from .isotonic import isotonic_decreasing, kernel


class OrderedPairs(regmax.Penalty):
    """R(y) = Σ_{i<j} max(y_i, y_j) = Σ_k (m − k) y_[k], y_[1] ≥ … ≥ y_[m] the participants sorted.

    On y ≥ 0 this is the OSCAR penalty. On Δ a multiple of Σy is constant, so the weights are used
    centred, w_k = (m + 1)/2 − k, which keeps numbers small; ``prox`` and ``subgradient`` are those
    of R up to a shift of each row. ∂R(y) puts on each group of ties a vector that the group's
    weights majorize.
    """

    name = "oscar"

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        ordered = _low_when_masked(y, mask).sort(-1, descending=True).values
        rank = torch.arange(1, y.shape[-1] + 1, device=y.device, dtype=y.dtype)
        if mask is None:
            return ((y.shape[-1] - rank) * ordered).sum(-1)
        left = mask.sum(-1, keepdim=True) - rank
        return (left.clamp_min(0) * torch.where(left >= 0, ordered, 0)).sum(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """Isotonic regression of the sorted v minus step·w, sorted back."""
        order = _low_when_masked(v, mask).argsort(dim=-1, descending=True)
        weights, part = _weights(v, mask)
        z = isotonic_decreasing(v.gather(-1, order) - step * weights, part)
        return torch.empty_like(z).scatter(-1, order, z)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        ordered, order = _low_when_masked(z, mask).sort(-1, descending=True)
        return torch.empty_like(order).scatter(-1, order, _runs(ordered))

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        # by y, ties by ``near``
        first = near.argsort(dim=-1, descending=True)
        second = _low_when_masked(y, mask).gather(-1, first)
        order = first.gather(-1, second.argsort(dim=-1, descending=True, stable=True))
        ids = _runs(_low_when_masked(y, mask).gather(-1, order))
        weights, part = _weights(y, mask)
        weights = step * weights
        u = near.gather(-1, order)
        if part is not None:
            u = torch.where(part, u, 0)

        def per_group(t: Tensor) -> Tensor:
            return torch.zeros_like(t).scatter_add(-1, ids, t).gather(-1, ids)

        size = per_group(torch.ones_like(u))
        mean = per_group(weights) / size
        u = u - per_group(u) / size + mean
        # Σ_{j≤k} u_j ≤ Σ_{j≤k} w_j within the group; mixing with the mean restores it
        excess = (u - weights).cumsum(-1)
        room = (weights - mean).cumsum(-1)
        last = torch.ones_like(ids, dtype=torch.bool)
        last[..., :-1] = ids[..., 1:] != ids[..., :-1]
        before = torch.where(last, excess, 0)[..., :-1]
        start = torch.zeros_like(u)
        new = ~torch.ones_like(last)
        new[..., 1:] = last[..., :-1]
        start[..., 1:] = torch.where(new[..., 1:], before, 0)
        excess = (excess - per_group(start)).clamp_min(0)
        inner = ~last & (excess > 0)
        share = torch.where(inner, excess / torch.where(inner, excess + room, 1), 0)
        theta = torch.zeros_like(u).scatter_reduce(-1, ids, share, "amax").gather(-1, ids)
        u = u + theta * (mean - u)
        return torch.empty_like(u).scatter(-1, order, u)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy
        import numpy as np

        i, j = np.triu_indices(y.size, 1)
        return cvxpy.sum(cvxpy.maximum(y[i], y[j])) if len(i) else cvxpy.Constant(0.0)


def _low_when_masked(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y.masked_fill(~mask, -torch.inf)


def _weights(v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Centred weights by rank, and which ranks belong to participants (None: all)."""
    rank = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    if mask is None:
        return ((v.shape[-1] + 1) / 2 - rank).expand_as(v), None
    count = mask.sum(-1, keepdim=True)
    part = rank <= count
    return torch.where(part, (count + 1) / 2 - rank, 0), part


def _runs(ordered: Tensor) -> Tensor:
    """Ids of the runs of equal values."""
    ids = torch.zeros_like(ordered, dtype=torch.int64)
    ids[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).cumsum(-1)
    return ids


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
        lam = hyperparameter("lam", lam, ">= 0", lambda lam: lam >= 0)
        super().__init__(regmax.regularizer("gini"), OrderedPairs(), lam)
        self.exact = exact

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        """None where exact: the theorem's composition then applies."""
        if self.exact:
            return None
        z = _prox_absolute(x / gamma, self.lam, self.penalty, mask)
        return regmax.functional.sparsemax(gamma * z, gamma=gamma, mask=mask)

    def notes(self, x: Tensor) -> list[str]:
        return [f"isotonic regression: {kernel(x)} kernel"]

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
    weights = weights + (v.shape[-1] if mask is None else mask.sum(-1, keepdim=True)) / 2 - 0.5
    if part is not None:
        weights = torch.where(part, weights, 0)
    target = size - lam * torch.empty_like(weights).contiguous().scatter(-1, order, weights)
    with torch.no_grad():
        z = isotonic_decreasing(target.gather(-1, order), part)
        z = torch.empty_like(z).scatter(-1, order, z).clamp_min(0)
    mean = penalty.average(target, z, mask)
    return v.detach().sign() * (z + torch.where(z > 0, mean - mean.detach(), 0))


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Oscar]
