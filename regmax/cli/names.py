"""Parse a regularizer: ``tv``, ``tv:lam=0.5``, ``tsallis(alpha=1.5) + 0.1*tv``."""

from __future__ import annotations

import ast
import operator
from typing import Any

from ..regularizers.errors import PluginError
from ..regularizers.penalty import Penalty
from ..regularizers.registry import Registry, instance, required, suggestion
from ..regularizers.regularizer import Regularizer
from .common import UsageError, note

ACCEPTED = "NAME, NAME:key=number,..., or an expression such as 'tsallis(alpha=1.5) + 0.1*tv'"
_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}


def with_defaults(found: Registry) -> list[str]:
    """The names of regularizers without required arguments. A note shows how to type the others."""
    names = []
    for name, cls in found.regularizers().items():
        needed = required(cls)
        if needed:
            call = f"{name}({', '.join(f'{key}=...' for key in needed)})"
            note(f"left out: {name} has no default for {', '.join(needed)}; name it: '{call}'")
        else:
            names.append(name)
    return names


def named(found: Registry, text: str) -> tuple[str, Regularizer]:
    """The regularizer that ``text`` means; :class:`UsageError` says why there is none.

    A name is that of a regularizer or of a mapping. Expressions have names, calls of names with
    literals as keyword arguments, numbers, + and *; no code in them is executed. In an expression a
    bare name of both a regularizer and a penalty, as ``tv``, means the penalty; ``tv()`` and
    ``tv(lam=0.5)`` mean the regularizer.
    """
    if not set("+*()") & set(text.partition(":")[0]):
        return text, _plain(found, text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise UsageError(f"cannot read {shown!r}; accepted: {ACCEPTED}") from None
    try:
        made = _made(found, text, tree, alone=True)
    except UsageError:
        raise
    except Exception as error:  # a plugin's code may raise anything
        raise UsageError(f"{text}: {error}") from error
    if isinstance(made, Penalty):
        raise UsageError(
            f"{text}: that is a penalty, not a regularizer; add it to one, as in gini + 0.1*tv"
        )
    if not isinstance(made, Regularizer):
        raise UsageError(f"{text}: that is a number, not a regularizer; accepted: {ACCEPTED}")
    return text, made


def _plain(found: Registry, text: str) -> Regularizer:
    name, _, tail = text.partition(":")
    hyper = dict(_setting(text, part) for part in tail.split(",")) if tail else {}
    try:
        return _regularizer(found, name, hyper)
    except PluginError as error:
        raise UsageError(str(error)) from error
    except Exception as error:  # a plugin's code may raise anything
        raise UsageError(f"{text}: {error}") from error


def _regularizer(found: Registry, name: str, hyper: dict[str, Any]) -> Regularizer:
    if name not in found.regularizers() and name in found.mappings():
        cls = found.mapping(name)
        hyper = {**cls.presets.get(name, {}), **hyper}
    elif name in found.regularizers() or name in (o.name for o in found.offers("regularizer")):
        cls = found.get("regularizer", name)
    else:
        known = [*found.regularizers(), *found.mappings()]
        raise found.unknown("regularizer", name, known)
    omega: Regularizer = instance(cls, "regularizer", name, hyper)
    return omega


def _setting(text: str, part: str) -> tuple[str, float | bool]:
    key, _, value = part.partition("=")
    if key and value in ("True", "False"):
        return key.strip(), value == "True"
    try:
        return key.strip(), float(value)
    except ValueError:
        raise UsageError(f"{text}: expected NAME:key=number,...; got {part!r}") from None


def _made(found: Registry, text: str, node: ast.expr, alone: bool = False) -> Any:
    """The value of a part of the expression: a regularizer, a penalty or a number."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            parts = (_made(found, text, part) for part in (left, right))
            return _OPERATORS[type(op)](*parts)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -float(number)
        case ast.Name(id=name):
            return _one(found, text, name, {}, prefer_penalty=not alone)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            hyper = {k.arg: _literal(text, k.value) for k in keywords if k.arg is not None}
            if len(hyper) == len(keywords):
                return _one(found, text, name, hyper, prefer_penalty=False)
    raise UsageError(
        f"{text}: cannot read {ast.unparse(node)!r}; accepted: names, name(key=value, ...), "
        "numbers, + and *"
    )


def _one(
    found: Registry, text: str, name: str, hyper: dict[str, Any], prefer_penalty: bool
) -> Regularizer | Penalty:
    regularizers = {*found.regularizers(), *found.mappings()}
    penalties = found.penalties()
    if name in penalties and (prefer_penalty or name not in regularizers):
        penalty: Penalty = instance(penalties[name], "penalty", name, hyper)
        return penalty
    try:
        return _regularizer(found, name, hyper)
    except PluginError as error:
        like = "" if "did you mean" in str(error) else suggestion(name, penalties)
        known = f"; penalties: {', '.join(penalties)}{like}" if penalties else ""
        raise UsageError(f"{text}: {str(error).rstrip('.')}{known}") from error


def _literal(text: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(
            f"{text}: cannot read {ast.unparse(node)!r}; accepted as a value: a number, True, "
            "False, a string, a tuple or a list of such"
        ) from None
