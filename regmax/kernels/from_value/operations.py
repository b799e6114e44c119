"""The operations of PyTorch in source code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from .tape import Step, Unknown

LITERAL = (-2, -1, 0, 0.5, 1, 2, 3)
"""Constants that are written into the source."""


def constant(item: Any, constants: list[float], name: Callable[[int], str]) -> Any:
    """An argument that is no tensor, in the source. A number that is not written out is added to
    ``constants`` and goes by the name of its place there."""
    if isinstance(item, bool) or not isinstance(item, int | float):
        return item
    if item in LITERAL:
        return repr(float(item))
    if not math.isfinite(item):
        return "-np.inf" if item < 0 else "np.inf" if item > 0 else "np.nan"
    if item not in constants:
        constants.append(float(item))
    return name(constants.index(item))


def expression(step: Step, args: list[Any], kwargs: dict[str, Any]) -> str:
    """The source of an operation on numbers, of these arguments."""
    name = step.name
    if name == "pow":
        exponent = step.args[1]
        return _power(args[0], exponent, args[1])
    if name in ("add", "sub", "rsub"):
        alpha = kwargs.pop("alpha", args[2] if len(args) > 2 else None)
        a, b = args[:2]
        if name == "rsub":
            a, b = b, a
        scaled = b if alpha in (None, "1.0") else f"({alpha} * {b})"
        return f"{a} {'+' if name == 'add' else '-'} {scaled}"
    known = TRANSLATED.get(name)
    if known is None or kwargs.keys() - {"memory_format", "pin_memory"}:
        raise Unknown(f"{step.op} has no translation")
    try:
        return known(*args)
    except TypeError:
        raise Unknown(f"{step.op} has no translation with these arguments") from None


def _by_roots(exponent: Any) -> bool:
    """Whether a power is a product of a few factors."""
    return isinstance(exponent, int | float) and abs(exponent) < 9 and 2 * exponent % 1 == 0


def _power(base: str, exponent: Any, text: str) -> str:
    if not _by_roots(exponent):
        return f"{base} ** {text}"
    whole = math.floor(abs(exponent))
    parts = [base] * whole + [f"math.sqrt({base})"] * (abs(exponent) > whole)
    product = " * ".join(parts) or "1.0"
    return product if exponent >= 0 else f"1.0 / ({product})"


def _clamped(x: str, low: Any = None, high: Any = None) -> str:
    x = x if low is None else f"max({x}, {low})"
    return x if high is None else f"min({x}, {high})"


def _softplus(x: str, beta: str = "1.0", threshold: str = "20.0") -> str:
    big, z = f"{x} * {beta} > {threshold}", f"math.log1p(math.exp({x} * {beta})) / {beta}"
    return f"({x} if {big} else {z})"


def _softplus_backward(g: str, x: str, beta: str, threshold: str) -> str:
    z = f"math.exp({x} * {beta})"
    return f"({g} if {x} * {beta} > {threshold} else {g} * {z} / ({z} + 1.0))"


def _huber(x: str, y: str, reduction: Any = 1, delta: str = "1.0") -> str:
    if reduction != "0.0":
        raise TypeError
    z = f"abs({x} - {y})"
    return f"(0.5 * {z} * {z} if {z} <= {delta} else {delta} * ({z} - 0.5 * {delta}))"


def _huber_backward(g: str, x: str, y: str, reduction: Any, delta: str) -> str:
    if reduction != "0.0":
        raise TypeError
    return f"{g} * max(min({x} - {y}, {delta}), -{delta})"


_CALLS = [
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
]
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


def _calls() -> Iterator[tuple[str, Callable[..., str]]]:
    for name in _CALLS:
        yield name, lambda x, name=name: f"math.{name}({x})"
    for name, sign in _SIGNS.items():
        yield name, lambda a, b, sign=sign: f"{a} {sign} {b}"
    for word in ("and", "or"):
        for kind in ("logical_", "bitwise_"):
            yield f"{kind}{word}", lambda a, b, word=word: f"({a} {word} {b})"
    for name in ("alias", "clone", "detach"):
        yield name, lambda x: x


TRANSLATED: dict[str, Callable[..., str]] = dict(_calls()) | {
    "expand": lambda x, shape: x,
    "neg": lambda x: f"-{x}",
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "abs": lambda x: f"abs({x})",
    "sgn": lambda x: f"(1.0 if {x} > 0.0 else (-1.0 if {x} < 0.0 else 0.0))",
    "sign": lambda x: f"(1.0 if {x} > 0.0 else (-1.0 if {x} < 0.0 else 0.0))",
    "reciprocal": lambda x: f"1.0 / {x}",
    "square": lambda x: f"{x} * {x}",
    "rsqrt": lambda x: f"1.0 / math.sqrt({x})",
    "exp2": lambda x: f"2.0 ** {x}",
    "special_entr": lambda x: f"(-{x} * math.log({x}) if {x} > 0.0 else 0.0)",
    "xlogy": lambda x, y: f"({x} * math.log({y}) if {x} != 0.0 else 0.0)",
    "special_xlog1py": lambda x, y: f"({x} * math.log1p({y}) if {x} != 0.0 else 0.0)",
    "sigmoid": lambda x: f"1.0 / (1.0 + math.exp(-{x}))",
    "sigmoid_backward": lambda g, s: f"{g} * ((1.0 - {s}) * {s})",
    "tanh_backward": lambda g, t: f"{g} * (1.0 - {t} * {t})",
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "huber_loss": _huber,
    "huber_loss_backward": _huber_backward,
    "relu": lambda x: f"max({x}, 0.0)",
    "threshold_backward": lambda g, x, bound: f"({g} if {x} > {bound} else 0.0)",
    "maximum": lambda a, b: f"max({a}, {b})",
    "minimum": lambda a, b: f"min({a}, {b})",
    "clamp": _clamped,
    "clamp_min": _clamped,
    "clamp_max": lambda x, high: f"min({x}, {high})",
    "where": lambda on, a, b: f"({a} if {on} else {b})",
    "masked_fill": lambda x, on, value: f"({value} if {on} else {x})",
    "logical_not": lambda x: f"(not {x})",
    "bitwise_not": lambda x: f"(not {x})",
    "logaddexp": lambda a, b: f"(max({a}, {b}) + math.log1p(math.exp(-abs({a} - {b}))))",
    "hypot": lambda a, b: f"math.hypot({a}, {b})",
    "atan2": lambda a, b: f"math.atan2({a}, {b})",
}
"""The operations of PyTorch that are translated, besides powers, sums and differences."""
