"""Source code of e and its derivatives, from the operations that PyTorch's autograd runs.

A function of this source gets entries t of a row and writes a number for each. The inputs of e and
the constants of its operations are arguments, so that Ω that differ in numbers share the code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .entry import Entrywise
from .operations import constant, expression
from .tape import FILLED, Ref, Step, Tape, Unknown, needed
from .translator import Lanes

_MODULE = """from regmax.kernels.cpu import elementary, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.from_value import implicit


@njit
def slopes(t, numbers):
{}


forward, backward = implicit.functions(slopes, {})
"""


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
    return _written("slopes", derivatives(entry, value), vectors, constants, int(value), lanes)


def module(entry: Entrywise, vectors: list[bool], constants: list[float], dense: bool) -> str:
    """The two functions of :func:`.implicit.functions` as a module."""
    tape, results = recorded(derivatives(entry), vectors)
    writer = _Writer(tape, vectors, constants, True)
    lines = writer.lines(results)
    found = ", ".join(writer.broad_text(ref) for ref in results)
    body = [*writer.head, *lines, f"return {found}"]
    return _MODULE.format("\n".join(f"    {line}" for line in body), dense)


def derivatives(
    entry: Entrywise, value: bool = False
) -> Callable[[Tensor, list[Tensor]], list[Tensor]]:
    """e', e'' and e''' of t and the inputs, and if ``value`` e before them."""

    def found(t: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        each = [entry(t, *inputs)]
        for _ in range(3):
            each.append(derivative(each[-1], t))
        return each if value else each[1:]

    return found


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
    tape, results = recorded(function, vectors)
    loops = [("n", results[apart:]), *([("-n", results[:apart])] if apart else [])]
    text = _Writer(tape, vectors, constants, False).written(name, loops)
    # LLVM calls these functions for one number; a power by exp and log would lose digits
    if lanes and re.search(r"math\.(?!sqrt)", text) and "**" not in text:
        with contextlib.suppress(Unknown):
            return _Writer(tape, vectors, constants, True).written(name, loops)
    return text


def recorded(
    function: Callable[[Tensor, list[Tensor]], list[Tensor]], vectors: list[bool]
) -> tuple[Tape, list[Ref]]:
    """The operations of a function of t and the inputs, and its results."""
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
    return tape, [tape.ref(t) for t in found]


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
        body = []
        for name, (array, start) in self.given.items():
            piece = f"common.piece({array}, {start}i, {start}{count}, 1.0)"
            body.append(f"{name} = {piece if self.wide else f'{array}[{start}i]'}")
        body += self.lines(results)
        for k, ref in enumerate(results):
            found, start = self.text(ref, self.varying), f"{k} * stride + "
            if self.wide:
                broad = self.broad_text(ref)
                body.append(f"common.store_piece(out, {start}i, {start}{count}, {broad})")
            else:
                body.append(f"out[{start}i] = {found}")
        return body

    def broad_text(self, ref: Ref) -> str:
        """A result as sixteen numbers."""
        found = self.text(ref, self.varying)
        return found if found in self.broad else f"simd.spread(t, {found})"

    def lines(self, results: list[Ref]) -> list[str]:
        """The operations of the results."""
        self.known, self.negated, self.broad = {}, {}, set(self.given)
        varying = self.varying = set(range(len(self.vectors) + 1))
        for step in needed(self.tape.steps, results):
            if step.name not in FILLED and any(ref.at in varying for ref in step.refs()):
                varying.add(step.at)
                args = [self.number(step, a, self.text(a, varying)) for a in step.args]
                kwargs = {k: self.text(a, varying) for k, a in step.kwargs.items()}
                copied = step.name == "_to_copy" and step.kwargs.get("dtype") == torch.float64
                self.names[step.at] = self.simple(step, args, kwargs) or self.put(
                    str(args[0]) if copied else expression(step, args, kwargs)
                )
        return [f"{name} = {text}" for text, name in self.known.items()]

    def put(self, text: str) -> str:
        """The name of a result; results of the same source are one."""
        broad = False
        if self.wide:
            text, broad = Lanes(self.broad).written(text)
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

    def number(self, step: Step, item: Any, text: Any) -> Any:
        """An argument, as a number where it is a condition and the operation takes numbers."""
        if step.name in ("where", "masked_fill") or not isinstance(item, Ref):
            return text
        dtypes = [self.tape.values[at].dtype for at in (item.at, step.at)]
        return f"(1.0 if {text} else 0.0)" if dtypes == [torch.bool, torch.float64] else text

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
