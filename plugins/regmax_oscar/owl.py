"""Ordered weights: the base class of penalties Σ_k w_k y_[k], OWL and clique total variation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import regmax
from regmax.kernels import transforms
from regmax.kernels.neighbours import bounds, ids_of, positions

from .isotonic import isotonic_decreasing


class Ordered(regmax.Penalty):
    """R(y) = Σ_k w_k y_[k], w_1 ≥ … ≥ w_m, y_[1] ≥ … ≥ y_[m] the participants sorted.

    On Δ a multiple of Σy is constant. So ``prox`` and ``subgradient`` are those of R up to a shift
    of each row, which keeps numbers small. On each group of ties the weights of the group majorize
    a vector in ∂R(y). Source: Zeng & Figueiredo, "The ordered weighted l1 norm" (2014).
    """

    lovasz = True

    @abstractmethod
    def ranked(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """w_k by rank, of y's dtype and shape; 0 beyond the participants."""

    @abstractmethod
    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """step·(w_1 − w_d), which bounds the change of a block of the isotonic regression."""

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        ordered = low_when_masked(y, mask).sort(-1, descending=True).values
        ordered = ordered if mask is None else torch.where(participating(mask), ordered, 0)
        return (self.ranked(y, mask) * ordered).sum(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """Isotonic regression of sort(v) − step·(w − w_1), in the original order, its maximum
        shifted to 0. In float64 before the shift, as values and rounding may grow like step·m/2."""
        with torch.no_grad():
            found = self._shifted(v, step, mask)
        z = self.with_gradient(found, v, step, mask)
        if z is found:
            return z
        largest = low_when_masked(found, mask).argmax(-1, keepdim=True)
        top = z.gather(-1, largest)  # 0, whatever v is
        shift = (top - top.detach()).expand_as(z)
        return z - (shift if mask is None else torch.where(mask, shift, 0))

    def _shifted(self, v: Tensor, step: float | Tensor, mask: Tensor | None) -> Tensor:
        order = low_when_masked(v, mask).argsort(dim=-1, descending=True)
        part = None if mask is None else participating(mask)
        weights = self.ranked(v.double(), mask).detach()
        rise = step * (weights[..., :1] - weights)
        z = isotonic_decreasing(v.double().gather(-1, order) + rise, part)
        z = z - z[..., :1]
        z = z if part is None else torch.where(part, z, 0)
        return torch.zeros_like(z).scatter(-1, order, z).to(v.dtype)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        return ids_of(*low_when_masked(z, mask).sort(-1, descending=True))

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weights by rank, ties in any order."""
        order = low_when_masked(y, mask).argsort(dim=-1, descending=True)
        return torch.zeros_like(y).scatter(-1, order, self.ranked(y, mask))

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        # by y, ties by ``near``
        first = near.argsort(dim=-1, descending=True)
        second = low_when_masked(y, mask).gather(-1, first)
        order = first.gather(-1, second.argsort(dim=-1, descending=True, stable=True))
        ids = ids_of(low_when_masked(y, mask).gather(-1, order))
        weights = self.ranked(y, mask).detach()
        part = None if mask is None else participating(mask)
        lowest = weights if part is None else torch.where(part, weights, torch.inf)
        middle = (weights[..., :1] + lowest.amin(-1, keepdim=True)) / 2
        weights = step * (weights - middle)
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
        room = (weights - mean).cumsum(-1).clamp_min(0)
        last = pad(ids[..., 1:] != ids[..., :-1], (0, 1), value=True)
        start = pad(torch.where(last, excess, 0)[..., :-1], (1, 0))
        excess = (excess - per_group(start)).clamp_min(0)
        inner = ~last & (excess > 0)
        share = torch.where(inner, excess / torch.where(inner, excess + room, 1), 0)
        theta = torch.zeros_like(u).scatter_reduce(-1, ids, share, "amax").gather(-1, ids)
        u = u + theta * (mean - u)
        return torch.zeros_like(u).scatter(-1, order, u)


class OWL(Ordered):
    """R(y) = Σ_k w_k y_[k] for weights w_1 ≥ … ≥ w_d of any sign.

    ``weights``: d numbers, or a floating tensor of shape (d,): a hyperparameter, which gets its
    gradient if it requires one. Rows must have d entries. For a masked row with m participants the
    first m weights are used, as masked entries are 0 and so the last. Raises ValueError if weights
    increase, at every call where the test costs no synchronisation.
    Source: Zeng & Figueiredo (2014).
    """

    name = "owl"
    formula = r"\sum_k w_k\, y_{[k]}"

    def __init__(self, weights: Tensor | Sequence[float]) -> None:
        # weights given as numbers stay numbers: a tracer does not know earlier tensors
        self.weights = _checked(weights)
        self.entries = len(self.weights)

    def _w(self) -> Tensor:
        if isinstance(self.weights, Tensor):
            return self.weights
        return torch.tensor(self.weights, dtype=torch.float64, device="cpu")

    def ranked(self, y: Tensor, mask: Tensor | None) -> Tensor:
        if y.shape[-1] != self.entries:
            raise ValueError(
                f"weights must be one for each entry of a row: there are {self.entries}, and rows "
                f"have {y.shape[-1]} entries"
            )
        given = self.weights
        if transforms.tracing() and not isinstance(given, Tensor):  # a graph takes no new tensor
            weights = torch.stack([transforms.number(w, y) for w in given]).to(y).expand_as(y)
        else:
            weights = self._w().to(y).expand_as(y)
        return weights if mask is None else torch.where(participating(mask), weights, 0)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        w = self.weights
        spread: float | Tensor = step * (w[0] - w[-1])
        return spread.detach() if isinstance(spread, Tensor) else spread

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        _refuse_increasing(self.weights)
        return super().prox(v, step, mask)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Ties whose weights differ: R is smooth where equal entries have equal weights."""
        ordered, order = low_when_masked(z, mask).sort(-1, descending=True)
        first, last = bounds(pad(ordered[..., 1:] != ordered[..., :-1], (0, 1), value=True))
        weights = self.ranked(z, mask).detach()
        apart = weights.gather(-1, first) != weights.gather(-1, last)
        return torch.zeros_like(order).scatter(-1, order, torch.where(apart, first, positions(z)))

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        w = self._w().detach().double().tolist()
        total = w[-1] * cvxpy.sum(y)
        for k in range(1, len(w)):
            total += (w[k - 1] - w[k]) * cvxpy.sum_largest(y, k)
        return total


class CliqueTV(Ordered):
    """R(y) = Σ_{i<j} |y_i − y_j| over the pairs of participants.

    It is Σ_k (m + 1 − 2k) y_[k] for m participants. Total variation over the complete graph:
    entries of similar value fuse, anywhere in the row. It has no arguments and takes rows of any
    length, in O(d log d).
    """

    name = "clique_tv"
    formula = r"\sum_{i<j} \lvert y_i - y_j \rvert"

    def ranked(self, y: Tensor, mask: Tensor | None) -> Tensor:
        rank, count = ranks(y, mask)
        weights = torch.where(rank <= count, count + 1 - 2 * rank, 0)
        return weights.to(y.dtype).expand_as(y)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        return 2 * step * d

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy
        import numpy as np

        i, j = np.triu_indices(y.size, 1)
        return cvxpy.norm1(y[i] - y[j]) if len(i) else cvxpy.Constant(0.0)


def ranks(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Any]:
    """1 … d, and the number of participants."""
    rank = torch.arange(1, y.shape[-1] + 1, device=y.device)
    return rank, y.shape[-1] if mask is None else mask.sum(-1, keepdim=True)


def participating(mask: Tensor) -> Tensor:
    """True at the ranks of participants."""
    rank, count = ranks(mask, mask)
    part: Tensor = rank <= count
    return part


def low_when_masked(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y.masked_fill(~mask, -torch.inf)


def _checked(weights: Any) -> Tensor | tuple[float, ...]:
    accepted = "numbers w_1 >= w_2 >= … >= w_d, a sequence or a floating tensor of shape (d,)"
    if isinstance(weights, Tensor):
        if not weights.dtype.is_floating_point:
            raise TypeError(f"weights must be {accepted}; got {weights.dtype}")
        if weights.ndim != 1 or not len(weights):
            raise ValueError(f"weights must be {accepted}; got shape {tuple(weights.shape)}")
        _refuse_increasing(weights)
        return weights
    try:
        found = tuple(float(w) for w in weights)
    except (TypeError, ValueError):
        raise TypeError(f"weights must be {accepted}; got {weights!r}") from None
    if not found:
        raise ValueError(f"weights must be {accepted}; got {weights!r}")
    _refuse(found)
    return found


def _refuse_increasing(weights: Tensor | tuple[float, ...]) -> None:
    """ValueError if weights lost their order in training, where no synchronisation is needed."""
    if isinstance(weights, Tensor) and transforms.may_look(weights):
        _refuse(weights.detach().tolist())


def _refuse(w: Sequence[float]) -> None:
    for k, number in enumerate(w):
        if not math.isfinite(number):
            raise ValueError(f"weights must be finite; got {number:g} at index {k}")
        if k and number > w[k - 1]:
            raise ValueError(
                f"weights must not increase; got {w[k - 1]:g} at index {k - 1} and then {number:g}"
            )
