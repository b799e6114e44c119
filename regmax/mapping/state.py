"""What the value of an Ω may depend on, besides y and the numbers of tensors."""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..regularizers.regularizer import Regularizer

_IGNORED = frozenset((*vars(nn.Module()), "_multiplies"))


def state(module: nn.Module, kept: list[Any]) -> tuple[Any, ...]:
    """All that a value may depend on, except the numbers of tensors: the attributes of Ω, of its
    modules and of their classes, and what ``value`` reads from outside. Objects count by
    identity, and are added to ``kept``."""
    cls = type(module)
    found: list[Any] = [cls, module.training]

    def add(name: str, item: Any) -> None:
        if isinstance(item, Tensor):
            found.append((name, item.shape, item.dtype))
            if not item.is_floating_point():  # indices are part of the code
                found.append(tuple(item.flatten().tolist()))
        elif item is None or isinstance(item, bool | int | float | str):
            found.append((name, type(item), item if item == item else None))  # NaN
        elif isinstance(item, tuple) and len(item) <= 64:
            for k, each in enumerate(item):
                add(f"{name}.{k}", each)
        else:
            found.append((name, id(item)))
            kept.append(item)

    own = {**vars(module), **module._parameters, **module._buffers}
    for name, item in own.items():
        if name not in _IGNORED:
            add(name, item)
    for name, item in _outside(cls):
        add(name, item)
    for name, inner in module._modules.items():
        found.append((name, inner and state(inner, kept)))
    return tuple(found)


def _outside(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """What the classes of an Ω hold besides methods, and what their functions read from closures
    and global names, except functions, classes and modules."""
    for c in cls.__mro__:
        if c is Regularizer or c is nn.Module:
            return
        for name, item in vars(c).items():
            if isinstance(item, FunctionType):
                code, closure = item.__code__, item.__closure__ or ()
                read = list(zip(code.co_freevars, closure, strict=True))
                named = [(k, cell.cell_contents) for k, cell in read if k != "__class__"]
                named += [(k, item.__globals__.get(k)) for k in _global_names(code)]
                yield from ((k, v) for k, v in named if v is not None and not _fixed(v))
            elif not (name.startswith("__") or hasattr(Regularizer, name) or _fixed(item)):
                yield name, item


@functools.lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """The global names that a function and the functions inside it read."""
    own = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [_global_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return tuple(dict.fromkeys([*own, *itertools.chain(*inner)]))


_CONSTANT = (torch.dtype, torch.device, ModuleType, property, classmethod, staticmethod)


def _fixed(item: Any) -> bool:
    """Whether an object is code or a constant of PyTorch."""
    return callable(item) or isinstance(item, _CONSTANT)
