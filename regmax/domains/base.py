"""What a domain D is: a set with the operations of the optimality condition.

y maximises ⟨y, z⟩ − Ω(y) over D = {l ≤ y ≤ u, Σy = k} if and only if, for r = z − ∇Ω(y) and some τ,

    r_i = τ where l_i < y_i < u_i,    r_i ≤ τ where y_i = l_i,    r_i ≥ τ where y_i = u_i;

τ ≥ 0, and τ = 0 if Σy < k, for Σy ≤ k; τ = 0 without a sum. An entry is free if it is between its
bounds: the face of y is its free entries, and whether their sum is fixed.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..kernels import transforms
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Curvature
from . import unconstrained


class Face(NamedTuple):
    """The entries that move, and the rows (*batch, 1) in which their sum is fixed, None for all."""

    free: Tensor
    fixed: Tensor | None = None


class Region(ABC):
    """D for a batch of rows, along the last dimension; masked entries are fixed at 0."""

    fixed_total: bool
    """Whether Σy is fixed, so that a constant added to the scores of a row changes nothing."""

    prefix: ClassVar[str] = ""
    """That of the names of ``tensors`` among those of Ω, none of which begins like this."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that an answer depends on."""
        return {}

    @property
    def names(self) -> tuple[str, ...]:
        """What they are known by among the tensors of Ω."""
        return tuple(f"{self.prefix}{name}" for name in self.tensors)

    def with_tensors(self, values: dict[str, Tensor]) -> Self:
        given: dict[str, Any] = {**values}
        return dataclasses.replace(self, **given)  # type: ignore[type-var]

    def detached(self) -> Self:
        """The same without gradients."""
        return self.with_tensors({name: t.detach() for name, t in self.tensors.items()})

    def to(self, dtype: torch.dtype) -> Self:
        wide = {k: t.to(dtype) for k, t in self.tensors.items() if t.is_floating_point()}
        return self.with_tensors(wide)

    @abstractmethod
    def middle(self, like: Tensor, part: Tensor | None = None) -> Tensor:
        """A point in the interior of D, of the shape of ``like``, or of the face of the entries
        ``part``."""

    @abstractmethod
    def nearest(self, v: Tensor) -> Tensor:
        """P_D(v)."""

    @abstractmethod
    def inside(self, y: Tensor) -> Tensor:
        """The point of D next to y, which rounding or a step took out of it."""

    @abstractmethod
    def off(self, y: Tensor) -> Tensor:
        """How far entries are beyond their bounds, (*batch, d)."""

    @abstractmethod
    def excess(self, y: Tensor) -> Tensor:
        """|Σy − k| where the sum must be k, (Σy − k)₊ where it may be less, (*batch)."""

    @abstractmethod
    def face(self, y: Tensor) -> Face:
        """The face of y."""


class Faced(Region):
    """A region with bounds for entries, whose faces are known. Unless said otherwise the lower ones
    are 0, and the upper ones follow from sums."""

    on: Tensor | None
    """The entries that take part, None for all."""
    diameter: float | Tensor
    """A bound on ‖y − y'‖₂, (*batch)."""

    @abstractmethod
    def feasible(self, y: Tensor) -> Tensor:
        """The rows, (*batch), in which y is in D up to rounding."""

    def off(self, y: Tensor) -> Tensor:
        below = (-y).clamp_min(0)
        return below if self.on is None else torch.where(self.on, below, y.abs())

    def face(self, y: Tensor) -> Face:
        return Face(y > 0 if self.on is None else (y > 0) & self.on)

    def rooms(self, y: Tensor) -> list[Tensor]:
        """y − l, and u − y where upper bounds do not follow from the sum."""
        return [y]

    @abstractmethod
    def room(self, y: Tensor, rho: Tensor) -> Tensor:
        """How far entries can move the way that ``rho`` points, at most."""

    @abstractmethod
    def width(self, y: Tensor) -> Tensor:
        """What rounding of the slopes is multiplied by in the duality gap of y."""

    def sided(self, y: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """The distance of each entry to its nearer bound, and ρ_i, negated at an upper bound: an
        entry leaves its bound if it is positive."""
        return y, rho

    def capped(self, y: Tensor) -> Tensor:
        """The entries whose nearer bound is not 0."""
        return torch.zeros_like(y, dtype=torch.bool)

    def spare(self, y: Tensor, tau: Tensor) -> float | Tensor:
        """τ(k − Σy), (*batch), where the sum may be less than k."""
        return 0.0

    def settled(self, y: Tensor, free: Tensor) -> Tensor:
        """y with the entries that are not ``free`` at their nearer bounds."""
        return torch.where(free, y, 0)

    @abstractmethod
    def multiplier(self, r: Tensor, y: Tensor, along: Tensor) -> Tensor:
        """τ of the slopes r at y, (*batch, 1); ``along`` is ⟨y, r⟩."""

    @abstractmethod
    def vertex(self, y: Tensor, rho: Tensor, rounding: Tensor) -> Tensor:
        """Rows in which y is a vertex of D and each direction leads down, so that convexity alone
        makes it the optimum."""

    @abstractmethod
    def tangent(self, v: Tensor, face: Face) -> Tensor:
        """The orthogonal projection on the directions of the face."""

    @abstractmethod
    def best(self, r: Tensor) -> Tensor:
        """A vertex of D at which ⟨y, r⟩ is largest."""

    @abstractmethod
    def most(self, r: Tensor, tau: Tensor) -> Tensor:
        """max_{y ∈ D} ⟨y, r⟩, (*batch, 1), or an upper bound from the threshold τ."""

    def jacobian(self, curvature: Curvature, v: Tensor, face: Face) -> Tensor:
        """w = J v: H w + τ1 = v on the free entries, Σw = 0 where their sum is fixed (else τ = 0),
        0 elsewhere."""
        if face.fixed is None:
            return curvature.jacobian(v, face.free)
        apart = unconstrained.solve(curvature, v, face.free)
        if transforms.may_look(face.fixed) and not bool(face.fixed.any()):
            return apart
        return torch.where(face.fixed, curvature.jacobian(v, face.free), apart)

    def inverse(self, curvature: Curvature, face: Face) -> Inverse:
        """The same without derivatives, with the least curvature along the face."""
        if face.fixed is None:
            return curvature.inverse(face.free)
        apart = Inverse(
            lambda v: unconstrained.solve(curvature, v, face.free),
            lambda: unconstrained.least(curvature, face.free),
        )
        return Inverse.by_row(face.fixed, curvature.inverse(face.free), apart)
