"""A point of Δ, and there the slope and the curvature of Ω and the matrix J of Proposition 1."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..kernels.simplex import row_dot
from ..regularizers.autodiff import Local
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Curvature, Diagonal, MatrixFree
from ..regularizers.penalty import penalty_of, structured, value_of, who
from ..regularizers.regularizer import like
from .condition import Condition
from .jacobian import averaging, restricted


class Point:
    """y ∈ Δ, of the shape of ``problem.z``. Each property is computed once; where y_i = 0, Ω is
    evaluated next to 0."""

    def __init__(self, problem: Condition, y: Tensor) -> None:
        self.problem, self.y = problem, y
        self._inverses: dict[bool, tuple[Tensor, Inverse]] = {}

    @functools.cached_property
    def base(self) -> Point:
        """The same point of the problem with the differentiable base of Ω alone."""
        base = self.problem.base
        return self if base is self.problem else Point(base, self.y)

    @functools.cached_property
    def support(self) -> Tensor:
        """The participants with y_i > 0."""
        return (self.y > 0) & self.problem.participants()

    @functools.cached_property
    def inward(self) -> Tensor:
        """y with its zeros lifted to where Ω has derivatives."""
        return simplex.inward(self.y)

    @functools.cached_property
    def slope(self) -> Tensor:
        """z − ∇Ω(y), for the smooth part of Ω."""
        return self.problem.z - self.problem.gradient(self.inward)

    @functools.cached_property
    def objective(self) -> Tensor:
        """⟨y, z⟩ − Ω(y), one number per row."""
        p = self.problem
        return row_dot(self.y, p.z).squeeze(-1) - value_of(p.omega, self.inward, p.mask)

    @functools.cached_property
    def defined(self) -> Local:
        """∇Ω(y) and ∇²Ω(y) of the smooth part, as Ω defines them."""
        p, smooth, point = self.problem, self.problem.smooth, self.inward
        if not p.overridden:
            return self.verified
        with torch.no_grad():
            if not p.defines_curvature:
                return p.by_gradient.look(point)
            name, curvature = who(smooth), smooth.curvature(point)
            if not isinstance(curvature, Curvature):
                raise TypeError(
                    f"{name}.curvature must return a regmax.regularizers.curvature.Curvature; got "
                    f"{type(curvature).__name__}"
                )
            if isinstance(curvature, Diagonal):
                like(curvature.h, point, f"the diagonal of {name}.curvature")
            return Local(like(smooth.grad(point), point, f"{name}.grad"), curvature)

    @functools.cached_property
    def verified(self) -> Local:
        """∇Ω(y) and ∇²Ω(y) of the smooth part, from the value of Ω alone."""
        with torch.no_grad():
            return self.problem.by_value.look(self.inward)

    @functools.cached_property
    def diagonal(self) -> tuple[Tensor, Tensor]:
        """∇Ω(y) and the diagonal of ∇²Ω(y) of a separable Ω; a certificate does not rest on it."""
        known = ("defined" if self.problem.overridden else "verified") in self.__dict__
        if not (self.problem.defines_curvature or known):
            return self.problem.by_gradient.diagonal_at(self.inward)
        gradient, curvature = self.defined
        if isinstance(curvature, Diagonal):
            return gradient, curvature.h
        return gradient, curvature.matvec(torch.ones_like(self.y))

    def inverse(self, support: Tensor, verified: bool = False) -> Inverse:
        """J of Proposition 1 on ``support``: solvers step with it and backward repeats it.

        With a penalty the groups of y move as one. ``verified``: of the smooth part alone, from the
        value of Ω alone.
        """
        p = self.problem
        verified = verified and (p.overridden or p.structured)
        if verified in self._inverses:
            on, found = self._inverses[verified]
            if on is support or (not transforms.waits(on) and torch.equal(on, support)):
                return found
        local = self.verified if verified else self.defined
        average = None if verified else averaging(penalty_of(p.omega), self.y, p.mask)
        with torch.no_grad():
            found = restricted(local.curvature, average, support)
        self._inverses[verified] = (support, found)
        return found

    def vector_product(self, support: Tensor, v: Tensor) -> Tensor:
        """J v on ``support`` from the value of Ω alone, and the groups of its penalty."""
        p = self.problem
        average = averaging(penalty_of(p.omega), self.y, p.mask)
        curvature = self.verified.curvature
        if isinstance(curvature, MatrixFree) and average is not None:
            curvature = curvature.dense(self.y)
        return restricted(curvature, average, support)(torch.where(support, v, 0))

    def kept_inverse(self, support: Tensor) -> Inverse | None:
        """J at y that does not look at Ω later, when it may have changed; None where Ω gives its
        curvature by products alone, which do. It depends on no values of the rows."""
        curvature = self.defined.curvature
        if isinstance(curvature, MatrixFree) and curvature.like is None:
            return None
        if False in self._inverses and torch.equal(self._inverses[False][0], support):
            return self._inverses[False][1]
        if isinstance(curvature, MatrixFree):
            return self.inverse(support)
        p = self.problem
        average = averaging(penalty_of(p.omega), self.y, p.mask)
        return Inverse.later(functools.partial(restricted, curvature, average, support))

    def newton_step(self, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support: the step that backward repeats, with another vector.

        With a penalty, z is reduced to the groups of y first.
        """
        p, z = self.problem, self.problem.z
        if structured(p.omega):
            z = p.omega.reduced(z, self.y, p.mask)
        return self.inverse(support)(z - self.defined.gradient)

    def proximal_step(self) -> Tensor:
        """P_Δ(prox_λR(y + z − ∇Ω(y))), of which the answer is the fixed point (2017, eq. 2)."""
        return self.problem.nearest(self.y + self.slope, 1.0)

    def residual(self) -> tuple[Tensor, Tensor]:
        """r of the optimality condition, and τ as the mean of r over y."""
        p, r = self.problem, self.slope
        if structured(p.omega):
            r = r - p.penalty_subgradient(p.omega, self.y)
        return r, torch.where(p.participants(), self.y * r, 0).sum(-1, keepdim=True)

    def kinked(self) -> Tensor:
        """Rows in which the penalty has no derivative at y along the support: its gradient jumps
        there."""
        p, y, support = self.problem, self.y, self.support
        if not p.proximal:
            return torch.zeros_like(y[..., 0], dtype=torch.bool)
        with torch.no_grad():
            way = simplex.tangent(simplex.generic(y, 1.7), support)
            way = 1e-8 * simplex.unit(way)
            ends = [p.definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            plain = [p.base.definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            jump = (ends[1] - plain[1]) - (ends[0] - plain[0])
            size = 1 + (ends[0] - plain[0]).abs()
            jumps = torch.where(support, jump.abs() / size, 0)
        return ~(jumps.amax(-1) <= 1e-4) & (support.sum(-1) > 1)
