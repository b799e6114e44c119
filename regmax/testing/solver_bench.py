"""The bench of a solver under test: the problems that it accepts, and its answers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.problem import Problem
from ..optimality.solution import Solution
from ..solvers import Solver
from .inputs import normal
from .known import Known, Trial, known_problems
from .promise import Broken, Kind, Skipped, always

TOL = 1e-8
MAX_ITER = 2000
Trials = Callable[[Known], Iterable[Trial]]
Promise = Callable[["Bench", Trial], None]


class Bench:
    """A solver under test, and the problems that it accepts."""

    any_size = True
    has_formula = False

    def __init__(self, solver: Solver) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(
                f"solver must be an instance of regmax.solvers.Solver; got {solver!r}"
                + (" (a class: call it first)" if isinstance(solver, type) else "")
            )
        self.given = self.solver = solver
        self.name = type(solver).__name__
        self.table = known_problems()

    @property
    def label(self) -> str:
        return f"solver {self.solver.name!r} ({self.name})"

    @property
    def look(self) -> str:
        return self.where("run")

    def where(self, method: str) -> str:
        return f"{self.name}.{method}"

    def written(self, owner: object) -> bool:
        return owner is self.solver

    @functools.cached_property
    def suited(self) -> list[Known]:
        """The problems that the solver accepts; none if ``unsuitable`` raises."""
        with contextlib.suppress(Exception):
            return [k for k in self.table if self.unsuitable(k) is None]
        return []

    def unsuitable(self, known: Known) -> str | None:
        return self.solver.unsuitable(known.problem(normal(2, 3, seed=1)))

    def trials(self, trials: Trials) -> Iterator[Trial]:
        if not self.suited:
            raise Skipped(f"{self.name} suits no problem of the table")
        for known in self.suited:
            yield from trials(known)

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

    def solve(self, known: Known, x: Tensor, mask: Tensor | None, **settings: Any) -> Solution:
        """The answer of a layer with this solver."""
        layer = RegularizedMax(known.omega, solver=self.solver, on_failure="ignore", **settings)
        with torch.no_grad():
            return layer.solve(x, mask)


def tried_on(trials: Trials) -> Callable[[Promise], Kind]:
    """A decorator: ``check_name(bench, trial)`` is a promise about each trial of each problem."""

    def cases(b: Bench) -> Iterator[Trial]:
        return b.trials(trials)

    return lambda function: Kind(function.__qualname__, function, always, cases, costly=True)


def once(function: Callable[[Bench], None]) -> Kind:
    """A decorator: ``check_name(bench)`` is a promise with its own inputs."""
    return Kind(function.__qualname__, function, always)
