"""Ω as a text, in one grammar: printed and saved, in recorded graphs and on the command line.

    Tsallis(alpha=1.5) + 0.1*ChainTV()              tsallis(alpha=1.5) + 0.1*tv

A text is a Python expression: calls of classes or of plugin names with their arguments, numbers, +
and *. :func:`read` walks its syntax tree and executes nothing else. ``repr`` writes it
(:mod:`regmax.regularizers.printing`). :func:`text` and :func:`call` write it for graphs, in calls
alone, with placeholders: ``_0``, ``_1``, … are inputs of the graph, ``tensor(4, 4)`` is a tensor
of that size.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import printing
from .errors import clipped, told
from .expressions import Sum
from .identity import PARTS, attribute, form, held_tensors, is_value
from .penalty import Penalty
from .recorded import Recorded
from .registry import instance, registry
from .regularizer import Regularizer, frozen

ACCEPTED = (
    "names, name(key=value, ...), numbers (whole ones below 2**63), + and *; as a value a number, "
    "True, False, a string, a tuple or a list"
)
_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}
MOST, _LARGE = 500, 1 << 63
"""What a text may have: calls and operators, and whole numbers below."""

# -- reading ---------------------------------------------------------------------------------------


def known(*further: type[Any]) -> dict[str, Any]:
    """What a text may name: the classes of plugins and ``further`` ones, those of the algebra, and
    tensors.

    A class of a third party has the name of its distribution in front, ``my_norms.Cubic``; without
    it, it can be read where nothing else has this name. None: two classes have one name."""
    found: dict[str, Any] = {}
    others: dict[str, Any] = {}
    installed = registry()
    for offer in (*installed.offers("regularizer"), *installed.offers("penalty")):
        cls, text = offer.cls, offer.text
        found[text] = cls if found.get(text, cls) is cls else None
        if text.rpartition(".")[0]:
            name = text.rpartition(".")[2]
            others[name] = cls if others.get(name, cls) is cls else None
    found |= {cls.__name__: cls for cls in (*further, Sum, Recorded, *PARTS)}
    found |= {"torch.tensor": torch.tensor, "torch.nn.Parameter": nn.Parameter}
    return found | {name: cls for name, cls in others.items() if name not in found}


def word(cls: Any, names: Mapping[str, Any]) -> str | None:
    """The name of a class in a text, or None."""
    return next((name for name, item in names.items() if item is cls), None)


def read(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression; ValueError if it cannot be read. ``names``: the values of names,
    beside those of plugins. The constructors may raise too. Messages have a bounded length."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        count = sum(isinstance(node, ast.BinOp | ast.Call) for node in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable(text) from None
    if count > MOST:
        raise _unreadable(text, f", at most {MOST} calls and operators")
    try:
        return _value(tree, names)
    except RecursionError:
        raise _unreadable(text) from None
    except Exception as error:
        if len(reason := told(error, 1000)) <= 1000:
            raise
        raise ValueError(f"cannot read {clipped(text, 80)!r}: {reason}") from None


def _unreadable(text: str, limit: str = "") -> ValueError:
    return ValueError(f"cannot read {clipped(text, 80)!r}; accepted: {ACCEPTED}{limit}")


def _value(node: ast.AST, names: Mapping[str, Any], inside: bool = False) -> Any:
    """The value of a part of the expression; ``inside`` the arguments of a call or not."""
    match node:
        case ast.Constant(value=bool() | float() | str() | None as item):
            return item
        case ast.Constant(value=int(item)) if item < _LARGE:
            return item
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name() if not inside:
            return offered("penalty", node.id)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            if isinstance(item := _value(operand, names, inside), int | float):
                return -item
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            parts = [_value(part, names, inside) for part in (left, right)]
            if not any(isinstance(part, bool | str | tuple | list) for part in parts):
                found = _OPERATORS[type(op)](*parts)
                if not isinstance(found, int) or abs(found) < _LARGE:
                    return found
        case ast.Tuple(elts=items):
            return tuple(_value(item, names, True) for item in items)
        case ast.List(elts=items):
            return [_value(item, names, True) for item in items]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            if isinstance(item := getattr(torch, name, None), float | torch.dtype):
                return item
        case ast.Attribute(value=ast.Name(id=package), attr=name) if not inside:
            return offered("penalty", f"{package}.{name}")
        case ast.Call(func=func, args=args, keywords=keywords):
            given = [_value(item, names, True) for item in args]
            hyper = dict(_value(item, names, True) for item in keywords)
            name = _dotted(func)
            made = names.get(name)
            if made is None and name and not name.startswith("torch."):
                made = functools.partial(offered, "regularizer", name)
            if made is not None and len(hyper) == len(keywords):
                return made(*given, **hyper)
        case (
            ast.keyword(arg=str(key), value=value)
            | ast.keyword(value=ast.Dict(keys=[ast.Constant(value=str(key))], values=[value]))
        ):  # key=value, or **{"base.key": value}
            return key, _value(value, names, True)
    raise _unreadable(ast.unparse(node))


def _dotted(node: ast.AST) -> str:
    """``name`` or ``package.name`` (``torch.nn.Parameter`` too); "" for another expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if inside := _dotted(value):
            return f"{inside}.{name}"
    return ""


