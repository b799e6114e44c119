"""The algebra of regularizers: ``a + b``, ``c * a``, ``a + c * R`` and ``sum([...])`` are what they
say, for regularizers a and b, a penalty R and a number c.

    Π_{cΩ,γ} = Π_{Ω,cγ},        c (Ω + λR) = cΩ + cλ R,        (a + λR) + b = (a + b) + λR.

So every expression is a smooth Ω, or one with one penalty, :class:`regmax.Penalized`, and goes the
roads of these. A number is a float or a tensor, a learnable one for instance, of the shape of every
hyperparameter: it broadcasts to the scores with size 1 along ``dim``. It stays a symbol: no product
of tensors is taken before the scores come.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import checks, operators
from .curvature import Curvature
from .penalty import DEFINED, Penalized, Penalty
from .regularizer import Regularizer, common_entries, per_row
from .shown import show


class Scaled(Regularizer):
    """c Ω(y), c > 0, for a smooth Ω: ``2 * entropy`` is softmax at twice the temperature.

    ``c``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``. What
    ``base`` claims is claimed of c Ω too, by Π_{cΩ,γ} = Π_{Ω,cγ}.
    """

    hyperparameters = ("c",)
    ranges = {"c": checks.POSITIVE}  # noqa: RUF012

    def __init__(self, base: Regularizer, c: float | Tensor) -> None:
        self.base, self.c = base, self.checked("c", c)

    @property
    def permutation_invariant(self) -> bool:  # type: ignore[override]
        return self.base.permutation_invariant

    @property
    def separable(self) -> bool | None:  # type: ignore[override]
        return self.base.separable

    @property
    def ignores_zeros(self) -> bool:  # type: ignore[override]
        return self.base.ignores_zeros

    @property
    def entries(self) -> int | None:  # type: ignore[override]
        return self.base.entries

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

    def reach(self) -> float | Tensor:
        return self._number * self.base.reach()

    def smallest(self, tiny: float) -> float | Tensor:
        c = self._number  # c times a number next to the largest overflows
        return self.base.smallest(tiny) * (c.clamp_min(1) if isinstance(c, Tensor) else max(c, 1))

    @property
    def _number(self) -> float | Tensor:
        return self.c.detach() if isinstance(self.c, Tensor) else self.c

    def notes(self, x: Tensor) -> list[str]:
        return self.base.notes(x)

    def claims(self, method: str) -> bool:
        return method in vars(Scaled) and self.base.claims(method)

    def leaves(self) -> tuple[Regularizer, ...]:
        return self.base.leaves()

    def __repr__(self) -> str:
        return f"{show(self.c)}*{_factor_of(self.base)}"


class Sum(Regularizer):
    """Σ_k Ω_k(y) of smooth Ω_k.

    Strongly convex with the sum of the declared constants, as the others are convex; what is true
    of all terms is true of the sum. A score r below the largest has y_i = 0 if r is the sum of
    these distances: each bounds how far the entries of its ∇Ω_k(y) lie apart where y_i > 0.
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

    def reach(self) -> float | Tensor:
        return sum(term.reach() for term in self._each())

    def smallest(self, tiny: float) -> float | Tensor:
        # the sum of as many numbers next to the largest would overflow
        each = [term.smallest(tiny) for term in self._each()]
        return len(each) * functools.reduce(_larger, each)

    def notes(self, x: Tensor) -> list[str]:
        return list(dict.fromkeys(line for term in self._each() for line in term.notes(x)))

    def claims(self, method: str) -> bool:
        some = any if method in ("grad", "strong_convexity") else all
        return method in vars(Sum) and some(term.claims(method) for term in self._each())

    def leaves(self) -> tuple[Regularizer, ...]:
        return tuple(leaf for term in self._each() for leaf in term.leaves())

    def __repr__(self) -> str:
        return " + ".join(map(repr, self._each()))


