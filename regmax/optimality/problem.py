"""A batch of problems as solvers see it: its start, its trace, points and their certificates."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Curvature, Diagonal
from .certificates import Certificate, certify
from .condition import Condition
from .point import Point


class Problem(Condition):
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d).

    ``at(y)`` is a point, which computes each of its properties once; ``slope(y)``, ``objective(y)``
    and the others are those of ``at(y)``.
    """

    def at(self, y: Tensor) -> Point:
        """The point y ∈ Δ."""
        return Point(self, y)

    def initial(self) -> Tensor:
        """Where a solver starts: ``start``, or the barycentre of each row's face."""
        return self.first.y

    @functools.cached_property
    def first(self) -> Point:
        """The point of :meth:`initial`."""
        middle = simplex.uniform(self.z, self.mask)
        if self.start is None:
            return self.at(middle)
        missing = self.participants() & (self.start == 0)
        if not decisions.usual("zeros at the start", missing) or not self.legendre:
            return self.at(self.start)
        # every participant is positive at y*, and no step in log y would make it so
        return self.at(simplex.normalize(torch.where(missing, 1e-3 * middle, self.start)))

    @functools.cached_property
    def separable(self) -> bool:
        """Whether the smooth part of Ω has a diagonal curvature."""
        if self.defines_curvature:
            middle = self.at(simplex.uniform(self.z, self.mask))
            return isinstance(middle.defined.curvature, Diagonal)
        return self.by_gradient.diagonal

    def observe(self, y: Tensor, answer: bool = False) -> None:
        """What a solver calls with its start and the point of each iteration: it enters the trace,
        if one is kept. ``answer``: y is what the last iteration became when it was polished."""
        if self.trace is not None:
            point = self.at(y)
            r, tau = point.residual()
            on = self.participants()
            gap = (torch.where(on, r, -torch.inf).amax(-1) - tau.squeeze(-1)).clamp_min(0)
            residual = torch.where(y > 0, r - tau, 0).norm(dim=-1)
            self.trace.add(gap, residual, point.support.sum(-1), answer)

    def finished(self, done: Tensor, k: int, every: int = decisions.STEPS) -> bool:
        """Whether all rows are ``done`` after iteration k = 1, 2, …: what a solver ends its loop
        by. On a GPU, which the test would wait for, it is made after the first three iterations
        and then after one in ``every``; a trace has no iterations beyond the last needed."""
        due = self.trace is not None or decisions.due(k, done, every)
        return due and decisions.all_of(done)

    def certify(self, y: Tensor) -> Certificate:
        """A bound on ‖y − y*‖, see :func:`regmax.optimality.certificates.certify`."""
        return certify(self.at(y))

    def support(self, y: Tensor) -> Tensor:
        """The participants with y_i > 0."""
        return self.at(y).support

    def slope(self, y: Tensor) -> Tensor:
        """z − ∇Ω(y), for the smooth part of Ω."""
        return self.at(y).slope

    def objective(self, y: Tensor) -> Tensor:
        """⟨y, z⟩ − Ω(y), one number per row."""
        return self.at(y).objective

    def curvature(self, y: Tensor) -> Curvature:
        """∇²Ω(y) of the smooth part."""
        return self.at(y).defined.curvature

    def inverse(self, y: Tensor, support: Tensor) -> Inverse:
        """J of Proposition 1 at y on ``support``."""
        return self.at(y).inverse(support)

    def newton_step(self, y: Tensor, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support."""
        return self.at(y).newton_step(support)
