"""The exceptions and warnings of regmax."""

from __future__ import annotations

import re
import sys
import warnings


class RegularizerError(ValueError):
    """An Ω breaks its contract: not finite, the wrong shape, or not convex where it must be."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before every row reached its tolerance."""


class ConvergenceError(RuntimeError):
    """:class:`ConvergenceWarning` as an error, for ``on_failure="raise"``."""


class PluginWarning(UserWarning):
    """A plugin is at fault; the rest of regmax works without it."""


class PluginError(LookupError):
    """A name that no plugin provides, or that two distributions claim."""


def clipped(text: str, most: int = 300) -> str:
    """``text``, or its first characters if it is longer than ``most``: for what comes from outside
    into a message."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def told(error: BaseException, most: int = 1000) -> str:
    """The text of an exception, clipped. The code that makes the text may raise anything."""
    try:
        return clipped(str(error), most)
    except BaseException as second:
        return f"(no text: its __str__ raises {class_name(type(second))})"


def class_name(cls: type) -> str:
    """The name of a class, whatever its metaclass does."""
    name: str = type.__dict__["__name__"].__get__(cls)
    return name


class _Said(str):
    """A text that equals those with the same words, whatever their numbers. Python's filter thus
    takes it for the warning that it showed before."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Said) and self._words() == other._words()

    def __hash__(self) -> int:
        return hash(self._words())

    def _words(self) -> tuple[str, ...]:
        found = re.findall(r"\b[^\W\d]\w*", self)
        return tuple(word for word in found if word not in ("inf", "nan"))


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that led here: the innermost line outside of regmax, its
    plugins and PyTorch. By default Python shows it once for each such line, whatever its numbers.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _INSIDE.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    space = frame.f_globals
    warnings.warn_explicit(
        _Said(message),
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        space.get("__name__"),
        space.setdefault("__warningregistry__", {}),
    )


_INSIDE = re.compile(r"(regmax(_\w+)?|torch|importlib|functools|contextlib)(\.|$)")
