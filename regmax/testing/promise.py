"""A promise is a function of what is under test, and of a case, that raises if it is broken."""

from __future__ import annotations

import math
import unittest
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .search import Case


class Skipped(unittest.SkipTest):
    """A check cannot run: an optional package is missing, or nothing suits it. pytest skips the
    test."""


class Broken(Exception):
    """A promise is broken: what was expected, what was found, and where to look, if that is not
    where every check looks. A tensor is shown by its numbers."""

    def __init__(
        self, expected: str, found: str | Tensor, look: str | None = None, **tensors: Tensor
    ) -> None:
        found = f"{found.tolist()}" if isinstance(found, Tensor) else found
        super().__init__(f"{expected}; {found}")
        self.expected, self.found, self.look, self.tensors = expected, found, look, tensors


def worst(t: Tensor) -> float:
    """The largest absolute entry; NaN counts as infinite."""
    away = t.detach().abs()
    return float(torch.where(away.isnan(), math.inf, away).max()) if t.numel() else 0.0


def agree(
    found: Tensor,
    expected: Tensor,
    allowed: Tensor | float,
    right: str,
    how: str,
    look: str | None = None,
    **tensors: Tensor,
) -> None:
    """``found`` is ``expected`` within ``allowed``, or a promise is broken. ``right`` and ``how``
    say what the two are."""
    same = found.shape == expected.shape
    if not (same and bool(((found - expected).abs() <= allowed).all())):
        off = f", off by {worst(found - expected):.3g}" if same else ""
        said = f"{how} = {found.tolist()}{off}"
        raise Broken(f"{right}: {expected.tolist()}", said, look, **tensors)


class Tested:
    """What promises are about: ``given``, an Ω, a solver or a domain, and what a report says of it.

    ``label``: its name, ``id`` that of its tests. ``look``: where to look, where nothing else says
    so.
    """

    given: Any
    label: str
    id: str
    look: str
    cases: Callable[..., Iterable[Case]]
    """``cases(costly, ...)``: those of a promise; keyword arguments say which."""

    any_size = True
    """Whether rows may have any number of entries."""
    has_formula = False
    """Whether it answers without a solver."""

    def written(self, owner: object) -> bool:
        """Whether the author under test wrote the class of ``owner``."""
        return owner is self.given


@dataclass(frozen=True)
class Kind:
    """A named promise about each subject for which ``applies`` is true.

    ``which``: what it asks of the cases; None if ``function`` has its own inputs. ``costly``: it
    calls a solver, so few cases are tried.
    """

    name: str
    function: Callable[..., None]
    applies: Callable[[Any], bool]
    which: dict[str, Any] | None = None
    costly: bool = False


def always(s: object) -> bool:
    return True


def searched(
    applies: Callable[[Any], bool] = always, costly: bool = False, **which: Any
) -> Callable[[Callable[[Any, Any], None]], Kind]:
    """A decorator: ``check_name(subject, case)`` is a promise about every case."""
    return lambda function: Kind(function.__qualname__, function, applies, which, costly)


def fixed(
    applies: Callable[[Any], bool] = always,
) -> Callable[[Callable[[Any], None]], Kind]:
    """A decorator: ``check_name(subject)`` is a promise with its own inputs."""
    return lambda function: Kind(function.__qualname__, function, applies)


def kinds_of(*modules: dict[str, Any]) -> dict[str, Kind]:
    """The promises among the names of these modules."""
    each = [item for names in modules for item in names.values()]
    return {kind.name: kind for kind in each if isinstance(kind, Kind)}
