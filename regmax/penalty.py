"""Structured penalties R, and Ω = base + λR (one theorem for fusedmax, oscarmax and their kin).

Let R be the Lovász extension of a submodular function (total variation, ordered weights, …) and
``base`` permutation-invariant, strictly convex and differentiable inside Δ. Then

    Π_{base+λR}(x) = Π_base(γ prox_{λR}(x/γ)),      J = J_base · (averaging over the groups).

Why: z = prox_{λR}(x/γ) means x/γ − z ∈ λ∂R(z), and y = Π_base(γz) keeps the order of z and can
only merge ties, so ∂R(z) ⊆ ∂R(y); base's own optimality adds the rest. With base = ½‖·‖² and the
chain's total variation this is Proposition 2 of Niculae & Blondel (2017). The whole proof, which
needs no gradient of ``base``, is in docs/theorem.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from .curvature import Curvature, Inverse
from .kernels import Kernel
from .operators import Operand
from .regularizer import Regularizer, common_entries
from .shown import show


class Penalty(Operand, ABC):
    """R(y) = max_{u ∈ ∂R(0)} ⟨u, y⟩: convex, positively homogeneous, with fused groups.

    Rows are along the last dimension; ``mask`` is None or a bool tensor of y's shape (True = takes
    part): a masked row behaves as the shorter row of its participants. ``entries``: how many a row
    must have, where R is made for one number (the nodes of a graph); None: any.
    """

    name: ClassVar[str] = ""
    entries: int | None = None

    @abstractmethod
    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """R(y): (*batch, d) -> (*batch)."""

    @abstractmethod
    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """argmin_z ½‖z − v‖² + step·R(z); members of a group are bit-for-bit equal.

        ``step`` is a number or broadcasts to (*batch, 1).
        """

    @abstractmethod
    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """The group of each entry: int64 ids in [0, d), the same id for the members of a group."""

    @abstractmethod
    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """An element of step·∂R(y), close to ``near``: from the definition of R, not from ``prox``.

        Certificates rest on it: it must be a subgradient up to rounding, whatever ``near`` is.
        """

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """How far below others an entry of d must lie for them not to feel where it lies."""
        return math.inf

    def as_cvxpy(self, y: Any) -> Any:
        """R as a cvxpy expression of a nonnegative cvxpy variable of shape (d,)."""
        raise NotImplementedError(f"{type(self).__name__} defines no as_cvxpy(self, y)")

    def kernel(self, base: Regularizer, x: Tensor) -> Kernel | None:
        """Compiled code for Ω = ``base`` + λR and tensors like ``x``, whose one hyperparameter is
        λ, or None. A penalty offers it for the classes, its own and the base's, that it knows: a
        subclass may redefine them."""
        return None

    def average(self, v: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """J_prox v: the mean of v over each group of z (2017, Prop. 3). Differentiable in v."""
        ids = self.groups(z, mask)
        if mask is not None:
            v = torch.where(mask, v, 0)
        zeros = torch.zeros_like(v)
        size = zeros.scatter_add(-1, ids, torch.ones_like(v) if mask is None else mask.to(v.dtype))
        mean = zeros.scatter_add(-1, ids, v) / size.clamp_min(1)
        return mean.gather(-1, ids)

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Some element of ∂R(y), by autograd; its mean over each group does not depend on which."""
        u: Tensor = torch.func.grad(lambda t: self.value(t, mask).sum())(y.detach())
        return u


