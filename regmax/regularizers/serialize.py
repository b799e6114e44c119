"""Ω as a text plus numbers and tensors by dotted name, for recorded graphs.

The text names the registered classes of an expression, as nested lists of JSON:

    ["regularizer", "tsallis"]          ["scaled", Ω]           ["sum", Ω, Ω, …]
    ["penalty", "tv"]                   ["weighted", R]         ["penalized", Ω, R]
"""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor, nn

from .expressions import Scaled, ScaledPenalty, Sum
from .penalty import Penalized, Penalty
from .registry import registry
from .regularizer import Regularizer, frozen

# for each class: its word, its arguments that are numbers, its arguments that are expressions
_FORMS: dict[type[Any], tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    Scaled: ("scaled", ("c",), ("base",)),
    ScaledPenalty: ("weighted", ("lam",), ("penalty",)),
    Penalized: ("penalized", ("lam",), ("base", "penalty")),
}


_KNOWN: dict[tuple[Any, ...], Penalty] = {}
"""Penalties of plain arguments, by name and arguments. A penalty made again under a tracer would
hold the tracer's tensors, in its graph for instance."""


def text_of(omega: Regularizer) -> str:
    """The text of Ω, or a TypeError that says why there is none."""
    found = text(form(omega))
    for part in omega.modules():
        if isinstance(part, Penalty) and type(part) not in _FORMS and not _held(part):
            _KNOWN[(part.name, *(getattr(part, k) for k in part.arguments))] = frozen(part)
    return found


def form(part: Any) -> tuple[Any, ...]:
    """The form that determines the text: the classes of the expression and, for each registered
    one, the names of its tensors and of the arguments that are not plain values.

    Dynamo traces this function, so that layers of one form share one graph.
    """
    cls = type(part)
    if cls is Sum:
        return (cls, *[form(term) for term in part.terms])
    if cls in _FORMS:
        return (cls, *[form(getattr(part, name)) for name in _FORMS[cls][2]])
    held = _held(part)
    odd = [k for k in cls.arguments if k not in held and not _is_plain(getattr(part, k, None))]
    return cls, tuple(held), tuple(odd)


def text(form: tuple[Any, ...]) -> str:
    """The text of a form, or a TypeError that says why there is none."""
    return json.dumps(_listed(form))


def remembered(form: tuple[Any, ...]) -> bool:
    """Whether a part is a penalty of plain arguments, which ``text_of`` stores."""
    cls, *inner = form
    if cls is Sum or cls in _FORMS:
        return any(remembered(part) for part in inner)
    return issubclass(cls, Penalty) and cls.arguments != inner[0]


def _held(part: nn.Module) -> list[str]:
    """The names of the tensors inside a part, dotted for those in submodules."""
    direct = [*part.__dict__.items(), *part._parameters.items(), *part._buffers.items()]
    nested = [f"{key}.{name}" for key, module in part.named_children() for name in _held(module)]
    return [key for key, item in direct if isinstance(item, Tensor)] + nested


def _listed(form: tuple[Any, ...]) -> list[Any]:
    cls, *inner = form
    if cls is Sum:
        return ["sum", *map(_listed, inner)]
    return [_FORMS[cls][0], *map(_listed, inner)] if cls in _FORMS else _leaf(*form)


def _leaf(cls: Any, held: tuple[str, ...], odd: tuple[str, ...]) -> list[Any]:
    kind, names = ("penalty" if issubclass(cls, Penalty) else "regularizer"), cls.arguments
    if registry().names(kind).get(cls.name) != cls:
        raise TypeError(
            f"torch.compile and torch.export record closed forms of registered regularizers and "
            f"penalties; {cls.__name__} is not one (compile without fullgraph, or outside of this "
            "layer)"
        )
    if odd or not set(held) <= set(names):
        raise TypeError(
            f"{cls.__name__} cannot be made again from its constructor's arguments "
            f"({', '.join(names)}): each must be an attribute (a number, str, tuple or tensor), "
            "and there must be no other tensor"
        )
    return [kind, cls.name]


def _is_plain(item: Any) -> bool:
    if isinstance(item, tuple):
        return all(map(_is_plain, item))
    return isinstance(item, bool | int | float | str)


def has_text(omega: Regularizer) -> bool:
    """Whether Ω has a text."""
    try:
        text(form(omega))
    except TypeError:
        return False
    return True


def call(omega: Regularizer, gamma: float | None, names: tuple[str, ...]) -> str:
    """Ω and γ without their tensors ``names``, as the text that an operator parses, possibly in
    another process."""
    text = text_of(omega)
    numbers = {name: attribute(omega, name) for name in arguments(text) if name not in names}
    fixed = set(names) - set(omega.per_row_tensors())
    sizes = {name: list(attribute(omega, name).shape) for name in sorted(fixed)}
    parts = {"omega": text, "numbers": numbers, "tensors": names, "sizes": sizes, "gamma": gamma}
    return json.dumps(parts)


def arguments(text: str) -> list[str]:
    """The dotted names of the arguments of the expression, in order."""
    return _arguments(json.loads(text), "")


def _arguments(form: list[Any], prefix: str) -> list[str]:
    word, *inner = form
    if word == "sum":
        return [n for i, f in enumerate(inner) for n in _arguments(f, f"{prefix}terms.{i}.")]
    for known, numbers, names in _FORMS.values():
        if word == known:
            direct = [prefix + name for name in numbers]
            nested = zip(inner, names, strict=True)
            return direct + [n for f, name in nested for n in _arguments(f, f"{prefix}{name}.")]
    return [prefix + name for name in registry().get(word, inner[0]).arguments]


def attribute(omega: Any, name: str) -> Any:
    """The attribute of a dotted name."""
    for key in name.split("."):
        omega = omega[int(key)] if key.isdigit() else getattr(omega, key)
    return omega


def made(text: str, values: list[Any]) -> Regularizer:
    """The expression of a text and the values of its ``arguments``."""
    items = dict(zip(arguments(text), map(_tuples, values), strict=True))
    omega: Regularizer = _made(json.loads(text), "", items)
    return omega


def _tuples(item: Any) -> Any:
    """Lists as tuples: JSON has no tuples."""
    return tuple(map(_tuples, item)) if isinstance(item, list) else item


def _made(form: list[Any], prefix: str, items: dict[str, Any]) -> Any:
    word, *inner = form
    if word == "sum":
        return Sum(*(_made(f, f"{prefix}terms.{i}.", items) for i, f in enumerate(inner)))
    for cls, (known, numbers, names) in _FORMS.items():
        if word == known:
            direct = {name: items[prefix + name] for name in numbers}
            nested = zip(inner, names, strict=True)
            parts = {name: _made(f, f"{prefix}{name}.", items) for f, name in nested}
            return cls(**parts, **direct)
    leaf = registry().get(word, inner[0])
    values = {name: items[prefix + name] for name in leaf.arguments}
    if all(map(_is_plain, values.values())) and (inner[0], *values.values()) in _KNOWN:
        return _KNOWN[(inner[0], *values.values())]
    return leaf(**values)
