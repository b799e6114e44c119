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
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor

from ..kernels import Kernel, transforms
from ..kernels.products import evaluated
from .errors import RegularizerError
from .operand import Operand
from .printing import show
from .regularizer import Regularizer, common_entries, copied, like


class Penalty(Operand, ABC):
    """R(y): convex, with a proximal operator.

    Rows are along the last dimension; ``mask`` is None or a bool tensor of y's shape (True = takes
    part): a masked row behaves as the shorter row of its participants, and its masked entries are
    0. Required: :meth:`value` and :meth:`prox`.

    Class attributes
    ----------------
    lovasz: whether R is the Lovász extension of a submodular function (total variation, ordered
        weights, …), up to a multiple of Σy. With such a penalty Ω = base + λR is computed by the
        theorem above; :meth:`groups` and :meth:`subgradient` are then required too. False: Ω is
        solved as a whole, by :meth:`prox`, and differentiated where R is smooth on the support.
    entries: how many entries a row must have, where R is made for one number (the nodes of a
        graph); None: any.
    """

    name: ClassVar[str] = ""
    lovasz: bool = False
    entries: int | None = None

    @abstractmethod
    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """R(y): (*batch, d) -> (*batch)."""

    @abstractmethod
    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """argmin_z ½‖z − v‖² + step·R(z); members of a group are bit-for-bit equal.

        ``step`` is a number or broadcasts to (*batch, 1). regmax takes no gradient through it; one
        that computes outside of autograd gets its gradient from
        :meth:`~regmax.Penalty.with_gradient`, as the built-in ones do.
        """

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """The group of each entry: int64 ids in [0, d), the same id for the members of a group."""
        raise NotImplementedError(_missing(self, "groups(self, z, mask=None)"))

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """An element of step·∂R(y), close to ``near``: from the definition of R, not from ``prox``.

        Certificates rest on it: it must be a subgradient up to rounding, whatever ``near`` is.
        """
        raise NotImplementedError(_missing(self, "subgradient(self, y, near, step, mask=None)"))

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
        ids = group_ids(self, z, mask)
        if mask is not None:
            v = torch.where(mask, v, 0)
        zeros = torch.zeros_like(v)
        size = zeros.scatter_add(-1, ids, torch.ones_like(v) if mask is None else mask.to(v.dtype))
        mean = zeros.scatter_add(-1, ids, v) / size.clamp_min(1)
        return mean.gather(-1, ids)

    def with_gradient(
        self, z: Tensor, v: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """z = prox(v, step), with its derivatives in v, step and the tensors of this penalty: the
        average over the groups of z, of v and of −step·u, u ∈ ∂R(z) (2017, Prop. 3)."""
        if not torch.is_grad_enabled():
            return z
        inside = [t for m in self.modules() for t in (*vars(m).values(), *m.parameters(False))]
        moves = any(isinstance(t, Tensor) and t.requires_grad for t in (step, *inside))
        if not (moves or v.requires_grad):
            return z
        z = z.detach()
        change = (v - v.detach()).to(z)  # 0, with a derivative
        if moves:
            pull = step * self.any_subgradient(z, mask)
            change = change - (pull - pull.detach()).to(z)
        change = self.average(change, z, mask)
        return z + (change if mask is None else torch.where(mask, change, 0))

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Some element of ∂R(y), by autograd; its mean over each group does not depend on which."""
        u: Tensor = torch.func.grad(lambda t: self.value(t, mask).sum())(y.detach())
        return u


def proxed(penalty: Penalty, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """``penalty.prox(v, step, mask)``, refused with a message unless it is a tensor like v."""
    return like(penalty.prox(v, step, mask), v, f"{type(penalty).__name__}.prox")


def valued(penalty: Penalty, y: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.value(y, mask)``, refused with a message unless it is one number per row."""
    return like(penalty.value(y, mask), y[..., 0], f"{type(penalty).__name__}.value")


def group_ids(penalty: Penalty, z: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.groups(z, mask)``, refused with a message unless they are ids in [0, d)."""
    ids = penalty.groups(z, mask)
    who, d = f"{type(penalty).__name__}.groups", z.shape[-1]
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.shape != z.shape:
        got = f"{ids.dtype}, {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise RegularizerError(
            f"{who} must return an int64 tensor of the shape of z, {tuple(z.shape)}; got {got}"
        )
    if transforms.may_look(ids) and bool(((ids < 0) | (ids >= d)).any()):
        raise RegularizerError(
            f"{who} must return ids in [0, {d}); got ids from {int(ids.min())} to {int(ids.max())}"
        )
    return ids


def _missing(penalty: Penalty, method: str) -> str:
    return (
        f"{type(penalty).__name__} declares lovasz = True and defines no {method}; write it, or "
        "leave lovasz = False"
    )


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

    @property
    def composes(self) -> bool:
        """Whether Π_Ω is the base's mapping of the prox, by the theorem above."""
        return self.penalty.lovasz and self.base.permutation_invariant

    def value(self, y: Tensor) -> Tensor:
        return self.masked_value(y, self._mask)

    _mask: Tensor | None = None

    def of(self, mask: Tensor | None) -> Penalized:
        """The same Ω of rows with this mask."""
        if mask is None:
            return self
        bound: Penalized = copied(self)
        bound.__dict__["_mask"] = mask
        return bound

    def masked_value(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """Ω of the participants of y alone."""
        if mask is not None and mask.shape != y.shape:
            mask = mask.expand(y.shape)
        total: Tensor = evaluated(self.base.value, y) + self.per_row("lam") * valued(
            self.penalty, y, mask
        )
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
        matters = gamma * (self.base.support_radius() + self.penalty.margin(lam, x.shape[-1]))
        z = proxed(self.penalty, x.double().clamp(min=-16 * matters), gamma * lam, mask)
        top = z if mask is None else torch.where(mask, z, -torch.inf)
        return (z - top.amax(-1, keepdim=True)).to(x.dtype)

    def reduced(self, z: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """z − λu averaged over the groups of y, u ∈ ∂R(y) (2017, Prop. 3 and Lemma 1).

        What is left for ``base``: Π_base of it is Π_Ω(z) when y has the right groups and order.
        Differentiable in z and λ: the groups' average, and −⟨·, u⟩, u up to a constant.
        """
        u = like(self.penalty.any_subgradient(y, mask), y, f"{type(self.penalty).__name__}.value")
        on = torch.ones_like(u) if mask is None else mask.to(u.dtype)
        u = on * (u - (on * u).sum(-1, keepdim=True) / on.sum(-1, keepdim=True))
        return averaged(self.penalty, z - self.lam * u, y.detach(), mask)

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

    def min_positive(self, tiny: float) -> float | Tensor:
        return self.base.min_positive(tiny)


def averaged(penalty: Penalty, v: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.average(v, y, mask)``, refused with a message unless it is a tensor like v."""
    return like(penalty.average(v, y, mask), v, f"{type(penalty).__name__}.average")


def who(omega: Regularizer) -> str:
    """The classes that Ω is made of."""
    if type(omega) is not Penalized:
        return " + ".join(type(leaf).__name__ for leaf in omega.leaves())
    return f"{who(omega.base)} + {omega.penalty.name or omega.penalty}"


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


def structured(omega: Regularizer) -> TypeGuard[Penalized]:
    """Whether Ω is base + λR with fused groups, R a Lovász extension."""
    return isinstance(omega, Penalized) and omega.penalty.lovasz


def smooth_part(omega: Regularizer, mask: Tensor | None = None) -> Regularizer:
    """What of Ω is differentiated on the support: the base of a structured Ω, else the whole, of
    rows with this ``mask``."""
    if structured(omega):
        return omega.base
    return omega.of(mask) if isinstance(omega, Penalized) else omega


def penalty_of(omega: Regularizer) -> Penalty | None:
    """The penalty that makes groups, if Ω has one."""
    return omega.penalty if structured(omega) else None


def value_of(omega: Regularizer, y: Tensor, mask: Tensor | None) -> Tensor:
    """Ω(y) of the participants of a row."""
    if isinstance(omega, Penalized):
        return omega.masked_value(y, mask)
    value: Tensor = evaluated(omega.value, y)
    return value
