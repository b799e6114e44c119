"""The expressions of the algebra of regularizers: c Ω, Ω₁ + Ω₂ and λ R as objects.

    Π_{cΩ,γ} = Π_{Ω,cγ},        ∇²(Ω₁ + Ω₂) = ∇²Ω₁ + ∇²Ω₂,        prox_{t·λR} = prox_{tλ·R}.

The declared properties of the parts give those of the expression.
:mod:`regmax.regularizers.algebra` creates these objects.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import arguments
from .curvature import Curvature
from .penalty import Penalized, Penalty
from .printing import latex_product, show
from .regularizer import Regularizer, common_entries, per_row


def _of(part: str, name: str) -> Any:
    """The declared property ``name`` of a part of the expression."""
    return property(lambda self: getattr(getattr(self, part), name))


class Scaled(Regularizer):
    """c Ω(y), c > 0, for a smooth Ω: ``2 * entropy`` is softmax at twice the temperature.

    ``c``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``. The
    declared properties are those of ``base``, by Π_{cΩ,γ} = Π_{Ω,cγ}.
    """

    hyperparameters = ("c",)
    ranges = {"c": arguments.POSITIVE}  # noqa: RUF012

    def __init__(self, base: Regularizer, c: float | Tensor) -> None:
        self.base, self.c = base, self.checked("c", c)

    permutation_invariant = _of("base", "permutation_invariant")
    separable = _of("base", "separable")
    ignores_zeros = _of("base", "ignores_zeros")
    entries = _of("base", "entries")

    def value(self, y: Tensor) -> Tensor:
        scaled: Tensor = self.per_row("c") * self.base.value(y)
        return scaled

    def grad(self, y: Tensor) -> Tensor:
        return self.c * self.base.grad(y)

    def curvature(self, y: Tensor) -> Curvature:
        return self.base.curvature(y).scaled(self.c)

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        return self.base.closed_form(x, gamma * self.c, mask)

    def conjugate(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        return self.base.conjugate(x, gamma * self.c, mask)

    def as_cvxpy(self, y: Any) -> Any:
        return float(self.c) * self.base.as_cvxpy(y)

    @property
    def strong_convexity(self) -> float | Tensor | None:
        beta = self.base.strong_convexity
        return None if beta is None else self._number * beta

    def support_radius(self) -> float | Tensor:
        return self._number * self.base.support_radius()

    def min_positive(self, tiny: float) -> float | Tensor:
        c = self._number  # c times a number next to the largest overflows
        return self.base.min_positive(tiny) * (
            c.clamp_min(1) if isinstance(c, Tensor) else max(c, 1)
        )

    @property
    def _number(self) -> float | Tensor:
        return self.c.detach() if isinstance(self.c, Tensor) else self.c

    def notes(self, x: Tensor) -> list[str]:
        return self.base.notes(x)

    def declares(self, method: str) -> bool:
        return method in vars(Scaled) and self.base.declares(method)

    def leaves(self) -> tuple[Regularizer, ...]:
        return self.base.leaves()

    def __repr__(self) -> str:
        return f"{show(self.c)}*{_factor_of(self.base)}"

    def _latex(self) -> str:
        return latex_product("c", self.c, self.base._latex())


class Sum(Regularizer):
    """Σ_k Ω_k(y) of smooth Ω_k.

    The sum is strongly convex with the sum of the declared constants, as all terms are convex. A
    property of all terms is a property of the sum. The support radii add up: each bounds the
    difference between entries of ∇Ω_k(y) where y_i > 0.
    """

    hyperparameters = ()

    def __init__(self, *terms: Regularizer) -> None:
        self.terms = nn.ModuleList(terms)

    def _each(self) -> Iterator[Regularizer]:
        yield from self.terms  # type: ignore[misc]

    @property
    def permutation_invariant(self) -> bool:  # type: ignore[override]
        return all(term.permutation_invariant for term in self._each())

    @property
    def entries(self) -> int | None:  # type: ignore[override]
        return common_entries(*self._each())

    @property
    def separable(self) -> bool | None:  # type: ignore[override]
        return True if all(term.separable for term in self._each()) else None

    @property
    def ignores_zeros(self) -> bool:  # type: ignore[override]
        return all(term.ignores_zeros for term in self._each())

    def value(self, y: Tensor) -> Tensor:
        total: Tensor = sum(term.value(y) for term in self._each())  # type: ignore[assignment]
        return total

    def grad(self, y: Tensor) -> Tensor:
        total: Tensor = sum(term.grad(y) for term in self._each())  # type: ignore[assignment]
        return total

    def curvature(self, y: Tensor) -> Curvature:
        return functools.reduce(Curvature.plus, (term.curvature(y) for term in self._each()))

    def as_cvxpy(self, y: Any) -> Any:
        return sum(term.as_cvxpy(y) for term in self._each())

    @property
    def strong_convexity(self) -> float | Tensor | None:
        declared = [b for term in self._each() if (b := term.strong_convexity) is not None]
        return sum(declared) if declared else None

    def support_radius(self) -> float | Tensor:
        return sum(term.support_radius() for term in self._each())

    def min_positive(self, tiny: float) -> float | Tensor:
        # a sum of numbers next to the largest one could overflow
        each = [term.min_positive(tiny) for term in self._each()]
        return len(each) * functools.reduce(_larger, each)

    def notes(self, x: Tensor) -> list[str]:
        return list(dict.fromkeys(line for term in self._each() for line in term.notes(x)))

    def declares(self, method: str) -> bool:
        some = any if method in ("grad", "strong_convexity") else all
        return method in vars(Sum) and some(term.declares(method) for term in self._each())

    def leaves(self) -> tuple[Regularizer, ...]:
        return tuple(leaf for term in self._each() for leaf in term.leaves())

    def __repr__(self) -> str:
        return " + ".join(map(repr, self._each()))

    def _latex(self) -> str:
        return " + ".join(term._latex() for term in self._each())


class ScaledPenalty(Penalty):
    """λ R(y), λ ≥ 0, itself a penalty.

    ``lam``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    """

    hyperparameters = ("lam",)
    ranges = Penalized.ranges

    def __init__(self, penalty: Penalty, lam: float | Tensor) -> None:
        self.penalty = penalty
        self.lam = arguments.hyperparameter("lam", lam, *self.ranges["lam"])

    name = _of("penalty", "name")
    lovasz = _of("penalty", "lovasz")
    entries = _of("penalty", "entries")

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        scaled: Tensor = per_row(self.lam) * self.penalty.value(y, mask)
        return scaled

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        return self.penalty.prox(v, step * self.lam, mask)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.penalty.groups(z, mask)

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return self.penalty.subgradient(y, near, step * self.lam, mask)

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.lam * self.penalty.any_subgradient(y, mask)

    def average(self, v: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.penalty.average(v, z, mask)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        return self.penalty.margin(step * self.lam, d)

    def as_cvxpy(self, y: Any) -> Any:
        return float(self.lam) * self.penalty.as_cvxpy(y)

    def __repr__(self) -> str:
        return f"{show(self.lam)}*{_factor_of(self.penalty)}"

    def _latex(self) -> str:
        return latex_product("lam", self.lam, self.penalty._latex())


def _factor_of(item: Regularizer | Penalty) -> str:
    """The right operand of ``*``, in parentheses if it needs them."""
    return f"({item!r})" if isinstance(item, Scaled | ScaledPenalty | Sum) else repr(item)


def _larger(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    if isinstance(a, Tensor):
        return torch.maximum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    return _larger(b, a) if isinstance(b, Tensor) else max(a, b)
