"""The value of a separable Ω as a function of one entry: Ω(y; θ) = Σ_i e(y_i; p_i(θ)).

In ``value``, the operations on y must act on each entry alone, or add up the entries of a row. What
does not depend on y is the inputs p(θ). These stay in PyTorch, where autograd differentiates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .tape import FILLED, Ref, Step, Tape, Unknown, function, needed

aten = torch.ops.aten

LAYOUT = frozenset(
    "view _unsafe_view reshape unsqueeze squeeze expand alias clone contiguous lift_fresh".split()
)
"""Operations that move no entry, where the shape that they give shows it."""

KINKED = frozenset(
    "abs relu clamp clamp_min clamp_max maximum minimum where masked_fill huber_loss sign sgn "
    "softplus floor ceil round trunc fmod remainder".split()
)
"""Operations whose derivatives may jump."""


class Entrywise:
    """e and p, as PyTorch computes them; ``outside``: the tensors that are not attributes of Ω."""

    def __init__(
        self,
        steps: list[Step],
        result: Ref,
        outer: list[Step],
        inputs: list[Ref],
        tensors: int,
        outside: dict[int, Tensor],
    ) -> None:
        self.kinked = any(step.name in KINKED for step in steps)
        self._entry = function(steps, range(len(inputs) + 1), [result])
        self.outside = list(outside.values())
        self._inputs = function(outer, [*range(1, tensors + 1), *outside], inputs)

    def __call__(self, y: Tensor, *inputs: Tensor) -> Tensor:
        """e(y_i; p_i) of each entry."""
        found: Tensor = self._entry(y, *inputs)[0]
        return found

    def inputs(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """p(θ): each is one number for all entries, one for each row, or one for each entry."""
        found: list[Tensor] = self._inputs(*tensors, *self.outside)
        return found


@dataclass(frozen=True)
class _Entry:
    """A value with one number for each entry, which depends on y through that entry."""

    ref: Ref


@dataclass(frozen=True)
class _Sum:
    """Σ_i e(y_i)^(1/root) of each row."""

    ref: Ref
    root: float = 1.0


def entrywise(value: Callable[..., Tensor], y: Tensor, tensors: list[Tensor]) -> Entrywise:
    """The value of Ω, a function of y and the tensors θ, entry by entry; or :class:`Unknown`."""
    y, tensors = y.detach().clone(), [t.detach().clone() for t in tensors]
    tape = Tape([y, *tensors])
    with torch.no_grad(), tape:
        result = value(y, *tensors)
    if not isinstance(result, Tensor) or result.shape != y.shape[:-1]:
        raise Unknown("it does not return one number per row")
    return _Walk(tape, y, len(tensors)).made(tape.ref(result))


class _Walk:
    """Reads the tape of a value, and writes e and p."""

    def __init__(self, tape: Tape, y: Tensor, tensors: int) -> None:
        self.tape, self.y, self.tensors = tape, y, tensors
        self.kinds: dict[int, _Entry | _Sum] = {0: _Entry(Ref(0))}
        self.steps: list[Step] = []
        self.outer: list[Step] = []
        self.given: dict[tuple[Ref, bool], Ref] = {}
        # the inputs of e are numbered when all are known: until then by negative numbers
        self.next = 1 << 20

    def made(self, result: Ref) -> Entrywise:
        for step in self.tape.steps:
            kinds = [self.kinds[ref.at] for ref in step.refs() if ref.at in self.kinds]
            if step.name in FILLED and kinds:
                self.tape.values[step.at] = self.tape.values[step.at].flatten()[0]
                self.tape.outside.append(step.at)
                continue
            if not kinds:
                self.outer.append(step)
                continue
            shape = self.tape.values[step.at].shape
            if any(isinstance(kind, _Sum) for kind in kinds):
                self.kinds[step.at] = self._of_sums(step, shape)
            else:
                self.kinds[step.at] = self._of_entries(step, shape)
        found = self.kinds.get(result.at)
        if not isinstance(found, _Sum) or found.root != 1:
            raise Unknown("it is not a sum over the entries of y")
        order = {ref.at: Ref(i) for i, ref in enumerate(self.given.values(), 1)}
        order[0] = Ref(0)

        def placed(ref: Ref) -> Ref:
            return order.get(ref.at, ref)

        steps = [
            Step(step.at, step.op, *tree_map_only(Ref, placed, (step.args, step.kwargs)))
            for step in needed(self.steps, [found.ref])
        ]
        wanted = [self._outer_ref(ref, row) for ref, row in self.given]
        outside = {at: self.tape.values[at] for at in self.tape.outside}
        outer = needed(self.outer, wanted)
        return Entrywise(steps, placed(found.ref), outer, wanted, self.tensors, outside)

    def _outer_ref(self, ref: Ref, row: bool) -> Ref:
        """An input, one number per row as (*batch, 1)."""
        if not row:
            return ref
        self.next += 1
        self.outer.append(Step(self.next, aten.unsqueeze.default, (ref, -1), {}))
        return Ref(self.next)

    def _input(self, ref: Ref, row: bool) -> Ref:
        """What an operation of e takes for a tensor that does not depend on y. ``row``: it has one
        number per row, without a last dimension."""
        shape = self.tape.values[ref.at].shape
        key = (ref, row and len(shape) > 0)
        if key not in self.given:
            self.next += 1
            self.given[key] = Ref(self.next)
        return self.given[key]

    def _emit(self, op: Any, *args: Any, **kwargs: Any) -> Ref:
        self.next += 1
        self.steps.append(Step(self.next, op, args, kwargs))
        return Ref(self.next)

    def _of_entries(self, step: Step, shape: torch.Size) -> _Entry | _Sum:
        first, d = step.args[0], self.y.shape[-1]
        kind = self.kinds.get(first.at) if isinstance(first, Ref) else None
        own = kind.ref if kind else None
        if step.name in LAYOUT and shape[-1:] == (d,) and shape.numel() == self.y.numel():
            assert own is not None
            return _Entry(own)
        if step.name in ("sum", "mean") and self._over_entries(step, shape):
            assert own is not None
            return _Sum(own if step.name == "sum" else self._emit(aten.div.Tensor, own, d))
        if step.name == "linalg_vector_norm" and own is not None:
            p = step.args[1] if len(step.args) > 1 else 2
            dims = step.args[2] if len(step.args) > 2 else None
            if dims is not None and self._last(dims) and isinstance(p, int | float) and 0 < p < 99:
                size = self._emit(aten.abs.default, own)
                return _Sum(self._emit(aten.pow.Tensor_Scalar, size, p), float(p))
        if step.name in ("mv", "dot", "matmul", "mm") and own is not None:
            other = step.args[1]
            vector = self.tape.values[other.at].numel() == d and other.at not in self.kinds
            if vector and self.tape.values[other.at].ndim == 1:
                return _Sum(self._emit(aten.mul.Tensor, own, self._input(other, row=False)))
        fits = shape[-1:] == (d,) and shape.numel() == self.y.numel()
        converts = step.name == "_to_copy" and step.kwargs.get("dtype") == torch.float64
        alone = torch.Tag.pointwise in step.op.tags or step.name == "huber_loss" or converts
        if not (alone and fits):
            raise Unknown(f"{step.op} does not act on each entry of y alone")

        def taken(ref: Ref) -> Ref:
            kind = self.kinds.get(ref.at)
            return self._input(ref, row=False) if kind is None else kind.ref

        args, kwargs = tree_map_only(Ref, taken, (step.args, step.kwargs))
        return _Entry(self._emit(step.op, *args, **kwargs))

    def _of_sums(self, step: Step, shape: torch.Size) -> _Sum:
        """An operation on sums over the entries that gives such a sum again."""
        first = step.args[0]
        kind = self.kinds.get(first.at) if isinstance(first, Ref) else None
        batch = self.y.shape[:-1]
        if shape not in (batch, (*batch, 1)):
            raise Unknown(f"{step.op} joins entries of y with their sum")
        if step.name in LAYOUT and isinstance(kind, _Sum):
            return kind
        if step.name == "pow" and isinstance(kind, _Sum) and step.args[1] == kind.root:
            return _Sum(kind.ref)
        other: Any = step.args[1] if len(step.args) > 1 else None
        kinds = [self.kinds.get(t.at) if isinstance(t, Ref) else None for t in (first, other)]
        if not all(isinstance(k, _Sum) and k.root == 1 for k in kinds if k is not None):
            raise Unknown(f"{step.op} is not linear in the sums over the entries")
        sums = sum(k is not None for k in kinds)
        scales = step.name in ("mul", "div") and sums == 1 and (step.name == "mul" or kinds[0])
        adds = step.name in ("add", "sub", "rsub")
        if not (scales or adds or step.name == "neg"):
            raise Unknown(f"{step.op} is not linear in the sums over the entries")
        row = shape == batch

        def taken(t: Any, kind: _Entry | _Sum | None) -> Any:
            if kind is not None:
                return kind.ref
            if isinstance(t, Ref):
                t = self._input(t, row)
            # a constant of the row is shared out among its entries
            return self._emit(aten.div.Tensor, t, self.y.shape[-1]) if (
                adds and isinstance(t, Ref)
            ) else (t / self.y.shape[-1] if adds else t)

        args = [taken(t, k) for t, k in zip((first, other), kinds, strict=True)]
        return _Sum(self._emit(step.op, *args[: len(step.args)], **step.kwargs))

    def _over_entries(self, step: Step, shape: torch.Size) -> bool:
        """Whether the operation reduces the last dimension, and no other."""
        dims = step.args[1] if len(step.args) > 1 else None
        return dims is not None and self._last(dims) and "dtype" not in step.kwargs

    def _last(self, dims: Any) -> bool:
        return [k % self.y.ndim for k in dims] == [self.y.ndim - 1]
