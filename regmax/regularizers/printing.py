"""What an Ω prints: the Python expression that recreates it, and its formula in LaTeX.

``eval(repr(omega))`` is Ω again if its classes and ``torch`` are imported. Numbers keep all of
their digits. A tensor or sequence of more than 64 entries, or a tensor without numbers (on the meta
device, under a tracer), is only described, in angle brackets. A tensor computed from others is
printed as its value. ``str(omega)`` is the formula: a tensor of one entry is printed as a number, a
larger one as its shape. Notebooks show the formula in LaTeX.
"""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.base import held
from ..kernels.wrappers import kind
from .errors import clipped

LIMIT = 64
Namer = Callable[[type], str]
_short = ContextVar("regmax_short", default=False)
_whole: ContextVar[Namer | None] = ContextVar("regmax_whole", default=None)


def short() -> AbstractContextManager[None]:
    """Inside, tensors are printed as in ``str``."""
    return held(_short, True)


def whole(name: Namer = lambda cls: cls.__name__) -> AbstractContextManager[None]:
    """Inside, all entries are printed, and the text does not depend on the device or the default
    dtype: for files. ``name`` names the classes."""
    return held(_whole, name)


# -- expressions -----------------------------------------------------------------------------------


@functools.singledispatch
def show(item: object) -> str:
    """The printed form of a constructor's argument; numbers of other libraries as Python's."""
    plain = next((cls for cls in (bool, float, int, str) if isinstance(item, cls)), type(item))
    return plain.__repr__(item)


@show.register
def _(item: tuple) -> str:  # type: ignore[type-arg]
    if len(item) > LIMIT and _whole.get() is None:
        return f"<{len(item)} entries>"
    return f"({', '.join(map(show, item))}{',' if len(item) == 1 else ''})"


@show.register
def _(item: Tensor) -> str:
    what = kind(item)
    if what is not None:  # printing a DTensor's entries would fetch them
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
    whole = _whole.get() is not None
    if item.numel() > LIMIT and not whole:
        return f"<tensor of {shape}, {item.dtype}>"
    kept = isinstance(item, torch.nn.Parameter)
    options = [f"dtype={item.dtype}"] if whole or item.dtype != _inferred_dtype(item) else []
    options += [f"device={str(item.device)!r}"] if not whole and item.device.type != "cpu" else []
    options += ["requires_grad=True"] if item.requires_grad and item.is_leaf and not kept else []
    made = f"torch.tensor({', '.join([_numbers(item.tolist(), item.dtype), *options])})"
    if not kept:
        return made
    return f"torch.nn.Parameter({made}{'' if item.requires_grad else ', requires_grad=False'})"


def brief(item: object) -> str:
    """``item`` for a message: tensors as in ``str``, the rest on one line, clipped."""
    with short():
        return clipped(" ".join(show(item).split()), 100)


def _inferred_dtype(item: Tensor) -> torch.dtype:
    """The dtype that torch.tensor infers from the numbers of ``item``."""
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
    for digits in range(1, 17):  # the fewest digits that give the same number in this dtype
        number = float(f"{item:.{digits}g}")
        if torch.tensor(number, dtype=dtype, device="cpu").item() == item:
            return repr(number)
    return repr(item)


def called(item: object, parts: Iterable[str]) -> str:
    """The call of the constructor of ``item`` with the arguments ``parts``."""
    name = _whole.get()
    called = type(item).__name__ if name is None else name(type(item))
    return f"{called}({', '.join(parts)})"


def unusual(**given: tuple[Any, Any]) -> list[str]:
    """``lam=0.1`` for each (item, default) in which the two differ."""
    return [
        f"{name}={show(item)}"
        for name, (item, usual) in given.items()
        if isinstance(item, Tensor) or type(item) is not type(usual) or item != usual
    ]


def arguments(item: Any, always: Iterable[str] = ()) -> list[str]:
    """``lam=0.1`` for each constructor argument that is also an attribute and either differs from
    its default or is in ``always``. A bound method of that name does not count as an attribute."""
    missing = inspect.Parameter.empty
    usual = {k: p.default for k, p in inspect.signature(type(item).__init__).parameters.items()}
    given = {name: getattr(item, name, missing) for name in list(usual)[1:]}
    methods = {name for name, value in given.items() if getattr(value, "__self__", None) is item}
    return unusual(
        **{
            name: (value, missing if name in always else usual[name])
            for name, value in given.items()
            if value is not missing and name not in methods
        }
    )


# -- LaTeX -----------------------------------------------------------------------------------------

_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi"
)


def latex(item: Any) -> str:
    """The ``formula`` of a regularizer or penalty with its hyperparameters in place of ``$name``;
    without one, its name and hyperparameters."""
    names = item.hyperparameters or ()
    values = {name: _number(name, getattr(item, name)) for name in names}
    if isinstance(item.formula, str) and item.formula:
        return string.Template(item.formula).safe_substitute(values)
    given = [rf"{_symbol(name)} = {value}" for name, value in values.items()]
    return rf"{_upright(type(item).__name__)}({', '.join(['y', *given])})"


def _number(name: str, value: Any) -> str:
    """A number; the symbol of ``name`` for a tensor of several, or without numbers."""
    with short():
        text = show(value)
    try:
        mantissa, e, exponent = f"{float(text):g}".partition("e")
    except ValueError:
        return _symbol(name)
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if e else mantissa


def _symbol(name: str) -> str:
    r"""``\alpha`` for alpha, ``\lambda`` for lam."""
    name = "lambda" if name == "lam" else name
    if _GREEK.fullmatch(name):
        return f"\\{name}"
    return name if len(name) == 1 else _upright(name)


def _upright(name: str) -> str:
    escaped = name.replace("_", r"\_")
    return rf"\mathrm{{{escaped}}}"


def _factor(text: str) -> str:
    """A formula as a factor, in parentheses if it is a sum."""
    flat, inside = text, r"\{[^{}]*\}|\([^()]*\)|\\lvert[^{}()]*\\rvert"
    while (outside := re.sub(inside, "", flat)) != flat:
        flat = outside
    return rf"\left({text}\right)" if re.search(r"[+-]", flat) else text


def latex_product(name: str, value: Any, text: str) -> str:
    """value · text."""
    times = _number(name, value)
    return text if times == "1" else rf"{times}\, {_factor(text)}"
