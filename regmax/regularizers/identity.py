"""What identifies an Ω: which expression it is, what its class defines, and all that it depends on.

Three questions have three answers here. Everything that asks "is this the same Ω?" uses one of
them.

- *Which Ω does this compute?* The expression without what only rescales γ or λ (:func:`unscaled`,
  :func:`unweighted`) and without a penalty of weight 0 (:func:`unpenalized`), and the names and
  values of the hyperparameters that remain (:func:`names_of`, :func:`attribute`).
- *Does a class compute what its kernel computes?* By the classes that define each method
  (:func:`trusted`, :func:`plain`).
- *What may its numbers depend on?* For a graph, the :func:`form` that determines its text
  (:mod:`regmax.regularizers.serialize`). For a class of a user, its :func:`state`, and what this
  leaves open unless the value is :func:`determined`. A tensor that is no attribute, of a closure
  or a container, has no name: one that requires grad is refused (:func:`refuse_hidden`).
"""

from __future__ import annotations

import dis
import functools
import itertools
import math
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import simplex, transforms
from .autodiff import nodes
from .errors import RegularizerError
from .expressions import Scaled, ScaledPenalty, Sum
from .operand import Operand
from .penalty import DEFINED, Penalized, Penalty, redefined, value_of
from .recorded import Recorded
from .regularizer import Regularizer

# -- the expression --------------------------------------------------------------------------------


def unscaled(omega: Regularizer, gamma: Any) -> tuple[Regularizer, Any]:
    """The innermost Ω and its γ, by Π_{cΩ,γ} = Π_{Ω,cγ}."""
    while isinstance(omega, Scaled):
        omega, gamma = omega.base, gamma * omega.c
    return omega, gamma


def unweighted(penalty: Penalty, weight: Any) -> tuple[Penalty, Any]:
    """The innermost penalty and its weight."""
    while isinstance(penalty, ScaledPenalty):
        penalty, weight = penalty.penalty, weight * penalty.lam
    return penalty, weight


def unpenalized(omega: Regularizer) -> Regularizer:
    """Ω, or its base if the penalty's weight is the float 0: equal entries then form no group.

    If the weight is a tensor that is 0, the penalty and its groups stay: λ has a derivative, and
    all derivatives are limits of those for λ > 0.
    """
    if not (isinstance(omega, Penalized) and omega.exact) or isinstance(omega.lam, Tensor):
        return omega
    if omega.lam != 0 or redefined(type(omega)):
        return omega
    learns = any(name.startswith("penalty.") for name in omega.tensors())
    return omega if learns else omega.base


def names_of(omega: Regularizer) -> tuple[str, ...]:
    """The hyperparameters that a kernel of Ω takes, in their order: its own, then with a penalty
    those of the base."""
    names = tuple(omega.hyperparameters or ())
    if isinstance(omega, Penalized):
        names += tuple(f"base.{name}" for name in omega.base.hyperparameters or ())
    return names


def attribute(omega: Any, name: str) -> Any:
    """The attribute of a dotted name, of :func:`names_of` for instance."""
    for key in name.split("."):
        omega = omega[int(key)] if key.isdigit() else getattr(omega, key)
    return omega


# -- the class -------------------------------------------------------------------------------------

REPLACED = (*DEFINED, "closed_form")
"""The methods of a regularizer that a kernel computes, or takes for granted."""
_REPLACED_OF_PENALTY = ("value", "prox", "groups", "subgradient", "any_subgradient", "average")


@functools.lru_cache(maxsize=1024)
def trusted(cls: Any, method: str) -> bool:
    """Whether a regularizer or penalty defines ``method`` (a kernel, for instance), and no subclass
    redefines what that computes."""
    names = REPLACED if issubclass(cls, Regularizer) else _REPLACED_OF_PENALTY
    return all(depth(cls, method) <= depth(cls, name) for name in names)


def depth(cls: type[Any], name: str) -> int:
    """The position in the inheritance order of ``cls`` of the class that defines ``name``."""
    order = cls.__mro__
    return next((i for i, c in enumerate(order) if name in vars(c)), len(order))


@functools.lru_cache(maxsize=1024)
def plain(cls: type[Penalized]) -> bool:
    """Whether the class computes base + λR as :class:`regmax.Penalized` does."""
    return redefined(cls, REPLACED) is None


@functools.lru_cache(maxsize=1024)
def valued(cls: Any) -> bool:
    """Whether Ω has no kernel and no closed form, so that one is made of its value."""
    names = ("closed_form", "kernel")
    own = not any(getattr(cls, name) is not getattr(Regularizer, name) for name in names)
    return own and not issubclass(cls, Penalized)


