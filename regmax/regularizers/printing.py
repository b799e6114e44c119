"""How objects are printed: as the Python that makes them again.

A name stands for the class of that name, and ``torch`` for the package: ``eval(repr(omega))`` is Ω
again where its classes are imported by name, and ``import torch`` has been said. Numbers keep
all of their digits. A tensor or sequence of more than 64 entries, and one that holds no numbers (on
the meta device, under a tracer), is only described, in angle brackets, and a tensor computed from
others is printed as its value. ``str`` of an Ω is the formula for people: a tensor of one entry is
its number, and larger ones are their shapes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.wrappers import kind

LIMIT = 64
_short = ContextVar("regmax_short", default=False)
_whole = ContextVar("regmax_whole", default=False)


@contextmanager
def short() -> Iterator[None]:
    """Inside, tensors are printed for people."""
    before = _short.set(True)
    try:
        yield
    finally:
        _short.reset(before)


@contextmanager
def whole() -> Iterator[None]:
    """Inside, nothing is left out, and the text depends on no device and no default dtype: what a
    file keeps."""
    before = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(before)


@functools.singledispatch
def show(item: object) -> str:
    """An argument of a constructor as it is printed."""
    return repr(item)


@show.register
def _(item: tuple) -> str:  # type: ignore[type-arg]
    if len(item) > LIMIT and not _whole.get():
        return f"<{len(item)} entries>"
    return f"({', '.join(map(show, item))}{',' if len(item) == 1 else ''})"


@show.register
def _(item: Tensor) -> str:
    what = kind(item)
    if what is not None:  # a DTensor's entries would have to be fetched
        if what.startswith(type(item).__name__):
            what += f" of shape={tuple(item.shape)}"
        return f"<{what}, {item.dtype}>"
    shape = f"shape={tuple(item.shape)}"
    if item.is_meta or transforms.tracing() or transforms.transforming():
        return f"<tensor of {shape}, {item.dtype}>"
    if _short.get():
        if item.numel() == 1:
            return f"{item.item():g}" if item.ndim == 0 else f"tensor({item.tolist()})"
        return f"tensor({shape})"
    whole = _whole.get()
    if item.numel() > LIMIT and not whole:
        return f"<tensor of {shape}, {item.dtype}>"
    kept = isinstance(item, torch.nn.Parameter)
    options = [f"dtype={item.dtype}"] if whole or item.dtype != _guessed(item) else []
    options += [f"device={str(item.device)!r}"] if not whole and item.device.type != "cpu" else []
    options += ["requires_grad=True"] if item.requires_grad and item.is_leaf and not kept else []
    made = f"torch.tensor({', '.join([_numbers(item.tolist(), item.dtype), *options])})"
    if not kept:
        return made
    return f"torch.nn.Parameter({made}{'' if item.requires_grad else ', requires_grad=False'})"


def _guessed(item: Tensor) -> torch.dtype:
    """The dtype that torch.tensor finds for the numbers of ``item``."""
    if item.dtype.is_floating_point or not item.numel():
        return torch.get_default_dtype()
    return torch.bool if item.dtype == torch.bool else torch.int64


def _numbers(item: Any, dtype: torch.dtype) -> str:
    if isinstance(item, list):
        return f"[{', '.join(_numbers(each, dtype) for each in item)}]"
    if not isinstance(item, float):
        return repr(item)
    if not abs(item) < torch.inf:
        return {"inf": "torch.inf", "-inf": "-torch.inf"}.get(str(item), "torch.nan")
    for digits in range(1, 17):  # the fewest that this dtype does not need more than
        number = float(f"{item:.{digits}g}")
        if torch.tensor(number, dtype=dtype, device="cpu").item() == item:
            return repr(number)
    return repr(item)


def called(item: object, parts: Iterable[str]) -> str:
    """The constructor of ``item`` and what it takes."""
    return f"{type(item).__name__}({', '.join(parts)})"


def unusual(**given: tuple[Any, Any]) -> list[str]:
    """``lam=0.1`` for each (item, its default) that differ."""
    return [f"{name}={show(item)}" for name, (item, usual) in given.items() if _differ(item, usual)]


def _differ(item: Any, usual: Any) -> bool:
    return isinstance(item, Tensor) or type(item) is not type(usual) or bool(item != usual)


def arguments(item: Any, always: Iterable[str] = ()) -> list[str]:
    """The same for the arguments of the constructor that are attributes too; those of ``always`` at
    any rate. A method of that name is no attribute: what came is not known."""
    missing = inspect.Parameter.empty
    usual = {k: p.default for k, p in inspect.signature(type(item).__init__).parameters.items()}
    given = {name: getattr(item, name, missing) for name in list(usual)[1:]}
    own = {name for name, value in given.items() if getattr(value, "__self__", None) is item}
    return unusual(
        **{
            name: (value, missing if name in always else usual[name])
            for name, value in given.items()
            if value is not missing and name not in own
        }
    )
