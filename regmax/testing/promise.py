"""A promise is a function of what is under test, and of a case, that raises if it is broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .search import Case, show
from .subject import Subject

__all__ = ["Broken", "Case", "Kind", "Skipped", "exact", "fixed", "searched", "show", "worst"]


class Skipped(Exception):
    """A check cannot run: an optional package is missing, or nothing suits it."""


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
    return float(torch.nan_to_num(t.detach().abs(), nan=math.inf).max()) if t.numel() else 0.0


class Tested(Protocol):
    """What promises are about: an Ω or a solver, with what a report says of it."""

    given: Any

    @property
    def any_size(self) -> bool:
        """Whether rows may have any number of entries."""

    @property
    def has_formula(self) -> bool:
        """Whether it answers without a solver."""

    @property
    def label(self) -> str: ...
    @property
    def look(self) -> str:
        """Where to look, where nothing else says so."""

    def written(self, owner: object) -> bool:
        """Whether the author under test wrote the class of ``owner``."""


@dataclass(frozen=True)
class Kind:
    """A named promise about each subject for which ``applies`` is true.

    ``cases(subject)``: the cases for it; None if ``function`` has its own inputs. ``costly``: it
    calls a solver, so few cases are tried.
    """

    name: str
    function: Callable[..., None]
    applies: Callable[[Any], bool]
    cases: Callable[[Any], Iterable[Case]] | None = None
    costly: bool = False


Promise = Callable[[Subject, Case], None]
Applies = Callable[[Subject], bool]


def always(s: object) -> bool:
    return True


def exact(s: Subject) -> bool:
    return s.omega.exact


def searched(
    applies: Applies = always, masks: bool = True, costly: bool = False
) -> Callable[[Promise], Kind]:
    """A decorator: ``check_name(subject, case)`` is a promise about every case."""

    def cases(s: Subject) -> Iterable[Case]:
        return s.cases(masks, costly)

    return lambda function: Kind(function.__qualname__, function, applies, cases, costly)


def fixed(applies: Applies = always) -> Callable[[Callable[[Subject], None]], Kind]:
    """A decorator: ``check_name(subject)`` is a promise with its own inputs."""
    return lambda function: Kind(function.__qualname__, function, applies)