class ScaledPenalty(Penalty):
    """λ R(y), λ ≥ 0: a penalty wherever one is taken.

    ``lam``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    """

    hyperparameters = ("lam",)
    ranges = Penalized.ranges

    def __init__(self, penalty: Penalty, lam: float | Tensor) -> None:
        self.penalty = penalty
        self.lam = checks.hyperparameter("lam", lam, *self.ranges["lam"])

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.penalty.name

    @property
    def entries(self) -> int | None:  # type: ignore[override]
        return self.penalty.entries

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


def _factor_of(item: Regularizer | Penalty) -> str:
    """What stands behind a ``*``."""
    return f"({item!r})" if isinstance(item, Scaled | ScaledPenalty | Sum) else repr(item)


def _larger(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    if isinstance(a, Tensor):
        return torch.maximum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    return _larger(b, a) if isinstance(b, Tensor) else max(a, b)


# -- what the operators make ---------------------------------------------------------------------


@operators.times.register(Regularizer)
def _(omega: Regularizer, c: Any) -> Regularizer:
    c = _factor(c, omega, *Scaled.ranges["c"])
    base, penalty, lam = _parts(omega)
    if _is(c, 1):
        return omega
    if isinstance(base, Scaled) and _floats(c, base.c):
        base, scale = base.base, c * base.c
    else:
        scale = c
    base = base if _is(scale, 1) else Scaled(base, scale)
    return base if penalty is None else Penalized(base, *_weighted(penalty, lam, c))


@operators.times.register(Penalty)
def _(penalty: Penalty, c: Any) -> Penalty:
    c = _factor(c, penalty, *ScaledPenalty.ranges["lam"])
    if isinstance(penalty, ScaledPenalty) and _floats(c, penalty.lam):
        return ScaledPenalty(penalty.penalty, c * penalty.lam)
    return ScaledPenalty(penalty, c)


@operators.plus.register(Regularizer)
def _(omega: Regularizer, other: Any) -> Regularizer:
    if _is_nothing(other):
        return omega
    if not isinstance(other, Regularizer | Penalty):
        raise _wrong(omega, other)
    smooth, penalty, lam = _parts(omega)
    more, second, weight = (
        _parts(other) if isinstance(other, Regularizer) else (None, *_pair(other))
    )
    terms = _merged([*_terms(smooth), *([] if more is None else _terms(more))])
    base = terms[0] if len(terms) == 1 else Sum(*terms)
    if penalty is None or second is None:
        found, weight = (second, weight) if penalty is None else (penalty, lam)
        return base if found is None else Penalized(base, found, weight)
    return Penalized(base, *_both(penalty, lam, second, weight))


@operators.plus.register(Penalty)
def _(penalty: Penalty, other: Any) -> Any:
    if _is_nothing(other):
        return penalty
    if isinstance(other, Regularizer):
        return other + penalty
    if not isinstance(other, Penalty):
        raise _wrong(penalty, other)
    return ScaledPenalty(*_both(*_pair(penalty), *_pair(other)))


def _factor(c: Any, item: Any, words: str, holds: Any) -> float | Tensor:
    if isinstance(c, operators.Operand):
        raise TypeError(f"{item!r} times {c!r}: one of the factors must be a number or a tensor")
    if isinstance(c, numbers.Real) and not isinstance(c, bool):
        c = float(c)
    try:
        return checks.hyperparameter("the factor", c, words, holds)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}, before {item!r}") from None


def _wrong(item: Any, other: Any) -> TypeError:
    return TypeError(
        f"{item!r} + {type(other).__name__} {other!r}: what is added must be a regmax.Regularizer "
        "(an object, not its class), a regmax.Penalty, or 0"
    )


def _is(c: Any, number: float) -> bool:
    return not isinstance(c, Tensor) and c == number


def _is_nothing(other: Any) -> bool:
    """Whether it is the 0 that ``sum`` begins with."""
    return isinstance(other, int | float) and not isinstance(other, bool) and other == 0


def _floats(*items: Any) -> bool:
    return all(isinstance(item, float) for item in items)


