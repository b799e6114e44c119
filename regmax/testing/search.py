"""The cases on which a promise is tried, and the search for the smallest that breaks it.

A promise is tried on fixed cases, then on random ones, the same for every promise, so that a
subject can cache answers. The first case that breaks it is made smaller: fewer rows, fewer entries,
no mask, γ = 1, rounder scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .inputs import normal


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

    def rows(self, keep: Tensor | Sequence[int]) -> Case:
        """The rows that indices, or a bool tensor, select."""
        return replace(self, x=self.x[keep], mask=None if self.mask is None else self.mask[keep])

    def entries(self, keep: Sequence[int]) -> Case:
        """The entries of each row that indices select. A mask is dropped that leaves a row none."""
        mask = None if self.mask is None else self.mask[:, keep]
        if mask is not None and not bool(mask.any(-1).all()):
            mask = None
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


def fixed_cases(sizes: Sequence[int], masks: bool) -> Iterator[Case]:
    """Rows of every size, far apart, tied, close together, and masked."""
    for k, d in enumerate(sizes):
        yield Case(normal(2, d, seed=k), seed=k)
    d = sizes[-1]
    yield Case(normal(3, d, seed=11) * 4, 0.5, seed=11)
    yield Case((normal(3, d, seed=12) * 2).round() / 2, 2.0, seed=12)
    yield Case(normal(3, d, seed=15) / 4, seed=15)
    if masks and d > 1:
        mask = normal(4, d, seed=13) < 0.5
        mask[:, 1] = True
        yield Case(normal(4, d, seed=14) * 2, 0.5, mask, seed=13)


def random_cases(d: int, any_size: bool, masks: bool, number: int) -> Iterator[Case]:
    """``number`` cases of one to three rows of d entries, or of up to d; the first is of zeros."""
    for k in range(number):
        n, size = 1 + k % 3, 1 + (5 * k + 3) % d if any_size else d
        x = 2 * normal(n, size, seed=20 + k)
        mask = normal(n, size, seed=30 + k) < 0.5
        mask[:, k % size] = True
        scores = (torch.zeros_like(x), x.round(decimals=1), x, x.round())[k % 4]
        yield Case(scores, (1.0, 0.5, 2.0)[k % 3], mask if masks and k % 2 else None, seed=k)


def shrunk(breaks: Callable[[Case], bool], case: Case, any_size: bool, tries: int) -> Case:
    """A part of ``case`` that breaks the promise too, of which no smaller one does, as far as
    ``tries`` attempts show."""
    left = tries
    while left > 0:
        for part in _smaller(case, any_size):
            left -= 1
            if breaks(part):
                case = part
                break
            if left == 0:
                break
        else:
            break
    return case


def _smaller(case: Case, any_size: bool) -> Iterator[Case]:
    """Parts of the case, each simpler in one respect."""
    n, d = case.x.shape
    if n > 1:
        yield from (case.rows([i]) for i in range(n))
        yield from (case.rows([i for i in range(n) if i != k]) for k in range(n) if n > 2)
    if case.mask is not None:
        yield replace(case, mask=None)
    if case.gamma != 1:
        yield replace(case, gamma=1.0)
    if any_size and d > 1:
        yield from (case.entries([j for j in range(d) if j != k]) for k in range(d))
    for scores in (torch.zeros_like(case.x), case.x.round(), case.x.round(decimals=1)):
        if torch.equal(scores, case.x):
            break
        yield replace(case, x=scores)
