"""The inputs for a solver under test: the problems that it accepts, and rows of scores."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.problem import Problem
from ..optimality.solution import Solution
from ..regularizers.regularizer import Definition, Regularizer
from ..solvers import Solver
from .inputs import normal
from .known import Known, known_problems
from .promise import Broken, show

TOL = 1e-8
MAX_ITER = 2000
_ANSWERS: dict[tuple[Any, ...], Tensor] = {}
"""Known answers by problem and rows. Every solver is checked on the same rows."""


class Overrun(Exception):
    """A solver evaluated Ω more often than allowed."""


class Counted(Definition):
    """Ω that raises :class:`Overrun` after ``limit`` evaluations."""

    def __init__(self, omega: Regularizer, limit: int) -> None:
        super().__init__(omega)
        self.left = [limit]

    def value(self, y: Tensor) -> Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise Overrun
        return super().value(y)


@dataclass(frozen=True, eq=False)
class Trial:
    """Rows of scores for one problem of the table."""

    known: Known
    z: Tensor
    mask: Tensor | None = None

    @property
    def on(self) -> Tensor:
        return torch.ones_like(self.z, dtype=torch.bool) if self.mask is None else self.mask

    @functools.cached_property
    def answer(self) -> Tensor:
        assert self.known.answer is not None
        z, on = self.z.double(), self.on
        key = (self.known.name, *z.shape, z.numpy().tobytes(), on.numpy().tobytes())
        if key not in _ANSWERS:
            _ANSWERS[key] = self.known.answer(z, on)
        return _ANSWERS[key]

    def rows(self, keep: list[int]) -> Trial:
        mask = None if self.mask is None else self.mask[keep]
        return replace(self, z=self.z[keep], mask=mask)

    def smaller(self) -> Iterator[Trial]:
        """Smaller trials: one row, no mask, one entry less, rounder scores."""
        n, d = self.z.shape
        if n > 1:
            yield from (self.rows([i]) for i in range(n))
        if self.mask is not None:
            yield replace(self, mask=None)
        for j in range(d if d > 1 else 0):
            keep = [i for i in range(d) if i != j]
            mask = None if self.mask is None else self.mask[:, keep]
            if mask is None or bool(mask.any(-1).all()):
                yield replace(self, z=self.z[:, keep], mask=mask)
        for digits in (0, 1):
            rounder = self.z.round(decimals=digits)
            if not torch.equal(rounder, self.z):
                yield replace(self, z=rounder)
                break

    def describe(self) -> str:
        mask = "None" if self.mask is None else show(self.mask)
        return f"omega = {self.known}\nx = {show(self.z)}\nmask = {mask}"


class Bench:
    """A solver under test, and the problems that it accepts."""

    def __init__(self, solver: Solver) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(
                f"solver must be an instance of regmax.solvers.Solver; got {solver!r}"
                + (" (a class: call it first)" if isinstance(solver, type) else "")
            )
        self.solver = solver
        self.name = type(solver).__name__
        self.table = known_problems()

    @functools.cached_property
    def suited(self) -> list[Known]:
        """The problems that the solver accepts; none if ``unsuitable`` raises."""
        with contextlib.suppress(Exception):
            return [k for k in self.table if self.unsuitable(k) is None]
        return []

    def unsuitable(self, known: Known) -> str | None:
        return self.solver.unsuitable(known.problem(normal(2, 3, seed=1)))

    def where(self, method: str) -> str:
        return f"{self.name}.{method}"

    def run(
        self, problem: Problem, tol: float = TOL, max_iter: int = MAX_ITER
    ) -> tuple[Tensor, Tensor]:
        """The solver's own answer, without polishing."""
        with torch.no_grad():
            found: Any = self.solver.run(problem, tol, max_iter)
        if (
            not isinstance(found, tuple)
            or len(found) != 2
            or not all(isinstance(t, Tensor) for t in found)
            or found[0].shape != problem.z.shape
            or found[0].dtype != problem.z.dtype
            or found[1].shape != problem.z.shape[:-1]
        ):
            raise Broken(
                f"(y, iterations) of shapes {tuple(problem.z.shape)}, "
                f"{tuple(problem.z.shape[:-1])}, y of {problem.z.dtype}",
                f"{found!r}",
            )
        y, iterations = found
        return y, iterations

    def solve(self, trial: Trial, dtype: torch.dtype = torch.float64, **kind: Any) -> Solution:
        """The answer of a layer with this solver."""
        layer = RegularizedMax(trial.known.omega, solver=self.solver, on_failure="ignore", **kind)
        with torch.no_grad():
            return layer.solve(trial.z.to(dtype), trial.mask)


def usual(known: Known) -> Iterator[Trial]:
    """Rows of several sizes and scales, and masked rows."""
    for k, (d, scale) in enumerate(((2, 1.0), (3, 0.05), (5, 1.0), (6, 6.0))):
        yield Trial(known, scale * normal(3, d, seed=k))
    mask = normal(3, 6, seed=5) < 0.5
    mask[:, 2] = True
    yield Trial(known, normal(3, 6, seed=6), mask)


def hard(known: Known) -> Iterator[Trial]:
    """Ties, equal scores, tiny and huge scales, one element."""
    rows = normal(3, 5, seed=7)
    yield Trial(known, (rows * 2).round() / 2)
    yield Trial(known, torch.full((1, 5), 0.7, dtype=torch.float64, device="cpu"))
    yield Trial(known, torch.cat([rows[:1] * 1e-6, rows[1:2] * 1e3, rows[2:] * 1e5]))
    yield Trial(known, rows[:, :1])


def few(known: Known) -> Iterator[Trial]:
    yield Trial(known, torch.cat([s * normal(2, 5, seed=8) for s in (0.05, 1.0, 20.0)]))


def one(known: Known) -> Iterator[Trial]:
    yield Trial(known, normal(2, 5, seed=9))


Promise = Callable[[Bench, Trial], None]


@dataclass(frozen=True)
class Kind:
    """A named promise, and its trials for each problem; None if it has its own inputs."""

    name: str
    function: Callable[..., None]
    trials: Callable[[Known], Iterable[Trial]] | None


def tried_on(trials: Callable[[Known], Iterable[Trial]]) -> Callable[[Promise], Kind]:
    """A decorator: ``check_name(bench, trial)`` is a promise about each trial of each problem."""
    return lambda function: Kind(function.__qualname__, function, trials)


def once(function: Callable[[Bench], None]) -> Kind:
    """A decorator: ``check_name(bench)`` is a promise with its own inputs."""
    return Kind(function.__qualname__, function, None)
