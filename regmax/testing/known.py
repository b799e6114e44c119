"""Problems with known answers, on which solvers are checked.

Each Ω is value-only. The answer comes first: a point y of Δ, made of random numbers, is the
maximiser for the scores z = ∇Ω(y) + τ − s with s ≥ 0 where y_i = 0 and s = 0 elsewhere, and
J H w = w there for a w along the face and the groups of y, H = ∇²Ω(y). No solver is needed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kernels.simplex import project
from ..optimality.problem import Problem
from ..regularizers.penalty import Penalized, Penalty
from ..regularizers.regularizer import Regularizer
from .search import Case, show

LOWEST = 8.0
"""An entry of a point, of an Ω with an infinite slope at 0, is at least e^−8 times the largest."""


@dataclass(frozen=True, eq=False)
class Known:
    """Ω = base + λ·penalty.

    ``steep``: its slope at 0 is infinite, so that every y_i > 0. ``curved``: it is strongly convex
    near every y, so that a solver can certify its own answer.
    """

    name: str
    base: Regularizer
    penalty: Penalty | None = None
    lam: float = 0.0
    steep: bool = False
    curved: bool = True

    @property
    def omega(self) -> Regularizer:
        return self.around(self.base)

    def around(self, base: Regularizer) -> Regularizer:
        """The same Ω with ``base`` for its smooth part."""
        return base if self.penalty is None else Penalized(base, self.penalty, self.lam)

    def problem(self, z: Tensor, mask: Tensor | None = None) -> Problem:
        return Problem(self.omega, z, mask)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Trial(Case):
    """Rows of a known problem: ``x`` holds the numbers that the points ``y`` are made of, and ``z``
    the scores."""

    known: Known = field(kw_only=True)

    @functools.cached_property
    def y(self) -> Tensor:
        """Π_Ω(z), to the rounding of z."""
        on = self.participants()
        x = torch.where(on, self.x, -torch.inf)
        x = x - x.amax(-1, keepdim=True)
        if self.known.steep:
            return torch.where(on, x.clamp_min(-LOWEST), -torch.inf).softmax(-1)
        if self.known.penalty is not None:
            x = self.known.penalty.prox(torch.where(on, x, 0), self.known.lam, self.mask)
        return project(torch.where(on, x, 0), self.mask)

    @functools.cached_property
    def z(self) -> Tensor:
        """Scores of which y is the maximiser; where masked, of any value."""
        slope = self.known.base.grad(self.y)
        if self.known.penalty is not None:
            near, lam = torch.zeros_like(slope), self.known.lam
            slope = slope + self.known.penalty.subgradient(self.y, near, lam, self.mask)
        z = torch.where(self.y > 0, slope, slope - self.x.abs())
        return torch.where(self.participants(), z, self.x)

    @property
    def problem(self) -> Problem:
        return self.known.problem(self.z, self.mask)

    def tangent(self) -> tuple[Tensor, Tensor]:
        """(v, w) with Jv = w: a random w along the face of y and constant in its groups."""
        w, groups = torch.where(self.y > 0, self.direction(), 0), self.y > 0
        if self.known.penalty is not None:
            groups = groups & (self.y == self.y.amax(-1, keepdim=True))
            mean = torch.where(groups, w, 0).sum(-1, keepdim=True) / groups.sum(-1, keepdim=True)
            w = torch.where(groups, mean, w)
        on = (self.y > 0).to(w.dtype)
        w = on * (w - w.sum(-1, keepdim=True) / on.sum(-1, keepdim=True))
        _, v = torch.autograd.functional.hvp(lambda y: self.known.base.value(y).sum(), self.y, w)
        return torch.where(self.y > 0, v, self.x), w

    def describe(self) -> str:
        mask = "None" if self.mask is None else show(self.mask)
        return f"omega = {self.known}\nx = {show(self.z)}\nmask = {mask}"


# -- value-only Ω ----------------------------------------------------------------------------------


def weights(y: Tensor) -> Tensor:
    """1, 1.5, 2, 1, 1.5, … for rows of any size."""
    return 1 + torch.arange(y.shape[-1], dtype=y.dtype, device=y.device).remainder(3) / 2


def coupled(y: Tensor) -> Tensor:
    """½ yᵀQy with Q_ij = 2^−|i−j|, positive definite for any size."""
    at = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return ((y @ torch.exp2(-(at.unsqueeze(-1) - at).abs())) * y).sum(-1) / 2


class Square(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2


class Weighted(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return (weights(y) * y.square()).sum(-1) / 2


class Power(Regularizer):
    """Σ y^a / (a − 1), a > 1; −2 Σ √y for a = ½."""

    def __init__(self, a: float) -> None:
        self.a = a

    def value(self, y: Tensor) -> Tensor:
        return y.pow(self.a).sum(-1) / (self.a - 1)


class Entropy(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1)


class Coupled(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return coupled(y)


class CoupledEntropy(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1) + coupled(y)


class SquaredNorm(Regularizer):
    """½‖y‖², the norm of exponent 3/2."""

    def value(self, y: Tensor) -> Tensor:
        return y.pow(1.5).sum(-1).pow(4 / 3) / 2


class Largest(Penalty):
    """R(y) = max y; the largest entries form a group."""

    lovasz = True
    name = "largest"

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return _masked(y, mask).amax(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        if not isinstance(step, Tensor) and step == 0:
            return v
        u = project(v / step, mask)  # v = z + step·u, u in Δ on the largest
        top = torch.where(u > 0, v - step * u, -torch.inf).amax(-1, keepdim=True)
        return torch.minimum(v, top)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        ids = torch.arange(z.shape[-1], device=z.device).expand(z.shape)
        top = self._top(z, mask)
        return torch.where(top, top.int().argmax(-1, keepdim=True), ids)

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        step = torch.as_tensor(step, dtype=y.dtype, device=y.device)
        return step * project(near / step.clamp_min(1e-300), self._top(y, mask))

    @staticmethod
    def _top(y: Tensor, mask: Tensor | None) -> Tensor:
        seen = _masked(y, mask)
        return seen == seen.amax(-1, keepdim=True)


def _masked(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y.masked_fill(~mask, -torch.inf)


def known_problems() -> list[Known]:
    """The table: Ω with and without separability, sparsity, Legendre type and a penalty."""
    return [
        Known("½Σy²", Square()),
        Known("½Σcy², c = 1, 1.5, 2, …", Weighted()),
        Known("2Σy^1.5", Power(1.5)),
        Known("½Σy³", Power(3.0), curved=False),
        Known("Σy log y", Entropy(), steep=True),
        Known("−2Σ√y", Power(0.5), steep=True),
        Known("½yᵀQy", Coupled()),
        Known("Σy log y + ½yᵀQy", CoupledEntropy(), steep=True),
        Known("½‖y‖², exponent 3/2", SquaredNorm()),
        Known("½Σy² + 0.3 max y", Square(), Largest(), 0.3),
        Known("½Σcy² + 0.3 max y", Weighted(), Largest(), 0.3),
    ]
