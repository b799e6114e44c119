"""Source code of the gradient and the Hessian of a function of one row, as loops over its tensors.

Each operation that PyTorch's autograd runs is a loop over the numbers of its result, which stay in
one array ``w``. A view is no operation: it has its own strides. An operation that is linear and has
no translation is the matrix that it is of.
Sizes, strides, constants and tables are arguments, so that Ω of other numbers shares the code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .arrays import Array, Whole, shown
from .linear import WIDEST, matrices
from .operations import TRANSLATED, constant, expression
from .source import derivative
from .tape import FILLED, Ref, Step, Tape, Unknown, needed

aten = torch.ops.aten
_HEAD = (
    "whole = memory.longs(memory.address_of(numbers))",
    "constants = memory.pointer(memory.address_of(numbers), whole[0], numbers)",
    "tables = memory.pointer(memory.address_of(numbers), whole[1], numbers)",
    "places = memory.longs(memory.address_of(tables))",
    "q = memory.pointer(memory.address_of(numbers), whole[2], numbers)",
)
_ALONE = re.compile(r"\b[wqy]\[[k\d]\d*\]")
_NEW = FILLED | {"new_zeros", "new_ones", "new_full", "empty_like"}
_CONTRACTED = {"mm": ("ik", "kj", "ij"), "bmm": ("bik", "bkj", "bij"), "mv": ("ik", "k", "i")} | {
    "dot": ("k", "k", "")
}


def _variance(x: Tensor, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    dims = dims or list(range(x.ndim))
    count, away = math.prod(x.shape[k] for k in dims), x - x.mean(dims, True)
    return (away * away).sum(dims, keepdim) / max(count - correction, 0)


def _norm(x: Tensor, p: Any = 2, dims: Any = None, keepdim: bool = False) -> Tensor:
    if not 0 < p < 99:
        raise Unknown("a norm has no translation with these arguments")
    total = (x * x if p == 2 else x.abs() ** p).sum(dims or list(range(x.ndim)), keepdim)
    return total.sqrt() if p == 2 else total ** (1 / p)


_PARTS: dict[str, Callable[..., Tensor]] = {
    "mean": lambda x, dims=None, keepdim=False: (
        x.sum(dims or list(range(x.ndim)), keepdim)
        / math.prod(x.shape[k] for k in dims or range(x.ndim))
    ),
    "var": _variance,
    "std": lambda x, *args, **kwargs: _variance(x, *args, **kwargs).sqrt(),
    "linalg_vector_norm": _norm,
    "addmm": lambda start, x, y: start + x @ y,
    "logsumexp": lambda x, dims, keepdim=False: (
        (x - x.amax(dims, True)).exp().sum(dims, keepdim).log() + x.amax(dims, keepdim)
    ),
    "_softmax": lambda x, dim, _: (x - x.logsumexp(dim, True)).exp(),
    "_log_softmax": lambda x, dim, _: x - x.logsumexp(dim, True),
    "_softmax_backward_data": lambda g, s, dim, _: s * (g - (g * s).sum(dim, True)),
    "_log_softmax_backward_data": lambda g, s, dim, _: g - s.exp() * g.sum(dim, True),
}
"""Operations by others."""


class Program:
    """The source of ∇F(y; p), ``gradient``, and of a column of ∇²F(y; p), ``column``, for a row y;
    ``room`` is how many numbers the work space of either has. ``given`` is what the code takes
    before the numbers of p: whole numbers as bits, constants and tables."""

    def __init__(
        self, function: Callable[..., Tensor], y: Tensor, inputs: Sequence[Tensor]
    ) -> None:
        self.whole, self.constants = [0] * 3, list[float]()
        self.tables: dict[bytes, int] = {}
        self.length, self.room = 0, 0

        def gradient(y: Tensor, v: Tensor, *p: Tensor) -> Tensor:
            return derivative(function(y, *p), y)

        def column(y: Tensor, v: Tensor, *p: Tensor) -> Tensor:
            return derivative(gradient(y, v, *p) * v, y)

        self.gradient = self._source("gradient", gradient, y, inputs)
        self.column = self._source("column", column, y, inputs)
        at = len(self.whole), len(self.whole) + len(self.constants)
        self.whole[:3] = (*at, at[1] + max(self.length, 1))
        whole = torch.tensor(self.whole, dtype=torch.int64, device="cpu").view(torch.float64)
        constants = torch.tensor(self.constants, dtype=torch.float64, device="cpu")
        tables = bytearray().join(self.tables) or bytearray(8)
        self.given = torch.cat([whole, constants, torch.frombuffer(tables, dtype=torch.float64)])

    def _source(
        self, name: str, function: Callable[..., Tensor], y: Tensor, inputs: Sequence[Tensor]
    ) -> str:
        given = [t.detach().clone() for t in (y, y, *inputs)]
        given[0].requires_grad_()
        tape = Tape(given, True, _PARTS)
        with torch.enable_grad(), tape:
            found = function(*given)
        writer = _Writer(tape, len(given), self)
        source = writer.written(name, tape.ref(found))
        self.room = max(self.room, writer.room)
        return source


class _Writer:
    def __init__(self, tape: Tape, given: int, program: Program) -> None:
        self.tape, self.program = tape, program
        self.lines: list[str] = []
        self.head: dict[str, str] = {}
        self.room = 0
        self.arrays: dict[int, Array] = {}
        self.owners: dict[int, tuple[str, int]] = {}  # by storage
        self.width = 0
        self.width = self.whole(tape.values[0].numel())
        self.arrays[0] = self._owned(0, "y", 0)
        self.arrays[1] = self._owned(1, "w", 0)
        self.room, first = tape.values[0].numel(), 0
        for k in range(2, given):
            self.arrays[k] = self._owned(k, "q", first)
            first += tape.values[k].numel()

    def whole(self, n: int) -> int:
        """A size, offset or stride, which is an argument."""
        if n in (0, 1) or isinstance(n, Whole):
            return n
        if n == self.width:
            return self.width
        found, k = Whole(n), len(self.program.whole)
        found.name = f"k{k}"
        self.head[found.name] = f"whole[{k}]"
        self.program.whole.append(n)
        return found

    def _array(self, name: str, like: Tensor, offset: int, strides: Sequence[int]) -> Array:
        """An array of a tensor's shape."""
        shape, *places = (tuple(map(self.whole, each)) for each in (like.shape, strides, [offset]))
        return Array(name, shape, places[1][0], places[0])

    def _owned(self, at: int, name: str, offset: int) -> Array:
        """A new array for the numbers of a tensor, as its storage has them."""
        t = self.tape.values[at]
        dense = (
            t.numel() == 0
            or 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) == t.numel()
        )
        strides = t.stride() if dense else torch.empty(t.shape, device="cpu").stride()
        if dense:
            start = name, offset - int(t.storage_offset())
            self.owners[t.untyped_storage().data_ptr()] = start
        return self._array(name, t, offset, strides)

    def written(self, name: str, result: Ref) -> str:
        steps = needed(self.tape.steps, [result])
        for step in steps:
            if step.name not in _NEW and any(self._known(ref) for ref in step.refs()):
                self._step(step)
        found = self._known(result)
        text = self._text(result) if found is None else found.flat().at((self.width,))
        self.lines += self._loops((self.width,), f"out[i0] = {text}")
        body = [f"for i in range({shown(self.width)}):", "    w[i] = 0.0", "w[n] = 1.0"]
        body += self.lines
        used = set(re.findall(r"\b[ck]\d+\b", "\n".join(body)))
        # before all loops: a number could change by what they write, as far as LLVM knows
        start = [*_HEAD, *(f"{k} = {text}" for k, text in self.head.items() if k in used)]
        lines = [f"def {name}(n, y, numbers, w, stride, out):"]
        return "\n".join((*lines, *(f"    {line}" for line in (*start, *body)))) + "\n"

    # -- arguments -----------------------------------------------------------------------------

    def _known(self, ref: Ref) -> Array | None:
        """The array of what depends on y, v or the inputs."""
        if ref.at in self.arrays:
            return self.arrays[ref.at]
        if ref.at in self.tape.outside:  # what autograd kept of a result
            t = self.tape.values[ref.at]
            owner = self.owners.get(t.untyped_storage().data_ptr())
            if owner is not None:
                name, start = owner
                start += int(t.storage_offset())
                self.arrays[ref.at] = self._array(name, t, start, t.stride())
                return self.arrays[ref.at]
        return None

    def _text(self, item: Any, sizes: Sequence[int] = ()) -> Any:
        """An argument in the source: a number of an array, or a constant."""
        if isinstance(item, Ref):
            array = self._known(item)
            if array is not None:
                return array.at(sizes)
            t = self.tape.values[item.at].detach()
            if t.numel() > 1 and not bool((t == t.flatten()[0]).all()):
                return self._table(t).at(sizes)
            item = t.flatten()[0].item()
        return constant(item, self.program.constants, self._named)

    def _named(self, k: int) -> str:
        """The name of a constant."""
        self.head[f"c{k}"] = f"constants[{k}]"
        return f"c{k}"

    def _table(self, t: Tensor) -> Array:
        """Numbers that do not depend on y."""
        if t.numel() > 16 * WIDEST:
            raise Unknown(f"it uses a tensor of more than {16 * WIDEST} numbers that is not Ω's")
        name, program = "places", self.program
        if t.dtype != torch.int64:
            name, t = "tables", t.double()
        content = t.contiguous().numpy().tobytes()
        at = program.tables.setdefault(content, program.length)
        if at == program.length:
            program.length += t.numel()
        return self._array(name, t, at, torch.empty(t.shape, device="cpu").stride())

    # -- operations ----------------------------------------------------------------------------

    def _new(self, at: int) -> Array:
        numel = self.tape.values[at].numel()
        if numel > WIDEST:
            raise Unknown(f"a tensor on the way has more than {WIDEST} numbers")
        found = self.arrays[at] = self._owned(at, "w", self.room)
        self.room += numel
        return found

    def _loops(self, sizes: Sequence[int], *body: str) -> list[str]:
        """The lines for all indices."""
        lines, depth = [], 0
        for k, n in enumerate(sizes):
            if n != 1:
                lines.append("    " * depth + f"for i{k} in range({shown(n)}):")
                depth += 1
        return [*lines, *("    " * depth + line for line in body)]

    def _step(self, step: Step) -> None:
        name, args, kwargs = step.name, step.args, dict(step.kwargs)
        values = self.tape.values
        t = values[step.at]
        source = self._known(args[0]) if args and isinstance(args[0], Ref) else None
        if source is not None and (step.op.is_view or name in ("detach", "alias")):
            base = values[args[0].at]
            moved = t.storage_offset() - base.storage_offset()
            if source.strides == base.stride():
                start = source.offset + moved if moved else source.offset
                self.arrays[step.at] = self._array(source.name, t, start, t.stride())
                return
        out = self._new(step.at)
        sizes = out.shape
        if name in _CONTRACTED:
            self._contracted(step, out)
        elif name in ("sum", "amax") and source:
            self._reduced(step, source, out)
        elif name in ("clone", "_to_copy", "_unsafe_view", "view", "reshape", "detach", "alias"):
            assert source is not None
            if source.shape != out.shape:
                self._linear(step, out)
            else:
                self._put(sizes, out.at(sizes), source.at(sizes))
        elif name in TRANSLATED or name in ("pow", "add", "sub", "rsub"):
            taken = [self._text(a, sizes) for a in args]
            given = {k: self._text(a, sizes) for k, a in kwargs.items()}
            self._put(sizes, out.at(sizes), expression(step, taken, given))
        else:
            self._linear(step, out)

    def _put(self, sizes: Sequence[int], place: str, text: str, sign: str = "=") -> None:
        inner = max((k for k, n in enumerate(sizes) if n != 1), default=0)
        if self._loops(sizes):  # what does not vary is read before, as the results may be there
            alone = [one for one in dict.fromkeys(_ALONE.findall(text)) if one != place]
            for k, one in enumerate(alone):
                self.lines.append(f"a{k} = {one}")
                text = text.replace(one, f"a{k}")
        if sign != "+=" or f"i{inner}" in re.findall(r"\w+", place) or not sizes:
            self.lines += self._loops(sizes, f"{place} {sign} {text}")
            return
        loop = f"for i{inner} in range({shown(sizes[inner])}):"  # the sum stays in a register
        body = f"total = {place}", loop, f"    total += {text}", f"{place} = total"
        self.lines += self._loops(sizes[:inner], *body)

    def _fill(self, out: Array, text: str) -> None:
        self._put(out.shape, out.at(out.shape), text)

    def _contracted(self, step: Step, out: Array) -> None:
        """Products of matrices."""
        self._fill(out, "0.0")
        one, other, result = _CONTRACTED[step.name]
        left, right = (self._operand(a) for a in step.args)
        letters = sorted(set(one + other), key=lambda c: (c == "k", c))
        sizes = dict(zip(one + other, left.shape + right.shape, strict=True))
        place = {c: f"i{k}" for k, c in enumerate(letters)}

        def at(array: Array, own: str) -> str:
            return array.at(array.shape, [place[c] for c in own])

        text = f"{at(left, one)} * {at(right, other)}"
        self._put([sizes[c] for c in letters], at(out, result), text, "+=")

    def _operand(self, ref: Ref) -> Array:
        found = self._known(ref)
        return self._table(self.tape.values[ref.at].detach()) if found is None else found

    def _reduced(self, step: Step, source: Array, out: Array) -> None:
        """The sum or the largest number along some dimensions."""
        if step.kwargs.get("dtype") not in (None, torch.float64):
            raise Unknown(f"{step.op} has no translation with these arguments")
        n = len(source.shape)
        over = {k % n for k in step.args[1]} if step.args[1:] and step.args[1] else set(range(n))
        rest = iter(out.strides)
        strides = []
        for k in range(n):
            stride = next(rest) if len(out.shape) == n or k not in over else 0
            strides.append(0 if k in over else stride)
        sizes, x = source.shape, source.at(source.shape)
        here = Array(out.name, sizes, out.offset, strides).at(sizes)
        if step.name == "amax":
            self._fill(out, "-np.inf")
            self._put(sizes, here, f"max({here}, {x})")
        else:
            self._fill(out, "0.0")
            self._put(sizes, here, x, "+=")

    def _linear(self, step: Step, out: Array) -> None:
        """An operation that is linear in what depends on y, by its matrix."""
        refs = list(dict.fromkeys(ref for ref in step.refs() if self._known(ref)))
        if any(self.arrays[ref.at].name == "numbers" for ref in refs):
            raise Unknown(f"{step.op} has no translation")
        self._fill(out, "0.0")
        for ref, matrix in zip(refs, matrices(step, self.tape.values, refs), strict=True):
            array, (rows, columns) = self.arrays[ref.at], matrix.nonzero().unbind(1)
            given = out.places()[rows], array.places()[columns], matrix[rows, columns]
            to, at, by = (self._table(t).at() for t in given)
            to, at = f"{shown(out.offset)} + {to}", f"{shown(array.offset)} + {at}"
            sizes = (self.whole(len(rows)),)
            self.lines += self._loops(sizes, f"w[{to}] += {by} * {array.name}[{at}]")
