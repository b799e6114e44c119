"""The cases on which a promise is tried, and the search for the smallest that breaks it.

A promise is tried on fixed cases, then on drawn ones. Hypothesis draws them, and reduces the first
case that breaks the promise: fewer rows, fewer entries, no mask, γ = 1, rounder scores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

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


@functools.cache
def drawn_cases(d: int, any_size: bool, masks: bool, number: int) -> tuple[Case, ...]:
    """``number`` drawn cases with rows of d entries, or of up to d. They are the same for every
    promise, so that a subject can cache answers."""
    sources = []
    for k in range(8):
        mask = normal(3, d, seed=30 + k) < 0.5
        mask[:, k % d] = True
        x, gamma = 2 * normal(3, d, seed=20 + k), (1.0, 0.5, 2.0)[k % 3]
        sources.append(Case(x, gamma, mask if masks else None, seed=k))
    found: list[Case] = []
    _for_parts(sources, any_size, number, found.append)
    return tuple(found)


def shrunk(breaks: Callable[[Case], bool], case: Case, any_size: bool, tries: int) -> Case:
    """The smallest part of ``case`` that hypothesis finds to break the promise, in 4·``tries``
    attempts; ``case`` where hypothesis is not installed."""
    left, broken = [4 * tries], [case]

    def attempt(part: Case) -> None:
        left[0] -= 1
        if left[0] >= 0 and breaks(part):
            broken.append(part)
            raise AssertionError

    try:
        _for_parts([case], any_size, tries, attempt)
    except ImportError:
        return case
    except Exception:
        # also an error of hypothesis, if the failure is not reproducible or the attempts are spent
        if len(broken) == 1:
            raise
    return min(broken, key=_size)


def _size(case: Case) -> tuple[float, ...]:
    masked = 0 if case.mask is None else int((~case.mask).sum()) + 1
    return case.x.numel(), masked, abs(case.gamma - 1), float(case.x.abs().sum())


def hypothesis() -> ModuleType:
    """The package that draws and shrinks inputs."""
    try:
        import hypothesis as package
    except ImportError as error:
        raise ImportError(
            "regmax.testing draws its inputs with hypothesis: pip install regmax[testing]"
        ) from error
    return package


def _for_parts(
    cases: Sequence[Case], any_size: bool, number: int, use: Callable[[Case], None]
) -> None:
    """``use(part)`` for ``number`` parts of the cases; if it raises, for smaller ones."""
    package = hypothesis()
    st = package.strategies

    @st.composite  # type: ignore[untyped-decorator]
    def parts(draw: Callable[[Any], Any]) -> Case:
        """In the order in which hypothesis simplifies: the first of each choice is the simplest."""
        case: Case = draw(st.sampled_from(cases))
        n, d = case.x.shape
        case = case.rows(sorted(draw(_subsets(st, n))))
        if any_size:
            case = case.entries(sorted(draw(_subsets(st, d))))
        scores = (torch.zeros_like(case.x), case.x.round(), case.x.round(decimals=1), case.x)
        mask = case.mask if draw(st.booleans()) else None
        gamma = draw(st.sampled_from((1.0, case.gamma)))
        return replace(case, x=draw(st.sampled_from(scores)), mask=mask, gamma=gamma)

    @package.settings(  # type: ignore[untyped-decorator]
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(package.Phase.generate, package.Phase.shrink),
        suppress_health_check=list(package.HealthCheck),
        report_multiple_bugs=False,
        verbosity=package.Verbosity.quiet,
    )
    @package.given(parts())  # type: ignore[untyped-decorator]
    def attempt(case: Case) -> None:
        use(case)

    attempt()


def _subsets(st: Any, n: int) -> Any:
    return st.lists(st.sampled_from(range(n)), min_size=1, max_size=n, unique=True)
