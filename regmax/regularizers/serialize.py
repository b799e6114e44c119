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
from .expressions import Scaled, ScaledPenalty, Sum
from .penalty import Penalized, Penalty
from .registry import instance, registry
from .regularizer import Regularizer, frozen

ACCEPTED = (
    "names, name(key=value, ...), numbers, + and *; as a value a number, True, False, a string, a "
    "tuple or a list"
)
_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}

# -- reading ---------------------------------------------------------------------------------------


def known(*further: type[Any]) -> dict[str, Any]:
    """What a text may name: the classes of plugins and ``further`` ones, None where two have one
    name; those of the algebra; tensors."""
    found: dict[str, Any] = {}
    kinds = [registry().names(kind) for kind in ("regularizer", "penalty")]
    for cls in [*further, *(cls for kind in kinds for cls in kind.values())]:
        found[cls.__name__] = cls if found.get(cls.__name__, cls) is cls else None
    found |= {cls.__name__: cls for cls in (Sum, *_PARTS)}
    return found | {"torch.tensor": torch.tensor, "torch.nn.Parameter": nn.Parameter}


def read(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression; ValueError if it cannot be read. ``names``: the values of names,
    beside those of plugins. The constructors may raise too."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise ValueError(f"cannot read {shown!r}; accepted: {ACCEPTED}") from None
    return _value(tree, names)


def _value(node: ast.AST, names: Mapping[str, Any], inside: bool = False) -> Any:
    """The value of a part of the expression; ``inside`` the arguments of a call or not."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as item):
            return item
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.Name(id=name) if not inside:
            return offered("penalty", name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            if isinstance(item := _value(operand, names, inside), int | float):
                return -item
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            parts = [_value(part, names, inside) for part in (left, right)]
            if not any(isinstance(part, bool | str | tuple | list) for part in parts):
                return _OPERATORS[type(op)](*parts)
        case ast.Tuple(elts=items):
            return tuple(_value(item, names, True) for item in items)
        case ast.List(elts=items):
            return [_value(item, names, True) for item in items]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            if isinstance(item := getattr(torch, name, None), float | torch.dtype):
                return item
        case ast.Call(func=func, args=args, keywords=keywords):
            given = [_value(item, names, True) for item in args]
            hyper = dict(_value(item, names, True) for item in keywords)
            made = names.get(ast.unparse(func))
            if made is None and isinstance(func, ast.Name):
                made = functools.partial(offered, "regularizer", func.id)
            if made is not None:
                return made(*given, **hyper)
        case (
            ast.keyword(arg=str(key), value=value)
            | ast.keyword(value=ast.Dict(keys=[ast.Constant(value=str(key))], values=[value]))
        ):  # key=value, or **{"base.key": value}
            return key, _value(value, names, True)
    raise ValueError(f"cannot read {ast.unparse(node)!r}; accepted: {ACCEPTED}")


def offered(first: str, name: str, /, *given: Any, **hyper: Any) -> Any:
    """The regularizer, also by its mapping's name, or the penalty that a plugin offers; ``first``
    is the kind to prefer. PluginError if there is none."""
    found = registry()
    for kind in (first, "regularizer", "penalty"):
        if kind == "regularizer" and name in found.mappings() and name not in found.names(kind):
            cls = found.mapping(name)
            hyper = {**cls.presets.get(name, {}), **hyper}
        elif name in found.names(kind) or any(name == offer.name for offer in found.offers(kind)):
            cls = found.get(kind, name)
        else:
            continue
        if given:
            raise TypeError(f"{name} takes its arguments by name: {name}(key=value, ...)")
        return instance(cls, kind, name, hyper)
    names = [*found.names("regularizer"), *found.mappings(), *found.names("penalty")]
    raise found.unknown("regularizer or penalty", name, list(dict.fromkeys(names)))


# -- recorded graphs -------------------------------------------------------------------------------

# the arguments that are expressions, of each class of the algebra but Sum
_PARTS: dict[Any, tuple[str, ...]] = {
    Scaled: ("base",),
    ScaledPenalty: ("penalty",),
    Penalized: ("base", "penalty"),
}
_KNOWN: dict[tuple[Any, ...], Penalty] = {}
"""Penalties of plain arguments, by class and arguments. A penalty made again under a tracer would
hold the tracer's tensors, in its graph for instance."""


def form(part: Any) -> tuple[Any, ...]:
    """The form that determines the text: the classes of the expression and, for each registered
    one, the names of its tensors and of the arguments that are not plain values.

    Dynamo traces this function, so that layers of one form share one graph.
    """
    cls = type(part)
    if cls is Sum:
        return (cls, *[form(term) for term in part.terms])
    if cls in _PARTS:
        return (cls, *[form(getattr(part, name)) for name in _PARTS[cls]])
    held = _held(part)
    odd = [k for k in cls.arguments if k not in held and not _is_plain(getattr(part, k, None))]
    return cls, tuple(held), tuple(odd)


def _held(part: nn.Module) -> list[str]:
    """The names of the tensors inside a part, dotted for those in submodules."""
    direct = [*part.__dict__.items(), *part._parameters.items(), *part._buffers.items()]
    nested = [f"{key}.{name}" for key, module in part.named_children() for name in _held(module)]
    return [key for key, item in direct if isinstance(item, Tensor)] + nested


def _is_plain(item: Any) -> bool:
    if isinstance(item, tuple):
        return all(map(_is_plain, item))
    return isinstance(item, bool | int | float | str)


def remembered(form: tuple[Any, ...]) -> bool:
    """Whether a part is a penalty of plain arguments, which ``text_of`` stores."""
    cls, *inner = form
    if cls is Sum or cls in _PARTS:
        return any(remembered(part) for part in inner)
    return issubclass(cls, Penalty) and cls.arguments != inner[0]


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
        if isinstance(part, Penalty) and type(part) not in _PARTS and not _held(part):
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
    if cls is Sum:
        terms = [_written(part, shown, f"{prefix}terms.{i}.") for i, part in enumerate(inner)]
        return f"Sum({', '.join(terms)})"
    parts = dict(zip(_PARTS.get(cls, ()), inner, strict=False))
    if not parts:
        _check(cls, *inner)
    items = [
        f"{k}={_written(parts[k], shown, f'{prefix}{k}.') if k in parts else shown(prefix + k)}"
        for k in cls.arguments
    ]
    return f"{cls.__name__}({', '.join(items)})"


def _check(cls: Any, held: tuple[str, ...], odd: tuple[str, ...]) -> None:
    """Raise TypeError if a call of the class does not make its object again."""
    if known().get(cls.__name__) != cls:
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


def attribute(omega: Any, name: str) -> Any:
    """The attribute of a dotted name."""
    for key in name.split("."):
        omega = omega[int(key)] if key.isdigit() else getattr(omega, key)
    return omega


def made(text: str, values: Sequence[Any] = ()) -> Any:
    """What a graph's text means, ``values`` in the place of ``_0``, ``_1``, …"""
    penalties = registry().names("penalty").values()
    stored = {cls.__name__: functools.partial(_stored, cls) for cls in penalties}
    given = {f"_{k}": item for k, item in enumerate(values)}
    return read(text, {**known(), **stored, **given, "tensor": _unseen})


def _stored(cls: type[Penalty], **arguments: Any) -> Penalty:
    key = (cls, *arguments.values())
    return _KNOWN[key] if _is_plain(key[1:]) and key in _KNOWN else cls(**arguments)


def _unseen(*size: int) -> Tensor:
    """A meta tensor, which passes the checks of hyperparameters; numbers out of range give NaN
    rows."""
    return torch.empty(size, device="meta")
