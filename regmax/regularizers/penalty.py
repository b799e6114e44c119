"""Structured penalties R, and Ω = base + λR (the theorem of fusedmax, oscarmax and others).

Let R be the Lovász extension of a submodular function (total variation, ordered weights, …) and
``base`` permutation-invariant, strictly convex and differentiable inside Δ. Then

    Π_{base+λR}(x) = Π_base(γ prox_{λR}(x/γ)),      J = J_base · (averaging over the groups).

Proof sketch: z = prox_{λR}(x/γ) means x/γ − z ∈ λ∂R(z). y = Π_base(γz) keeps the order and the
ties of z, so ∂R(z) ⊆ ∂R(y). Adding the optimality condition of ``base`` gives that of Ω. With
base = ½‖·‖² and the chain's total variation this is Proposition 2 of Niculae & Blondel (2017). The
full proof, which needs no gradient of ``base``, is in docs/theorem.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor

from ..kernels import Kernel, ProxKernel, transforms
from ..kernels.neighbours import averages
from ..kernels.products import evaluated
from ..kernels.simplex import tangent
from .errors import RegularizerError
from .operand import Operand
from .printing import brief, latex_product, show
from .regularizer import Regularizer, common_entries, copied, like


class Penalty(Operand, ABC):
    """R(y): convex, with a proximal operator.

    Rows are along the last dimension; ``mask`` is None or a bool tensor of y's shape (True = takes
    part). A masked row behaves like the shorter row of its participants; its masked entries are
    0. Required: :meth:`value` and :meth:`prox`.

    Class attributes
    ----------------
    lovasz: whether R is the Lovász extension of a submodular function (total variation, ordered
        weights, …), up to a multiple of Σy. If True, the theorem above computes Ω = base + λR, and
        :meth:`groups` and :meth:`subgradient` are required too. If False, a solver uses
        :meth:`prox` on the whole Ω, which is differentiable where R is smooth on the support.
    entries: the number of entries that a row must have (the nodes of a graph); None: any.
    formula: R(y) in LaTeX, for notebooks.
    """

    _symbol = "R"
    name: ClassVar[str] = ""
    lovasz: bool = False
    entries: int | None = None

    @abstractmethod
    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """R(y): (*batch, d) -> (*batch)."""

    @abstractmethod
    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """argmin_z ½‖z − v‖² + step·R(z); members of a group are bit-for-bit equal.

        ``step`` is a number or broadcasts to (*batch, 1). regmax does not differentiate this
        method. A prox that computes outside of autograd gets derivatives from
        :meth:`~regmax.Penalty.with_gradient`, as the built-in ones do.
        """

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """The group of each entry: int64 ids in [0, d), the same id for the members of a group."""
        raise NotImplementedError(_missing(self, "groups(self, z, mask=None)"))

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """An element of step·∂R(y) close to ``near``, by the definition of R and without ``prox``.

        Certificates use it: for every ``near`` it must be a subgradient up to rounding.
        """
        raise NotImplementedError(_missing(self, "subgradient(self, y, near, step, mask=None)"))

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """The distance below which an entry of d no longer affects the prox of larger entries."""
        return math.inf

    def as_cvxpy(self, y: Any) -> Any:
        """R as a cvxpy expression of a nonnegative cvxpy variable of shape (d,)."""
        raise NotImplementedError(f"{type(self).__name__} defines no as_cvxpy(self, y)")

    def kernel(self, base: Regularizer, x: Tensor) -> Kernel | None:
        """Compiled code for Ω = ``base`` + λR and tensors like ``x``, or None. Its hyperparameters
        are λ and those of ``base``. Return a kernel only for exact classes of penalty and base, as
        a subclass may redefine a method."""
        return None

    def prox_kernel(self, x: Tensor) -> ProxKernel | None:
        """Compiled code of the prox for tensors like ``x``, or None: base + λR then has a kernel
        where the base has one. A subclass that redefines a method must redefine this one too."""
        return None

    def average(self, v: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """J_prox v: the mean of v over each group of z (2017, Prop. 3). Differentiable in v."""
        on = torch.ones_like(v, dtype=torch.bool) if mask is None else mask
        return averages(torch.where(on, v, 0), group_ids(self, z, mask), on)

    def with_gradient(
        self, z: Tensor, v: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """z = prox(v, step) with derivatives in v, step and the tensors of this penalty: those of
        v − step·u, u ∈ ∂R(z), averaged over the groups of z (2017, Prop. 3)."""
        if not torch.is_grad_enabled():
            return z
        inside = [t for m in self.modules() for t in (*vars(m).values(), *m.parameters(False))]
        learns = any(isinstance(t, Tensor) and t.requires_grad for t in (step, *inside))
        if not (learns or v.requires_grad):
            return z
        z = z.detach()
        change = (v - v.detach()).to(z)  # 0 in value, with the derivative of v
        if learns:
            pull = step * self.any_subgradient(z, mask)
            change = change - (pull - pull.detach()).to(z)
        change = self.average(change, z, mask)
        return z + (change if mask is None else torch.where(mask, change, 0))

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Some element of ∂R(y), by autograd. All elements have the same mean over each group."""
        u: Tensor = torch.func.grad(lambda t: self.value(t, mask).sum())(y.detach())
        return u


