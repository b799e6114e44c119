"""Reads e, H and F of :mod:`.entry` from the operations of a value.

e is of the operations that act on each entry of y alone and add up numbers of a row, H of products
of linear maps of y, F of all others. What does not depend on y is the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .entry import KINKED, Entrywise, RowFunction
from .maps import Map, Maps, Products
from .tape import FILLED, Ref, Step, Tape, Unknown, needed

aten = torch.ops.aten

_EACH = "a tensor of Ω has numbers for each row"

LAYOUT = frozenset(
    ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "alias", "clone")
)
"""Operations that move no entry, where the shape that they give shows it."""


@dataclass(frozen=True)
class _Entry:
    """A value with one number for each entry, which depends on y through that entry."""

    ref: Ref


@dataclass(frozen=True)
class _Sum:
    """(Σ_i e(y_i) + ½ yᵀHy)^(1/root) + F(y) of each row."""

    ref: Ref
    form: Ref | None = None
    root: float = 1.0
    rest: Ref | None = None


@dataclass(frozen=True)
class _Other:
    """Any other value that depends on y, and why it is none of these."""

    why: str


Y = _Entry(Ref(0))
Kind = _Entry | _Sum | Map | Products | _Other


def entrywise(value: Callable[..., Tensor], y: Tensor, tensors: list[Tensor]) -> Entrywise:
    """The parts of the value of Ω, a function of y and the tensors θ; or :class:`Unknown`."""
    y, tensors = y.detach().clone(), [t.detach().clone() for t in tensors]
    tape = Tape([y, *tensors])
    with torch.no_grad(), tape:
        result = value(y, *tensors)
    if not isinstance(result, Tensor) or result.shape != y.shape[:-1]:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise Unknown(f"it does not return one number per row: {shape} for y of {tuple(y.shape)}")
    return _Walk(tape, y, len(tensors)).made(tape.ref(result))


class _Walk:
    """Reads the tape of a value, and writes e, H, F and their inputs."""

    def __init__(self, tape: Tape, y: Tensor, tensors: int) -> None:
        self.tape, self.y, self.d, self.tensors = tape, y, y.shape[-1], tensors
        self.kinds: dict[int, Kind] = {0: Y}
        self.steps: list[Step] = []
        self.outer: list[Step] = []
        self.joined: list[Step] = []  # of F, after those of the tape
        self.given: dict[tuple[Ref, bool], Ref] = {}
        self.next = 1 << 20  # the numbers of new values, above those of the tape
        self.maps = Maps(self._outside, self.d)

    def made(self, result: Ref) -> Entrywise:
        for step in self.tape.steps:
            kinds = [self.kinds[ref.at] for ref in step.refs() if ref.at in self.kinds]
            if step.name in FILLED and kinds:
                self.tape.values[step.at] = self.tape.values[step.at].flatten()[0]
                self.tape.outside.append(step.at)
            elif not kinds:
                self.outer.append(step)
            else:
                try:
                    kind = self._of(step, kinds, self.tape.values[step.at].shape)
                except Unknown as error:
                    kind = _Other(str(error))
                self.kinds[step.at] = kind
        if result.at not in self.kinds:
            raise Unknown("it does not depend on y")
        found = self._parts(result)
        order = {ref.at: Ref(i) for i, ref in enumerate(self.given.values(), 1)}

        def placed(ref: Ref) -> Ref:
            return order.get(ref.at, ref)

        steps = [
            Step(step.at, step.op, *tree_map_only(Ref, placed, (step.args, step.kwargs)))
            for step in needed(self.steps, [found.ref])
        ]
        inputs = [
            self._outside(aten.unsqueeze.default, ref, -1) if row else ref
            for ref, row in self.given
        ]
        outside = {at: self.tape.values[at] for at in self.tape.outside}
        rest, q = self._rest(found.rest)
        outer = needed(self.outer, [*inputs, *q, *([] if found.form is None else [found.form])])
        own = placed(found.ref)
        given = (steps, own, outer, inputs, found.form, self.tensors, outside)
        return Entrywise(*given, rest, q, self.d)

    def _parts(self, ref: Ref) -> _Sum:
        """The value, which has one number per row, as a sum."""
        found = self.kinds[ref.at]
        if isinstance(found, _Sum) and found.root == 1:
            return found
        return _Sum(self._emit(aten.mul.Scalar, Ref(0), 0), rest=ref)

    def _rest(self, result: Ref | None) -> tuple[RowFunction | None, list[Ref]]:
        """F, and its inputs q."""
        if result is None:
            return None, []
        if self.y.numel() != self.d:
            raise Unknown(f"{self._why(result)}, and {_EACH}")
        steps = needed([*self.tape.steps, *self.joined], [result])
        inside = {0, *self.kinds, *(step.at for step in self.joined)}
        steps = [step for step in steps if step.at in inside]
        for step in steps:
            if self._kinked(step):
                raise Unknown(f"{self._why(result)}, and {step.op} may have a kink")
            narrow = self.tape.values[step.at].dtype if step.at in self.kinds else torch.float64
            if step.name == "detach" or narrow != torch.float64:
                raise Unknown(f"{step.op} hides what depends on y, or rounds it")
        refs = dict.fromkeys(ref for step in steps for ref in step.refs() if ref.at not in inside)
        given = {ref: self.tape.values[ref.at] for ref in refs}
        indices = {ref: t for ref, t in given.items() if not (t.is_floating_point() or t.ndim == 0)}

        def placed(ref: Ref) -> Any:
            return indices.get(ref, ref)

        steps = [
            Step(step.at, step.op, *tree_map_only(Ref, placed, (step.args, step.kwargs)))
            for step in steps
        ]
        q = [ref for ref in refs if ref not in indices]
        return RowFunction(steps, result, {ref.at: given[ref].shape for ref in q}), q

    def _kinked(self, step: Step) -> bool:
        """Whether derivatives of F may jump by this operation; y ≥ 0 has no kink in |y|."""
        if step.name in ("abs", "linalg_vector_norm") and self._kind(step.args[0]) == Y:
            return False
        if step.name == "linalg_vector_norm":
            return len(step.args) > 1 and step.args[1] <= 1
        return step.name in KINKED - {"softplus"}

    def _why(self, result: Ref) -> str:
        """Why a value is not of entries and products of linear maps alone."""
        steps = needed(self.tape.steps, [result])
        kinds = [self.kinds.get(step.at) for step in steps]
        return next((k.why for k in kinds if isinstance(k, _Other)), "it is not a sum")

    def _of(self, step: Step, kinds: list[Kind], shape: torch.Size) -> Kind:
        if any(isinstance(kind, _Sum) for kind in kinds):
            return self._of_sums(step, shape)
        for kind in kinds:
            if isinstance(kind, _Other):
                return kind
        linear = step.name in ("mm", "addmm") and kinds == [Y]
        if linear or any(isinstance(kind, Map | Products) for kind in kinds):
            return self._of_maps(step, shape)
        return self._of_entries(step, shape)

    # -- what is written ---------------------------------------------------------------------

    def _outside(self, op: Any, *args: Any, **kwargs: Any) -> Ref:
        """An operation on what does not depend on y."""
        self.next += 1
        self.outer.append(Step(self.next, op, args, kwargs))
        return Ref(self.next)

    def _emit(self, op: Any, *args: Any, **kwargs: Any) -> Ref:
        """An operation of e."""
        self.next += 1
        self.steps.append(Step(self.next, op, args, kwargs))
        return Ref(self.next)

    def _input(self, ref: Ref, row: bool = False) -> Ref:
        """What an operation of e takes for a tensor that does not depend on y. ``row``: it has one
        number per row, without a last dimension."""
        known = self.tape.values[ref.at].ndim > 0 if ref.at < len(self.tape.values) else False
        key = (ref, row and known)
        if key not in self.given:
            self.next += 1
            self.given[key] = Ref(self.next)
        return self.given[key]

    def _kind(self, item: Any) -> Kind | None:
        return self.kinds.get(item.at) if isinstance(item, Ref) else None

    # -- what is read ------------------------------------------------------------------------

    def _of_entries(self, step: Step, shape: torch.Size) -> Kind:
        kind = self._kind(step.args[0])
        own = kind.ref if isinstance(kind, _Entry) else None
        fits = shape[-1:] == (self.d,) and shape.numel() == self.y.numel()
        if own is not None:
            if step.name in LAYOUT and fits:
                return _Entry(own)
            if step.name in ("sum", "mean") and self._over_entries(step):
                return _Sum(own if step.name == "sum" else self._emit(aten.div.Tensor, own, self.d))
            p = self._norm(step)
            if p is not None:
                size = self._emit(aten.abs.default, own)
                return _Sum(self._emit(aten.pow.Tensor_Scalar, size, p), root=p)
            if step.name == "mv" and self._kind(step.args[1]) is None:
                return _Sum(self._emit(aten.mul.Tensor, own, self._input(step.args[1])))
        converts = step.name == "_to_copy" and step.kwargs.get("dtype") == torch.float64
        alone = torch.Tag.pointwise in step.op.tags or step.name == "huber_loss" or converts
        if not (alone and fits):
            raise Unknown(f"{step.op} does not act on each entry of y alone")

        def taken(ref: Ref) -> Ref:
            kind = self.kinds.get(ref.at)
            return kind.ref if isinstance(kind, _Entry) else self._input(ref)

        args, kwargs = tree_map_only(Ref, taken, (step.args, step.kwargs))
        return _Entry(self._emit(step.op, *args, **kwargs))

    def _of_maps(self, step: Step, shape: torch.Size) -> Kind:
        """An operation on linear maps of y and their products."""
        name, args = step.name, step.args
        unknown = Unknown(f"{step.op} of a linear map of y is not quadratic")
        if name == "mm" and self._kind(args[0]) == Y:
            return Map(args[1], shape[-1])
        joined = [args[0]] if name == "addmm" else step.refs()
        others = [self.tape.values[t.at] for t in joined if t.at not in self.kinds]
        if any(t.ndim > 1 and t.numel() > t.shape[-1] for t in others):
            raise Unknown(f"{step.op} of a linear map of y, and {_EACH}")
        if name == "addmm" and self._kind(args[1]) == Y and not step.kwargs:
            return Map(args[2], shape[-1], args[0])
        a = self._kind(args[0])
        size = self.tape.values[args[0].at].shape if isinstance(args[0], Ref) else None
        if name in LAYOUT and isinstance(a, Map | Products):
            if size is None or shape[-1] != size[-1] or shape.numel() != size.numel():
                raise unknown
            return a
        if name in ("sum", "mean") and isinstance(a, Map | Products) and self._over_entries(step):
            assert size is not None
            return self._summed(a, 1 if name == "sum" else size[-1])
        if isinstance(a, Map) and self._norm(step) == 2:
            return self._summed(Products(None, ((a, a),)), 1, root=2.0)
        if isinstance(a, Map) and (name == "square" or (name == "pow" and args[1] == 2)):
            return Products(None, ((a, a),))
        if name == "neg" and isinstance(a, Map | Products):
            return self._scaled(a, aten.mul.Tensor, -1)
        if len(args) != 2 or step.kwargs:
            raise unknown
        b = self._kind(args[1])
        if name in ("mul", "div") and b is None and isinstance(a, Map | Products):
            return self._scaled(a, step.op, args[1])
        if name == "mul" and a is None and isinstance(b, Map | Products):
            return self._scaled(b, step.op, args[0])
        if name == "rsub" and isinstance(a, Map) and b is None:
            return self.maps.moved(self.maps.scaled(a, aten.mul.Tensor, -1), args[1], 1)
        if name in ("add", "sub"):
            return self._added(a, b, args, 1 if name == "add" else -1, unknown)
        if name == "mul" and (a == Y or isinstance(a, Map)) and (b == Y or isinstance(b, Map)):
            pair = [m if isinstance(m, Map) else self.maps.identity() for m in (a, b)]
            return Products(None, ((pair[0], pair[1]),))
        raise unknown

    def _added(self, a: Any, b: Any, args: Any, sign: int, unknown: Unknown) -> Kind:
        products = isinstance(a, Products) or isinstance(b, Products)
        if not products and None in (a, b):
            if b is None:
                return self.maps.moved(a, args[1], sign)
            found = b if sign > 0 else self.maps.scaled(b, aten.mul.Tensor, -1)
            return self.maps.moved(found, args[0], 1)
        if not products and (a == Y or isinstance(a, Map)) and (b == Y or isinstance(b, Map)):
            maps = [m if isinstance(m, Map) else self.maps.identity() for m in (a, b)]
            return self.maps.added(maps[0], maps[1], sign)
        parts = [Products(k.ref, ()) if isinstance(k, _Entry) else k for k in (a, b)]
        if not all(isinstance(k, Products) for k in parts):
            raise unknown
        one, other = parts
        if sign < 0:
            other = self._scaled(other, aten.mul.Tensor, -1)
        entry = one.entry or other.entry
        if one.entry is not None and other.entry is not None:
            entry = self._emit(aten.add.Tensor, one.entry, other.entry)
        return Products(entry, one.pairs + other.pairs)

    def _scaled(self, a: Map | Products, op: Any, by: Any) -> Map | Products:
        if isinstance(a, Map):
            return self.maps.scaled(a, op, by)
        pairs = tuple((self.maps.scaled(one, op, by), other) for one, other in a.pairs)
        if a.entry is None:
            return Products(None, pairs)
        inside = self._input(by) if isinstance(by, Ref) else by
        return Products(self._emit(op, a.entry, inside), pairs)

    def _summed(self, a: Map | Products, count: int, root: float = 1.0) -> _Sum:
        """The sum of a row, divided by ``count``."""
        if isinstance(a, Map):
            form, linear, constants = self.maps.total(a)
            a = Products(None, ())
        else:
            form, linear, constants = self.maps.form(a.pairs)
        total = a.entry or self._emit(aten.mul.Scalar, Ref(0), 0)
        for c in linear:
            weighted = self._emit(aten.mul.Tensor, Ref(0), self._input(c))
            total = self._emit(aten.add.Tensor, total, weighted)
        for c in constants:
            share = self._emit(aten.div.Tensor, self._input(c), self.d)
            total = self._emit(aten.add.Tensor, total, share)
        if count != 1:
            total = self._emit(aten.div.Tensor, total, count)
            form = form and self._outside(aten.div.Tensor, form, count)
        return _Sum(total, form, root)

    def _of_sums(self, step: Step, shape: torch.Size) -> _Sum:
        """An operation on sums over the entries that gives such a sum again."""
        name, batch = step.name, self.y.shape[:-1]
        unknown = Unknown(f"{step.op} is not linear in the sums over the entries")
        if shape not in (batch, (*batch, 1)):
            raise Unknown(f"{step.op} joins entries of y with their sum")
        items = [*step.args[:2], None][:2]
        a, b = (self._kind(item) for item in items)
        if isinstance(a, _Sum) and name in LAYOUT:
            return a
        if isinstance(a, _Sum) and name == "pow" and step.args[1] == a.root:
            return _Sum(a.ref, a.form)
        if len(step.args) > 2:
            raise unknown
        a, b = (None if self._kind(item) is None else self._parts(item) for item in items)
        if name in ("mul", "div", "neg") and not (a and b) and not (name == "div" and a is None):
            own, other = (a, items[1]) if a else (b, items[0])
            assert own is not None
            by: list[Any] = [] if name == "neg" else [other]
            form, rest = own.form, own.rest
            if form is not None:
                if by and isinstance(other, Ref) and self.tape.values[other.at].numel() > 1:
                    raise Unknown(f"it has a quadratic form, and {_EACH}")
                form = self._outside(step.op, form, *by)
            if rest is not None:
                rest = self._join(step.op, rest, *by)
            inside = [self._input(t, shape == batch) if isinstance(t, Ref) else t for t in by]
            return _Sum(self._emit(step.op, own.ref, *inside), form, rest=rest)
        if name not in ("add", "sub", "rsub"):
            raise unknown

        def taken(t: Any, kind: _Sum | None) -> Any:
            if kind is not None:
                return kind.ref
            if not isinstance(t, Ref):
                return t / self.d  # a constant is shared out among the entries
            return self._emit(aten.div.Tensor, self._input(t, shape == batch), self.d)

        def combined(parts: list[Ref | None], emit: Callable[..., Ref]) -> Ref | None:
            one, other = parts if name != "rsub" else reversed(parts)
            if one is not None and other is not None:
                op = aten.add.Tensor if name == "add" else aten.sub.Tensor
                return emit(op, one, other, **step.kwargs)
            if other is not None and (name != "add" or step.kwargs):
                factor = step.kwargs.get("alpha", 1) * (1 if name == "add" else -1)
                return emit(aten.mul.Tensor, other, factor)
            return one or other

        inside = [taken(t, k) for t, k in zip(items, (a, b), strict=True)]
        form = combined([None if k is None else k.form for k in (a, b)], self._outside)
        rest = combined([None if k is None else k.rest for k in (a, b)], self._join)
        return _Sum(self._emit(step.op, *inside, **step.kwargs), form, rest=rest)

    def _join(self, op: Any, *args: Any, **kwargs: Any) -> Ref:
        """An operation of F."""
        self.next += 1
        self.joined.append(Step(self.next, op, args, kwargs))
        return Ref(self.next)

    def _norm(self, step: Step) -> float | None:
        """p, where the operation is the p-norm of each row."""
        if step.name != "linalg_vector_norm" or len(step.args) < 3 or not step.args[2]:
            return None
        p = step.args[1]
        known = isinstance(p, int | float) and 0 < p < 99 and self._last(step.args[2])
        return float(p) if known else None

    def _over_entries(self, step: Step) -> bool:
        """Whether the operation reduces the last dimension, and no other."""
        dims = step.args[1] if len(step.args) > 1 else None
        return bool(dims) and self._last(dims) and "dtype" not in step.kwargs

    def _last(self, dims: Any) -> bool:
        return [k % self.y.ndim for k in dims] == [self.y.ndim - 1]
