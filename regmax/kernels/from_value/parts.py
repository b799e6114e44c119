"""Numbers of entries in parts of e that one kernel for all entries takes:

    Ω(y) = Σ a_i f(b_i y_i) + ⟨w, y⟩.

The linear term shifts the scores: the maximiser is that without it at x − γw. Without a and b, f is
a function of an entry as any other; with them, it is one with weights (:mod:`.weighted`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..base import Hyper
from .entry import Entrywise
from .tape import Ref, Step, Unknown, function, needed

aten = torch.ops.aten
Number = float | Ref
"""What does not depend on y."""
_WIDE = Unknown("e has numbers of entries elsewhere")


class _Sum(NamedTuple):
    """a f(by) + wy + c, where f has no number for each entry; None: 0, and 1 for a and b."""

    f: Ref | None
    w: Number | None
    c: Number | None
    a: Ref | None = None
    b: Ref | None = None


class Parts(NamedTuple):
    """f, the places of its inputs, and w, a and b as functions of all inputs; None: 0, and 1 for a
    and b."""

    entry: Entrywise
    places: list[int]
    linear: Callable[..., Tensor] | None
    factor: Callable[..., Tensor] | None
    scale: Callable[..., Tensor] | None

    @property
    def weighted(self) -> bool:
        """Whether there is an a or a b."""
        return self.factor is not None or self.scale is not None

    def of(self, part: Callable[..., Tensor] | None, theta: Hyper) -> Tensor | None:
        """w, a or b of all rows, or of each."""
        return None if part is None else part(*map(_row, theta))

    def gradients(self, theta: Hyper, dx: Tensor, own: Hyper) -> Hyper:
        """The gradients in all inputs, in each row, from −Jv and those in the inputs of ``entry``;
        w moves x/γ by −w."""
        with torch.enable_grad():
            given = [_row(t).expand(len(dx), -1).detach().requires_grad_() for t in theta]
            assert self.linear is not None
            w = self.linear(*given)
            each = torch.autograd.grad(w, given, dx.expand_as(w), allow_unused=True)
        found = [t.new_zeros(t.shape) if g is None else g for t, g in zip(given, each, strict=True)]
        for k, g in zip(self.places, own, strict=True):
            found[k] = found[k] + g.view(-1, 1)
        return tuple(g.squeeze(-1) if t.ndim == 1 else g for g, t in zip(found, theta, strict=True))


def moved(x: Tensor, gamma: Tensor, w: Tensor | None, exactly: bool = False) -> Tensor:
    """x − γw, up to a constant of each row unless ``exactly``."""
    if w is None:
        return x
    if exactly:
        return x - w * gamma.view(-1, 1)
    # relative to the largest score, and w to its least: those that count lose no digits
    shift, top = w * gamma.view(-1, 1), x.amax(-1, keepdim=True)
    x = x - torch.where(top > -torch.inf, top, 0)
    return x.sub_((shift - shift.amin(-1, keepdim=True)).to(x.dtype))


def _row(t: Tensor) -> Tensor:
    """An input, of numbers for each row or for each entry, as rows."""
    return t.view(-1, 1) if t.ndim == 1 else t


def parted(entry: Entrywise, vectors: list[bool]) -> Parts | None:
    """The parts of an e that has numbers for each entry in w, a and b alone; None elsewhere.
    ``vectors``: which inputs have one for each entry."""
    walk = _Walk(vectors)
    try:
        for step in entry.steps:
            walk.take(step)
    except Unknown:
        return None
    found = walk.known.get(entry.result.at)
    if not isinstance(found, _Sum) or found.f is None:
        return None
    if not any(isinstance(part, Ref) for part in (found.w, found.a, found.b)):
        return None
    steps, count = needed(walk.steps, [found.f]), len(vectors)
    used = {ref.at for step in steps for ref in step.refs()}
    places = [k for k in range(count) if k + 1 in used]
    order = {k + 1: Ref(1 + at) for at, k in enumerate(places)}
    low = 1 + len(places)

    def placed(ref: Ref) -> Ref:
        return order.get(ref.at, ref)

    steps = [
        Step(step.at, step.op, *tree_map_only(Ref, placed, (step.args, step.kwargs)))
        for step in steps
    ]
    own = [Ref(k) for k in range(1, low)]
    rest = Entrywise(steps, found.f, [], own, None, len(own), {}, None, [], 0)

    def call(part: Number | None) -> Callable[..., Tensor] | None:
        if not isinstance(part, Ref):
            return None
        made = function(needed(walk.steps, [part]), range(1, count + 1), [part])
        return lambda *inputs: made(*inputs)[0]

    return Parts(rest, places, *map(call, (found.w, found.a, found.b)))


class _Walk:
    """Reads the operations of e as sums, and writes those of f and w."""

    def __init__(self, vectors: list[bool]) -> None:
        self.steps: list[Step] = []
        self.known: dict[int, _Sum | Ref] = {0: _Sum(None, 1.0, None)}
        self.known |= {k: Ref(k) for k in range(1, len(vectors) + 1)}
        self.wide = {k for k, vector in enumerate(vectors, 1) if vector}
        self.next = 1 << 24  # above the numbers of e
        self.same: dict[Any, Ref] = {}

    def take(self, step: Step) -> None:
        """Read one operation."""
        args = tuple(self.known[a.at] if isinstance(a, Ref) else a for a in step.args)
        if not any(isinstance(a, _Sum) for a in args):
            self.known[step.at] = self._emit(step.op, *args, **step.kwargs)
            return
        found = None
        if not step.kwargs and len(args) <= 2:
            a, b = (*args, None)[:2]
            found = self._joined(step.name, a, b)
        self.known[step.at] = found or self._function(step.op, *args, **step.kwargs)

    def _joined(self, name: str, a: Any, b: Any) -> _Sum | None:
        """The operations that may take a linear term or a constant of its own for each entry."""
        if name in ("add", "sub"):
            return self._added(a, b if name == "add" else self._times(b, -1.0))
        if name == "neg":
            return self._times(a, -1.0)
        if name == "mul":
            return self._times(a, b)
        if name == "div" and isinstance(a, _Sum) and not isinstance(b, _Sum):
            return self._each(a, lambda t: self._emit(aten.div.Tensor, t, b), self._is_wide(b))
        if name == "square" or (name == "pow" and b == 2):
            return self._times(a, a)
        if name == "log":
            return self._log(a)
        if name == "xlogy" and isinstance(a, _Sum):
            return self._times(a, self._log(b))
        return None

    def _function(self, op: Any, *args: Any, **kwargs: Any) -> _Sum:
        """An operation that is not linear, as a function of by."""
        scales = {self._scale(a) for a in args if isinstance(a, _Sum)}
        if len(scales) > 1:
            raise _WIDE
        given = [self._written(a) if isinstance(a, _Sum) else a for a in args]
        if any(map(self._is_wide, given)):
            raise _WIDE
        return _Sum(self._emit(op, *given, **kwargs), None, None, b=scales.pop())

    def _scale(self, a: _Sum) -> Ref | None:
        """b of a sum, and that of a linear term which stands alone."""
        return a.w if a.f is None and self._is_wide(a.w) else a.b  # type: ignore[return-value]

    def _written(self, a: _Sum) -> Ref:
        """f(s) + ws/b + c, s = by, as one value, of numbers that all entries share."""
        found, b = a.f, self._scale(a)
        if a.w is not None:
            if b is not None and a.w != b:
                raise _WIDE
            unit = a.w in (1, b)
            found = self._plus(found, Ref(0) if unit else self._emit(aten.mul.Tensor, Ref(0), a.w))
        found = self._plus(found, a.c)
        if a.a is not None or not isinstance(found, Ref) or found.at in self.wide:
            raise _WIDE
        return found

    def _log(self, a: Any) -> Any:
        """log(wy) = log y + log w."""
        if not isinstance(a, _Sum):
            return self._emit(aten.log.default, a)
        if a.f is None and a.c is None and isinstance(a.w, Ref):
            f = self._emit(aten.log.default, Ref(0))
            return _Sum(f, None, self._emit(aten.log.default, a.w))
        return self._function(aten.log.default, a)

    def _added(self, a: Any, b: Any) -> _Sum:
        one, other = (t if isinstance(t, _Sum) else _Sum(None, None, t) for t in (a, b))
        if one.f is None:
            one, other = other, one
        if other.f is not None and one[3:] != other[3:]:
            raise _WIDE
        f, w, c = (self._plus(s, t) for s, t in zip(one[:3], other[:3], strict=True))
        return _Sum(f, w, c, one.a, one.b)

    def _times(self, a: Any, b: Any) -> Any:
        if not isinstance(a, _Sum):
            a, b = b, a
        if not isinstance(a, _Sum):
            return self._product(a, b)
        if not isinstance(b, _Sum):
            return self._each(a, lambda t: self._product(t, b), self._is_wide(b))
        if b.f is None and b.c is None:
            a, b = b, a
        if a.f is None and a.c is None and b.w is None:
            found = self._along(a.w, b)
            if found is not None:
                return found
        if a.f is None and b.f is None and not (self._is_wide(a.w) or self._is_wide(b.w)):
            square = None
            if a.w is not None and b.w is not None:
                square = self._product(self._product(Ref(0), Ref(0)), self._product(a.w, b.w))
            w = self._plus(self._product(a.w, b.c), self._product(b.w, a.c))
            return _Sum(square, w, self._product(a.c, b.c))
        if a.f is a.c is b.f is b.c is None and a.w != b.w:  # w y v y
            square = self._product(Ref(0), Ref(0))
            return self._times(_Sum(square, None, None), self._product(a.w, b.w))
        return self._function(aten.mul.Tensor, a, b)

    def _along(self, w: Number | None, b: _Sum) -> _Sum | None:
        """wy (a f(by) + c), where that is another sum of this kind."""
        linear = None if b.c is None else self._product(w, b.c)
        if b.f is None:
            return _Sum(None, linear, None)
        if b.b is None and not self._is_wide(w):
            y = self._written(_Sum(None, w, None))
            return _Sum(self._product(y, b.f), linear, None, b.a)
        f = self._product(Ref(0), b.f)
        if b.b is None:
            found = self._each(_Sum(f, None, None, b.a), lambda t: self._product(t, w), True)
            return found._replace(w=linear)
        return _Sum(f, linear, None, b.a, w) if b.b == w else None

    def _each(self, a: _Sum, change: Callable[[Any], Any], wide: bool) -> _Sum:
        """A linear operation on each part. ``wide``: it has a number for each entry."""
        f, w, c, factor, scale = a
        w, c = (None if t is None else change(t) for t in (w, c))
        if wide and f is not None:
            return _Sum(f, w, c, change(1.0 if factor is None else factor), scale)
        return _Sum(None if f is None else change(f), w, c, factor, scale)

    def _plus(self, a: Number | None, b: Number | None) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return self._emit(aten.add.Tensor, a, b)

    def _product(self, a: Number | None, b: Number | None) -> Any:
        if a is None or b is None:
            return None
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self._emit(aten.mul.Tensor, a, b)

    def _is_wide(self, item: Any) -> bool:
        return isinstance(item, Ref) and item.at in self.wide

    def _emit(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation; of numbers alone, its result."""
        if not any(isinstance(a, Ref) for a in args):
            given = [torch.tensor(float(a), dtype=torch.float64, device="cpu") for a in args]
            return float(op(*given))
        if not isinstance(args[0], Ref) and op in (aten.add.Tensor, aten.mul.Tensor):
            args = args[::-1]
        key = op, repr(args), repr(kwargs)
        if key in self.same:
            return self.same[key]
        self.next += 1
        self.steps.append(Step(self.next, op, args, kwargs))
        if any(self._is_wide(a) for a in args):
            self.wide.add(self.next)
        self.same[key] = Ref(self.next)
        return Ref(self.next)
