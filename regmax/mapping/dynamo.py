"""Π_Ω and max_Ω in ``torch.compile``: one call in the graph, which Dynamo does not trace.

Dynamo cannot trace the construction of an nn.Module. So the graph has one function of tensors and
numbers, which the stages after Dynamo trace. ``torch.export`` does not need this module.

Dynamo imports it when it meets a mapping: the marks below load the compiler, which would double the
time of ``import regmax``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import domains
from ..domains import Domain
from ..regularizers import identity, serialize
from ..regularizers.penalty import Penalized
from ..regularizers.recorded import Reading, read
from ..regularizers.regularizer import Regularizer
from . import evaluate
from .methods.closed_form import has_formula, has_inverse
from .methods.solver import Settings
from .operator import not_recordable

F = TypeVar("F", bound=Callable[..., Any])
in_graph: Callable[[F], F] = torch.compiler.allow_in_graph
_constant: Callable[[F], F] = torch.compiler.assume_constant_result
_READ: dict[str, Reading] = {}
"""What was read of values, by its text."""


def made(text: str, arguments: list[Any]) -> Regularizer:
    """Ω of a text of :func:`text_of` with these arguments."""
    own = _READ.get(text)
    omega: Regularizer = serialize.made(text, arguments) if own is None else own.made(arguments)
    return omega


@in_graph
def mapping(
    text: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, domain: Any, *arguments: Any
) -> Tensor:
    """Π_Ω(x), Ω the expression of that text with these arguments; ``domain``: as
    :func:`regmax.domains.told` gives it."""
    omega, D = made(text, list(arguments)), domains.made(domain)
    return evaluate.mapping(omega, x, gamma, dim, mask, Settings(), D)


@in_graph
def _smooth_max(
    text: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, domain: Any, *arguments: Any
) -> Tensor:
    """max_Ω(x)."""
    omega, D = made(text, list(arguments)), domains.made(domain)
    return evaluate.maximum(omega, x, gamma, dim, mask, Settings(), D)


CALLS: dict[str, Callable[..., Tensor]] = {"forward": mapping, "max": _smooth_max}
"""By the method of a layer that they compute."""


def text_of(
    omega: Regularizer, settings: Settings, domain: Domain | None = None, /, **given: Any
) -> tuple[str, list[Any]]:
    """Ω as a text, and its arguments, ``given`` or its attributes. The text is empty where Π_Ω
    cannot be recorded, on this domain; the graph then breaks.

    Dynamo traces the walk through Ω. An object that it took for a constant would belong to one
    graph, and each layer of a stack would be compiled separately.
    """
    if domain is not None and not (domains.told(domain) and has_inverse(omega)):
        return "", []
    form = identity.form(omega)
    if identity.remembered(form):
        text, names = _of_object(omega, settings)
    elif settings.solver == "auto" and not settings.certify and has_formula(omega):
        text, names = of_form(form)
    elif settings.solver == "auto" and not settings.certify and domain is None:
        text, names = _of_value(omega, tuple(given), *_numbers(omega))
    else:
        return "", []
    return text, [given[k] if k in given else identity.attribute(omega, k) for k in names]


def records(cls: type[Regularizer], domain: Domain | None) -> bool:
    """Whether the Ω of a class that has a text can be recorded on this domain."""
    if domain is None:
        return True
    formula = issubclass(cls, Penalized) or cls.inverse is not Regularizer.inverse
    return formula and bool(domains.told(domain))


@_constant
def of_form(form: tuple[Any, ...]) -> tuple[str, list[str]]:
    try:
        return serialize.text(form)
    except TypeError:
        return "", []


@_constant
def _of_object(omega: Regularizer, settings: Settings) -> tuple[str, list[str]]:
    return ("", []) if not_recordable(omega, settings) else serialize.text_of(omega)


@_constant
def _of_value(omega: Regularizer, given: tuple[str, ...], *_: Any) -> tuple[str, list[str]]:
    """The text of what a value is; ``given``: the numbers in it that are arguments. The further
    arguments are what it was read with."""
    omega = omega.with_tensors({name: torch.ones((), device="cpu") for name in given})
    try:
        found = read(omega)
    except TypeError:
        return "", []
    _READ[found.text] = found
    return found.text, list(omega.tensors(fixed=True))


@_constant
def of_name(named: Callable[[str], Regularizer], name: str, domain: bool) -> tuple[str, list[Any]]:
    """The text of the regularizer ``named(name)``, and its arguments, which are numbers;
    ``domain``: on another domain than the simplex."""
    return ("", []) if domain and not has_inverse(named(name)) else text_of(named(name), Settings())


def _numbers(part: Any) -> list[Any]:
    """The values that are attributes of Ω and its modules. Dynamo traces this function: where one
    has changed, it records again."""
    found = [_fixed(item) for item in part.__dict__.values() if identity.is_value(item)]
    for _, module in part.named_children():
        found += _numbers(module)
    return found


def _fixed(item: Any) -> Any:
    """A value that Dynamo takes for a constant, as it does not a float that has changed."""
    if isinstance(item, tuple):
        return tuple([_fixed(each) for each in item])
    return item.hex() if isinstance(item, float) else item


def _outside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A call outside of the graph."""
    return function(*arguments, **options)


_WHY = (
    "regmax computes this Ω, solver or domain outside of the graph: compile without fullgraph; "
    "torch.export names the reason"
)
_OPTIONS: dict[str, Any] = (
    {"reason": _WHY} if "reason" in inspect.signature(torch.compiler.disable).parameters else {}
)  # older versions of PyTorch have none
outside: Callable[..., Any] = torch.compiler.disable(_outside, **_OPTIONS)
