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
from typing import NamedTuple

import torch
from torch import Tensor

from . import simplex
from .curvature import DENSE_LIMIT, Curvature, Diagonal, DiagonalPlusRankOne, Inverse, Later
from .errors import RegularizerError
from .hessian import Columns, Hessian, Local, Shared
from .penalty import (
    Penalized,
    averaging,
    penalty_of,
    proxed,
    restricted,
    smooth_part,
    structured,
    value_of,
    who,
)
from .reduced import Reduced
from .regularizer import Definition, Regularizer, like, overrides
from .simplex import row_dot
from .solution import Trace

TRUSTED = 1e-3
"""How far from y an estimate of the strong convexity at y is taken to hold."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far y can be from the maximiser y*, per row: ``error_bound`` ≥ ‖y − y*‖₂.

    ``support``: the entries that the optimality condition wants positive, which is that of y but
    for entries within the error of y. ``lowest`` is the least curvature found along it, where β had
    to be estimated.
    """

    gap: Tensor
    error_bound: Tensor
    estimated: bool
    support: Tensor
    lowest: Tensor | None = None


class _Residual(NamedTuple):
    """The optimality condition at a point of Δ next to y: ρ = r − τ and its rounding, the duality
    gap, and how far the point is from y."""

    point: Tensor
    rho: Tensor
    rounding: Tensor
    gap: Tensor
    off: Tensor


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
        r = self.z - self.smooth.grad(point)
        if structured(self.omega):
            r = r - self._penalty_subgradient(self.omega, y)
        return r, point, torch.where(self.participants(), y * r, 0).sum(-1, keepdim=True)

    @functools.cached_property
    def smooth(self) -> Regularizer:
        """What of Ω is differentiated on the support."""
        return smooth_part(self.omega, self.mask)

    @functools.cached_property
    def _base(self) -> Problem:
        """The same scores with the differentiable base of Ω alone."""
        if not isinstance(self.omega, Penalized):
            return self
        return Problem(self.omega.base, self.z, self.mask)

    @functools.cached_property
    def _definition(self) -> Regularizer:
        return Definition(self.smooth) if self._written else self.smooth

    @functools.cached_property
    def _written(self) -> bool:
        """Whether Ω writes down derivatives that a certificate must not believe."""
        leaves = self.smooth.leaves()
        return any(overrides(leaf, "grad") or overrides(leaf, "curvature") for leaf in leaves)

    @functools.cached_property
    def _curved(self) -> bool:
        """Whether Ω, and each term of a sum, writes its curvature down."""
        return all(overrides(leaf, "curvature") for leaf in self.smooth.leaves())

    @functools.cached_property
    def _by_value(self) -> Hessian:
        """∇²Ω from the value of Ω alone."""
        return Hessian(self._definition.grad, self.z, self._definition.separable)

    @functools.cached_property
    def _by_gradient(self) -> Hessian:
        if not self._written:
            return self._by_value
        return Hessian(self.smooth.grad, self.z, self.smooth.separable)

    def local(self, y: Tensor, verified: bool = False) -> Local:
        """∇Ω and ∇²Ω of the smooth part at y, its zeros lifted; the last point is remembered.

        ``verified``: from the value of Ω alone, whatever else Ω declares.
        """
        key = "value" if verified and self._written else "declared"
        if key in self._last:
            at, found = self._last[key]
            if at is y:
                return found
        smooth, point = self.smooth, simplex.inward(y)
        with torch.no_grad():
            if key == "value":
                found = self._by_value.look(point)
            elif self._curved:
                name = who(smooth)
                curvature = smooth.curvature(point)
                if not isinstance(curvature, Curvature):
                    raise TypeError(
                        f"{name}.curvature must return a regmax.curvature.Curvature; got "
                        f"{type(curvature).__name__}"
                    )
                found = Local(like(smooth.grad(point), y, f"{name}.grad"), curvature)
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
        smooth, eps = self.smooth, torch.finfo(self.z.dtype).eps
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
        """Whether Ω has a penalty that makes groups."""
        return structured(self.omega)

    @property
    def proximal(self) -> bool:
        """Whether Ω has a penalty that is known by its prox alone."""
        return isinstance(self.omega, Penalized) and not self.structured

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
        return like(self.smooth.grad(simplex.inward(y)), y, f"{type(self.smooth).__name__}.grad")

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

    def vector_product(self, y: Tensor, support: Tensor, v: Tensor) -> Tensor:
        """J v on ``support`` from the value of Ω alone, and the groups of its penalty."""
        average = averaging(penalty_of(self.omega), y, self.mask)
        curvature = self.local(y, verified=True).curvature
        if isinstance(curvature, Columns) and average is not None:
            curvature = curvature.dense()
        return restricted(curvature, average, support)(torch.where(support, v, 0))

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
        if structured(self.omega):
            z = self.omega.reduced(z, y, self.mask)
        return self.inverse(y, support)(z - self.local(y).gradient)

    def nearest(self, v: Tensor, step: float | Tensor) -> Tensor:
        """prox of step·λR plus the indicator of Δ: P_Δ ∘ prox, R a Lovász extension or none (2017,
        Prop. 2)."""
        if structured(self.omega):
            v = proxed(self.omega.penalty, v, step * self.omega.lam, self.mask)
        return simplex.nearest(v, self.mask)

    def proximal_step(self, y: Tensor) -> Tensor:
        """P_Δ(prox_λR(y + z − ∇Ω(y))), of which the answer is the fixed point (2017, eq. 2)."""
        return self.nearest(y + self.slope(y), 1.0)

    def certify(self, y: Tensor) -> Certificate:
        """Bound ‖y − y*‖ from Ω's value (autograd supplies ∇Ω) and its β, declared or estimated.

        Strong convexity gives β e² ≤ Σ_i (r_i − τ)(y*_i − y_i) for every τ, with e = ‖y − y*‖. An
        entry with r_i < τ adds at most |r_i − τ| y_i, any other at most |r_i − τ| e; so with
        a = ‖(r − τ)_A‖, b = Σ_B |r_i − τ| y_i and B the entries with r_i < τ where that is less,
        e ≤ (a + sqrt(a² + 4βb)) / (2β). With B = ∅ it is the distance of 0 to the subdifferential
        over β, with A = ∅ the bound of the duality gap. Rounding of r is added to a. All of it is
        evaluated at the point of Δ next to y, whose distance to y is added to the bound.
        """
        return self._certified(y, tested=False)

    def tested(self, y: Tensor) -> Certificate:
        """The certificate of an answer: an estimate of β is tested at the distance of the bound
        that it gives, see :meth:`_secant`."""
        return self._certified(y, tested=True)

    def _certified(self, y: Tensor, tested: bool) -> Certificate:
        on = self.participants()
        with torch.no_grad():
            seen = self._residual(y)
            wants = seen.rho > seen.rounding
            lowest, estimated = None, self.beta is None
            if self.beta is not None:
                bound = self._bound(seen, self.beta)
            else:
                # entries that may enter the support count: Ω may be flat there (Σ y³ at 0)
                wide = self.support(seen.point) & (y > 0) | (on & (seen.rho > -seen.rounding))
                lowest = self._base._least_curvature(y, wide)
                info = torch.finfo(y.dtype)
                beta = (lowest / 2).clamp(info.tiny, 1 / info.eps).unsqueeze(-1)
                bound = self._bound(seen, beta)
                if tested:
                    bound = self._base._with_secants(seen, y, wide, beta, bound)
                # the curvature at y says nothing of places far from y
                bound = torch.where(bound <= TRUSTED, bound, torch.inf)
            bound = bound.clamp_max(2**0.5)  # the diameter of Δ
            bound = torch.where(self._alone(y, seen.rho + seen.rounding), 0, bound)
            bound = bound + seen.off + 4 * torch.finfo(y.dtype).eps
            bound = torch.where(torch.isfinite(bound), bound, torch.inf)
            support = self.support(y)
            # within the error of y, and where that is small: a wrong answer is not made a right one
            close = (bound <= TRUSTED).unsqueeze(-1)
            if not (self.structured or self.steep):
                leaves = (y <= bound.unsqueeze(-1)) & (seen.rho < -seen.rounding)
                support = support & ~(close & leaves)
            support = support | (close & on & wants & (y == 0))
        return Certificate(seen.gap.squeeze(-1), bound, estimated, support, lowest)

    def _residual(self, y: Tensor) -> _Residual:
        eps = torch.finfo(y.dtype).eps
        on = self.participants()
        off = (y.sum(-1) - 1).abs()
        close = (off <= 4 * eps * y.shape[-1] ** 0.5).all() & ((y >= 0) & (on | (y == 0))).all()
        if not bool(close):
            near = self._inside(y)
            off, y = (near - y).norm(dim=-1), near
        # zeros of y are lifted by so little that |r_i| y_i stays far below rounding
        lift = eps**2 / self.z.abs().amax(-1, keepdim=True).clamp_min(1)
        point = torch.where(on, torch.maximum(y, lift), 0)
        u = None
        if isinstance(self.omega, Penalized):
            if self.structured:
                u = self._penalty_subgradient(self.omega, point)
            else:
                u, p, further = self._by_prox(self.omega, y)
                point, off = self._inside(p), off + further
        if self.beta is None and u is None:
            gradient = self.local(y, verified=True).gradient
        else:
            gradient = self._base._definition.grad(simplex.inward(point))
        r, size = self.z - gradient, self.z.abs() + gradient.abs()
        if u is not None:
            r, size = r - u, size + u.abs()
        tau = torch.where(on, point * r, 0).sum(-1, keepdim=True)
        gap = (torch.where(on, r, -torch.inf).amax(-1, keepdim=True) - tau).clamp_min(0)
        return _Residual(point, r - tau, 4 * eps * size, gap, off)

    def _inside(self, y: Tensor) -> Tensor:
        """The point of Δ next to y."""
        return simplex.normalize(torch.where(self.participants(), y.clamp_min(0), 0))

    def _by_prox(self, omega: Penalized, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u ∈ λ∂R(p), the point p of Δ next to y, and how far y is from what u was taken at.

        With ρ = z − ∇base(y) − τ, the optimum is where ρ = u + c, u ∈ λ∂R(y), c ≤ 0 and c = 0
        where y > 0: the fixed point y of the prox of λR + the indicator of y ≥ 0, at y + ρ. Dykstra's
        algorithm finds it from the two, with u = w − p for p = prox_λR(w); where R does not hold an
        entry at 0 that has no reason to rise, the first round is the last.
        """
        eps = torch.finfo(y.dtype).eps
        on = self.participants()
        slope = self.base_slope(y)
        whole = self.z - self._definition.grad(simplex.inward(y))
        tau = torch.where(on & (y > 0), y * whole, 0).sum(-1, keepdim=True)
        target = torch.where(on, y + slope - tau, 0)
        w = torch.where(y > 0, target, target.clamp_min(0))
        c, u, p = target - w, torch.zeros_like(y), y
        rounding = 64 * eps * (1 + target.norm(dim=-1))
        for _ in range(30):
            w = w + u
            p = proxed(omega.penalty, w, omega.lam, self.mask)
            p = torch.where(on & torch.isfinite(p), p, 0)
            u = w - p
            apart = (p - y).norm(dim=-1)
            w = torch.where(y > 0, p + c, (p + c).clamp_min(0))
            c = p + c - w
            if bool((apart <= rounding).all()):
                break
        near = self._inside(p)
        # away from Δ the subgradients of p are not those of the point next to it
        small = (near - p).norm(dim=-1) <= rounding
        return u, p, torch.where(small, (near - y).norm(dim=-1), torch.inf)

    def base_slope(self, y: Tensor) -> Tensor:
        """z − ∇base(y), by the value of the base alone."""
        return self.z - self._base._definition.grad(simplex.inward(y))

    def penalty_subgradient(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """λu, u ∈ ∂R(p), that the certificate of y rests on, and p, at or next to y."""
        assert isinstance(self.omega, Penalized)
        point = self._inside(y)
        if self.structured:
            return self._penalty_subgradient(self.omega, point), point
        u, p, _ = self._by_prox(self.omega, y)
        return u, p

    def kinked(self, y: Tensor) -> Tensor:
        """Rows in which the penalty has no derivative at y along the support: its gradient jumps
        there."""
        if not self.proximal:
            return torch.zeros_like(y[..., 0], dtype=torch.bool)
        with torch.no_grad():
            support = self.support(y)
            way = simplex.tangent(simplex.generic(y, 1.7), support)
            way = 1e-8 * _unit(way)
            ends = [self._definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            plain = [self._base._definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            jump = (ends[1] - plain[1]) - (ends[0] - plain[0])
            size = 1 + (ends[0] - plain[0]).abs()
            jumps = torch.where(support, jump.abs() / size, 0)
        return ~(jumps.amax(-1) <= 1e-4) & (support.sum(-1) > 1)

    def _bound(self, seen: _Residual, beta: Tensor) -> Tensor:
        on, rho, rounding = self.participants(), seen.rho, seen.rounding
        eps = torch.finfo(rho.dtype).eps
        # an entry is in B when r_i < τ and its y_i is so small that |ρ_i| y_i costs less
        below = (rho <= 0) & ((seen.point <= eps) | (rho.abs() > 2 * beta * seen.point))
        a_i = torch.where(on & ~below, rho.abs() + rounding, 0)
        a_i = torch.where(on & below & (-rho < rounding), rounding, a_i)
        b_i = torch.where(on & below, (rho.abs() + rounding) * seen.point, 0)
        a, b = a_i.norm(dim=-1), b_i.sum(-1)
        distance = (a + (a * a + 4 * beta.squeeze(-1) * b).sqrt()) / (2 * beta.squeeze(-1))
        by_gap = (2 * (seen.gap + row_dot(seen.point, rounding)) / beta).sqrt().squeeze(-1)
        return torch.minimum(distance, by_gap)

    def _with_secants(
        self, seen: _Residual, y: Tensor, support: Tensor, beta: Tensor, bound: Tensor
    ) -> Tensor:
        """The bound with a β that holds as far from y as the bound reaches, +inf where none does.

        What bends much at y may bend little next to it (√(t² + ε), at t = 0), and y* may lie there.
        """
        ways = self._ways(seen, y, support)
        for _ in range(4):
            reach = (2 * bound).clamp(min=1e-7)
            beta = torch.minimum(beta, self._secant(y, ways, reach).unsqueeze(-1) / 2)
            beta = beta.clamp_min(torch.finfo(y.dtype).tiny)
            last, bound = bound, torch.maximum(bound, self._bound(seen, beta))
            if bool((bound <= torch.maximum(2 * last, reach)).all()):
                break
        return torch.where(bound <= reach, bound, torch.inf)

    def _ways(self, seen: _Residual, y: Tensor, support: Tensor) -> Tensor:
        """Directions, (ways, *batch, d), of length 1, along which y* may lie or Ω bends least: the
        Newton step, the softest direction of the support, both ways, and the ways to the
        barycentre and to the best vertex."""
        inverse = self.inverse(y, support, verified=True)
        step = torch.nan_to_num(inverse(torch.where(support, seen.rho, 0)))
        soft = simplex.tangent(simplex.generic(y), support)
        for _ in range(4):
            soft = torch.nan_to_num(inverse(_unit(soft)))
        top = torch.where(self.participants(), seen.rho, -torch.inf).argmax(-1, keepdim=True)
        vertex = torch.zeros_like(y).scatter(-1, top, 1)
        middle = simplex.uniform(y, self.mask)
        ways = torch.stack([step, -step, soft, -soft, vertex - y, middle - y])
        return _unit(ways)

    def _secant(self, y: Tensor, ways: Tensor, reach: Tensor) -> Tensor:
        """The least ⟨∇Ω(w) − ∇Ω(y), w − y⟩ / ‖w − y‖² at points w of Δ that far from y."""
        eps = torch.finfo(y.dtype).eps
        w = self._inside(y + reach.unsqueeze(-1) * ways)
        along = w - y
        far = along.norm(dim=-1)
        here = self._definition.grad(simplex.inward(y))
        there = self._definition.grad(simplex.inward(w))
        squares = far.square().clamp_min(torch.finfo(y.dtype).tiny)
        found = torch.where(along == 0, 0, (there - here) * along).sum(-1) / squares
        noise = torch.where(along == 0, 0, (there.abs() + here.abs()) * along.abs()).sum(-1)
        found = torch.where(far > reach / 4, found + 4 * eps * noise / squares, torch.inf)
        return torch.nan_to_num(found, nan=0.0, posinf=torch.inf).amin(0)

    def _alone(self, y: Tensor, rho: Tensor) -> Tensor:
        """Rows in which y is a vertex of Δ and rho_i < 0 elsewhere: every edge leads down, so that
        convexity alone makes it the optimum. With one participant there is no edge."""
        others = self.participants() & (y == 0)
        return ((y > 0).sum(-1) == 1) & ((rho < 0) | ~others).all(-1)

    def _penalty_subgradient(self, omega: Penalized, y: Tensor) -> Tensor:
        """λu with u ∈ ∂R(y). The prox only proposes where to look: ``subgradient`` decides."""
        v = y + self.slope(y)  # y = P_Δ(prox_λR(v)) at the optimum
        proposal = v - proxed(omega.penalty, v, omega.lam, self.mask)
        u = omega.penalty.subgradient(y, proposal, omega.lam, self.mask)
        return like(u, y, f"{type(omega.penalty).__name__}.subgradient")

    @functools.cached_property
    def beta(self) -> Tensor | None:
        """β as Ω declares it, (*batch, 1)."""
        declared = self.smooth.strong_convexity
        if declared is None:
            return None
        shape = (*self.z.shape[:-1], 1)
        beta = torch.as_tensor(declared, dtype=self.z.dtype, device=self.z.device)
        beta = beta if beta.ndim else beta.reshape(1)
        if len(shape) < beta.ndim or any(
            n not in (1, m) for n, m in zip(beta.shape[::-1], shape[::-1], strict=False)
        ):
            raise RegularizerError(
                f"{who(self.smooth)}.strong_convexity must be a number or broadcast to {shape}; "
                f"got shape {tuple(beta.shape)}"
            )
        if not bool((beta > 0).all() & torch.isfinite(beta).all()):
            raise RegularizerError(
                f"{who(self.smooth)}.strong_convexity must be > 0 and finite, or None; got "
                f"{beta.min().item():g}"
            )
        return beta.expand(shape)

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
        """Refuse an Ω whose curvature along the support of y is not positive: negative, or 0 where
        rounding does not hide what it is. A declared β is not doubted here: see
        :meth:`check_strong_convexity`.

        ``low``: the least curvature, where it is known.
        """
        if self.beta is not None:
            return
        if low is None:
            low = self.inverse(y, self.support(y), verified=self._written).lowest
        wrong = (low <= 0) & (self.participants().sum(-1) > 1)  # of one participant Δ is a point
        if bool(wrong.any()):
            wrong = wrong & ((low < 0) | (self._hidden(y) <= 1e-6))
        if bool(wrong.any()):
            row = tuple(int(i) for i in wrong.nonzero()[0])
            raise RegularizerError(
                f"{who(self.smooth)} is not strictly convex: its curvature along the "
                f"support is {low[row].item():.3g} at row {row}, and must be positive"
            )

    def _hidden(self, y: Tensor) -> Tensor:
        """Curvature that rounding may hide beside the largest at y, one number per row."""
        signs = torch.where(simplex.generic(y) * y.shape[-1] > 1, 1.0, -1.0).to(y.dtype)
        with torch.no_grad():
            size = self.local(y).curvature.matvec(torch.where(self.support(y), signs, 0))
        noise: Tensor = 64 * torch.finfo(y.dtype).eps * y.shape[-1] * size.abs().amax(-1)
        return torch.nan_to_num(noise, nan=torch.inf)

    def check_strong_convexity(self, y: Tensor) -> None:
        """Refuse a declared β that is more than the curvature of Ω at y along its softest
        direction on the support."""
        if self.beta is None:
            return
        with torch.no_grad():
            support = self.support(y)
            inverse = self._base.inverse(y, support, verified=True)
            soft = simplex.tangent(simplex.generic(y), support)
            for _ in range(8):
                soft = torch.nan_to_num(inverse(_unit(soft)))
            soft = _unit(soft)
            bent = row_dot(soft, self._base.local(y, verified=True).curvature.matvec(soft))
            bent = bent.squeeze(-1)
            least = self.beta.squeeze(-1) * (1 - 1e-6) - self._base._hidden(y)
            wrong = (bent < least) & (support.sum(-1) > 1) & (soft.norm(dim=-1) > 0.5)
        if bool(wrong.any()):
            row = tuple(int(i) for i in wrong.nonzero()[0])
            raise RegularizerError(
                f"{who(self.smooth)}.strong_convexity is {self.beta[row].item():.6g}, "
                f"and the curvature of Ω is {bent[row].item():.6g} at row {row}: it must be at "
                "most the least curvature on Δ, or None"
            )


def _unit(v: Tensor) -> Tensor:
    return v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
