"""A user's separable Ω as a graph holds it: the operations of its value.

A graph outlives the class of Ω, and another process may not have it. So :func:`read` records the
value, as :mod:`regmax.kernels.from_value` does for a kernel, and :class:`Recorded` is e alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from .penalty import Penalized, who
from .regularizer import Regularizer

_LENGTHS = 5, 6
"""Lengths of rows at which a value is read. It must be the same at both."""
_PLACED = "layout", "device", "pin_memory", "non_blocking", "memory_format"


class Recorded(Regularizer):
    """Ω(y) = Σ_i e(y_i; p), of the class ``of``. ``steps``: the operations of e, each its name in
    ATen and its arguments, on y and p, the values 0, 1, …; ``("v", k)`` is the value k."""

    separable = True
    entry: Any

    def __init__(self, of: str, steps: tuple[Any, ...], *p: Any) -> None:
        from ..kernels.from_value import Entrywise
        from ..kernels.from_value.tape import Ref, Step

        self.of, self.steps, self.names = of, steps, tuple(f"p{k}" for k in range(len(p)))
        for name, t in zip(self.names, p, strict=True):
            setattr(self, name, t)
        count = 1 + len(p)
        made = [Step(count + k, *_operation(step)) for k, step in enumerate(steps)]
        own = [Ref(k) for k in range(1, count)]
        self.entry = Entrywise(made, Ref(made[-1].at), [], own, None, len(p), {}, None, [], 0)

    def value(self, y: Tensor) -> Tensor:
        total: Tensor = self.entry(y, *(getattr(self, name) for name in self.names)).sum(-1)
        return total

    def in_graph(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """Π_Ω of z in operations of PyTorch."""
        from ..kernels.from_value import in_graph

        p = [getattr(self, name) for name in self.names]
        on = torch.ones_like(z, dtype=torch.bool) if mask is None else mask
        return in_graph.solve(in_graph.slopes(self.entry, p), z, on)

    def __str__(self) -> str:
        return self.of


class Reading(NamedTuple):
    """What is read of a value: the class, the operations of e, and p as a function of the tensors
    of Ω. ``text`` says all of it."""

    of: str
    steps: tuple[Any, ...]
    inputs: Callable[[list[Tensor]], list[Tensor]]
    text: str

    def made(self, tensors: list[Tensor]) -> Recorded:
        """Ω with these tensors."""
        wide = [t.double() if t.is_floating_point() else t for t in tensors]
        return Recorded(self.of, self.steps, *self.inputs(wide))


def recorded(omega: Regularizer) -> Recorded:
    """Ω by the operations of its value; TypeError says why there are none."""
    return read(omega).made(list(omega.tensors(fixed=True).values()))


def read(omega: Regularizer) -> Reading:
    """What is read of the value of Ω; TypeError says why it cannot be recorded."""
    from ..kernels.from_value import Unknown

    tensors = omega.tensors(fixed=True)
    lengths = {t.shape[-1] for t in tensors.values() if t.ndim and t.shape[-1] != 1}
    given = (omega.entries,) if omega.entries else tuple(lengths) or _LENGTHS
    try:
        found = [transforms.apart(_read, omega, tensors, d) for d in given]
        if any(each.text != found[0].text for each in found):
            raise Unknown("it depends on the length of a row (declare entries)")
    except Exception as error:  # of the user's code, too
        why = str(error) if isinstance(error, Unknown) else f"{type(error).__name__}: {error}"
        raise TypeError(
            "torch.compile and torch.export record closed forms of registered regularizers and "
            f"penalties, and Ω = Σ e(y_i) by its value; the value of {who(omega)} cannot be "
            f"recorded: {why} (compile without fullgraph, or outside of this layer)"
        ) from error
    return found[0]


def _read(omega: Regularizer, tensors: dict[str, Tensor], d: int) -> Reading:
    """The same at rows of d entries; the numbers of the tensors are not read."""
    from ..kernels.from_value import Unknown, entrywise
    from ..kernels.from_value.tape import Ref, Step

    if isinstance(omega, Penalized):
        raise Unknown("it has a penalty")

    def value(y: Tensor, *inside: Tensor) -> Tensor:
        return omega.with_tensors(dict(zip(tensors, inside, strict=True))).value(y)

    y = simplex.generic(torch.empty(1, d, dtype=torch.float64, device="cpu"))
    dtypes = [y.dtype if t.is_floating_point() else t.dtype for t in tensors.values()]
    ones = [
        torch.ones(t.shape, dtype=dtype, device="cpu")
        for t, dtype in zip(tensors.values(), dtypes, strict=True)
    ]
    with torch.no_grad():
        entry = entrywise(value, y, ones)
    if entry.coupled:
        raise Unknown("it couples entries of y")
    if entry.kinked:
        raise Unknown("its derivatives may jump")
    if not entry.steps:
        raise Unknown("it is linear")
    if any(t.numel() > 1 for t in entry.outside):
        raise Unknown("it reads a tensor that is not an attribute of Ω")
    numbers = [t.item() for t in entry.outside]
    known = dict(zip(entry.given, numbers, strict=True))
    kept = [k for k, ref in enumerate(entry.own) if ref.at not in known]
    places: dict[int, Any] = {0: ("v", 0)}
    places |= {1 + k: known.get(ref.at) for k, ref in enumerate(entry.own)}
    places |= {1 + k: ("v", 1 + i) for i, k in enumerate(kept)}

    def written(item: Any) -> Any:
        if isinstance(item, Ref):
            return places[item.at]
        if isinstance(item, list | tuple):
            return tuple(map(written, item))
        return str(item) if isinstance(item, torch.dtype) else item

    def of(step: Step, k: int) -> tuple[Any, ...]:
        options = tuple((k, written(v)) for k, v in step.kwargs.items() if k not in _PLACED)
        found = f"{step.name}.{step.op._overloadname}", tuple(map(written, step.args)), options
        places[step.at] = ("v", k)
        return found

    steps = tuple(of(step, 1 + len(kept) + k) for k, step in enumerate(entry.steps))

    entry.outside = numbers

    def inputs(tensors: list[Tensor]) -> list[Tensor]:
        found = entry.inputs(tensors)
        return [found[k] for k in kept]

    outer = [(step.at, str(step.op), step.args, step.kwargs) for step in entry.outer]
    text = repr((who(omega), steps, outer, entry.own, known))
    return Reading(who(omega), steps, inputs, text)


def _operation(step: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """An operation of ATen, with its arguments."""
    name, args, options = step
    packet, overload = name.split(".")

    def given(item: Any) -> Any:
        from ..kernels.from_value.tape import Ref

        if isinstance(item, tuple):
            return Ref(item[1]) if item[:1] == ("v",) else [given(each) for each in item]
        if isinstance(item, str) and item.startswith("torch."):
            return getattr(torch, item.removeprefix("torch."))
        return item

    op = getattr(getattr(torch.ops.aten, packet), overload)
    return op, tuple(map(given, args)), {k: given(v) for k, v in options}