class Penalized(Regularizer):
    """Ω(y) = base(y) + λ R(y).

    ``lam`` ≥ 0: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    """

    hyperparameters = ("lam",)
    ranges = {"lam": (">= 0", lambda lam: lam >= 0)}  # noqa: RUF012

    def __init__(self, base: Regularizer, penalty: Penalty, lam: float | Tensor) -> None:
        for name, item, cls in (("base", base, Regularizer), ("penalty", penalty, Penalty)):
            if not isinstance(item, cls):
                raise TypeError(
                    f"{name} must be a regmax.{cls.__name__}; got {type(item).__name__} {item!r}"
                )
        self.base, self.penalty, self.lam = base, penalty, self.checked("lam", lam)

    @property
    def entries(self) -> int | None:  # type: ignore[override]
        return common_entries(self.base, self.penalty)

    def value(self, y: Tensor) -> Tensor:
        return self.masked_value(y, None)

    def masked_value(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """Ω of the participants of y alone."""
        total: Tensor = self.base.value(y) + self.per_row("lam") * self.penalty.value(y, mask)
        return total

    def as_cvxpy(self, y: Any) -> Any:
        return self.base.as_cvxpy(y) + float(self.lam) * self.penalty.as_cvxpy(y)

    def kernel(self, x: Tensor) -> Kernel | None:
        return self.penalty.kernel(self.base, x)

    def composed(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """γ prox_{λR}(x/γ) = prox_{γλR}(x), its maximum shifted to 0: by the theorem above the
        scores that ``base`` maps to Π_Ω(x).

        In float64 until then. Scores that cannot matter, as ``base`` gives them 0 and the others do
        not feel where they lie, are raised: −1e20 would absorb the others in the sums of a prox.
        """
        lam = self.lam.double() if isinstance(self.lam, Tensor) else self.lam
        gamma = gamma.double() if isinstance(gamma, Tensor) else gamma
        matters = gamma * (self.base.reach() + self.penalty.margin(lam, x.shape[-1]))
        z = self.penalty.prox(x.double().clamp(min=-16 * matters), gamma * lam, mask)
        top = z if mask is None else torch.where(mask, z, -torch.inf)
        return (z - top.amax(-1, keepdim=True)).to(x.dtype)

    def reduced(self, z: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """z − λu averaged over the groups of y, u ∈ ∂R(y) (2017, Prop. 3 and Lemma 1).

        What is left for ``base``: Π_base of it is Π_Ω(z) when y has the right groups and order.
        Differentiable in z and λ: the groups' average, and −⟨·, u⟩, u up to a constant.
        """
        u = self.penalty.any_subgradient(y, mask)
        on = torch.ones_like(u) if mask is None else mask.to(u.dtype)
        u = on * (u - (on * u).sum(-1, keepdim=True) / on.sum(-1, keepdim=True))
        return self.penalty.average(z - self.lam * u, y.detach(), mask)

    def __repr__(self) -> str:
        if type(self) is not Penalized:
            return super().__repr__()
        weight = "" if isinstance(self.lam, float) and self.lam == 1 else f"{show(self.lam)}*"
        inner = (
            f"({self.penalty!r})" if weight and "*" in repr(self.penalty) else repr(self.penalty)
        )
        return f"{self.base!r} + {weight}{inner}"

    @property
    def strong_convexity(self) -> float | Tensor | None:
        return self.base.strong_convexity


class Averages:
    """P, the averages over the groups of y that a penalty makes."""

    def __init__(self, penalty: Penalty, y: Tensor, mask: Tensor | None) -> None:
        self._penalty, self._y, self._mask = penalty, y.detach(), mask

    def __call__(self, v: Tensor) -> Tensor:
        return self._penalty.average(v, self._y, self._mask)

    def matrix(self) -> Tensor:
        """P, entry by entry: (*batch, d, d)."""
        ids = self._penalty.groups(self._y, self._mask)
        same = ids.unsqueeze(-1) == ids.unsqueeze(-2)
        if self._mask is not None:
            same = same & self._mask.unsqueeze(-1) & self._mask.unsqueeze(-2)
        return same / same.sum(-1, keepdim=True).clamp_min(1).to(self._y.dtype)


def averaging(penalty: Penalty | None, y: Tensor, mask: Tensor | None) -> Averages | None:
    """P, or None without a penalty."""
    return None if penalty is None else Averages(penalty, y, mask)


def jacobian_product(
    smooth: Regularizer, average: Averages | None, y: Tensor, v: Tensor, support: Tensor
) -> Tensor:
    """J v, J = ∂Π_Ω/∂z on ``support``, for Ω = ``smooth``: differentiable in y, v and its tensors.

    With a penalty the groups of y move as one, and J = P (PHP)⁺ P with their averages P. (For a
    permutation-invariant base H and P commute, and this is J_base P.)
    """
    curvature = smooth.curvature(smooth.seen(y))
    if average is None:
        return curvature.jacobian(v, support)
    return average(curvature.averaged(average).jacobian(average(v), support))


def restricted(curvature: Curvature, average: Averages | None, support: Tensor) -> Inverse:
    """J on ``support`` as :func:`jacobian_product` applies it, without derivatives."""
    if average is None:
        return curvature.inverse(support)
    return _Grouped(curvature.averaged(average).inverse(support), average)


class _Grouped:
    """P (PHP)⁺ P."""

    def __init__(self, inverse: Inverse, average: Averages) -> None:
        self._inverse, self._average, self.lowest = inverse, average, inverse.lowest

    def __call__(self, v: Tensor) -> Tensor:
        return self._average(self._inverse(self._average(v)))


def unpenalized(omega: Regularizer) -> Regularizer:
    """Ω, or its base where the penalty's weight is the number 0: equal entries are then no group.

    A tensor that is 0 keeps the penalty, and its groups: derivatives are the limit of those for
    λ > 0, and λ has one.
    """
    if not (isinstance(omega, Penalized) and omega.exact and _is_zero(omega.lam)):
        return omega
    own = any(getattr(type(omega), k) is not getattr(Penalized, k) for k in DEFINED)
    learns = any(name.startswith("penalty.") for name in omega.tensors())
    return omega if own or learns else omega.base


DEFINED = ("value", "masked_value", "grad", "curvature", "composed")
"""What a subclass of :class:`Penalized` may redefine, and then is no base + λR."""


def _is_zero(lam: float | Tensor) -> bool:
    return not isinstance(lam, Tensor) and lam == 0


def smooth_part(omega: Regularizer) -> Regularizer:
    """The differentiable part of Ω."""
    return omega.base if isinstance(omega, Penalized) else omega


def penalty_of(omega: Regularizer) -> Penalty | None:
    """The penalty of Ω, if it has one."""
    return omega.penalty if isinstance(omega, Penalized) else None


def value_of(omega: Regularizer, y: Tensor, mask: Tensor | None) -> Tensor:
    """Ω(y) of the participants of a row."""
    return omega.masked_value(y, mask) if isinstance(omega, Penalized) else omega.value(y)
