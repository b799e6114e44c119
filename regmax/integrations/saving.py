"""How regmax saves objects: pickles name the classes of :func:`classes`; Ω can be a text too.

The list includes PyTorch's classes that layers of regmax hold and that PyTorch does not allow by
default. The text of Ω is its ``repr``. Reading it executes no code: it is a tree of calls of known
classes, of numbers and of tensors.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

import torch
from torch.nn import ModuleDict, ModuleList
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .. import losses, nn
from ..losses.loss import Probabilities
from ..mapping.forward import Settings
from ..nn.layer import RegularizedMax
from ..regularizers import printing
from ..regularizers.expressions import Scaled, ScaledPenalty, Sum
from ..regularizers.operand import Operand
from ..regularizers.penalty import Penalized
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer

_KINDS = ("regularizer", "penalty", "solver")
_OWN = (RegularizedMax, Settings, Penalized, Scaled, ScaledPenalty, Sum, Probabilities)
_LEARNT = (nn.AdaptiveEntmax, nn.Between, nn.Learnable, nn.Positive)
_MODULES = (*_LEARNT, nn.MultiheadAttention)
_TORCH = (ModuleDict, ModuleList, NonDynamicallyQuantizableLinear)
_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}


def classes() -> list[type[Any]]:
    """The classes of regmax, of plugins, of the losses by name, and of PyTorch."""
    offered = [cls for kind in _KINDS for cls in registry().names(kind).values()]
    named = [getattr(losses, name) for name in dir(losses)]
    return [*_OWN, *_MODULES, *_TORCH, *offered, *named]


def text_of(omega: Regularizer | nn.Learnable) -> str:
    """The text from which :func:`made` makes Ω again, with the present values of its parameters.

    A TypeError says why an Ω has no such text.
    """
    for part in omega.modules():
        _check(part)
    found = _text(omega)
    try:
        again = made(found)
    except Exception as error:  # a plugin's code may raise anything
        raise TypeError(f"{omega} cannot be made again from {found!r}: {error}") from error
    if _text(again) != found or _shapes(again) != _shapes(omega):
        raise TypeError(f"{omega} cannot be made again from {found!r}: that is another Ω")
    return found


def made(text: str) -> Regularizer | nn.Learnable:
    """The Ω of a text, on the CPU. ValueError if it cannot be read; Ω's class may raise too."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"cannot read Ω from {text!r}") from None
    with torch.device("cpu"):
        omega = _made(tree)
    if not isinstance(omega, Regularizer | nn.Learnable):
        raise ValueError(f"cannot read Ω from {text!r}: that is {type(omega).__name__}")
    return omega


def _check(part: torch.nn.Module) -> None:
    cls = type(part)
    if cls in _TORCH:
        return
    if _known().get(cls.__name__) is not cls:
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__} is no class that regmax or a plugin offers"
        )
    hidden = [k for k in cls.arguments if not hasattr(part, k)] if isinstance(part, Operand) else []
    if hidden:
        raise TypeError(
            f"{cls.__name__} cannot be made again from its constructor's arguments: "
            f"{', '.join(hidden)} is no attribute"
        )


def _text(omega: Any) -> str:
    with printing.whole():
        return repr(omega)


def _shapes(omega: Any) -> dict[str, torch.Size]:
    return {name: item.shape for name, item in omega.state_dict().items()}


def _known() -> dict[str, type[Any]]:
    """The classes that a text may name, by name."""
    found: dict[str, type[Any]] = {cls.__name__: cls for cls in _LEARNT}
    for kind in ("regularizer", "penalty"):
        for cls in registry().names(kind).values():
            if found.setdefault(cls.__name__, cls) is not cls:
                found[cls.__name__] = type(None)  # two classes have this name
    return found | {cls.__name__: cls for cls in (Penalized, Scaled, ScaledPenalty, Sum)}


def _made(node: ast.expr) -> Any:
    """The value of a part of the text."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as item):
            return item
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_made(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_made(left), _made(right))
        case ast.Tuple(elts=items):
            return tuple(map(_made, items))
        case ast.List(elts=items):
            return list(map(_made, items))
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            item = getattr(torch, name, None)
            if isinstance(item, float | torch.dtype):
                return item
        case ast.Call(func=func, args=args, keywords=keywords):
            return _class(ast.unparse(func))(*map(_made, args), **_keywords(keywords))
    raise ValueError(f"cannot read {ast.unparse(node)!r}")


def _keywords(keywords: list[ast.keyword]) -> dict[str, Any]:
    """The keywords of a call; names with a dot come as ``**{"base.alpha": ...}``."""
    found: dict[str, Any] = {}
    for item in keywords:
        match item:
            case ast.keyword(arg=str(name), value=value):
                found[name] = _made(value)
            case ast.keyword(value=ast.Dict(keys=[ast.Constant(value=str(name))], values=[value])):
                found[name] = _made(value)
            case _:
                raise ValueError(f"cannot read {ast.unparse(item)!r}")
    return found


def _class(name: str) -> Any:
    if name == "torch.tensor":
        return torch.tensor
    if name == "torch.nn.Parameter":
        return torch.nn.Parameter
    if (cls := _known().get(name, type(None))) is type(None):
        raise ValueError(f"no plugin offers a class {name}")
    return cls
