"""The algebra of regularizers: ``a + b``, ``c * a``, ``a + c * R`` and ``sum([...])`` are what they
say, for regularizers a and b, a penalty R and a number c.

    Π_{cΩ,γ} = Π_{Ω,cγ},        c (Ω + λR) = cΩ + cλ R,        (a + λR) + b = (a + b) + λR.

So every expression is a smooth Ω, or one with one penalty, :class:`regmax.Penalized`, and is
computed as these are. A number is a float or a tensor, a learnable one for instance, of the shape
of every hyperparameter: it broadcasts to the scores with size 1 along ``dim``. It stays a symbol:
no product of tensors is taken before the scores come.
"""

from __future__ import annotations

import numbers
from typing import Any

from torch import Tensor, nn

from . import arguments, operand
from .expressions import Scaled, ScaledPenalty, Sum
from .penalty import DEFINED, Penalized, Penalty
from .regularizer import Regularizer

__all__ = ["Scaled", "ScaledPenalty", "Sum"]


@operand.times.register(Regularizer)
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


@operand.times.register(Penalty)
def _(penalty: Penalty, c: Any) -> Penalty:
    c = _factor(c, penalty, *ScaledPenalty.ranges["lam"])
    if isinstance(penalty, ScaledPenalty) and _floats(c, penalty.lam):
        return ScaledPenalty(penalty.penalty, c * penalty.lam)
    return ScaledPenalty(penalty, c)


@operand.plus.register(Regularizer)
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


@operand.plus.register(Penalty)
def _(penalty: Penalty, other: Any) -> Any:
    if _is_nothing(other):
        return penalty
    if isinstance(other, Regularizer):
        return other + penalty
    if not isinstance(other, Penalty):
        raise _wrong(penalty, other)
    return ScaledPenalty(*_both(*_pair(penalty), *_pair(other)))


def _factor(c: Any, item: Any, words: str, holds: Any) -> float | Tensor:
    if isinstance(c, operand.Operand):
        raise TypeError(f"{item!r} times {c!r}: one of the factors must be a number or a tensor")
    if isinstance(c, numbers.Real) and not isinstance(c, bool):
        c = float(c)
    try:
        return arguments.hyperparameter("the factor", c, words, holds)
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
