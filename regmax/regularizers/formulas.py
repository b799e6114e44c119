"""Ω and penalties as LaTeX, which notebooks show."""

from __future__ import annotations

import re
import string
from typing import Any

from . import printing

GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi"
)


def leaf(item: Any) -> str:
    """The ``formula`` of a regularizer or penalty with its hyperparameters in place of ``$name``;
    without one, its name and hyperparameters."""
    names = item.hyperparameters or ()
    values = {name: number(name, getattr(item, name)) for name in names}
    if isinstance(item.formula, str) and item.formula:
        return string.Template(item.formula).safe_substitute(values)
    given = [rf"{symbol(name)} = {value}" for name, value in values.items()]
    return rf"{_upright(type(item).__name__)}({', '.join(['y', *given])})"


def number(name: str, value: Any) -> str:
    """A number; the symbol of ``name`` for a tensor of several, or without numbers."""
    with printing.short():
        text = printing.show(value)
    try:
        mantissa, e, exponent = f"{float(text):g}".partition("e")
    except ValueError:
        return symbol(name)
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if e else mantissa


def symbol(name: str) -> str:
    r"""``\alpha`` for alpha, ``\lambda`` for lam."""
    name = "lambda" if name == "lam" else name
    if GREEK.fullmatch(name):
        return f"\\{name}"
    return name if len(name) == 1 else _upright(name)


def _upright(name: str) -> str:
    escaped = name.replace("_", r"\_")
    return rf"\mathrm{{{escaped}}}"


def factor(text: str) -> str:
    """A formula as a factor, in parentheses if it is a sum."""
    flat, inside = text, r"\{[^{}]*\}|\([^()]*\)|\\lvert[^{}()]*\\rvert"
    while (outside := re.sub(inside, "", flat)) != flat:
        flat = outside
    return rf"\left({text}\right)" if re.search(r"[+-]", flat) else text


def product(name: str, value: Any, text: str) -> str:
    """value · text."""
    times = number(name, value)
    return text if times == "1" else rf"{times}\, {factor(text)}"
