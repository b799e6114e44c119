"""The optimality condition, written once. Solvers stop on it, the adjoint differentiates it, tests
certify with it.

With z = x/γ, y maximises ⟨y, x⟩ − γΩ(y) over Δ if and only if, for some threshold τ,

    r := z − ∇Ω(y) − λu     satisfies     r_i = τ where y_i > 0,   r_i ≤ τ where y_i = 0,

with u ∈ ∂R(y) where Ω has a penalty λR (and no such term where it has none). It is the fixed point
y = P_Δ(y + z − ∇Ω(y)) of Niculae & Blondel (2017, eq. 2), read on the support.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import simplex
from .curvature import DENSE_LIMIT, Curvature, Diagonal, DiagonalPlusRankOne, Inverse, Later
from .errors import RegularizerError
from .hessian import Hessian, Local, Shared
from .penalty import (
    Penalized,
    averaging,
    penalty_of,
    restricted,
    smooth_part,
    value_of,
)
from .reduced import Reduced
from .regularizer import Definition, Regularizer, overrides
from .simplex import row_dot
from .solution import Trace

TRUSTED = 1e-3
"""How far from y an estimate of the strong convexity at y is taken to hold."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far y can be from the maximiser y*, per row: ``error_bound`` ≥ ‖y − y*‖₂.

    ``lowest`` is the least curvature found along the support, where β had to be estimated.
    """

    gap: Tensor
    error_bound: Tensor
    estimated: bool
    lowest: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d)."""

    omega: Regularizer
    z: Tensor
    mask: Tensor | None = None
    start: Tensor | None = None
    trace: Trace | None = None
    _last: dict[str, tuple[Tensor, Local]] = field(default_factory=dict)
    _inverses: dict[str, tuple[Tensor, Local, Tensor, Inverse]] = field(default_factory=dict)

    def widened(self) -> Problem:
        """The same problem in float64, where certificates lose nothing to rounding."""
        if self.z.dtype == torch.float64:
            return self
        inside = self.omega.tensors(fixed=True)
        wide = {k: t.double() for k, t in inside.items() if t.dtype.is_floating_point}
        return Problem(self.omega.with_tensors(wide), self.z.double(), self.mask)

    def initial(self) -> Tensor:
        """Where a solver starts: ``start``, or the barycentre of each row's face."""
        return self._initial

    @functools.cached_property
    def _initial(self) -> Tensor:
        middle = simplex.uniform(self.z, self.mask)
        if self.start is None:
            return middle
        missing = self.participants() & (self.start == 0)
        if not bool(missing.any()) or not self.steep:
            return self.start
        # every participant is positive at y*, and no step in log y would make it so
        return simplex.normalize(torch.where(missing, 1e-3 * middle, self.start))

    def observe(self, y: Tensor, answer: bool = False) -> None:
        """What a solver calls with its start and the point of each iteration: it enters the trace,
        if one is kept. ``answer``: y is what the last iteration became when it was polished."""
        if self.trace is not None:
            r, _, tau = self._slack(y)
            on = self.participants()
            gap = (torch.where(on, r, -torch.inf).amax(-1) - tau.squeeze(-1)).clamp_min(0)
            residual = torch.where(y > 0, r - tau, 0).norm(dim=-1)
            self.trace.add(gap, residual, self.support(y).sum(-1), answer)

    def _slack(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r, the point near y at which it is taken, and τ as the mean of r over y."""
        point = simplex.inward(y)
        r = self.z - smooth_part(self.omega).grad(point)
        if isinstance(self.omega, Penalized):
            r = r - self._penalty_subgradient(self.omega, y)
        return r, point, torch.where(self.participants(), y * r, 0).sum(-1, keepdim=True)

    @functools.cached_property
    def _definition(self) -> Regularizer:
        smooth = smooth_part(self.omega)
        return Definition(smooth) if self._written else smooth

    @functools.cached_property
    def _written(self) -> bool:
        """Whether Ω writes down derivatives that a certificate must not believe."""
        leaves = smooth_part(self.omega).leaves()
        return any(overrides(leaf, "grad") or overrides(leaf, "curvature") for leaf in leaves)

    @functools.cached_property
    def _curved(self) -> bool:
        """Whether Ω, and each term of a sum, writes its curvature down."""
        return all(overrides(leaf, "curvature") for leaf in smooth_part(self.omega).leaves())

    @functools.cached_property
    def _by_value(self) -> Hessian:
        """∇²Ω from the value of Ω alone."""
        return Hessian(self._definition.grad, self.z, self._definition.separable)

    @functools.cached_property
    def _by_gradient(self) -> Hessian:
        smooth = smooth_part(self.omega)
        return Hessian(smooth.grad, self.z, smooth.separable) if self._written else self._by_value

    def local(self, y: Tensor, verified: bool = False) -> Local:
        """∇Ω and ∇²Ω of the smooth part at y, its zeros lifted; the last point is remembered.

        ``verified``: from the value of Ω alone, whatever else Ω declares.
        """
        key = "value" if verified and self._written else "declared"
        if key in self._last:
            at, found = self._last[key]
            if at is y:
                return found
        smooth, point = smooth_part(self.omega), simplex.inward(y)
        with torch.no_grad():
            if key == "value":
                found = self._by_value.look(point)
            elif self._curved:
                found = Local(smooth.grad(point), smooth.curvature(point))
            else:
                found = self._by_gradient.look(point)
        self._last[key] = (y, found)
        return found

    @functools.cached_property
    def steep(self) -> bool:
        """Whether the slope of Ω is infinite at 0, so that every participant has y_i > 0.

        Told by how ∂Ω/∂y_i moves from ε to ε² and from ε² to ε⁴: by less and less where the slope
        is finite; logarithms and negative powers go on.
        """
        smooth, eps = smooth_part(self.omega), torch.finfo(self.z.dtype).eps
        with torch.no_grad():
            near, nearer, nearest = (
                smooth.grad(torch.full_like(self.z, eps**k)) for k in (1, 2, 4)
            )
        return bool(((nearest - nearer).abs() > 0.5 * (nearer - near).abs()).any())

    @functools.cached_property
    def separable(self) -> bool:
        """Whether the smooth part of Ω has a diagonal curvature."""
        if self._curved:
            return isinstance(self.curvature(simplex.uniform(self.z, self.mask)), Diagonal)
        return self._by_gradient.diagonal

    @property
    def structured(self) -> bool:
        return isinstance(self.omega, Penalized)

    def participants(self) -> Tensor:
        """The mask, made explicit."""
        return torch.ones_like(self.z, dtype=torch.bool) if self.mask is None else self.mask

    def support(self, y: Tensor) -> Tensor:
        return (y > 0) & self.participants()

    def slope(self, y: Tensor) -> Tensor:
        """z − ∇Ω(y), for the smooth part of Ω."""
        return self.z - self.smooth_gradient(y)

    def smooth_gradient(self, y: Tensor) -> Tensor:
        """∇Ω(y) of the smooth part."""
        return smooth_part(self.omega).grad(simplex.inward(y))

    def curvature(self, y: Tensor) -> Curvature:
        """∇²Ω(y) of the smooth part."""
        return self.local(y).curvature

    def diagonal(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """∇Ω(y) and the diagonal of ∇²Ω(y) of a separable Ω, taken for such: a certificate does not
        rest on it."""
        if self._curved or y is self._initial:
            gradient, curvature = self.local(y)
            if isinstance(curvature, Diagonal):
                return gradient, curvature.h
            return gradient, curvature.matvec(torch.ones_like(y))
        return self._by_gradient.diagonal_at(simplex.inward(y))

    def inverse(self, y: Tensor, support: Tensor, verified: bool = False) -> Inverse:
        """J of Proposition 1 at y on ``support``: solvers step with it and backward repeats it.

        With a penalty the groups of y move as one. ``verified``: of the smooth part alone, from the
        value of Ω alone. The last one is remembered.
        """
        local = self.local(y, verified)
        key = "value" if verified and (self._written or self.structured) else "declared"
        if key in self._inverses:
            at, _, on, found = self._inverses[key]
            if at is y and (on is support or torch.equal(on, support)):
                return found
        average = None if verified else averaging(penalty_of(self.omega), y, self.mask)
        with torch.no_grad():
            found = restricted(local.curvature, average, support)
        self._inverses[key] = (y, local, support, found)
        return found

    def remembered(self, y: Tensor, support: Tensor) -> Inverse | None:
        """J at y without looking at Ω later, when it may have changed; None where that is no
        cheaper than to begin anew."""
        small = torch.finfo(y.dtype).eps ** 2  # there derivatives look at y itself, solvers do not
        if bool(((y > 0) & (y <= small)).any()):
            return None
        simple = isinstance(self.local(y).curvature, Diagonal | DiagonalPlusRankOne | Shared)
        last = self._inverses.get("declared")
        if last is not None and last[0] is y and torch.equal(last[2], support):
            return last[3] if simple or isinstance(last[3], Reduced) else None
        return Later(self.local(y).curvature, support) if simple else None

    def newton_step(self, y: Tensor, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support: the step that backward repeats, with another vector.

        With a penalty, z is reduced to the groups of y first.
        """
        z = self.z
        if isinstance(self.omega, Penalized):
            z = self.omega.reduced(z, y, self.mask)
        return self.inverse(y, support)(z - self.local(y).gradient)

    def certify(self, y: Tensor) -> Certificate:
        """Bound ‖y − y*‖ from Ω's value (autograd supplies ∇Ω) and its declared β, if any.

        Strong convexity gives β e² ≤ Σ_i (r_i − τ)(y*_i − y_i) for every τ, with e = ‖y − y*‖. An
        entry with r_i < τ adds at most |r_i − τ| y_i, any other at most |r_i − τ| e; so with
        a = ‖(r − τ)_A‖, b = Σ_B |r_i − τ| y_i and B the entries with r_i < τ where that is less,
        e ≤ (a + sqrt(a² + 4βb)) / (2β). With B = ∅ it is the distance of 0 to the subdifferential
        over β, with A = ∅ the bound of the duality gap. Rounding of r is added to a. All of it is
        evaluated at the point of Δ next to y, whose distance to y is added to the bound.
        """
        eps = torch.finfo(y.dtype).eps
        on = self.participants()
        with torch.no_grad():
            off = (y.sum(-1) - 1).abs()
            if not bool((off <= 4 * eps * y.shape[-1] ** 0.5).all()):
                near = simplex.normalize(torch.where(on, y.clamp_min(0), 0))
                off, y = (near - y).norm(dim=-1), near
            # zeros of y are lifted by so little that |r_i| y_i stays far below rounding
            lift = eps**2 / self.z.abs().amax(-1, keepdim=True).clamp_min(1)
            point = torch.where(on, torch.maximum(y, lift), 0)
            if self._beta is None:
                gradient = self.local(y, verified=True).gradient
            else:
                gradient = self._definition.grad(simplex.inward(y))
            r = self.z - gradient
            size = self.z.abs() + gradient.abs()
            if isinstance(self.omega, Penalized):
                u = self._penalty_subgradient(self.omega, point)
                r, size = r - u, size + u.abs()
            tau = torch.where(on, point * r, 0).sum(-1, keepdim=True)
            gap = (torch.where(on, r, -torch.inf).amax(-1, keepdim=True) - tau).clamp_min(0)
            rounding = 4 * eps * size
            rho = r - tau
            # entries that may enter the support count: Ω may be flat there (Σ y³ at 0)
            lowest, estimated = None, self._beta is None
            if self._beta is not None:
                beta = self._beta
            else:
                lowest = self._least_curvature(y, self.support(y) | (on & (rho > -rounding)))
                beta = (lowest / 2).clamp(torch.finfo(y.dtype).tiny, 1 / eps).unsqueeze(-1)
            # an entry is in B when r_i < τ and its y_i is so small that |ρ_i| y_i costs less
            below = (rho <= 0) & ((y <= eps) | (rho.abs() > 2 * beta * point))
            a_i = torch.where(on & ~below, rho.abs() + rounding, 0)
            a_i = torch.where(on & below & (-rho < rounding), rounding, a_i)
            b_i = torch.where(on & below, (rho.abs() + rounding) * point, 0)
            a, b = a_i.norm(dim=-1), b_i.sum(-1)
            distance = (a + (a * a + 4 * beta.squeeze(-1) * b).sqrt()) / (2 * beta.squeeze(-1))
            by_gap = (2 * (gap + row_dot(point, rounding)) / beta).sqrt().squeeze(-1)
            bound = torch.minimum(distance, by_gap)
            if estimated:  # the curvature at y says nothing of places far from y
                bound = torch.where(bound <= TRUSTED, bound, torch.inf)
            bound = bound.clamp_max(2**0.5)  # the diameter of Δ
            bound = torch.where(self._alone(y, rho + rounding), 0, bound)
            bound = bound + off + 4 * eps
            bound = torch.where(torch.isfinite(bound), bound, torch.inf)
        return Certificate(gap.squeeze(-1), bound, estimated, lowest)

    def _alone(self, y: Tensor, rho: Tensor) -> Tensor:
        """Rows in which y is a vertex of Δ and rho_i < 0 elsewhere: every edge leads down, so that
        convexity alone makes it the optimum. With one participant there is no edge."""
        others = self.participants() & (y == 0)
        return ((y > 0).sum(-1) == 1) & ((rho < 0) | ~others).all(-1)

    def _penalty_subgradient(self, omega: Penalized, y: Tensor) -> Tensor:
        """λu with u ∈ ∂R(y). The prox only proposes where to look: ``subgradient`` decides."""
        v = y + self.slope(y)  # y = P_Δ(prox_λR(v)) at the optimum
        proposal = v - omega.penalty.prox(v, omega.lam, self.mask)
        return omega.penalty.subgradient(y, proposal, omega.lam, self.mask)

    @functools.cached_property
    def _beta(self) -> Tensor | None:
        """β as Ω declares it, (*batch, 1)."""
        declared = smooth_part(self.omega).strong_convexity
        if declared is None:
            return None
        beta = torch.as_tensor(declared, dtype=self.z.dtype, device=self.z.device)
        return (beta if beta.ndim else beta.reshape(1)).expand(*self.z.shape[:-1], 1)

    def _least_curvature(self, y: Tensor, support: Tensor) -> Tensor:
        """The least curvature of Ω along ``support``, at y and half-way from y to the barycentre
        of the support: at a zero of y, Ω may be much more curved than at y* (y^1.5), or less
        (y³). A lower bound at those two points, and so an estimate of β around them."""
        half = (y + simplex.uniform(y, support)) / 2
        beyond = self._by_value.look(simplex.inward(half)).curvature
        low = torch.minimum(
            self.inverse(y, support, verified=True).lowest, beyond.inverse(support).lowest
        )
        if bool(torch.isinf(low).any()):  # S is one entry: nothing bends along it, but a hollow may
            bent = row_dot(y, self.local(y, verified=True).curvature.matvec(y)).squeeze(-1)
            low = torch.where(torch.isinf(low) & (bent < 0), bent, low)
        return low

    def objective(self, y: Tensor) -> Tensor:
        """⟨y, z⟩ − Ω(y), one number per row."""
        return row_dot(y, self.z).squeeze(-1) - value_of(self.omega, simplex.inward(y), self.mask)

    def check_start(self) -> None:
        """Refuse an Ω that is not strictly convex where a solver starts: one row is looked at,
        among those with the most participants, in all directions or, where these are too many to
        factorise, in one. At the answer :meth:`check_convex` looks at all rows."""
        y, on = self.initial(), self.participants()
        count = on.sum(-1).reshape(-1)
        chosen = torch.zeros_like(count, dtype=torch.bool)
        chosen[count.argmax()] = True
        curvature = self.local(y).curvature
        with torch.no_grad():
            if on.shape[-1] <= DENSE_LIMIT or isinstance(curvature, Diagonal):
                low = curvature.inverse(on & chosen.view(on.shape[:-1]).unsqueeze(-1)).lowest
            else:
                along = simplex.tangent(simplex.generic(y), on)
                low = row_dot(along, curvature.matvec(along)).squeeze(-1)
        self.check_convex(y, torch.where(chosen.view(low.shape), low, torch.inf))

    def check_convex(self, y: Tensor, low: Tensor | None = None) -> None:
        """Refuse an Ω whose curvature along the support of y is not positive.

        ``low``: the least curvature, where it is known.
        """
        if low is None:
            low = self.inverse(y, self.support(y), verified=self._written).lowest
        wrong = (low <= 0) & (self.participants().sum(-1) > 1)  # of one participant Δ is a point
        if bool(wrong.any()):
            row = tuple(int(i) for i in wrong.nonzero()[0])
            raise RegularizerError(
                f"{type(self.omega).__name__} is not strictly convex: its curvature along the "
                f"support is {low[row].item():.3g} at row {row}, and must be positive"
            )
