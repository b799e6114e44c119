"""``+`` and ``*`` of regularizers and penalties. What they mean is said in :mod:`regmax.algebra`,
which is built on both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar


class Operand:
    """What can be added, and multiplied by a number."""

    __array_ufunc__ = None  # numbers of numpy leave products with an operand to it
    hyperparameters: ClassVar[tuple[str, ...] | None] = None
    ranges: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {}

    def __add__(self, other: Any) -> Any:
        return plus(self, other)

    def __radd__(self, other: Any) -> Any:
        return plus(self, other)

    def __mul__(self, c: Any) -> Any:
        return times(self, c)

    def __rmul__(self, c: Any) -> Any:
        return times(self, c)


@functools.singledispatch
def plus(first: Any, second: Any) -> Any:
    """first + second."""
    raise NotImplementedError


@functools.singledispatch
def times(item: Any, c: Any) -> Any:
    """c · item."""
    raise NotImplementedError