def proxed(penalty: Penalty, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """``penalty.prox(v, step, mask)``; an error unless it is a tensor like v."""
    return like(penalty.prox(v, step, mask), v, f"{type(penalty).__name__}.prox")


def valued(penalty: Penalty, y: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.value(y, mask)``; an error unless it is one number per row."""
    return like(penalty.value(y, mask), y[..., 0], f"{type(penalty).__name__}.value")


def group_ids(penalty: Penalty, z: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.groups(z, mask)``; an error unless these are ids in [0, d)."""
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
                    f"{name} must be a regmax.{cls.__name__}; "
                    f"got {type(item).__name__} {brief(item)}"
                )
        self.base, self.penalty, self.lam = base, penalty, self.checked("lam", lam)

    @property
    def entries(self) -> int | None:  # type: ignore[override]
        return common_entries(self.base, self.penalty)

    @property
    def composes(self) -> bool:
        """Whether Π_Ω is the base's mapping applied to the prox, by the theorem above."""
        return self.penalty.lovasz and self.base.permutation_invariant

    def value(self, y: Tensor) -> Tensor:
        return self.masked_value(y, self._mask)

    _mask: Tensor | None = None

    def of(self, mask: Tensor | None) -> Penalized:
        """The same Ω for rows with this mask."""
        if mask is None:
            return self
        bound: Penalized = copied(self)
        bound.__dict__["_mask"] = mask
        return bound

    def masked_value(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """Ω of the participants of y."""
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
        """γ prox_{λR}(x/γ) = prox_{γλR}(x), its maximum shifted to 0. By the theorem above
        ``base`` maps these scores to Π_Ω(x).

        Computed in float64. Scores so low that they change no other entry and get weight 0 are
        raised first: a score of −1e20 would absorb the others in the sums of a prox.
        """
        lam = self.lam.double() if isinstance(self.lam, Tensor) else self.lam
        gamma = gamma.double() if isinstance(gamma, Tensor) else gamma
        radius = gamma * (self.base.support_radius() + self.penalty.margin(lam, x.shape[-1]))
        z = proxed(self.penalty, x.double().clamp(min=-16 * radius), gamma * lam, mask)
        top = z if mask is None else torch.where(mask, z, -torch.inf)
        return (z - top.amax(-1, keepdim=True)).to(x.dtype)

    def reduced(self, z: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """z − λu averaged over the groups of y, u ∈ ∂R(y) (2017, Prop. 3 and Lemma 1).

        The scores for ``base``: it maps them to Π_Ω(z) if y has the groups and order of Π_Ω(z).
        Differentiable in z and λ: the average over the groups, and −⟨·, u⟩, u up to a constant.
        """
        u = like(self.penalty.any_subgradient(y, mask), y, f"{type(self.penalty).__name__}.value")
        u = tangent(u, torch.ones_like(u, dtype=torch.bool) if mask is None else mask)
        return averaged(self.penalty, z - self.lam * u, y.detach(), mask)

    def __repr__(self) -> str:
        if type(self) is not Penalized:
            return super().__repr__()
        weight = "" if isinstance(self.lam, float) and self.lam == 1 else f"{show(self.lam)}*"
        inner = (
            f"({self.penalty!r})" if weight and "*" in repr(self.penalty) else repr(self.penalty)
        )
        return f"{self.base!r} + {weight}{inner}"

    def _latex(self) -> str:
        penalty = latex_product("lam", self.lam, self.penalty._latex())
        return f"{self.base._latex()} + {penalty}"

    @property
    def strong_convexity(self) -> float | Tensor | None:
        return self.base.strong_convexity

    def min_positive(self, tiny: float) -> float | Tensor:
        return self.base.min_positive(tiny)


def averaged(penalty: Penalty, v: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """``penalty.average(v, y, mask)``; an error unless it is a tensor like v."""
    return like(penalty.average(v, y, mask), v, f"{type(penalty).__name__}.average")


def who(omega: Regularizer) -> str:
    """The names of the classes in the expression Ω."""
    if type(omega) is not Penalized:
        return " + ".join(type(leaf).__name__ for leaf in omega.leaves())
    return f"{who(omega.base)} + {omega.penalty.name or omega.penalty}"


DEFINED = ("value", "masked_value", "grad", "curvature", "composed")
"""A subclass of :class:`Penalized` that redefines one of these methods is not base + λR."""


def redefined(cls: type[Penalized], methods: Iterable[str] = DEFINED) -> str | None:
    """The first of the ``methods`` that a subclass of :class:`Penalized` redefines."""
    return next((k for k in methods if getattr(cls, k) is not getattr(Penalized, k)), None)


def structured(omega: Regularizer) -> TypeGuard[Penalized]:
    """Whether Ω is base + λR with a Lovász extension R, which makes groups."""
    return isinstance(omega, Penalized) and omega.penalty.lovasz


def smooth_part(omega: Regularizer, mask: Tensor | None = None) -> Regularizer:
    """The part of Ω that is differentiated on the support, for rows with this ``mask``: the base of
    a structured Ω, else all of Ω."""
    if structured(omega):
        return omega.base
    return omega.of(mask) if isinstance(omega, Penalized) else omega


def value_of(omega: Regularizer, y: Tensor, mask: Tensor | None) -> Tensor:
    """Ω(y) of the participants of each row."""
    if isinstance(omega, Penalized):
        return omega.masked_value(y, mask)
    value: Tensor = evaluated(omega.value, y)
    return value