@functools.lru_cache(maxsize=1024)
def by_value(cls: Any) -> bool:
    """Whether Ω is its value and attributes that are not checked."""
    return valued(cls) and not cls.hyperparameters


# -- the form of a text ----------------------------------------------------------------------------

# the arguments that are expressions, of each class of the algebra but Sum
PARTS: dict[Any, tuple[str, ...]] = {
    Scaled: ("base",),
    ScaledPenalty: ("penalty",),
    Penalized: ("base", "penalty"),
}


def form(part: Any) -> tuple[Any, ...]:
    """The form that determines the text: the classes of the expression and, for each registered
    one, the names of its tensors and of the arguments that are not plain values.

    Dynamo traces this function, so that layers of one form share one graph.
    """
    cls = type(part)
    if cls is Recorded:
        return cls, part.of, part.steps, part.names
    if cls is Sum:
        return (cls, *[form(term) for term in part.terms])
    if cls in PARTS:
        return (cls, *[form(getattr(part, name)) for name in PARTS[cls]])
    held = held_tensors(part)
    odd = [k for k in cls.arguments if k not in held and not is_value(getattr(part, k, None))]
    return cls, tuple(held), tuple(odd)


def held_tensors(part: nn.Module) -> list[str]:
    """The names of the tensors inside a part, dotted for those in submodules."""
    direct = [*part.__dict__.items(), *part._parameters.items(), *part._buffers.items()]
    nested = [
        f"{key}.{name}" for key, module in part.named_children() for name in held_tensors(module)
    ]
    return [key for key, item in direct if isinstance(item, Tensor)] + nested


def is_value(item: Any) -> bool:
    """Whether an argument is a number, a str, or a tuple of such: its text says all of it."""
    if isinstance(item, tuple):
        return all(map(is_value, item))
    return isinstance(item, bool | int | float | str)


def remembered(form: tuple[Any, ...]) -> bool:
    """Whether a part is a penalty of plain arguments, which a text does not hold."""
    cls, *inner = form
    if cls is Sum or cls in PARTS:
        return any(remembered(part) for part in inner)
    return issubclass(cls, Penalty) and cls.arguments != inner[0]


# -- the state -------------------------------------------------------------------------------------

_IGNORED = frozenset((*vars(nn.Module()), "_multiplies"))
_NUMBERS = frozenset((bool, int, float, str, type(None)))


def state(
    module: nn.Module, kept: list[Any], tensors: list[Tensor] | None = None
) -> tuple[Any, ...]:
    """All that a value may depend on, except the numbers of tensors: the attributes of Ω, of its
    modules and of their classes, the code of their functions, and what these read from outside.
    Objects count by identity, and are added to ``kept``; the tensors inside Ω are added to
    ``tensors``."""
    cls = type(module)
    found: list[Any] = [cls, module.training, torch.get_default_dtype()]
    classes = _classes(cls)  # type: ignore[arg-type]
    read: set[FunctionType] = set()

    def add(name: str, item: Any) -> None:
        if isinstance(item, Tensor):
            found.append((name, item.shape, item.dtype))
            if not item.is_floating_point():  # indices are part of the code
                found.append(tuple(item.flatten().tolist()))
        elif type(item) in _NUMBERS or isinstance(item, bool | int | float | str):
            found.append((name, item if item == item else None, type(item)))  # NaN
        elif isinstance(item, FunctionType) and item.__module__ in classes.values():
            found.append((name, item.__code__, item))
            if item not in read:
                read.add(item)
                for key, held in _read(item):
                    add(key, held)
        elif isinstance(item, _CODE):
            found.append((name, item))
        elif isinstance(item, tuple) and len(item) <= 64:
            found.append((name, len(item)))
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
    for c in classes:
        for name, item in vars(c).items():
            if isinstance(item, staticmethod | classmethod):
                item = item.__func__
            if type(item) is property:
                add(name, item.fget)
            elif type(item) is FunctionType:
                if name != "__init__":
                    add(name, item)
            elif not (name.startswith("__") or hasattr(Regularizer, name)):
                add(name, item)
    for name, inner in own["_modules"].items():
        found.append((name, inner and state(inner, kept, tensors)))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _classes(cls: type[Any]) -> dict[type[Any], str]:
    """The classes of an Ω that are neither regmax's nor PyTorch's, and their modules."""
    ours = ("builtins", "regmax", "torch")
    return {c: c.__module__ for c in cls.__mro__ if c.__module__.partition(".")[0] not in ours}


_CODE = (FunctionType, BuiltinFunctionType, ModuleType, type, torch.dtype, torch.device)


