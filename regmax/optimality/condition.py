"""The optimality condition of a batch of problems.

With z = x/γ, y maximises ⟨y, x⟩ − γΩ(y) over Δ if and only if, for some threshold τ,

    r := z − ∇Ω(y) − λu     satisfies     r_i = τ where y_i > 0,   r_i ≤ τ where y_i = 0,

with u ∈ ∂R(y) where Ω has a penalty λR (and no such term where it has none). It is the fixed point
y = P_Δ(y + z − ∇Ω(y)) of Niculae & Blondel (2017, eq. 2), read on the support.
:class:`regmax.optimality.point.Point` is a point of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..regularizers import curvature
from ..regularizers.autodiff import Hessian
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import Penalized, proxed, smooth_part, structured, value_of, who
from ..regularizers.regularizer import Definition, Regularizer, like
from .solution import Trace


@dataclass(frozen=True, eq=False)
class Condition:
    """One batch of problems max_{y ∈ Δ} ⟨y, z⟩ − Ω(y), with z = x/γ of shape (*batch, d)."""

    omega: Regularizer
    z: Tensor
    mask: Tensor | None = None
    start: Tensor | None = None
    trace: Trace | None = None

    def widened(self) -> Self:
        """The same problem in float64, where certificates lose nothing to rounding."""
        if self.z.dtype == torch.float64:
            return self
        inside = self.omega.tensors(fixed=True)
        wide = {k: t.double() for k, t in inside.items() if t.dtype.is_floating_point}
        return type(self)(self.omega.with_tensors(wide), self.z.double(), self.mask)

    @functools.cached_property
    def smooth(self) -> Regularizer:
        """The part of Ω that is differentiated on the support."""
        return smooth_part(self.omega, self.mask)

    @functools.cached_property
    def base(self) -> Self:
        """The same scores with the differentiable base of Ω alone."""
        if not isinstance(self.omega, Penalized):
            return self
        return type(self)(self.omega.base, self.z, self.mask)

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

    def penalty_subgradient(self, omega: Penalized, y: Tensor) -> Tensor:
        """λu with u ∈ ∂R(y), R a Lovász extension. The prox proposes where to look:
        ``subgradient`` decides."""
        # y = P_Δ(prox_λR(v)) at the optimum
        v = y + self.z - self.gradient(simplex.inward(y))
        proposal = v - proxed(omega.penalty, v, omega.lam, self.mask)
        u = omega.penalty.subgradient(y, proposal, omega.lam, self.mask)
        return like(u, y, f"{type(omega.penalty).__name__}.subgradient")

    @functools.cached_property
    def legendre(self) -> bool:
        """Whether the slope of Ω is infinite at 0, so that every participant has y_i > 0.

        From ε to ε² and from ε² to ε⁴ a finite slope changes less and less; logarithms and negative
        powers do not. Each entry is asked alone, while the others stay on Δ: the slope of
        Σ_g s_g log s_g is finite where only a part of a group s_g is 0. Each row asks some of the
        entries; in long rows several entries that have no order are asked together.
        """
        z, smooth, eps = self.z, self.smooth, torch.finfo(self.z.dtype).eps
        if not z.numel():
            return False
        middle, d = simplex.generic(z), z.shape[-1]
        rows, blocks = z.numel() // d, min(d, curvature.DENSE_LIMIT)
        own = simplex.generic(z.new_empty(d)).argsort() % blocks
        passes = torch.arange(-(-blocks // rows) * rows, device=z.device)
        finite = torch.zeros((), dtype=torch.bool, device=z.device)
        for block in passes.view(-1, *z.shape[:-1], 1).split(max(1, curvature.CHUNK // z.numel())):
            asked = own == block % blocks
            rest = torch.where(asked, 0, middle)
            rest = rest / rest.sum(-1, keepdim=True).clamp_min(eps)
            with torch.no_grad():
                near, nearer, nearest = (
                    smooth.grad(torch.where(asked, eps**k, rest)) for k in (1, 2, 4)
                )
            change, rounding = (nearer - near).abs(), 64 * eps * (near.abs() + nearer.abs())
            steep = (nearest - nearer).abs() > 0.5 * change + rounding
            finite = finite | (asked & ~steep).any()
        return not decisions.usual(("finite slope at 0", type(smooth).__name__), finite)

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

    def inside(self, y: Tensor) -> Tensor:
        """The point of Δ next to y."""
        return simplex.normalize(torch.where(self.participants(), y.clamp_min(0), 0))

    def nearest(self, v: Tensor, step: float | Tensor) -> Tensor:
        """prox of step·λR plus the indicator of Δ: P_Δ ∘ prox, R a Lovász extension or none (2017,
        Prop. 2)."""
        if structured(self.omega):
            v = proxed(self.omega.penalty, v, step * self.omega.lam, self.mask)
        return simplex.nearest(v, self.mask)

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
        if isinstance(declared, Tensor):
            beta = declared.to(self.z)
            beta = beta if beta.ndim else beta.reshape(1)
        else:
            beta = self.z.new_full((1,), declared)
        if len(shape) < beta.ndim or any(
            n not in (1, m) for n, m in zip(beta.shape[::-1], shape[::-1], strict=False)
        ):
            raise RegularizerError(
                f"{who(self.smooth)}.strong_convexity must be a number or broadcast to {shape}; "
                f"got shape {tuple(beta.shape)}"
            )
        if decisions.rare("wrong strong_convexity", ~((beta > 0) & torch.isfinite(beta))):
            raise RegularizerError(
                f"{who(self.smooth)}.strong_convexity must be > 0 and finite, or None; got "
                f"{beta.min().item():g}"
            )
        return beta.expand(shape)
