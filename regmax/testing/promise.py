"""A promise is a function of an Ω under test and of scores that raises if Ω breaks the promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .inputs import normal
from .subject import Subject


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


@dataclass(frozen=True, eq=False)
class Case:
    """Scores (rows, d) in float64, γ, a mask or None, and a seed for random directions."""

    x: Tensor
    gamma: float = 1.0
    mask: Tensor | None = None
    seed: int = 0

    def direction(self, *more: int) -> Tensor:
        """A random vector per row, (rows, d)."""
        return normal(*more, *self.x.shape, seed=1000 + self.seed)

    def rows(self, keep: Tensor) -> Case:
        """The rows that a bool or index tensor selects."""
        return replace(self, x=self.x[keep], mask=None if self.mask is None else self.mask[keep])

    def entries(self, keep: Tensor) -> Case:
        """The entries of each row that an index tensor selects."""
        mask = None if self.mask is None else self.mask[:, keep]
        return replace(self, x=self.x[:, keep], mask=mask)

    def participants(self) -> Tensor:
        return torch.ones_like(self.x, dtype=torch.bool) if self.mask is None else self.mask

    def describe(self) -> str:
        """The case as Python code."""
        lines = [f"x = {show(self.x)}", f"gamma = {self.gamma!r}"]
        lines.append("mask = None" if self.mask is None else f"mask = {show(self.mask)}")
        return "\n".join(lines)


def show(t: Tensor) -> str:
    """A tensor as Python code; a large one only by shape and dtype."""
    if t.numel() > 64:
        return f"<tensor of shape {tuple(t.shape)}, {t.dtype}>"
    numbers = repr(t.tolist()).replace("nan", "math.nan").replace("inf", "math.inf")
    return f"torch.tensor({numbers}, dtype={t.dtype})"


def worst(t: Tensor) -> float:
    """The largest absolute entry; NaN counts as infinite."""
    return float(torch.nan_to_num(t.detach().abs(), nan=math.inf).max()) if t.numel() else 0.0


@dataclass(frozen=True)
class Search:
    """The cases for a promise. ``costly``: the check calls a solver, so the cases are few."""

    masks: bool = True
    costly: bool = False


Promise = Callable[[Subject, Case], None]
Applies = Callable[[Subject], bool]


def always(s: Subject) -> bool:
    return True


def exact(s: Subject) -> bool:
    return s.omega.exact


@dataclass(frozen=True)
class Kind:
    """A named promise about each Ω for which ``applies`` is true. ``search`` is None if
    ``function`` has its own inputs."""

    name: str
    applies: Applies
    search: Search | None
    function: Callable[..., None]


def searched(
    applies: Applies = always, masks: bool = True, costly: bool = False
) -> Callable[[Promise], Kind]:
    """A decorator: ``check_name(subject, case)`` is a promise about every case."""
    return lambda function: _kind(function, applies, Search(masks, costly))


def fixed(applies: Applies = always) -> Callable[[Callable[[Subject], None]], Kind]:
    """A decorator: ``check_name(subject)`` is a promise with its own inputs."""
    return lambda function: _kind(function, applies, None)


def _kind(function: Callable[..., None], applies: Applies, search: Search | None) -> Kind:
    return Kind(function.__qualname__, applies, search, function)
