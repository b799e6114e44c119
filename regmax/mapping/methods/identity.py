"""What identifies an Ω: the class that computes it, and all that its value may depend on.

A kernel belongs to the class that offers it, and to none that redefines what the kernel computes
(:func:`trusted`). A kernel from the value belongs to the :func:`state` of an Ω. Tensors that are
not attributes, of a closure or a container, have no name: one that requires grad is refused
(:func:`refuse_hidden`).
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...kernels import simplex, transforms
from ...regularizers.errors import RegularizerError
from ...regularizers.expressions import Scaled, ScaledPenalty, Sum
from ...regularizers.operand import Operand
from ...regularizers.penalty import Penalized, Penalty, value_of
from ...regularizers.regularizer import Regularizer

REPLACED = ("value", "masked_value", "grad", "curvature", "closed_form", "composed")

_IGNORED = frozenset((*vars(nn.Module()), "_multiplies"))
_NUMBERS = frozenset((bool, int, float, str, type(None)))


def state(
    module: nn.Module, kept: list[Any], tensors: list[Tensor] | None = None
) -> tuple[Any, ...]:
    """All that a value may depend on, except the numbers of tensors: the attributes of Ω, of its
    modules and of their classes, and what ``value`` reads from outside. Objects count by
    identity, and are added to ``kept``; the tensors inside Ω are added to ``tensors``."""
    cls = type(module)
    found: list[Any] = [cls, module.training]

    def add(name: str, item: Any) -> None:
        if isinstance(item, Tensor):
            found.append((name, item.shape, item.dtype))
            if not item.is_floating_point():  # indices are part of the code
                found.append(tuple(item.flatten().tolist()))
        elif type(item) in _NUMBERS or isinstance(item, bool | int | float | str):
            found.append((name, type(item), item if item == item else None))  # NaN
        elif isinstance(item, tuple) and len(item) <= 64:
            for k, each in enumerate(item):
                add(f"{name}.{k}", each)
        else:
            found.append((name, id(item)))
            kept.append(item)

    own = vars(module)
    for store in (own, own["_parameters"], own["_buffers"]):
        for name, item in store.items():
            if name not in _IGNORED:
                add(name, item)
                if tensors is not None and isinstance(item, Tensor):
                    tensors.append(item)
    for name, item in _outside(cls):
        add(name, item)
    for name, inner in own["_modules"].items():
        found.append((name, inner and state(inner, kept, tensors)))
    return tuple(found)


class _Reads(NamedTuple):
    """What the classes of an Ω hold, and what their functions read: known as long as ``held`` and
    ``codes`` are what they were."""

    held: list[Any]
    codes: list[Any]
    cells: list[tuple[str, Any]]
    spaces: list[tuple[dict[str, Any], tuple[str, ...]]]
    others: list[tuple[str, Any]]


_READS: dict[type[Any], _Reads] = {}


def _outside(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """What the classes of an Ω hold besides methods, and what their functions read from closures
    and global names, except functions, classes and modules."""
    held: list[Any] = []
    for c in cls.__mro__:
        if c is Regularizer or c is nn.Module:
            break
        held += vars(c).values()
    known = _READS.get(cls)
    if known is None or not _same(known, held):
        if len(_READS) >= 512:
            _READS.clear()
        known = _READS[cls] = _reads(cls, held)
    yield from known.others
    for name, cell in known.cells:
        item = cell.cell_contents
        if item is not None and not _fixed(item):
            yield name, item
    for space, names in known.spaces:
        for name in names:
            item = space.get(name)
            if item is not None and not _fixed(item):
                yield name, item


def _same(known: _Reads, held: list[Any]) -> bool:
    """Whether classes hold what they held."""
    codes = [item.__code__ for item in held if type(item) is FunctionType]
    return (
        len(held) == len(known.held)
        and all(map(operator.is_, held, known.held))
        and all(map(operator.is_, codes, known.codes))
    )


def _reads(cls: type[Any], held: list[Any]) -> _Reads:
    names = (name for c in cls.__mro__ for name in vars(c))  # those of Regularizer come later
    found = _Reads(held, [], [], [], [])
    for name, item in zip(names, held, strict=False):
        if isinstance(item, FunctionType):
            code, closure = item.__code__, item.__closure__ or ()
            found.codes.append(code)
            read = zip(code.co_freevars, closure, strict=True)
            found.cells.extend((k, cell) for k, cell in read if k != "__class__")
            found.spaces.append((item.__globals__, _global_names(code)))
        elif not (name.startswith("__") or hasattr(Regularizer, name) or _fixed(item)):
            found.others.append((name, item))
    return found


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


# -- classes ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def proves(cls: type[Penalty], kernel: str) -> bool:
    """Whether no subclass of the class that defines this method redefines what its kernel
    computes."""
    methods = ("value", "prox", "groups", "subgradient", "any_subgradient", "average")
    return all(depth(cls, kernel) <= depth(cls, name) for name in methods)


@functools.lru_cache(maxsize=1024)
def trusted(cls: Any, method: str) -> bool:
    """Whether no subclass of the class that defines ``method`` redefines what that computes."""
    own = depth(cls, method) < cls.__mro__.index(Regularizer)
    return own and all(depth(cls, method) <= depth(cls, name) for name in REPLACED)


def depth(cls: type[Any], name: str) -> int:
    """The position in the inheritance order of ``cls`` of the class that defines ``name``."""
    order = cls.__mro__
    return next((i for i, c in enumerate(order) if name in vars(c)), len(order))


@functools.lru_cache(maxsize=1024)
def plain(cls: type[Penalized]) -> bool:
    """Whether the class computes base + λR as :class:`regmax.Penalized` does."""
    return all(getattr(cls, name) is getattr(Penalized, name) for name in REPLACED)


@functools.lru_cache(maxsize=1024)
def by_value(cls: Any) -> bool:
    """Whether Ω is its value and attributes that are not checked."""
    names = ("closed_form", "kernel")
    own = not any(getattr(cls, name) is not getattr(Regularizer, name) for name in names)
    return own and not cls.hyperparameters and not issubclass(cls, Penalized)


# -- tensors that have no name --------------------------------------------------------------------


def may_hide_tensors(omega: Regularizer) -> bool:
    """Whether Ω may depend on tensors that are not attributes. A class that offers a kernel depends
    on its hyperparameters alone."""
    return any(
        _may_hide(type(m))  # type: ignore[arg-type]
        for m in omega.modules()
        if isinstance(m, Operand)
    )


@functools.lru_cache(maxsize=1024)
def _may_hide(cls: type[Operand]) -> bool:
    """Whether a class redefines Ω, or a hyperparameter, after the class of its kernel."""
    names = (*REPLACED, *(cls.hyperparameters or ()))
    late = any(depth(cls, name) < depth(cls, "kernel") for name in names)
    return late and cls not in (Scaled, ScaledPenalty, Sum)


def refuse_hidden(omega: Regularizer, y: Tensor, mask: Tensor | None) -> None:
    """Raise if autograd records and Ω(y) depends on a tensor that requires grad and that
    ``omega.tensors()`` does not name. Under ``torch.func`` its derivatives are exact."""
    if not torch.is_grad_enabled() or transforms.tracing() or transforms.transforming():
        return
    if not may_hide_tensors(omega):
        return
    known = omega.with_tensors({name: t.detach() for name, t in omega.tensors().items()})
    leaf = y.detach().requires_grad_()
    with transforms.full_precision(y.device.type):
        stack: list[Any] = [value_of(known, simplex.inward(leaf), mask).grad_fn]
    seen = {None}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if getattr(node, "variable", leaf) is not leaf:
            raise RegularizerError(
                f"{omega!r} depends on a tensor that requires grad and is not one of its "
                "attributes (a closure, or a tensor in a container or an object): regmax cannot "
                "name it, and gives it no gradient. Store it as an attribute of the Regularizer "
                "(self.w = w), an nn.Parameter or a buffer; or detach it"
            )
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
