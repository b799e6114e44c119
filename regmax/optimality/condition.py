"""The optimality condition, written once, with what solvers and derivatives need of Ω at a point:
its slope, its curvature, and the matrix J of Proposition 1.

With z = x/γ, y maximises ⟨y, x⟩ − γΩ(y) over Δ if and only if, for some threshold τ,

    r := z − ∇Ω(y) − λu     satisfies     r_i = τ where y_i > 0,   r_i ≤ τ where y_i = 0,

with u ∈ ∂R(y) where Ω has a penalty λR (and no such term where it has none). It is the fixed point
y = P_Δ(y + z − ∇Ω(y)) of Niculae & Blondel (2017, eq. 2), read on the support.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from ..kernels import simplex
from ..kernels.simplex import row_dot
from ..regularizers.autodiff import Columns, Hessian, Local, Shared
from ..regularizers.curvature import Curvature, Dense, Diagonal, DiagonalPlusRankOne, Inverse, Later
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import (
    Penalized,
    penalty_of,
    proxed,
    smooth_part,
    structured,
    value_of,
    who,
)
from ..regularizers.regularizer import Definition, Regularizer, like, overrides
from .jacobian import averaging, restricted
from .solution import Trace


@dataclass(frozen=True, eq=False)
class Condition:
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d)."""

    omega: Regularizer
    z: Tensor
    mask: Tensor | None = None
    start: Tensor | None = None
    trace: Trace | None = None
    _last: dict[str, tuple[Tensor, Local]] = field(default_factory=dict)
    _inverses: dict[str, tuple[Tensor, Local, Tensor, Inverse]] = field(default_factory=dict)

    def widened(self) -> Self:
        """The same problem in float64, where certificates lose nothing to rounding."""
        if self.z.dtype == torch.float64:
            return self
        inside = self.omega.tensors(fixed=True)
        wide = {k: t.double() for k, t in inside.items() if t.dtype.is_floating_point}
        return type(self)(self.omega.with_tensors(wide), self.z.double(), self.mask)

    def initial(self) -> Tensor:
        """Where a solver starts: ``start``, or the barycentre of each row's face."""
        return self._initial

    @functools.cached_property
    def _initial(self) -> Tensor:
        middle = simplex.uniform(self.z, self.mask)
        if self.start is None:
            return middle
        missing = self.participants() & (self.start == 0)
        if not bool(missing.any()) or not self.legendre:
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
    def _base(self) -> Self:
        """The same scores with the differentiable base of Ω alone."""
        if not isinstance(self.omega, Penalized):
            return self
        return type(self)(self.omega.base, self.z, self.mask)

    @functools.cached_property
    def _definition(self) -> Regularizer:
        return Definition(self.smooth) if self._overridden else self.smooth

    @functools.cached_property
    def _overridden(self) -> bool:
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
        if not self._overridden:
            return self._by_value
        return Hessian(self._slope, self.z, self.smooth.separable)

    def _slope(self, y: Tensor) -> Tensor:
        """∇Ω(y) as Ω writes it."""
        return like(self.smooth.grad(y), y, f"{type(self.smooth).__name__}.grad")

    def local(self, y: Tensor, verified: bool = False) -> Local:
        """∇Ω and ∇²Ω of the smooth part at y, its zeros lifted; the last point is remembered.

        ``verified``: from the value of Ω alone, whatever else Ω declares.
        """
        key = "value" if verified and self._overridden else "declared"
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
                        f"{name}.curvature must return a "
                        f"regmax.regularizers.curvature.Curvature; got {type(curvature).__name__}"
                    )
                if isinstance(curvature, Diagonal):
                    like(curvature.h, y, f"the diagonal of {name}.curvature")
                found = Local(like(smooth.grad(point), y, f"{name}.grad"), curvature)
            else:
                found = self._by_gradient.look(point)
        self._last[key] = (y, found)
        return found

    @functools.cached_property
    def legendre(self) -> bool:
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
    def eps(self) -> float:
        """The rounding of what Ω computes: that of float32 where its value goes through it."""
        at = simplex.inward(simplex.uniform(self.z, self.mask)).requires_grad_()
        fixed = {name: t.detach() for name, t in self.omega.tensors().items()}
        with torch.enable_grad():  # of y alone: numbers may have come in float32
            value = value_of(self.omega.with_tensors(fixed), at, self.mask)
            nodes = [value.grad_fn]
        seen: set[object] = set()
        dtype = self.z.dtype
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node.name() == "ToCopyBackward0":
                dtype = torch.float32
            nodes += [following for following, _ in node.next_functions]
        return torch.finfo(dtype).eps

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
        return self._slope(simplex.inward(y))

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
        key = "value" if verified and (self._overridden or self.structured) else "declared"
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
        """J at y without looking at Ω later, when it may have changed; None where Ω tells its
        curvature by products alone, which look at it. What the rows are does not decide it."""
        curvature = self.local(y).curvature
        simple = isinstance(curvature, Diagonal | DiagonalPlusRankOne | Shared)
        if not (simple or isinstance(curvature, Dense | Columns)):
            return None
        last = self._inverses.get("declared")
        if last is not None and last[0] is y and torch.equal(last[2], support):
            return last[3]
        if simple and not self.structured:
            return Later(curvature, support)
        return self.inverse(y, support)

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

    def objective(self, y: Tensor) -> Tensor:
        """⟨y, z⟩ − Ω(y), one number per row."""
        return row_dot(y, self.z).squeeze(-1) - value_of(self.omega, simplex.inward(y), self.mask)

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
        if not isinstance(declared, Tensor | int | float):
            raise TypeError(
                f"{who(self.smooth)}.strong_convexity must be a number, a Tensor or None; got "
                f"{type(declared).__name__}"
            )
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