def _read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads from its defaults, closures and global names."""
    code, space = function.__code__, function.__globals__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    read = [(key, cell.cell_contents) for key, cell in cells if key != "__class__"]
    read += [(key, space.get(key)) for key in _names(code)[0]]
    read += [("", function.__defaults__), ("", function.__kwdefaults__)]
    return ((key, held) for key, held in read if held is not None)


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The global names that a function and the functions inside it read, and all other names that
    they use, but those of their own variables."""
    named = [i for i in dis.get_instructions(code) if i.opcode in dis.hasname]
    outer = [i.argval for i in named if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    others = {i.argval for i in named if i.opname not in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    outer += itertools.chain(*(names for names, _ in inner))
    return tuple(dict.fromkeys(outer)), frozenset(others.union(*(more for _, more in inner)))


# names of tensors and of PyTorch's modules; functions of Python; modules that hold operations
_SHAPES = frozenset(("T", "device", "dim", "double", "dtype", "ndim", "numel", "shape", "size"))
_INSIDE = frozenset(("float64", "functional", "nn", "special"))
_BUILTIN = frozenset(
    ("abs", "enumerate", "float", "int", "len", "max", "min", "range", "sum", "zip")
)
_MODULES = (torch, torch.special, torch.nn.functional, math)


def determined(known: tuple[Any, ...], kept: list[Any]) -> bool:
    """Whether a :func:`state` and the numbers of its tensors determine the value: functions read
    what is in it, and operations of PyTorch and of :mod:`math`."""
    pairs = [item for item in known if isinstance(item, tuple) and item]
    named = [item for item in pairs if isinstance(item[0], str)]
    inside = {name for name, *_ in named}

    def fits(name: str, item: Any) -> bool:
        if isinstance(item, CodeType):
            outer, others = _names(item)
            return inside.union(_BUILTIN).issuperset(outer) and all(
                name in inside or _is_operation(name) for name in others
            )
        if isinstance(item, ModuleType):
            return item in _MODULES
        if isinstance(item, _CODE[:2]):
            called = item.__name__
            return _is_operation(called) and any(item is getattr(m, called, 0) for m in _MODULES)
        return not isinstance(item, type)

    return not kept and "value" in inside and all(fits(name, item) for name, item, *_ in named)


@functools.lru_cache(maxsize=1024)
def _is_operation(name: str) -> bool:
    """Whether PyTorch or :mod:`math` gives this name to what depends on its arguments alone. (The
    value was recorded: what is random, or reads the numbers of a tensor, has no kernel.)"""
    for each in (name, f"special_{name}"):
        packet = getattr(torch.ops.aten, each, None)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            results = [getattr(packet, k)._schema.returns[:1] for k in packet.overloads()]
            if any(str(t.type) == "Tensor" for found in results for t in found):
                return True
    return name in _SHAPES | _INSIDE or (hasattr(math, name) and not name.startswith("_"))


# -- tensors that have no name --------------------------------------------------------------------


def may_hide(omega: Operand) -> bool:
    """Whether Ω may depend on tensors that are not attributes. A class that offers a kernel depends
    on its hyperparameters alone."""
    return any(
        _may_redefine(type(m))  # type: ignore[arg-type]
        for m in omega.modules()
        if isinstance(m, Operand)
    )


@functools.lru_cache(maxsize=1024)
def _may_redefine(cls: type[Operand]) -> bool:
    """Whether a class redefines Ω, or a hyperparameter, after the class of its kernel."""
    names = (*REPLACED, *(cls.hyperparameters or ()))
    late = any(depth(cls, name) < depth(cls, "kernel") for name in names)
    return late and cls not in (Scaled, ScaledPenalty, Sum)


def refuse_hidden(omega: Regularizer, y: Tensor, mask: Tensor | None) -> None:
    """Raise if autograd records and Ω(y) depends on a tensor that requires grad and that
    ``omega.tensors()`` does not name. Under ``torch.func`` its derivatives are exact."""
    if not torch.is_grad_enabled() or transforms.tracing() or transforms.transforming():
        return
    if not may_hide(omega):
        return
    known = omega.with_tensors({name: t.detach() for name, t in omega.tensors().items()})
    leaf = y.detach().requires_grad_()
    with transforms.full_precision(y.device.type):
        value = value_of(known, simplex.inward(leaf), mask)
    for node in nodes(value):
        if getattr(node, "variable", leaf) is not leaf:
            raise RegularizerError(
                f"{omega} depends on a tensor that requires grad and is not one of its "
                "attributes (a closure, or a tensor in a container or an object): regmax cannot "
                "name it, and gives it no gradient. Store it as an attribute of the Regularizer "
                "(self.w = w), an nn.Parameter or a buffer; or detach it"
            )
