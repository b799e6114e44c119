"""Ω of a user, each by its value alone; two whose plugin is at fault; and penalties."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax import Regularizer


def omega_of(value: Any, **attributes: Any) -> Any:
    """Ω of a function of y, or of y and tensors that learn, by their names: ``attributes`` that are
    tensors are its own, others, and what a regularizer declares, those of its class."""
    tensors = {
        name: t
        for name, t in attributes.items()
        if isinstance(t, Tensor) and not hasattr(Regularizer, name)
    }
    own = {name: item for name, item in attributes.items() if name not in tensors}

    def of(self: Any, y: Tensor) -> Any:
        return value(y, *(getattr(self, name) for name in tensors))

    omega = type("Mine", (Regularizer,), {"value": of, **own})()
    for name, t in tensors.items():
        setattr(omega, name, t)
    return omega


class Square(Regularizer):
    """½‖y‖²."""

    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2


class Cubic(Regularizer):
    """Σ ½yᵢ² + yᵢ³/6."""

    def value(self, y: Tensor) -> Tensor:
        return (y.square() / 2 + y.pow(3) / 6).sum(-1)


class Inverse(Regularizer):
    """Σ yᵢ³/6 + w yᵢ²/2, with its inverse and its convex program."""

    separable = True

    def __init__(self, w: float | Tensor = 0.2) -> None:
        self.w = w

    def value(self, y: Tensor) -> Tensor:
        return y.pow(3).sum(-1) / 6 + self.w * y.square().sum(-1) / 2

    def inverse(self, u: Tensor) -> Tensor:
        return (self.w**2 + 2 * u.clamp_min(0)).sqrt() - self.w

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        return cvxpy.sum(cvxpy.power(y, 3)) / 6 + float(self.w) * cvxpy.sum_squares(y) / 2


class Quartic(Regularizer):
    """Σ ½yᵢ² + yᵢ⁴."""

    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2 + y.pow(4).sum(-1)


class Entropy(Regularizer):
    """Σ yᵢ log yᵢ."""

    def value(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1)


class Power(Regularizer):
    """(Σ yᵢ^α − 1)/(α(α − 1))."""

    def __init__(self, alpha: float | Tensor) -> None:
        self.alpha = alpha

    def value(self, y: Tensor) -> Tensor:
        return (y.pow(self.alpha).sum(-1) - 1) / (self.alpha * (self.alpha - 1))


class Weighted(Regularizer):
    """½ Σ wᵢ yᵢ²."""

    def __init__(self, w: float | Tensor) -> None:
        self.w = w

    def value(self, y: Tensor) -> Tensor:
        return (self.w * y.square()).sum(-1) / 2


class Quadratic(Regularizer):
    """½ yᵀQy + Σ yᵢ³/3."""

    def __init__(self, q: Tensor) -> None:
        self.q = q

    def value(self, y: Tensor) -> Tensor:
        return ((y @ self.q) * y).sum(-1) / 2 + y.pow(3).sum(-1) / 3


class Raises(Regularizer):
    """Its code fails."""

    name = "raises"

    def value(self, y: Tensor) -> Tensor:
        raise ZeroDivisionError("a fault of the plugin")


class Demanding(Regularizer):
    """It has no default for its hyperparameter."""

    name = "demanding"

    def __init__(self, price: float) -> None:
        self.price = price

    def value(self, y: Tensor) -> Tensor:
        return self.price * y.square().sum(-1)


class GroupNorm(regmax.Penalty):
    """R(y) = Σ_g ‖y_g‖₂, to which the theorem does not apply."""

    def __init__(self, sizes: list[int], factor: float = 1.0) -> None:
        self.sizes, self.factor = sizes, factor

    def parts(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.split(self.sizes, -1)

    def value(self, y: Tensor, mask: Any = None) -> Tensor:
        return torch.stack([part.norm(dim=-1) for part in self.parts(y)], -1).sum(-1)

    def prox(self, v: Tensor, step: Any, mask: Any = None) -> Tensor:
        shrunk = [
            part * (1 - self.factor * step / part.norm(dim=-1, keepdim=True)).clamp_min(0)
            for part in self.parts(v)
        ]
        return torch.cat(shrunk, -1).nan_to_num(0)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        ends = [sum(self.sizes[:k]) for k in range(len(self.sizes) + 1)]
        return sum(cvxpy.norm(y[a:b]) for a, b in itertools.pairwise(ends))


ARGUMENTS: dict[str, dict[str, object]] = {
    "graph_tv": {"edges": [(0, 1), (1, 2), (2, 0), (3, 4)], "nodes": 6},
    "grid_tv": {"shape": (2, 3)},
    "owl": {"weights": (3.0, 2.5, 2, 1, 0.1, -1)},
}


def penalty_of(name: str, **more: object) -> regmax.Penalty:
    """The penalty of this name, for rows of 6 entries."""
    return regmax.penalty(name, **ARGUMENTS.get(name, {}) | more)
