"""How far a point can be from the optimum: bounds from the optimality condition
(``regmax.optimality.condition``), from Ω's value and its strong convexity alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import simplex
from ..kernels.simplex import row_dot
from ..regularizers.curvature import DENSE_LIMIT, Diagonal
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import Penalized, proxed, who
from .condition import Condition

TRUSTED = 1e-3
"""How far from y an estimate of the strong convexity at y is taken to hold."""

STIFF = 1e6
"""Curvature along the whole support that a certificate looks for the end of."""

STRAY = 1e-3
"""How far ρ_i is below 0, beside 1 + |z_i|, where rounding of an entry > 0 does not explain it."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far y can be from the maximiser y*, per row: ``error_bound`` ≥ ‖y − y*‖₂.

    ``support``: the entries that the optimality condition wants positive, which is that of y but
    for entries within the error of y. ``stray``: entries > 0 that it wants 0, by more than rounding
    of y explains. ``min_eigenvalue`` is the least curvature found along the support, where β had to
    be estimated.
    """

    gap: Tensor
    error_bound: Tensor
    estimated: bool
    support: Tensor
    stray: Tensor
    min_eigenvalue: Tensor | None = None


class _Residual(NamedTuple):
    """The optimality condition at a point of Δ next to y: ρ = r − τ and its rounding, the duality
    gap, and how far the point is from y."""

    point: Tensor
    rho: Tensor
    rounding: Tensor
    gap: Tensor
    off: Tensor


class Problem(Condition):
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with certificates of any point of Δ."""

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
        that it gives, by secants."""
        return self._certified(y, tested=True)

    def _certified(self, y: Tensor, tested: bool) -> Certificate:
        on = self.participants()
        with torch.no_grad():
            residual = self._residual(y)
            doubt = residual.rounding
            if self.proximal:  # ρ is as good as what Dykstra's algorithm stops at
                settled = 64 * torch.finfo(y.dtype).eps * (1 + self.z.norm(dim=-1, keepdim=True))
                doubt = doubt + settled + 4 * residual.off.unsqueeze(-1)
            wants = residual.rho > doubt
            min_eigenvalue, estimated = None, self.beta is None
            if self.beta is not None:
                bound = self._bound(residual, self.beta)
            else:
                # entries that may enter the support count: Ω may be flat there (Σ y³ at 0); with
                # them y can move against what ρ misses on the support
                missed = torch.where(residual.point > 1e-6, residual.rho, 0).norm(
                    dim=-1, keepdim=True
                )
                may_enter = residual.rho > -residual.rounding - 2 * y.shape[-1] ** 0.5 * missed
                wide = self.support(residual.point) & (y > 0) | (on & may_enter)
                min_eigenvalue = self._base._least_curvature(y, wide)
                beta = (
                    (min_eigenvalue / 2)
                    .clamp(torch.finfo(y.dtype).tiny, 1 / torch.finfo(y.dtype).eps)
                    .unsqueeze(-1)
                )
                bound = self._bound(residual, beta)
                if tested:
                    stiff = torch.isfinite(min_eigenvalue) & (min_eigenvalue > STIFF)
                    bound = self._base._with_secants(residual, y, wide, beta, bound, stiff)
                # the curvature at y says nothing of places far from y
                bound = torch.where(bound <= TRUSTED, bound, torch.inf)
            bound = bound.clamp_max(2**0.5)  # the diameter of Δ
            bound = torch.where(self._alone(y, residual.rho + residual.rounding), 0, bound)
            bound = bound + residual.off + 4 * torch.finfo(y.dtype).eps
            bound = torch.where(torch.isfinite(bound), bound, torch.inf)
            support = self.support(y)
            # within the error of y, and where that is small: a wrong answer is not made a right one
            close = (bound <= TRUSTED).unsqueeze(-1)
            if not (self.structured or self.legendre):
                leaves = (residual.rho < -residual.rounding) | ((residual.point == 0) & ~wants)
                support = support & ~(close & (y <= bound.unsqueeze(-1)) & leaves)
            support = support | (close & on & wants & (y == 0))
            stray = self._stray(residual, y, bound)
        return Certificate(
            residual.gap.squeeze(-1), bound, estimated, support, stray, min_eigenvalue
        )

    def _stray(self, residual: _Residual, y: Tensor, bound: Tensor) -> Tensor:
        bound = torch.where(bound <= TRUSTED, bound, 0).unsqueeze(-1)
        far = -STRAY * (1 + self.z.abs())
        stray = (
            self.participants()
            & (y > 0)
            & (y <= bound)
            & (residual.rho < far)
            & (not self.legendre)
        )
        if bool(stray.any()):  # ρ is at the lifted point, and Ω may be steep below it
            slope = self._base._definition.grad
            more = slope(simplex.inward(residual.point)) - slope(
                simplex.positive(y, torch.finfo(y.dtype).tiny)
            )
            stray = stray & (residual.rho + more < far)
        return stray

    def _residual(self, y: Tensor) -> _Residual:
        eps = torch.finfo(y.dtype).eps
        on = self.participants()
        off = (y.sum(-1) - 1).abs()
        close = (off <= 4 * eps * y.shape[-1] ** 0.5) & ((y >= 0) & (on | (y == 0))).all(-1)
        if not bool(close.all()):
            near = torch.where(close.unsqueeze(-1), y, self.inside(y))
            off, y = torch.where(close, off, (near - y).norm(dim=-1)), near
        # zeros of y are lifted by so little that |r_i| y_i stays far below rounding
        lift = eps**2 / self.z.abs().amax(-1, keepdim=True).clamp_min(1)
        point = torch.where(on, torch.maximum(y, lift), 0)
        u = None
        if isinstance(self.omega, Penalized):
            if self.structured:
                u = self._penalty_subgradient(self.omega, point)
            else:
                u, p, further = self._by_prox(self.omega, y)
                point, off = self.inside(p), off + further
        if self.beta is None and u is None:
            gradient = self.local(y, verified=True).gradient
        else:
            gradient = self._base._definition.grad(simplex.inward(point))
        r, size = self.z - gradient, self.z.abs() + gradient.abs()
        if u is not None:
            r, size = r - u, size + u.abs()
        tau = torch.where(on, point * r, 0).sum(-1, keepdim=True)
        gap = (torch.where(on, r, -torch.inf).amax(-1, keepdim=True) - tau).clamp_min(0)
        rounding = 4 * self.eps * size
        if self.beta is None:  # rounding of y, multiplied by the curvature at it
            rounding = rounding + eps * self._base._stiffness(y)
        return _Residual(point, r - tau, rounding, gap, off)

    def _stiffness(self, y: Tensor) -> Tensor:
        """|∇²Ω(y)| |y|, about: by two vectors of signs."""
        curvature, size = self.local(y, verified=True).curvature, torch.zeros_like(y)
        for phase in (0.0, 2.1):
            signs = torch.where(simplex.generic(y, phase) * y.shape[-1] > 1, 1.0, -1.0).to(y.dtype)
            moved = curvature.matvec(torch.where(self.support(y), signs * y, 0))
            size = torch.maximum(size, torch.nan_to_num(moved).abs())
        return torch.where(self.support(y), size, 0)

    def inside(self, y: Tensor) -> Tensor:
        """The point of Δ next to y."""
        return simplex.normalize(torch.where(self.participants(), y.clamp_min(0), 0))

    def _by_prox(self, omega: Penalized, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u ∈ λ∂R(p), the point p of Δ next to y, and how far y is from what u was taken at.

        With ρ = z − ∇base(y) − τ, the optimum is where ρ = u + c, u ∈ λ∂R(y), c ≤ 0 and c = 0
        where y > 0: the fixed point y of the prox of λR + the indicator of y ≥ 0, at y + ρ.
        Dykstra's algorithm finds it from the two, with u = w − p for p = prox_λR(w); where R does
        not push an entry up from 0, the first round is the last.
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
        near = self.inside(p)
        # away from Δ the subgradients of p are not those of the point next to it
        small = (near - p).norm(dim=-1) <= rounding
        return u, p, torch.where(small, (near - y).norm(dim=-1), torch.inf)

    def base_slope(self, y: Tensor) -> Tensor:
        """z − ∇base(y), by the value of the base alone."""
        return self.z - self._base._definition.grad(simplex.inward(y))

    def penalty_subgradient(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """λu, u ∈ ∂R(p), that the certificate of y rests on, and p, at or next to y."""
        assert isinstance(self.omega, Penalized)
        point = self.inside(y)
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
            way = 1e-8 * simplex.unit(way)
            ends = [self._definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            plain = [self._base._definition.grad(simplex.inward(y + k * way)) for k in (-1, 1)]
            jump = (ends[1] - plain[1]) - (ends[0] - plain[0])
            size = 1 + (ends[0] - plain[0]).abs()
            jumps = torch.where(support, jump.abs() / size, 0)
        return ~(jumps.amax(-1) <= 1e-4) & (support.sum(-1) > 1)

    def _bound(self, residual: _Residual, beta: Tensor) -> Tensor:
        on, rho, rounding = self.participants(), residual.rho, residual.rounding
        eps = torch.finfo(rho.dtype).eps
        # an entry is in B when r_i < τ and its y_i is so small that |ρ_i| y_i costs less
        below = (rho <= 0) & ((residual.point <= eps) | (rho.abs() > 2 * beta * residual.point))
        a_i = torch.where(on & ~below, rho.abs() + rounding, 0)
        a_i = torch.where(on & below & (-rho < rounding), rounding, a_i)
        b_i = torch.where(on & below, (rho.abs() + rounding) * residual.point, 0)
        a, b = a_i.norm(dim=-1), b_i.sum(-1)
        distance = (a + (a * a + 4 * beta.squeeze(-1) * b).sqrt()) / (2 * beta.squeeze(-1))
        by_gap = (2 * (residual.gap + row_dot(residual.point, rounding)) / beta).sqrt().squeeze(-1)
        return torch.minimum(distance, by_gap)

    def _with_secants(
        self,
        residual: _Residual,
        y: Tensor,
        support: Tensor,
        beta: Tensor,
        bound: Tensor,
        stiff: Tensor,
    ) -> Tensor:
        """The bound with a β that holds as far from y as the bound reaches, +inf where none does.

        What bends much at y may bend little next to it (√(t² + ε), at t = 0), and y* may lie there.
        """
        ways, settled = self._ways(residual, y, support), torch.zeros_like(stiff)
        for _ in range(8):
            reach = (2 * bound).clamp(min=1e-7)
            found = self._secant(y, ways, reach)
            if bool((stiff & ~settled).any()):
                for part in (2, 0.06, 0.002):
                    near = self._softer(y, support, ways, part * bound)
                    soft = self._secant(y, near, 2 * bound)
                    found = torch.where(stiff, torch.minimum(found, soft), found)
            tested = torch.where(stiff, 2 * bound, reach)
            beta = torch.minimum(beta, found.unsqueeze(-1) / 2).clamp_min(torch.finfo(y.dtype).tiny)
            longer = torch.maximum(bound, self._bound(residual, beta))
            bound = torch.where(settled, bound, longer)
            settled = settled | (bound <= tested)
            if bool(settled.all()):
                break
        return torch.where(settled, bound, torch.inf)

    def _ways(self, residual: _Residual, y: Tensor, support: Tensor) -> Tensor:
        """Directions, (ways, *batch, d), of length 1, along which y* may lie or Ω bends least: the
        Newton step, the softest direction of the support, both ways, and the ways to the
        barycentre and to the best vertex."""
        inverse = self.inverse(y, support, verified=True)
        step = torch.nan_to_num(inverse(torch.where(support, residual.rho, 0)))
        soft = simplex.tangent(simplex.generic(y), support)
        for _ in range(4):
            soft = torch.nan_to_num(inverse(simplex.unit(soft)))
        top = torch.where(self.participants(), residual.rho, -torch.inf).argmax(-1, keepdim=True)
        vertex = torch.zeros_like(y).scatter(-1, top, 1)
        middle = simplex.uniform(y, self.mask)
        return simplex.unit(torch.stack([step, -step, soft, -soft, vertex - y, middle - y]))

    def _softer(self, y: Tensor, support: Tensor, ways: Tensor, reach: Tensor) -> Tensor:
        """The soft part of the ways to points that far from y, at those: a kink may lie between."""
        found = []
        for way in ways:
            w = simplex.inward(self.inside(y + reach.unsqueeze(-1) * way))
            inverse, soft = self._by_value.look(w).curvature.inverse(support), w - y
            for _ in range(2):
                soft = torch.nan_to_num(inverse(simplex.unit(soft)))
            found.append(soft)
        return simplex.unit(torch.stack(found))

    def _secant(self, y: Tensor, ways: Tensor, reach: Tensor) -> Tensor:
        """The least ⟨∇Ω(w) − ∇Ω(y), w − y⟩ / ‖w − y‖² at points w of Δ that far from y."""
        eps = torch.finfo(y.dtype).eps
        w = self.inside(y + reach.unsqueeze(-1) * ways)
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

    def _least_curvature(self, y: Tensor, support: Tensor) -> Tensor:
        """The least curvature of Ω along ``support``, at y and half-way from y to the barycentre
        of the support: at a zero of y, Ω may be much more curved than at y* (y^1.5), or less
        (y³). A lower bound at those two points, and so an estimate of β around them."""
        half = (y + simplex.uniform(y, support)) / 2
        beyond = self._by_value.look(simplex.inward(half)).curvature
        low = torch.minimum(
            self.inverse(y, support, verified=True).min_eigenvalue,
            beyond.inverse(support).min_eigenvalue,
        )
        if bool(torch.isinf(low).any()):  # S is one entry: nothing bends along it, but a hollow may
            bent = row_dot(y, self.local(y, verified=True).curvature.matvec(y)).squeeze(-1)
            low = torch.where(torch.isinf(low) & (bent < 0), bent, low)
        return low

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
                low = curvature.inverse(
                    on & chosen.view(on.shape[:-1]).unsqueeze(-1)
                ).min_eigenvalue
            else:
                along = simplex.tangent(simplex.generic(y), on)
                low = row_dot(along, curvature.matvec(along)).squeeze(-1)
        self.check_convex(y, torch.where(chosen.view(low.shape), low, torch.inf))
        if self.beta is not None or on.shape[-1] < 2 or not self.separable:
            return
        # where entries differ too: along e_i − e_j of the two that bend least
        y = simplex.normalize(torch.where(on, simplex.generic(y), 0))
        h = torch.where(on, self.diagonal(y)[1], torch.inf)
        low = torch.where(chosen, h.topk(2, largest=False).values.mean(-1).reshape(-1), torch.inf)
        self.check_convex(y, low.view(on.shape[:-1]))

    def check_convex(self, y: Tensor, low: Tensor | None = None) -> None:
        """Refuse an Ω whose curvature along the support of y is not positive: negative, or 0 where
        rounding does not hide what it is. A declared β is not doubted here: see
        :meth:`check_strong_convexity`.

        ``low``: the least curvature, where it is known.
        """
        if self.beta is not None:
            return
        if low is None:
            low = self.inverse(y, self.support(y), verified=self._overridden).min_eigenvalue
        wrong = (low <= 0) & (self.participants().sum(-1) > 1)  # of one participant Δ is a point
        if bool(wrong.any()):
            hidden = self._hidden(y)
            wrong = wrong & ((low < -hidden) | (hidden <= 1e-6))
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
                soft = torch.nan_to_num(inverse(simplex.unit(soft)))
            soft = simplex.unit(soft)
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
