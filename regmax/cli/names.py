"""Regularizers by name, with hyperparameters, or as expressions."""

from __future__ import annotations

import functools

from ..regularizers import serialize
from ..regularizers.errors import clipped, told
from ..regularizers.penalty import Penalty
from ..regularizers.registry import Registry, instance, required
from ..regularizers.regularizer import Regularizer
from .common import UsageError, note


def with_defaults(found: Registry) -> list[str]:
    """The names of regularizers without required arguments. A note shows how to type the others."""
    names = []
    for name, cls in found.names("regularizer").items():
        try:
            needed = required(cls)
        except Exception as error:  # a plugin's code may raise anything
            note(f"left out: {name}: {told(error)}")
            continue
        if needed:
            call = f"{name}({', '.join(f'{key}=...' for key in needed)})"
            note(f"left out: {name} has no default for {', '.join(needed)}; name it: '{call}'")
        else:
            names.append(name)
    return names


def by_default(found: Registry, name: str) -> Regularizer | Exception:
    """The regularizer of this name with its defaults, or what its constructor raises."""
    try:
        made: Regularizer = instance(found.get("regularizer", name), "regularizer", name, {})
    except Exception as error:  # a plugin's code may raise anything
        return error
    return made


def named(text: str) -> tuple[str, Regularizer]:
    """The regularizer that ``text`` means; :class:`UsageError` says why there is none.

    The grammar is that of :mod:`regmax.regularizers.serialize`, with names of mappings too. In an
    expression a bare name of both a regularizer and a penalty, as ``tv``, means the penalty;
    ``tv()`` and ``tv(lam=0.5)`` mean the regularizer. ``tv:lam=0.5`` is short for the latter.
    """
    name, _, tail = text.partition(":")
    try:
        if set("+*()") & set(name):
            made = serialize.read(text, serialize.known())
        else:  # names need not be names of Python
            call = functools.partial(serialize.offered, "regularizer", name)
            made = serialize.read(f"call({tail})", {"call": call})
    except Exception as error:  # a plugin's code may raise anything
        raise UsageError(f"{clipped(text, 80)}: {told(error)}") from error
    if isinstance(made, Penalty):
        raise UsageError(
            f"{clipped(text, 80)}: that is a penalty, not a regularizer; add it to one, as in "
            "gini + 0.1*tv"
        )
    if not isinstance(made, Regularizer):
        raise UsageError(f"{clipped(text, 80)}: that is {type(made).__name__}, not a regularizer")
    return text, made
