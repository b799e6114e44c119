"""The algebra of regularizers: ``a + b``, ``c * a``, ``a + c * R`` and ``sum([...])`` for
regularizers a and b, a penalty R and a number c.

    Π_{cΩ,γ} = Π_{Ω,cγ},        c (Ω + λR) = cΩ + cλ R,        (a + λR) + b = (a + b) + λR.

So every expression is a smooth Ω, or a smooth Ω with one penalty, :class:`regmax.Penalized`. A
number is a float or a tensor, which may require grad. Like every hyperparameter, a tensor
broadcasts to the scores with size 1 along ``dim``. Tensors are multiplied only when the mapping is
called.
"""

from __future__ import annotations

import numbers
from typing import Any

from torch import Tensor, nn

from . import arguments, operand
from .expressions import Scaled, ScaledPenalty, Sum
from .penalty import Penalized, Penalty, redefined
from .printing import brief
from .regularizer import Regularizer

__all__ = ["Scaled", "ScaledPenalty", "Sum"]


@operand.times.register(Regularizer)
def _(omega: Regularizer, c: Any) -> Regularizer:
    c = _factor(c, omega, *Scaled.ranges["c"])
    base, penalty, lam = _parts(omega)
    if _is_one(c):
        return omega
    one, scale = _times(base, c)
    base = one if _is_one(scale) else Scaled(one, scale)
    return base if penalty is None else Penalized(base, *_weighted(penalty, lam, c))


@operand.times.register(Penalty)
def _(penalty: Penalty, c: Any) -> Penalty:
    c = _factor(c, penalty, *ScaledPenalty.ranges["lam"])
    return ScaledPenalty(*_times(penalty, c))


@operand.plus.register(Regularizer)
def _(omega: Regularizer, other: Any) -> Regularizer:
    if _is_zero(other):
        return omega
    if not isinstance(other, Regularizer | Penalty):
        raise _wrong(omega, other)
    smooth, penalty, lam = _parts(omega)
    more, second, weight = (
        _parts(other) if isinstance(other, Regularizer) else (None, *_multiple(other))
    )
    terms = _like_terms(_terms(smooth), [] if more is None else _terms(more))
    base = terms[0] if len(terms) == 1 else Sum(*terms)
    if penalty is None or second is None:
        found, weight = (second, weight) if penalty is None else (penalty, lam)
        return base if found is None else Penalized(base, found, weight)
    return Penalized(base, *_combined(penalty, lam, second, weight))


@operand.plus.register(Penalty)
def _(penalty: Penalty, other: Any) -> Any:
    if _is_zero(other):
        return penalty
    if isinstance(other, Regularizer):
        return other + penalty
    if not isinstance(other, Penalty):
        raise _wrong(penalty, other)
    return ScaledPenalty(*_combined(*_multiple(penalty), *_multiple(other)))


def _factor(c: Any, item: Any, words: str, holds: Any) -> float | Tensor:
    if isinstance(c, operand.Operand):
        raise TypeError(f"{item} times {c}: one of the factors must be a number or a tensor")
    if isinstance(c, numbers.Real) and not isinstance(c, bool | int):
        c = float(c)
    try:
        return arguments.hyperparameter("the factor", c, words, holds)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}, before {item}") from None


def _wrong(item: Any, other: Any) -> TypeError:
    return TypeError(
        f"{item} + {type(other).__name__} {brief(other)}: what is added must be a "
        "regmax.Regularizer (an object, not its class), a regmax.Penalty, or 0"
    )


def _is_one(c: Any) -> bool:
    return not isinstance(c, Tensor) and c == 1


def _is_zero(other: Any) -> bool:
    """Whether ``other`` is the 0 that ``sum`` begins with."""
    return isinstance(other, int | float) and not isinstance(other, bool) and other == 0


def _parts(omega: Regularizer) -> tuple[Regularizer, Penalty | None, float | Tensor]:
    """The smooth part, the penalty and its weight."""
    if not omega.exact:
        raise TypeError(f"{omega} is an approximation: it cannot be added or multiplied")
    if not isinstance(omega, Penalized):
        return omega, None, 0.0
    name = redefined(type(omega))
    if name is not None:
        raise TypeError(
            f"{type(omega).__name__} redefines {name}, so it is not base + lam * penalty: add "
            "its base and its penalty instead"
        )
    return omega.base, omega.penalty, omega.lam


def _multiple(item: Any) -> tuple[Any, float | Tensor]:
    """A regularizer or penalty as an object and its factor."""
    if isinstance(item, Scaled):
        return item.base, item.c
    return (item.penalty, item.lam) if isinstance(item, ScaledPenalty) else (item, 1.0)


def _times(item: Any, c: float | Tensor) -> tuple[Any, float | Tensor]:
    """c times ``item`` in the same form: floats are multiplied."""
    one, number = _multiple(item)
    if isinstance(c, Tensor) or isinstance(number, Tensor):
        return item, c
    return one, c * number


def _weighted(
    penalty: Penalty, lam: float | Tensor, c: float | Tensor
) -> tuple[Penalty, float | Tensor]:
    """cλR as a penalty and its weight."""
    if not (isinstance(c, Tensor) or isinstance(lam, Tensor)):
        return penalty, c * lam
    inner, outer = (lam, c) if isinstance(c, Tensor) else (c, lam)
    return (penalty if _is_one(inner) else ScaledPenalty(penalty, inner)), outer


def _combined(
    first: Penalty, lam: float | Tensor, second: Penalty, weight: float | Tensor
) -> tuple[Penalty, float]:
    """The sum of two multiples of one penalty."""
    same = _same(first, second)
    if same and not isinstance(lam, Tensor) and not isinstance(weight, Tensor):
        return first, lam + weight
    if same:
        raise NotImplementedError(
            f"{first} twice, with tensors as weights: add the weights, (a + b) * penalty"
        )
    raise NotImplementedError(
        f"{first} and {second} in one Ω: regmax knows no prox of a sum of two penalties. "
        "Total variations add up in one graph with all edges (graph_tv), ordered weights in one "
        "vector of weights (owl); of another pair, write one in the value of an Ω"
    )


def _same(a: operand.Operand, b: operand.Operand) -> bool:
    """Whether two operands are equal: the same object, or of one class and without state."""
    return a is b or (type(a) is type(b) and not (_has_state(a) or _has_state(b)))


def _has_state(module: nn.Module) -> bool:
    """Whether an object has state: attributes, parameters, buffers or submodules."""
    plain = (k for k in vars(module) if not k.startswith("_") and k != "training")
    return bool(module._parameters or module._buffers or module._modules or any(plain))


def _terms(omega: Regularizer) -> list[Regularizer]:
    return list(omega._each()) if isinstance(omega, Sum) else [omega]


def _like_terms(terms: list[Regularizer], more: list[Regularizer]) -> list[Regularizer]:
    """All terms, where multiples of one regularizer by floats become one term: those of ``more``
    are added to those of a sum."""
    found = [_multiple(term) for term in terms]
    for term in more:
        one, c = _multiple(term)
        for k, (other, number) in enumerate(found):
            floats = not isinstance(c, Tensor) and not isinstance(number, Tensor)
            if floats and _same(one, other):
                found[k] = other, number + c
                break
        else:
            found.append((one, c))
    return [one if _is_one(c) else Scaled(one, c) for one, c in found]
