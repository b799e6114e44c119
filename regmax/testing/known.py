"""Problems with known answers, on which solvers are checked.

Each Ω is value-only. The answer comes first: a point y of Δ, made of random numbers, is the
maximiser for the scores z = ∇Ω(y) + τ − s with s ≥ 0 where y_i = 0 and s = 0 elsewhere, and
J H w = w there for a w along the face and the groups of y, H = ∇²Ω(y). No solver is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kernels.simplex import project, tangent
from ..optimality.problem import Problem
from ..regularizers.penalty import Penalized, Penalty
from ..regularizers.registry import instance, registry
from ..regularizers.regularizer import Regularizer
from .inputs import hard_values, normal
from .search import Case, show

LOWEST = 8.0
"""An entry of a point, of an Ω with an infinite slope at 0, is at least e^−8 times the largest."""

ROUNDING = 1e-13
"""The error of a known answer, relative to 1 + the largest score."""


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
        w = torch.where(self.y > 0, self.direction(), 0)
        if self.known.penalty is not None:
            w = self.known.penalty.average(w, self.y, self.mask)
        w = tangent(w, self.y > 0)
        _, v = torch.autograd.functional.hvp(lambda y: self.known.base.value(y).sum(), self.y, w)
        return torch.where(self.y > 0, v, self.x), w

    def errors(self, y: Tensor, bound: Tensor | float) -> tuple[Tensor, Tensor]:
        """‖y − y*‖ of each row, and ``bound`` plus the error of the known answer."""
        own = ROUNDING * (1 + torch.where(self.participants(), self.z, 0).abs().amax(-1))
        if not self.known.curved:
            own = own.sqrt()  # the inverse of a slope that vanishes at 0
        if y.dtype == torch.float32:
            own = own + 4e-7
        return (y.double() - self.y).norm(dim=-1), bound + own

    def describe(self) -> str:
        mask = "None" if self.mask is None else show(self.mask)
        return f"omega = {self.known}\nx = {show(self.z)}\nmask = {mask}"


# -- value-only Ω ----------------------------------------------------------------------------------


def by_value(value: Callable[[Tensor], Tensor]) -> Regularizer:
    """An Ω with a class of its own, by its value alone."""
    made: Regularizer = type("ByValue", (Regularizer,), {"value": lambda self, y: value(y)})()
    return made


def weights(y: Tensor) -> Tensor:
    """1, 1.5, 2, 1, 1.5, … for rows of any size."""
    return 1 + torch.arange(y.shape[-1], dtype=y.dtype, device=y.device).remainder(3) / 2


def weighted(y: Tensor) -> Tensor:
    return (weights(y) * y.square()).sum(-1) / 2


def coupled(y: Tensor) -> Tensor:
    """½ yᵀQy with Q_ij = 2^−|i−j|, positive definite for any size."""
    at = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return ((y @ torch.exp2(-(at.unsqueeze(-1) - at).abs())) * y).sum(-1) / 2


def power(a: float) -> Callable[[Tensor], Tensor]:
    """Σ y^a / (a − 1), a > 1; −2 Σ √y for a = ½."""
    return lambda y: y.pow(a).sum(-1) / (a - 1)


def entropy(y: Tensor) -> Tensor:
    return torch.xlogy(y, y).sum(-1)


@functools.cache
def known_problems() -> tuple[Known, ...]:
    """The table: Ω with and without separability, sparsity, Legendre type and a penalty, of which
    the groups are the equal entries."""
    oscar: Penalty = instance(registry().get("penalty", "oscar"), "penalty", "oscar", {})
    square, by_weights = by_value(lambda y: y.square().sum(-1) / 2), by_value(weighted)
    mixed = by_value(lambda y: entropy(y) + coupled(y))
    norm = by_value(lambda y: y.pow(1.5).sum(-1).pow(4 / 3) / 2)
    return (
        Known("½Σy²", square),
        Known("½Σcy², c = 1, 1.5, 2, …", by_weights),
        Known("2Σy^1.5", by_value(power(1.5))),
        Known("½Σy³", by_value(power(3.0)), curved=False),
        Known("Σy log y", by_value(entropy), steep=True),
        Known("−2Σ√y", by_value(power(0.5)), steep=True),
        Known("½yᵀQy", by_value(coupled)),
        Known("Σy log y + ½yᵀQy", mixed, steep=True),
        Known("½‖y‖², exponent 3/2", norm),
        Known("½Σy² + 0.1 oscar", square, oscar, 0.1),
        Known("½Σcy² + 0.1 oscar", by_weights, oscar, 0.1),
    )


# -- rows ------------------------------------------------------------------------------------------

Trials = Callable[[Known], Iterable[Trial]]


def usual(known: Known) -> Iterator[Trial]:
    """Rows of several sizes and scales, and masked rows."""
    for k, (d, scale) in enumerate(((2, 1.0), (3, 0.05), (5, 1.0), (6, 6.0))):
        yield Trial(scale * normal(3, d, seed=k), known=known)
    mask = normal(3, 6, seed=5) < 0.5
    mask[:, 2] = True
    yield Trial(normal(3, 6, seed=6), mask=mask, known=known)


def hard(known: Known) -> Iterator[Trial]:
    """Ties, equal scores, tiny and huge scales, one element, points with tiny entries or ulps
    apart."""
    rows = normal(3, 5, seed=7)
    names = ("points of the simplex, tiny for 0", "lattices", "ulps apart")
    yield Trial(torch.cat([hard_values(name, 5, 6) for name in names]), known=known)
    yield Trial((rows * 2).round() / 2, known=known)
    yield Trial(torch.full((1, 5), 0.7, dtype=torch.float64, device="cpu"), known=known)
    yield Trial(torch.cat([rows[:1] * 1e-6, rows[1:2] * 1e3, rows[2:] * 1e5]), known=known)
    yield Trial(rows[:, :1], known=known)


def few(known: Known) -> Iterator[Trial]:
    yield Trial(torch.cat([s * normal(2, 5, seed=8) for s in (0.05, 1.0, 20.0)]), known=known)


def one(known: Known) -> Iterator[Trial]:
    yield Trial(normal(2, 5, seed=9), known=known)
