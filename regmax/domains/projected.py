"""A domain of which only the projection is known, as a region."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import torch
from torch import Tensor

from ..kernels import simplex
from ..kernels.clipped import add
from ..regularizers.regularizer import like
from .base import Face, Region


@dataclasses.dataclass(frozen=True, eq=False)
class Projected(Region):
    """What ``of``, a domain of the user's own, projects rows like those of ``like`` on, of which
    the entries ``on`` take part."""

    of: Any
    like: Tensor
    on: Tensor | None = None
    in_simplex = False
    """β is estimated: whether D lies in the simplex, for which Ω declares it, is not known."""

    @property
    def fixed_total(self) -> bool:  # type: ignore[override]
        return bool(self.of.fixed_total)

    @property
    def total(self) -> Tensor | None:
        """Σy where it is fixed, (*batch, 1)."""
        return add(self.middle(self.like)) if self.fixed_total else None

    @property
    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.of.tensors()
        return found

    def with_tensors(self, values: dict[str, Tensor]) -> Self:
        return dataclasses.replace(self, of=self.of.with_tensors(values))

    def below(self, highest: float) -> Self:
        """The same: Ω is finite on D."""
        return self

    def uniform(self, mask: Tensor | None) -> bool:
        """Whether a permutation of the entries of a point of D is one too."""
        return bool(self.of.permutation_invariant)

    def as_cvxpy(self, y: Any, off: Any = None) -> list[Any]:
        """D as constraints on the cvxpy variable ``y`` of one row; ``off``: 1 where masked."""
        import cvxpy

        held = [] if off is None else [cvxpy.multiply(off, y) == 0]
        return [*self.of.as_cvxpy(y), *held]

    def conic(self, row: Tensor, entries: Tensor) -> dict[str, Tensor]:
        """The numbers of :meth:`as_cvxpy` for one row."""
        return {} if self.on is None else {"off": (~self.on[row]).double()}

    def nearest(self, v: Tensor) -> Tensor:
        on = None if self.on is None else self.on.reshape(self.like.shape)
        given = v.reshape(self.like.shape)
        given = given if on is None else torch.where(on, given, 0)
        p = like(self.of.project(given, on), given, f"{type(self.of).__name__}.project")
        p = p if on is None else torch.where(on, p, 0)
        return p.reshape(v.shape)

    def inside(self, y: Tensor) -> Tensor:
        return self.nearest(y)

    def middle(self, like: Tensor, part: Tensor | None = None) -> Tensor:
        return self.nearest(simplex.uniform(like, self.on))

    def lifted(self, y: Tensor) -> Tensor:
        """y where Ω has derivatives: zeros are replaced by ε², negative entries stay."""
        tiny = torch.finfo(y.dtype).tiny
        up = torch.where(y.detach() < 0, y.detach(), simplex.positive(y.detach(), tiny))
        return y + (up - y.detach())

    def off(self, y: Tensor) -> Tensor:
        beyond = (y - self.nearest(y)).abs()
        # an entry that is 0 has the rounding of the scores
        scores = torch.nan_to_num(self.like, 0, 0, 0).reshape(y.shape)
        size = torch.maximum(y.abs(), 1e-6 * scores.abs()).amax(-1, keepdim=True)
        far: Tensor = torch.where(beyond > 1e-6 * size, beyond, 0)
        return far

    def excess(self, y: Tensor) -> Tensor:
        far: Tensor = (y - self.nearest(y)).norm(dim=-1)
        return far

    def face(self, y: Tensor) -> Face:
        """The entries that are not 0: other faces are not known."""
        return Face(y != 0)
