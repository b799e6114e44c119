"""A batch of problems max_{y ∈ D} ⟨y, z⟩ − Ω(y), and its optimality condition.

With z = x/γ, y maximises ⟨y, x⟩ − γΩ(y) over Δ if and only if, for some threshold τ,

    r := z − ∇Ω(y) − λu     satisfies     r_i = τ where y_i > 0,   r_i ≤ τ where y_i = 0,

(for other domains see :mod:`regmax.domains.base`),
with u ∈ ∂R(y) where Ω has a penalty λR. It is the fixed point y = P_Δ(y + z − ∇Ω(y)) of Niculae &
Blondel (2017, eq. 2), read on the support.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..domains import Bounded, Faced, Plans, Projected, Unit
from ..domains.base import Face
from ..kernels import decisions, simplex, transforms
from ..kernels.simplex import row_dot
from ..regularizers.autodiff import Hessian, Local
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Curvature, Diagonal, MatrixFree
from ..regularizers.penalty import (
    Penalized,
    proxed,
    smooth_part,
    structured,
    value_of,
    who,
)
from ..regularizers.regularizer import Definition, Regularizer, like
from . import properties
from .jacobian import averaging, restricted
from .solution import Trace


@dataclass(frozen=True, eq=False)
class Problem:
    """One batch of problems max_{y ∈ D} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d).

    ``start``: where a solver begins; ``trace``: records the points that it passes; ``bounds``: D,
    None for the simplex. ``at(y)`` is a point, which computes each of its properties once;
    ``slope(y)``, ``objective(y)`` and the others are those of ``at(y)``.
    """

    omega: Regularizer
    z: Tensor
    mask: Tensor | None = None
    start: Tensor | None = None
    trace: Trace | None = None
    bounds: Bounded | Plans | Projected | None = None

    @functools.cached_property
    def domain(self) -> Faced:
        """D, with its faces."""
        if isinstance(self.bounds, Projected):
            raise NotImplementedError(f"the faces of {self.bounds.of} are not known")
        return Unit(self.mask) if self.bounds is None else self.bounds

    @property
    def projection(self) -> Projected:
        """D where only its projection is known."""
        assert isinstance(self.bounds, Projected)
        return self.bounds

    def widened(self) -> Problem:
        """The same problem in float64, where certificates lose nothing to rounding."""
        if self.z.dtype == torch.float64:
            return self
        inside = self.omega.tensors(fixed=True)
        wide = {k: t.double() for k, t in inside.items() if t.dtype.is_floating_point}
        bounds = None if self.bounds is None else self.bounds.to(torch.float64)
        return Problem(self.omega.with_tensors(wide), self.z.double(), self.mask, bounds=bounds)

    @functools.cached_property
    def smooth(self) -> Regularizer:
        """The part of Ω that is differentiated on the support."""
        return smooth_part(self.omega, self.mask)

    @functools.cached_property
    def base(self) -> Problem:
        """The same scores with the differentiable base of Ω alone."""
        if not isinstance(self.omega, Penalized):
            return self
        return Problem(self.omega.base, self.z, self.mask, bounds=self.bounds)

    @functools.cached_property
    def definition(self) -> Regularizer:
        """The smooth part of Ω by its value alone."""
        return Definition(self.smooth) if self.overridden else self.smooth

    @functools.cached_property
    def overridden(self) -> bool:
        """Whether Ω defines derivatives that a certificate must not rely on."""
        leaves = self.smooth.leaves()
        return any(leaf.declares("grad") or leaf.declares("curvature") for leaf in leaves)

    @functools.cached_property
    def defines_curvature(self) -> bool:
        """Whether Ω, and each term of a sum, defines its curvature."""
        return all(leaf.declares("curvature") for leaf in self.smooth.leaves())

    @functools.cached_property
    def by_value(self) -> Hessian:
        """∇²Ω from the value of Ω alone."""
        gradient, name = self.definition.grad, type(self.smooth).__name__
        return Hessian(gradient, self.z, self.definition.separable, name)

    @functools.cached_property
    def by_gradient(self) -> Hessian:
        """∇²Ω from the gradient that Ω defines."""
        if not self.overridden:
            return self.by_value
        name = f"{type(self.smooth).__name__}.grad"
        return Hessian(self.gradient, self.z, self.smooth.separable, name)

    def gradient(self, y: Tensor) -> Tensor:
        """∇Ω(y) of the smooth part, as Ω defines it."""
        return like(self.smooth.grad(y), y, f"{type(self.smooth).__name__}.grad")

    def base_slope(self, y: Tensor) -> Tensor:
        """z − ∇base(y), by the value of the base alone."""
        return self.z - self.base.definition.grad(simplex.inward(y))

    @property
    def penalized(self) -> Penalized:
        """Ω where it has a penalty."""
        assert isinstance(self.omega, Penalized)
        return self.omega

    def penalty_subgradient(self, y: Tensor) -> Tensor:
        """λu with u ∈ ∂R(y), R a Lovász extension. The prox proposes where to look:
        ``subgradient`` decides."""
        omega = self.penalized
        # y = P_Δ(prox_λR(v)) at the optimum
        v = y + self.z - self.gradient(simplex.inward(y))
        proposal = v - proxed(omega.penalty, v, omega.lam, self.mask)
        u = omega.penalty.subgradient(y, proposal, omega.lam, self.mask)
        return like(u, y, f"{type(omega.penalty).__name__}.subgradient")

    @functools.cached_property
    def infinite_slope(self) -> Tensor:
        """The entries (d,) in which the slope of Ω is infinite at 0, so that y_i > 0."""
        return properties.infinite_slope(self.smooth, self.z, self.separable)

    @functools.cached_property
    def legendre(self) -> bool:
        """Whether there are such entries."""
        return decisions.usual(
            ("infinite slope at 0", type(self.smooth).__name__), self.infinite_slope
        )

    @functools.cached_property
    def eps(self) -> float:
        """The rounding of what Ω computes: that of float32 where its value goes through it."""
        return properties.rounding(self.omega, self.z, self.mask)

    @functools.cached_property
    def beta(self) -> Tensor | None:
        """β as Ω declares it, (*batch, 1); it does so for Δ, or wherever Ω is finite."""
        inside = self.bounds is None or self.bounds.in_simplex or self.smooth.highest < math.inf
        return properties.strong_convexity(self.smooth, self.z) if inside else None

    @property
    def structured(self) -> bool:
        """Whether Ω has a penalty that makes groups."""
        return structured(self.omega)

    @property
    def proximal(self) -> bool:
        """Whether Ω has a penalty that is known by its prox alone."""
        return isinstance(self.omega, Penalized) and not self.structured

    def participants(self) -> Tensor:
        """The mask, made explicit."""
        return torch.ones_like(self.z, dtype=torch.bool) if self.mask is None else self.mask

    def movable(self) -> Tensor:
        """The participants whose bounds differ."""
        on, bounds = self.participants(), self.bounds
        assert not isinstance(bounds, Projected)
        return on if bounds is None else on & (bounds.high > bounds.low)

    def inside(self, y: Tensor) -> Tensor:
        """The point of D next to y."""
        return self.domain.inside(y)

    def nearest(self, v: Tensor, step: float | Tensor) -> Tensor:
        """prox of step·λR plus the indicator of D: P_D ∘ prox, R a Lovász extension or none, and
        the bounds of a row the same for all entries (2017, Prop. 2)."""
        if structured(self.omega):
            v = proxed(self.omega.penalty, v, step * self.omega.lam, self.mask)
        return self.domain.nearest(v)

    def at(self, y: Tensor) -> Point:
        """The point y ∈ Δ."""
        return Point(self, y)

    def initial(self) -> Tensor:
        """Where a solver starts: ``start``, or the barycentre of each row's face."""
        return self.first.y

    @functools.cached_property
    def first(self) -> Point:
        """The point of :meth:`initial`."""
        return self.at(self.domain.middle(self.z) if self.start is None else self.start)

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
            r = point.slope
            if self.structured:
                r = r - self.penalty_subgradient(y)
            along = torch.where(self.participants(), y * r, 0).sum(-1, keepdim=True)
            tau = self.domain.multiplier(r, y, along)
            gap = (self.domain.most(r, tau) - along).squeeze(-1).clamp_min(0)
            residual = torch.where(point.support, r - tau, 0).norm(dim=-1)
            self.trace.add(gap, residual, point.support.sum(-1), answer)

    def finished(self, done: Tensor, k: int, every: int = decisions.STEPS) -> bool:
        """Whether all rows are ``done`` after iteration k = 1, 2, …: what a solver ends its loop
        by. On a GPU, which the test would wait for, it is made after the first three iterations
        and then after one in ``every``; a trace has no iterations beyond the last needed."""
        due = self.trace is not None or decisions.due(k, done, every)
        return due and decisions.all_of(done)

    def support(self, y: Tensor) -> Tensor:
        """The entries that are free at y."""
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

    def newton_step(self, y: Tensor, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support."""
        return self.at(y).newton_step(support)


class Point:
    """y ∈ D, of the shape of ``problem.z``. Each property is computed once; where y_i = 0, Ω is
    evaluated next to 0."""

    def __init__(self, problem: Problem, y: Tensor) -> None:
        self.problem, self.y = problem, y
        self._inverses: dict[bool, tuple[Tensor, Inverse]] = {}

    @functools.cached_property
    def base(self) -> Point:
        """The same point of the problem with the differentiable base of Ω alone."""
        base = self.problem.base
        return self if base is self.problem else Point(base, self.y)

    @functools.cached_property
    def face(self) -> Face:
        """The face of D that y is in."""
        return (self.problem.bounds or self.problem.domain).face(self.y)

    @property
    def support(self) -> Tensor:
        """The free entries: on the simplex the participants with y_i > 0."""
        return self.face.free

    def settled(self, free: Tensor) -> Tensor:
        """y with the entries that are not ``free`` at their nearer bounds."""
        return self.problem.domain.settled(self.y, free)

    def on(self, support: Tensor) -> Face:
        """The face of these free entries."""
        return Face(support, self.face.fixed)

    @functools.cached_property
    def inward(self) -> Tensor:
        """y with its zeros lifted to where Ω has derivatives, and what is at a cap lowered by half
        an ulp, where Ω may be as steep."""
        bounds = self.problem.bounds
        if isinstance(bounds, Projected):
            return bounds.lifted(self.y)
        y = simplex.inward(self.y)
        if bounds is None:
            return y
        return torch.minimum(y, simplex.inward(bounds.high * (1 - torch.finfo(y.dtype).eps / 2)))

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
        """∇Ω(y) and ∇²Ω(y)1: the diagonal of ∇²Ω(y) of a separable Ω."""
        gradient, curvature = self.defined
        return gradient, curvature.matvec(torch.ones_like(self.y))

    def inverse(self, support: Tensor, verified: bool = False) -> Inverse:
        """J of Proposition 1 on ``support``; with a penalty the groups of y move as one.
        ``verified``: from the value of Ω alone."""
        p = self.problem
        verified = verified and p.overridden
        if verified in self._inverses:
            on, found = self._inverses[verified]
            if on is support or (not transforms.waits(on) and torch.equal(on, support)):
                return found
        local = self.verified if verified else self.defined
        average = averaging(p.omega, self.y, p.mask)
        with torch.no_grad():
            found = restricted(p.domain, local.curvature, average, self.on(support))
        self._inverses[verified] = (support, found)
        return found

    def kept_inverse(self, support: Tensor) -> Inverse | None:
        """J at y that does not look at Ω later, when it may have changed; None where Ω gives its
        curvature by products alone, which do."""
        curvature = self.defined.curvature
        if isinstance(curvature, MatrixFree) and curvature.like is None:
            return None
        return self.inverse(support)

    def newton_step(self, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support: the step that backward repeats, with another vector.

        With a penalty, z is reduced to the groups of y first.
        """
        p, z = self.problem, self.problem.z
        if structured(p.omega):
            z = p.omega.reduced(z, self.y, p.mask)
        return self.inverse(support)(z - self.defined.gradient)

    def kinked(self) -> Tensor:
        """Rows in which the gradient of the penalty jumps at y along the support."""
        p, y, support = self.problem, self.y, self.support
        if not p.proximal:
            return torch.zeros_like(y[..., 0], dtype=torch.bool)
        with torch.no_grad():
            way = p.domain.tangent(simplex.generic(y, 1.7), self.face)
            way = 1e-8 * simplex.unit(way)
            ends = [p.definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            plain = [p.base.definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            jump = (ends[1] - plain[1]) - (ends[0] - plain[0])
            size = 1 + (ends[0] - plain[0]).abs()
            jumps = torch.where(support, jump.abs() / size, 0)
        return ~(jumps.amax(-1) <= 1e-4) & (support.sum(-1) > 1)
