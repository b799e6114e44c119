"""A user's separable Ω as a graph holds it: the operations of its value.

A graph outlives the class of Ω, and another process may not have it. So :func:`recorded` reads the
value as :mod:`regmax.kernels.from_value` does, for a kernel, and writes its operations down.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..kernels import simplex
from ..kernels.from_value import Unknown, entrywise
from ..kernels.from_value.tape import Ref, Step, function
from .penalty import Penalized
from .regularizer import Regularizer

aten = torch.ops.aten
_LENGTHS = 5, 6
"""Lengths of rows at which a value is read. It must be the same at both."""


class Recorded(Regularizer):
    """Ω(y) = Σ_i e(y_i; θ). ``steps``: the operations of e, each its name in ATen and its
    arguments, on y and ``theta``, which are the values 0, 1, …; ``("v", k)`` is the value k."""

    separable = True

    def __init__(self, steps: tuple[Any, ...], *theta: Any) -> None:
        self.steps, self.names = steps, tuple(f"t{k}" for k in range(len(theta)))
        for name, t in zip(self.names, theta, strict=True):
            setattr(self, name, t)
        count = 1 + len(theta)
        made = [Step(count + k, *_operation(step)) for k, step in enumerate(steps)]
        self._entry = function(made, range(count), [Ref(count + len(steps) - 1)])

    def value(self, y: Tensor) -> Tensor:
        theta = (getattr(self, name) for name in self.names)
        total: Tensor = self._entry(y, *theta)[0].sum(-1)
        return total

    def extra_repr(self) -> str:
        """Nothing: the steps are many."""
        return ""


def recorded(omega: Regularizer) -> Recorded:
    """Ω with its tensors, by the operations of its value; TypeError says why there are none."""
    names = tuple(omega.tensors(fixed=True))
    tensors = [omega.tensors(fixed=True)[name] for name in names]
    lengths = {t.shape[-1] for t in tensors if t.ndim and t.shape[-1] != 1}
    given = (omega.entries,) if omega.entries else tuple(lengths) or _LENGTHS
    try:
        with _disable_current_modes(), torch._C._DisableFuncTorch():
            found = {_steps(omega, names, tensors, d) for d in given}
    except Unknown as error:
        raise _refused(omega, str(error)) from None
    except Exception as error:  # of the user's code
        raise _refused(omega, f"{type(error).__name__}: {error}") from error
    if len(found) > 1:
        raise _refused(omega, "it depends on the length of a row (declare entries)")
    return Recorded(found.pop(), *tensors)


def _refused(omega: Regularizer, why: str) -> TypeError:
    return TypeError(
        "torch.compile and torch.export record closed forms of registered regularizers and "
        f"penalties, and Ω = Σ e(y_i) by its value; the value of {type(omega).__name__} cannot be "
        f"recorded: {why} (compile without fullgraph, or outside of this layer)"
    )


def _steps(
    omega: Regularizer, names: tuple[str, ...], tensors: list[Tensor], d: int
) -> tuple[Any, ...]:
    """The steps of e for rows of d entries; the numbers of the tensors are not read."""
    if isinstance(omega, Penalized):
        raise Unknown("it has a penalty")
    inside = [torch.ones(t.shape, dtype=t.dtype, device="cpu") for t in tensors]
    y = simplex.generic(torch.empty(1, d, dtype=torch.float64, device="cpu"))

    def value(y: Tensor, *inside: Tensor) -> Tensor:
        return omega.with_tensors(dict(zip(names, inside, strict=True))).value(y)

    entry = entrywise(value, y, inside)
    if entry.coupled:
        raise Unknown("it couples entries of y")
    if entry.kinked:
        raise Unknown("its derivatives may jump")
    if any(t.numel() > 1 for t in entry.outside):
        raise Unknown("it reads a tensor that is not an attribute of Ω")
    numbers = {at: t.item() for at, t in zip(entry.given, entry.outside, strict=True)}
    places: dict[int, Any] = {0: ("v", 0)}
    places |= {1 + k: ("v", 1 + k) for k in range(len(names))}
    found: list[Any] = []

    def written(item: Any) -> Any:
        if isinstance(item, Ref):
            return numbers[item.at] if item.at in numbers else places[item.at]
        if isinstance(item, list | tuple):
            return tuple(map(written, item))
        return str(item) if isinstance(item, torch.dtype) else item

    def add(step: Step) -> None:
        hidden = ("layout", "device", "pin_memory", "non_blocking", "memory_format")
        options = tuple((k, written(v)) for k, v in step.kwargs.items() if k not in hidden)
        name = f"{step.name}.{step.op._overloadname}"
        found.append((name, tuple(map(written, step.args)), options))
        places[step.at] = ("v", len(names) + len(found))

    for step in entry.outer:
        add(step)
    inputs = {1 + k: places.get(ref.at, numbers.get(ref.at)) for k, ref in enumerate(entry.own)}
    places = {0: ("v", 0), **inputs}
    for step in entry.steps:
        add(step)
    if not entry.steps:
        raise Unknown("it is linear")
    return tuple(found)


def _operation(step: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """An operation of ATen, with its arguments."""
    name, args, options = step
    packet, overload = name.split(".")

    def read(item: Any) -> Any:
        if isinstance(item, tuple):
            return Ref(item[1]) if item[:1] == ("v",) else [read(each) for each in item]
        if isinstance(item, str) and item.startswith("torch."):
            return getattr(torch, item.removeprefix("torch."))
        return item

    op = getattr(getattr(aten, packet), overload)
    return op, tuple(map(read, args)), {k: read(v) for k, v in options}
