"""A linear term of e, which shifts the scores: Σ e(y_i) + ⟨w, y⟩ has the maximiser of Σ e at
x − γw."""

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
_WIDE = Unknown("e has numbers of entries in more than a linear term")


class _Sum(NamedTuple):
    """f(y) + wy + c, where f has no number for each entry; None: 0."""

    f: Ref | None
    w: Number | None
    c: Number | None


class Shifted(NamedTuple):
    """e without its linear term, the places of its inputs, and w as a function of all inputs."""

    entry: Entrywise
    places: list[int]
    linear: Callable[..., Tensor]

    def w(self, theta: Hyper) -> Tensor:
        """w of all rows, or of each."""
        return self.linear(*map(_row, theta))

    def gradients(self, theta: Hyper, dx: Tensor, own: Hyper) -> Hyper:
        """The gradients in all inputs, in each row, from −Jv and those in the inputs of ``entry``;
        w moves x/γ by −w."""
        with torch.enable_grad():
            given = [_row(t).expand(len(dx), -1).detach().requires_grad_() for t in theta]
            w = self.linear(*given)
            each = torch.autograd.grad(w, given, dx.expand_as(w), allow_unused=True)
        found = [t.new_zeros(t.shape) if g is None else g for t, g in zip(given, each, strict=True)]
        for k, g in zip(self.places, own, strict=True):
            found[k] = found[k] + g.view(-1, 1)
        return tuple(g.squeeze(-1) if t.ndim == 1 else g for g, t in zip(found, theta, strict=True))


def _row(t: Tensor) -> Tensor:
    """An input, of numbers for each row or for each entry, as rows."""
    return t.view(-1, 1) if t.ndim == 1 else t


def shifted(entry: Entrywise, vectors: list[bool]) -> Shifted | None:
    """The parts of an e that has numbers for each entry in a linear term alone; None elsewhere.
    ``vectors``: which inputs have one for each entry."""
    walk = _Walk(vectors)
    try:
        for step in entry.steps:
            walk.take(step)
    except Unknown:
        return None
    found = walk.known.get(entry.result.at)
    if not isinstance(found, _Sum) or found.f is None or not isinstance(found.w, Ref):
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
    call = function(needed(walk.steps, [found.w]), range(1, count + 1), [found.w])
    return Shifted(rest, places, lambda *inputs: call(*inputs)[0])


class _Walk:
    """Reads the operations of e as sums, and writes those of f and w."""

    def __init__(self, vectors: list[bool]) -> None:
        self.steps: list[Step] = []
        self.known: dict[int, _Sum | Ref] = {0: _Sum(None, 1.0, None)}
        self.known |= {k: Ref(k) for k in range(1, len(vectors) + 1)}
        self.wide = {k for k, vector in enumerate(vectors, 1) if vector}
        self.next = 1 << 24  # above the numbers of e

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
        if found is None:
            given = [self._written(a) if isinstance(a, _Sum) else a for a in args]
            if any(map(self._is_wide, given)):
                raise _WIDE
            found = _Sum(self._emit(step.op, *given, **step.kwargs), None, None)
        self.known[step.at] = found

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

    def _written(self, a: _Sum) -> Ref:
        """f(y) + wy + c as one value, of numbers that all entries share."""
        found = a.f
        if a.w is not None:
            term = Ref(0) if a.w == 1 else self._emit(aten.mul.Tensor, Ref(0), a.w)
            found = self._plus(found, term)
        found = self._plus(found, a.c)
        if not isinstance(found, Ref) or found.at in self.wide:
            raise _WIDE
        return found

    def _log(self, a: Any) -> Any:
        """log(wy) = log y + log w."""
        if not isinstance(a, _Sum):
            return self._emit(aten.log.default, a)
        if a.f is None and a.c is None and isinstance(a.w, Ref):
            f = self._emit(aten.log.default, Ref(0))
            return _Sum(f, None, self._emit(aten.log.default, a.w))
        return _Sum(self._emit(aten.log.default, self._written(a)), None, None)

    def _added(self, a: Any, b: Any) -> _Sum:
        one, other = (t if isinstance(t, _Sum) else _Sum(None, None, t) for t in (a, b))
        return _Sum(*(self._plus(s, t) for s, t in zip(one, other, strict=True)))

    def _times(self, a: Any, b: Any) -> Any:
        if not isinstance(a, _Sum):
            a, b = b, a
        if not isinstance(a, _Sum):
            return self._product(a, b)
        if not isinstance(b, _Sum):
            return self._each(a, lambda t: self._product(t, b), self._is_wide(b))
        if b.f is None and b.c is None:
            a, b = b, a
        if a.f is None and a.c is None and not self._is_wide(a.w) and b.w is None:
            y, c = self._written(a), None if b.c is None else self._product(a.w, b.c)
            return _Sum(None if b.f is None else self._product(y, b.f), c, None)
        if a.f is None and b.f is None and not (self._is_wide(a.w) or self._is_wide(b.w)):
            square = None
            if a.w is not None and b.w is not None:
                square = self._product(self._product(Ref(0), Ref(0)), self._product(a.w, b.w))
            w = self._plus(self._product(a.w, b.c), self._product(b.w, a.c))
            return _Sum(square, w, self._product(a.c, b.c))
        return _Sum(self._product(self._written(a), self._written(b)), None, None)

    def _each(self, a: _Sum, change: Callable[[Any], Any], wide: bool) -> _Sum:
        """A linear operation on each part."""
        if wide and a.f is not None:
            raise _WIDE
        return _Sum(*(None if t is None else change(t) for t in a))

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
        self.next += 1
        self.steps.append(Step(self.next, op, args, kwargs))
        if any(self._is_wide(a) for a in args):
            self.wide.add(self.next)
        return Ref(self.next)