def _parts(omega: Regularizer) -> tuple[Regularizer, Penalty | None, float | Tensor]:
    """The smooth part, the penalty and its weight."""
    if not omega.exact:
        raise TypeError(f"{omega!r} only approximates its Ω: there are no sums and multiples of it")
    if not isinstance(omega, Penalized):
        return omega, None, 0.0
    for name in DEFINED:
        if getattr(type(omega), name) is not getattr(Penalized, name):
            raise TypeError(
                f"{type(omega).__name__} redefines {name}, so it is no base + lam * penalty: put "
                "together what it is made of"
            )
    return omega.base, omega.penalty, omega.lam


def _pair(penalty: Penalty) -> tuple[Penalty, float | Tensor]:
    if isinstance(penalty, ScaledPenalty):
        return penalty.penalty, penalty.lam
    return penalty, 1.0


def _weighted(
    penalty: Penalty, lam: float | Tensor, c: float | Tensor
) -> tuple[Penalty, float | Tensor]:
    """cλR as a penalty and its weight."""
    if not (isinstance(c, Tensor) or isinstance(lam, Tensor)):
        return penalty, c * lam
    inner, outer = (lam, c) if isinstance(c, Tensor) else (c, lam)
    return (penalty if _is(inner, 1) else ScaledPenalty(penalty, inner)), outer


def _both(
    first: Penalty, lam: float | Tensor, second: Penalty, weight: float | Tensor
) -> tuple[Penalty, float]:
    """The sum of two multiples of one penalty."""
    if _same(first, second) and not isinstance(lam, Tensor) and not isinstance(weight, Tensor):
        return first, lam + weight
    if _same(first, second):
        raise NotImplementedError(
            f"{first!r} twice, with tensors as weights: add the weights, (a + b) * penalty"
        )
    raise NotImplementedError(
        f"{first!r} and {second!r} in one Ω: there is one penalty at most, whose prox is known. "
        "Total variations add up in one graph with all edges (graph_tv), ordered weights in one "
        "vector of weights (owl)"
    )


def _same(a: Penalty, b: Penalty) -> bool:
    """Whether two penalties are one: the same object, or of one class that takes no arguments and
    holds nothing."""
    return a is b or (type(a) is type(b) and not (_held(a) or _held(b)))


def _held(module: nn.Module) -> bool:
    """Whether an object differs from others of its class."""
    plain = (k for k in vars(module) if not k.startswith("_") and k != "training")
    return bool(module._parameters or module._buffers or module._modules or any(plain))


def _terms(omega: Regularizer) -> list[Regularizer]:
    return list(omega._each()) if isinstance(omega, Sum) else [omega]


def _merged(terms: list[Regularizer]) -> list[Regularizer]:
    """Terms that are multiples of one, by numbers, as one."""
    found: list[tuple[Regularizer, float | Tensor]] = []
    for term in terms:
        one, c = (term.base, term.c) if isinstance(term, Scaled) else (term, 1.0)
        for k, (other, number) in enumerate(found):
            same = one is other or (type(one) is type(other) and not (_held(one) or _held(other)))
            if same and not isinstance(c, Tensor) and not isinstance(number, Tensor):
                found[k] = other, number + c
                break
        else:
            found.append((one, c))
    return [one if _is(c, 1) else Scaled(one, c) for one, c in found]


def unscaled(omega: Regularizer, gamma: Any) -> tuple[Regularizer, Any]:
    """Π_{cΩ,γ} = Π_{Ω,cγ}: the innermost Ω, and its γ."""
    while isinstance(omega, Scaled):
        omega, gamma = omega.base, gamma * omega.c
    return omega, gamma


def unweighted(penalty: Penalty, weight: Any) -> tuple[Penalty, Any]:
    """The innermost penalty, and its weight."""
    while isinstance(penalty, ScaledPenalty):
        penalty, weight = penalty.penalty, weight * penalty.lam
    return penalty, weight
