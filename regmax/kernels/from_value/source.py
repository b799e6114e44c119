"""Source code of e and its derivatives, from the operations that PyTorch's autograd runs.

A function of this source gets entries t of a row and writes a number for each. The inputs of e and
the constants of its operations are arguments, so that Ω that differ in numbers share the code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .entry import Entrywise
from .tape import FILLED, Ref, Step, Tape, Unknown, needed

LITERAL = (-2, -1, 0, 0.5, 1, 2, 3)
"""Constants that are written into the source."""


def slopes(
    entry: Entrywise,
    vectors: list[bool],
    constants: list[float],
    value: bool = False,
    lanes: bool = False,
) -> str:
    """e', e'' and e''' of each entry; ``vectors``: which inputs have a number for each entry.
    Numbers of the source that are not inputs are added to ``constants``. ``value``: whether it
    gives e of −n entries where n is negative. ``lanes``: whether it may take sixteen entries at a
    time."""

    def derivatives(t: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        found = [entry(t, *inputs)]
        for _ in range(3):
            found.append(derivative(found[-1], t))
        return found if value else found[1:]

    return _written("slopes", derivatives, vectors, constants, int(value), lanes)


def partials(
    entry: Entrywise, vectors: list[bool], constants: list[float], lanes: bool = False
) -> str:
    """∂e'/∂p of each entry, for each input p: first those without a number for each entry."""

    def derivatives(t: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        slope = derivative(entry(t, *inputs), t)
        ordered = sorted(zip(vectors, range(len(inputs)), strict=True))
        return [derivative(slope, inputs[k]) for _, k in ordered]

    return _written("partials", derivatives, vectors, constants, 0, lanes)


def derivative(value: Tensor, t: Tensor) -> Tensor:
    """The gradient of Σ value in t, differentiable."""
    if not value.requires_grad:
        return torch.zeros_like(t)
    # of the sum: to give weights would load sympy, for .7 s
    (found,) = torch.autograd.grad(value.sum(), t, create_graph=True, allow_unused=True)
    return torch.zeros_like(t) if found is None else found


def _written(
    name: str,
    function: Callable[[Tensor, list[Tensor]], list[Tensor]],
    vectors: list[bool],
    constants: list[float],
    apart: int,
    lanes: bool,
) -> str:
    """``apart``: how many of the first results are written for −n entries instead."""
    # different numbers everywhere: a constant is what has one value
    points = [
        torch.tensor([0.31, 0.52, 0.73], dtype=torch.float64, device="cpu")
        .add(0.01 * k)
        .requires_grad_()
        for k in range(len(vectors) + 1)
    ]
    tape = Tape(points, writes=True)
    with torch.enable_grad(), tape:
        found = function(points[0], points[1:])
    results = [tape.ref(t) for t in found]
    loops = [("n", results[apart:]), *([("-n", results[:apart])] if apart else [])]
    wide = lanes and in_lanes(step for _, refs in loops for step in needed(tape.steps, refs))
    return _Writer(tape, vectors, constants, wide).written(name, loops)


def in_lanes(steps: Iterable[Step]) -> bool:
    """Whether the operations are written for sixteen entries at a time: if there are functions
    that LLVM calls for one number, and all have a translation into :mod:`regmax.kernels.cpu.simd`.
    """
    names = {step.name for step in steps if step.name not in FILLED}
    powers = [step.args[1] for step in steps if step.name == "pow"]
    return bool(names & {"log", "exp"}) and names <= _LANES and all(map(_by_roots, powers))


class _Writer:
    def __init__(self, tape: Tape, vectors: list[bool], constants: list[float], wide: bool) -> None:
        self.tape, self.vectors, self.constants, self.wide = tape, vectors, constants, wide
        self.used: set[int] = set()
        self.names: dict[int, str] = {0: "t"}
        numbers = 0
        self.head: list[str] = []
        self.given = {"t": ("y", "")}
        self.known: dict[str, str] = {}
        self.negated: dict[str, str] = {}
        self.broad = {"t"}
        for k, vector in enumerate(vectors, 1):
            self.names[k] = f"p{k}"
            if vector:
                self.given[f"p{k}"] = "vectors", f"{k - 1 - numbers} * stride + "
            else:
                self.head.append(f"p{k} = numbers[{numbers}]")
                numbers += 1
        self.first = numbers

    def written(self, name: str, loops: list[tuple[str, list[Ref]]]) -> str:
        """A function of loops, each of so many entries, with these results."""
        body = []
        for count, results in loops:
            body.append(f"for i in range(0, {count}, {16 if self.wide else 1}):")
            body += [f"    {line}" for line in self.loop(count, results)]
        lines = [f"def {name}(n, y, numbers, vectors, stride, out):"]
        lines += [f"    {line}" for line in (*self.head, *body)]
        return "\n".join(lines) + "\n"

    def loop(self, count: str, results: list[Ref]) -> list[str]:
        """The results for one entry, or for sixteen."""
        body, self.known, self.negated, self.broad = [], {}, {}, set(self.given)
        varying = set(range(len(self.vectors) + 1))
        for name, (array, start) in self.given.items():
            piece = f"common.piece({array}, {start}i, {start}{count}, 1.0)"
            body.append(f"{name} = {piece if self.wide else f'{array}[{start}i]'}")
        for step in needed(self.tape.steps, results):
            if step.name not in FILLED and any(ref.at in varying for ref in step.refs()):
                varying.add(step.at)
                args = [self.text(a, varying) for a in step.args]
                kwargs = {k: self.text(a, varying) for k, a in step.kwargs.items()}
                self.names[step.at] = self.simple(step, args, kwargs) or self.put(
                    self.converted(step, args) or expression(step, args, kwargs)
                )
        body += [f"{name} = {text}" for text, name in self.known.items()]
        for k, ref in enumerate(results):
            found, start = self.text(ref, varying), f"{k} * stride + "
            if self.wide:
                v = found if found in self.broad else f"simd.spread(t, {found})"
                body.append(f"common.store_piece(out, {start}i, {start}{count}, {v})")
            else:
                body.append(f"out[{start}i] = {found}")
        return body

    def put(self, text: str) -> str:
        """The name of a result; results of the same source are one."""
        broad = self.wide and bool(self.broad & set(re.findall(r"\b[tpv]\d*\b", text)))
        if broad:
            text = re.sub(r"^-(\w+)$", r"\1 * -1.0", text)
            for one, sixteen in _WIDE.items():
                text = text.replace(one, sixteen)
        name = self.known.setdefault(text, f"v{len(self.known)}")
        if broad:
            self.broad.add(name)
        return name

    def simple(self, step: Step, args: list[Any], kwargs: dict[str, Any]) -> str | None:
        """A result that needs no operation, or only one of the opposite sign; None for others.
        Exact, also for 0, ∞ and NaN: but for t/t, and 0 < t ≤ 1."""
        numbers = [self.tape.values[ref.at].dtype for ref in step.refs()]
        if kwargs or any(dtype != torch.float64 for dtype in numbers):
            return None
        if step.name == "neg":
            return self.negative(args[0])
        if step.name == "mul":
            for a, b in (args, args[::-1]):
                if a in ("1.0", "-1.0"):
                    return b if a == "1.0" else self.negative(b)
        if step.name == "div":
            a, b = args
            if a == b == "t":
                return "1.0"
            if a == "-1.0" or a in self.negated:
                return self.negative(self.put(f"{self.negated.get(a, '1.0')} / {b}"))
        return None

    def negative(self, name: str) -> str:
        """−v."""
        if name in self.negated:
            return self.negated[name]
        found = "-1.0" if name == "1.0" else self.put(f"-{name}")
        self.negated[found] = name
        return found

    def converted(self, step: Step, args: list[Any]) -> str | None:
        """A conversion to float64, None for another operation."""
        if step.name != "_to_copy" or step.kwargs.get("dtype") != torch.float64:
            return None
        boolean = self.tape.values[step.args[0].at].dtype == torch.bool
        return f"(1.0 if {args[0]} else 0.0)" if boolean else str(args[0])

    def text(self, item: Any, varying: set[int]) -> Any:
        """An argument in the source: a name or a number."""
        if isinstance(item, Ref):
            if item.at in varying:
                return self.names[item.at]
            t = self.tape.values[item.at]
            if t.dtype == torch.bool or not bool((t == t.flatten()[0]).all()):
                raise Unknown("a derivative of its value depends on a tensor that is not recorded")
            item = t.flatten()[0].item()
        return constant(item, self.constants, self.named)

    def named(self, k: int) -> str:
        """The name of a constant."""
        if k not in self.used:
            self.used.add(k)
            self.head.append(f"c{k} = numbers[{self.first + k}]")
        return f"c{k}"


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


_LANES = {
    *("add", "sub", "rsub", "mul", "div", "neg", "pow", "square", "reciprocal", "sqrt", "rsqrt"),
    *("log", "exp", "alias", "clone", "detach", "expand"),
}
"""The operations that are written for sixteen entries too, with these functions."""
_WIDE = {
    "math.sqrt(": "simd.sqrt(",
    "math.log(": "elementary.any_log(",
    "math.exp(": "elementary.any_exp(",
}

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