def offered(first: str, name: str, /, *given: Any, **hyper: Any) -> Any:
    """The regularizer, also by its mapping's name, or the penalty that a plugin offers; ``first``
    is the kind to prefer. PluginError if there is none, or if two distributions have the name."""
    found = registry()
    rest = [kind for kind in ("regularizer", "mapping", "penalty") if kind != first]
    one = found.first(name, first, *rest)
    if one is None:
        names = [*found.names("regularizer"), *found.names("mapping"), *found.names("penalty")]
        raise found.unknown("regularizer or penalty", name, list(dict.fromkeys(names)))
    kind, cls = one
    if kind == "mapping":
        kind, hyper = "regularizer", {**cls.presets.get(name.rpartition(".")[2], {}), **hyper}
    refuse_unnamed(name, given)
    return instance(cls, kind, name, hyper)


def refuse_unnamed(name: str, given: tuple[Any, ...]) -> None:
    """TypeError for arguments without a name."""
    if given:
        raise TypeError(f"{name} takes its arguments by name: {name}(key=value, ...)")


# -- recorded graphs -------------------------------------------------------------------------------

_KNOWN: dict[tuple[Any, ...], Penalty] = {}
"""Penalties of plain arguments, by class and arguments. A penalty made again under a tracer would
hold the tracer's tensors, in its graph for instance."""


def text(form: tuple[Any, ...]) -> tuple[str, list[str]]:
    """The text of a form, and the dotted names of the arguments that are ``_0``, ``_1``, … in it; a
    TypeError says why there is none."""
    names: list[str] = []

    def shown(name: str) -> str:
        names.append(name)
        return f"_{len(names) - 1}"

    return _written(form, shown), names


def text_of(omega: Regularizer) -> tuple[str, list[str]]:
    """The ``text`` of Ω."""
    found = text(form(omega))
    for part in omega.modules():
        if isinstance(part, Penalty) and type(part) not in PARTS and not held_tensors(part):
            _KNOWN[(type(part), *(getattr(part, k) for k in part.arguments))] = frozen(part)
    return found


def has_text(omega: Regularizer) -> bool:
    """Whether Ω has a text."""
    try:
        text(form(omega))
    except TypeError:
        return False
    return True


def call(omega: Regularizer, gamma: float | None, names: tuple[str, ...]) -> str:
    """Ω, γ and the ``names`` of the tensors that an operator gets beside this text, possibly in
    another process: ``Tsallis(alpha=tensor()), 0.5, 'alpha'``. γ = None: the first tensor."""
    per_row = omega.per_row_tensors()

    def shown(name: str) -> str:
        item = attribute(omega, name)
        if name not in names:
            return printing.show(item)
        return f"tensor{() if name in per_row else tuple(map(int, item.shape))}"

    text_of(omega)
    with printing.whole():
        return ", ".join([_written(form(omega), shown), *map(printing.show, (gamma, *names))])


def _written(form: tuple[Any, ...], shown: Callable[[str], str], prefix: str = "") -> str:
    """The calls of a form, with its arguments as ``shown`` by dotted name."""
    cls, *inner = form
    if cls is Recorded:
        *own, names = inner
        items = [*map(printing.show, own), *(shown(prefix + name) for name in names)]
        return f"Recorded({', '.join(items)})"
    if cls is Sum:
        terms = [_written(part, shown, f"{prefix}terms.{i}.") for i, part in enumerate(inner)]
        return f"Sum({', '.join(terms)})"
    parts = dict(zip(PARTS.get(cls, ()), inner, strict=False))
    name = cls.__name__ if parts else _name(cls, *inner)
    items = [
        f"{k}={_written(parts[k], shown, f'{prefix}{k}.') if k in parts else shown(prefix + k)}"
        for k in cls.arguments
    ]
    return f"{name}({', '.join(items)})"


def _name(cls: Any, held: tuple[str, ...], odd: tuple[str, ...]) -> str:
    """The name of a class in a text; TypeError if its call does not make its object again."""
    name = word(cls, known())
    if name is None:
        raise TypeError(
            f"torch.compile and torch.export record closed forms of registered regularizers and "
            f"penalties; {cls.__name__} is not one (compile without fullgraph, or outside of this "
            "layer)"
        )
    if odd or not set(held) <= set(cls.arguments):
        raise TypeError(
            f"{cls.__name__} cannot be made again from its constructor's arguments "
            f"({', '.join(cls.arguments)}): each must be an attribute (a number, str, tuple or "
            "tensor), and there must be no other tensor"
        )
    return name


def made(text: str, values: Sequence[Any] = ()) -> Any:
    """What a graph's text means, ``values`` in the place of ``_0``, ``_1``, …"""
    names = known()
    penalties = [offer.cls for offer in registry().offers("penalty")]
    for name, item in names.items():
        if any(item is cls for cls in penalties):
            names[name] = functools.partial(_stored, item)
    given = {f"_{k}": item for k, item in enumerate(values)}
    return read(text, {**names, **given, "tensor": _unseen})


def _stored(cls: type[Penalty], **arguments: Any) -> Penalty:
    key = (cls, *arguments.values())
    return _KNOWN[key] if is_value(key[1:]) and key in _KNOWN else cls(**arguments)


def _unseen(*size: int) -> Tensor:
    """A meta tensor, which passes the checks of hyperparameters; numbers out of range give NaN
    rows."""
    return torch.empty(size, device="meta")
