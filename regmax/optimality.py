"""The optimality condition, written once. Solvers stop on it, the adjoint differentiates it, tests
certify with it.

With z = x/γ, y maximises ⟨y, x⟩ − γΩ(y) over Δ if and only if, for some threshold τ,

    r := z − ∇Ω(y) − λu     satisfies     r_i = τ where y_i > 0,   r_i ≤ τ where y_i = 0,

with u ∈ ∂R(y) where Ω has a penalty λR (and no such term where it has none). It is the fixed point
y = P_Δ(y + z − ∇Ω(y)) of Niculae & Blondel (2017, eq. 2), read on the support.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from . import simplex
from .curvature import Curvature, Diagonal
from .errors import RegularizerError
from .penalty import (
    Penalized,
    averaging,
    jacobian_product,
    penalty_of,
    smooth_part,
    value_of,
)
from .regularizer import Definition, Regularizer
from .simplex import row_dot

TRUSTED = 1e-3
"""How far from y an estimate of the strong convexity at y is taken to hold."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far y can be from the maximiser y*, per row: ``error_bound`` ≥ ‖y − y*‖₂."""

    gap: Tensor
    error_bound: Tensor
    estimated: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d)."""

    omega: Regularizer
    z: Tensor
    mask: Tensor | None = None

    def widened(self) -> Problem:
        """The same problem in float64, where certificates lose nothing to rounding."""
        if self.z.dtype == torch.float64:
            return self
        inside = self.omega.tensors(fixed=True)
        wide = {k: t.double() for k, t in inside.items() if t.dtype.is_floating_point}
        return Problem(self.omega.with_tensors(wide), self.z.double(), self.mask)

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
        return isinstance(self.curvature(simplex.uniform(self.z, self.mask)), Diagonal)

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
        return self.z - smooth_part(self.omega).grad(simplex.inward(y))

    def curvature(self, y: Tensor) -> Curvature:
        """∇²Ω(y) of the smooth part."""
        return smooth_part(self.omega).curvature(simplex.inward(y))

    def newton_step(self, y: Tensor, support: Tensor) -> Tensor:
        """J (z − ∇Ω(y)) on the support: the step that backward repeats, with another vector.

        With a penalty, z is reduced to the groups of y first.
        """
        slope = self.slope(y)
        if isinstance(self.omega, Penalized):
            slope = slope - self.z + self.omega.reduced(self.z, y, self.mask)
        average = averaging(penalty_of(self.omega), y, self.mask)
        return jacobian_product(smooth_part(self.omega), average, y, slope, support)

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
        smooth = Definition(smooth_part(self.omega))
        with torch.no_grad():
            # zeros of y are lifted by so little that |r_i| y_i stays far below rounding
            lift = eps**2 / self.z.abs().amax(-1, keepdim=True).clamp_min(1)
            point = simplex.normalize(torch.where(on, torch.maximum(y, lift), 0))
            off = (point - y).norm(dim=-1)
            gradient = smooth.grad(torch.maximum(point, lift))
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
            beta, estimated = self._strong_convexity(
                smooth, y, self.support(y) | (on & (rho > -rounding))
            )
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
            bound = torch.where(on.sum(-1) == 1, 0, bound)  # one participant: Δ is a point
            bound = bound + off + 4 * eps
            bound = torch.where(torch.isfinite(bound), bound, torch.inf)
        return Certificate(gap.squeeze(-1), bound, estimated)

    def _penalty_subgradient(self, omega: Penalized, y: Tensor) -> Tensor:
        """λu with u ∈ ∂R(y). The prox only proposes where to look: ``subgradient`` decides."""
        v = y + self.slope(y)  # y = P_Δ(prox_λR(v)) at the optimum
        proposal = v - omega.penalty.prox(v, omega.lam, self.mask)
        return omega.penalty.subgradient(y, proposal, omega.lam, self.mask)

    def _strong_convexity(
        self, smooth: Regularizer, y: Tensor, support: Tensor
    ) -> tuple[Tensor, bool]:
        """β, declared, or estimated from curvatures along ``support``.

        The estimate is half the lowest curvature at y, and half-way from y to the barycentre of
        the support: at a zero of y, Ω may be much more curved than at y* (y^1.5), or less (y³).
        """
        declared = smooth_part(self.omega).strong_convexity
        if declared is not None:
            beta = torch.as_tensor(declared, dtype=y.dtype, device=y.device)
            return (beta if beta.ndim else beta.reshape(1)).expand(*y.shape[:-1], 1), False
        with torch.no_grad():
            beta = torch.full_like(y[..., :1], torch.inf)
            for point in (y, (y + simplex.uniform(y, support)) / 2):
                matrix = smooth.curvature(simplex.inward(point))
                low = matrix.lowest(support)
                vertex = row_dot(point, matrix.matvec(point)).squeeze(-1)  # where S is one entry
                low = torch.where(torch.isinf(low), vertex, low)
                beta = torch.minimum(beta, 0.5 * low.unsqueeze(-1))
        return beta.clamp_min(torch.finfo(y.dtype).tiny), True

    def objective(self, y: Tensor) -> Tensor:
        """⟨y, z⟩ − Ω(y), one number per row."""
        return row_dot(y, self.z).squeeze(-1) - value_of(self.omega, simplex.inward(y), self.mask)

    def check_convex(self, y: Tensor) -> None:
        """Refuse an Ω whose curvature along the support of y is not positive."""
        with torch.no_grad():
            low = self.curvature(y).lowest(self.support(y))
        wrong = low <= 0
        if bool(wrong.any()):
            row = tuple(int(i) for i in wrong.nonzero()[0])
            raise RegularizerError(
                f"{type(self.omega).__name__} is not strictly convex: its curvature along the "
                f"support is {low[row].item():.3g} at row {row}, and must be positive"
            )
