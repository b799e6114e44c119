"""The conformance kit of solvers: every promise of a Solver as a named check, on the problems of
:mod:`regmax.testing.known` that it accepts. Their answers are known."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from ..optimality.solution import Solution
from ..regularizers.regularizer import Definition, Regularizer
from ..solvers import Solver, polish
from .harness import Check, Decorator, ExpectedFailures, checks_of, parametrized, run_checks
from .inputs import hard_inputs, normal
from .known import Known, Trial, Trials, few, hard, known_problems, one, usual
from .layout import broken_rows, off_simplex
from .promise import Broken, Skipped, Tested, fixed, kinds_of, searched, worst
from .search import show

TOL = 1e-8
MAX_ITER = 2000
LONGEST = 64
"""Entries of the hard inputs for each problem but the first, of which some take d³ operations."""


class Bench(Tested):
    """A solver under test, and the problems that it accepts."""

    def __init__(self, solver: Solver) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(
                f"solver must be an instance of regmax.solvers.Solver; got {solver!r}"
                + (" (a class: call it first)" if isinstance(solver, type) else "")
            )
        self.given = self.solver = solver
        self.name, self.table = type(solver).__name__, known_problems()
        self.label, self.look = f"solver {solver.name!r} ({self.name})", self.where("run")
        self.id = solver.name

    def where(self, method: str) -> str:
        return f"{self.name}.{method}"

    @functools.cached_property
    def suited(self) -> list[Known]:
        """The problems that the solver accepts; none if ``unsuitable`` raises."""
        with contextlib.suppress(Exception):
            return [k for k in self.table if self.unsuitable(k) is None]
        return []

    def unsuitable(self, known: Known) -> str | None:
        return self.solver.unsuitable(known.problem(normal(2, 3, seed=1)))

    def cases(self, costly: bool, trials: Trials = usual) -> Iterator[Trial]:
        """The trials of each problem that the solver accepts."""
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


# -- correct answers and certificates --------------------------------------------------------------


@searched(trials=usual, costly=True)
def check_optimum(b: Bench, t: Trial) -> None:
    """The y of ``run`` is within ``tol`` by the problem's certificate, before regmax polishes it,
    and then the maximiser."""
    problem = t.problem
    y, _ = b.run(problem, max_iter=MAX_ITER if t.known.curved else 300)
    if t.known.curved:
        bound = certify(problem.at(y)).error_bound
        if not bool((bound <= TOL).all()):
            raise Broken(
                f"certify(problem.at(y)).error_bound ≤ tol = {TOL:g} for the y of run", bound
            )
    found = polish(problem, y, TOL)[0]
    error, allowed = t.errors(found, 1e-6)
    if not bool((error <= allowed).all()):
        raise Broken(f"y = Π_Ω(x) = {t.y.tolist()}", f"{found.tolist()}, off by {worst(error)}")


@searched(trials=lambda known: (*usual(known), *few(known), *hard(known)), costly=True)
def check_stopped_early(b: Bench, t: Trial) -> None:
    """However early the solver stops, the y of ``run`` is a point of Δ and exactly 0 where masked,
    and its certificate, after Newton steps, is valid: ‖y − y*‖ ≤ error_bound."""
    for max_iter in (1, 4, 300):
        problem = t.problem
        y, _ = b.run(problem, max_iter=max_iter)
        wrong = off_simplex(y, t.participants(), 1e-12)
        if wrong is not None:
            raise Broken(
                "a point of the simplex: y ≥ 0, Σy = 1, exactly 0 where masked",
                f"{wrong}: {show(y)}, with max_iter = {max_iter}",
            )
        found, certificate = polish(problem, y, TOL)
        error, allowed = t.errors(found, certificate.error_bound)
        if bool((error > allowed).any()):
            raise Broken(
                f"‖y − y*‖ ≤ error_bound = {certificate.error_bound.tolist()}",
                f"‖y − y*‖ = {error.tolist()} with max_iter = {max_iter}",
            )


@searched(trials=few, costly=True)
def check_float32(b: Bench, t: Trial) -> None:
    """In float32 the error is within 2e-3, and the certificate is valid."""
    z = t.z.float()
    b.run(t.known.problem(z, t.mask), 1e-3)  # refused unless y is float32
    found = b.solve(t.known, z, t.mask)
    error, allowed = t.errors(found.y, found.error_bound)
    # z is rounded to float32
    allowed = allowed + (z.double() - t.z).norm(dim=-1)
    if found.y.dtype != torch.float32 or bool((error > 2e-3).any()):
        raise Broken(
            f"y in torch.float32 within 2e-3 of {t.y.tolist()}",
            f"{found.y.tolist()}, {found.y.dtype}",
        )
    if bool((error > allowed).any()):
        raise Broken(
            f"‖y − y*‖ ≤ error_bound = {found.error_bound.tolist()}",
            f"‖y − y*‖ = {error.tolist()}, in float32",
        )


@searched(trials=one, costly=True)
def check_backward(b: Bench, t: Trial) -> None:
    """A layer with this solver has the gradient of Π_Ω."""
    if not t.known.curved:
        return
    v, expected = t.tangent()
    x = t.z.clone().requires_grad_()
    (found,) = torch.autograd.grad(RegularizedMax(t.known.omega, solver=b.solver)(x), x, v)
    if worst(found - expected) > 1e-5 * (1 + worst(v)):
        raise Broken(f"Jv = {expected.tolist()}", f"{found.tolist()}, v = {v.tolist()}")


# -- independent rows ------------------------------------------------------------------------------


@searched(trials=few, costly=True)
def check_rows_independent(b: Bench, t: Trial) -> None:
    """A row's y and iterations do not depend on the other rows or on their order."""
    y, iterations = b.run(t.problem)
    reverse = list(range(len(y)))[::-1]
    for at, what in ((reverse, "in reversed order"), *(([i], "alone") for i in reverse)):
        there, steps = b.run(t.known.problem(t.z[at], None if t.mask is None else t.mask[at]))
        if worst(there - y[at]) > 4e-15 or not torch.equal(there > 0, y[at] > 0):
            raise Broken(
                f"rows {at} as among the others: {y[at].tolist()}", f"{what}: {there.tolist()}"
            )
        if not torch.equal(steps, iterations[at]):
            raise Broken(
                f"iterations of rows {at} as among the others: {iterations[at].tolist()}",
                f"{what}: {steps.tolist()}",
            )


@searched(trials=one, costly=True)
def check_no_side_effects(b: Bench, t: Trial) -> None:
    """Scores, mask and torch's random state are unchanged, y has its own memory and no graph, and
    the same rows give the same bits after another solve."""
    mask = t.participants().clone()
    mask[:, -1] = mask[:, -1] & (mask.sum(-1) == 1)
    z, on, state = t.z.clone(), mask.clone(), torch.random.get_rng_state()
    problem = t.known.problem(z, mask)
    y, iterations = b.run(problem)
    for what, before, now in (
        ("the scores", t.z, z),
        ("the mask", on, mask),
        ("torch's random state", state, torch.random.get_rng_state()),
    ):
        if not torch.equal(before, now):
            raise Broken(f"{what} as before", show(now))
    if y.requires_grad:
        raise Broken("a y without a graph", "y.requires_grad is True")
    if y.untyped_storage().data_ptr() == z.untyped_storage().data_ptr():
        raise Broken("a y in memory of its own", "y shares that of the scores")
    b.run(t.known.problem(t.z + normal(*t.z.shape, seed=10), t.mask))
    again, steps = b.run(problem)
    if not torch.equal(again, y) or not torch.equal(steps, iterations):
        raise Broken(
            f"y as the first time: {show(y)}, after {iterations.tolist()} iterations",
            f"the second time: {show(again)}, after {steps.tolist()}",
            f"{b.where('run')}, and what {b.name} remembers or draws",
        )


# -- max_iter --------------------------------------------------------------------------------------


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


@searched(trials=few, costly=True)
def check_budget(b: Bench, t: Trial) -> None:
    """``run`` ends after max_iter iterations, even if it cannot reach ``tol``, here 0. An
    iteration evaluates Ω at most 500 times, so that a search along a line has room."""
    for max_iter in (1, 3):
        limit = 500 * max_iter
        counted = Counted(t.known.base, limit)
        problem = Problem(t.known.around(counted), t.z, t.mask)
        try:
            _, iterations = b.run(problem, 0.0, max_iter)
        except Overrun:
            raise Broken(
                f"an end after max_iter = {max_iter} iterations",
                f"Ω evaluated more than {limit} times",
            ) from None
        if bool((iterations > max_iter).any()):
            raise Broken(
                f"at most max_iter = {max_iter} iterations", f"iterations = {iterations.tolist()}"
            )


@searched(trials=few, costly=True)
def check_iterations(b: Bench, t: Trial) -> None:
    """``iterations`` is one int64 number per row, and that many iterations are enough."""
    problem = t.problem
    y, iterations = b.run(problem)
    if iterations.dtype != torch.int64 or bool((iterations < 0).any()):
        raise Broken("int64 numbers, 0 or more", f"{iterations.tolist()}, {iterations.dtype}")
    done = certify(problem.at(y)).error_bound <= TOL
    for i in done.nonzero().flatten().tolist():
        alone = t.known.problem(t.z[[i]], None if t.mask is None else t.mask[[i]])
        enough = max(int(iterations[i]), 1)
        there, steps = b.run(alone, max_iter=enough)
        bound = certify(alone.at(there)).error_bound
        if not bool((bound <= TOL).all()) or int(steps) > enough:
            raise Broken(
                f"row {i} done after its {enough} iterations, as it was with more allowed",
                f"with max_iter = {enough}: error_bound = {bound.tolist()}",
                f"{b.where('run')}, where it counts iterations",
            )


# -- unsuitable problems, hard inputs, the name ----------------------------------------------------


@fixed()
def check_unsuitable(b: Bench) -> None:
    """``unsuitable`` returns None or a nonempty string, the same each time. A layer refuses a
    problem with a reason, and says the reason."""
    for known in b.table:
        reason = b.unsuitable(known)
        if reason is None:
            continue
        if not isinstance(reason, str) or not reason.strip():
            raise Broken(
                "None, or why not, in words", f"{reason!r} for {known}", b.where("unsuitable")
            )
        if b.unsuitable(known) != reason:
            raise Broken("the same reason each time", "another", b.where("unsuitable"))
        try:
            RegularizedMax(known.omega, solver=b.solver)(normal(2, 3, seed=1))
        except ValueError as error:
            if reason in str(error):
                continue
            found = str(error)
        else:
            found = "an answer"
        raise Broken(
            f"ValueError with {reason!r} for {known}", found, f"{b.where('unsuitable')}, and name"
        )


@fixed()
def check_hard_inputs(b: Bench) -> None:
    """Each row of HARD_INPUTS gives a point of Δ, NaN if spoilt, 0 if empty. The inputs include
    batches without rows, of one or three dimensions, and finfo.min. The first problem gets each
    input, the others all rows of a length in one batch."""
    for k, known in enumerate(b.suited):
        for name, x, mask in _rows_of_a_length() if k else _each_input():
            found = b.solve(known, x, mask, max_iter=100)
            wrong = broken_rows(x, mask, found.y)
            if wrong is not None:
                raise Broken(
                    f"an answer to hard input {name!r}, omega = {known}",
                    f"{wrong}: y = {show(found.y)}",
                    x=x,
                )


def _each_input() -> Iterator[tuple[str, Tensor, Tensor | None]]:
    for case in hard_inputs():
        yield case.name, *case.make()


def _rows_of_a_length() -> Iterator[tuple[str, Tensor, Tensor | None]]:
    rows: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for _, x, mask in _each_input():
        d = x.shape[-1]
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
        if d <= LONGEST:
            rows.setdefault(d, []).append((x.reshape(-1, d), on.reshape(-1, d)))
    for d, parts in rows.items():
        x, on = (torch.cat(part) for part in zip(*parts, strict=True))
        yield f"all of {d} entries", x, on


@fixed()
def check_name(b: Bench) -> None:
    """``name`` is what users type: RegularizedMax(omega, solver="name")."""
    name = b.solver.name
    if not isinstance(name, str) or not name.strip() or name == "auto":
        raise Broken('a name, not empty and not "auto"', f"{name!r}", f"{b.name}.name")


# -- the kit ---------------------------------------------------------------------------------------

KINDS = kinds_of(globals())


def solver_checks(solver: Solver) -> list[Check]:
    """The checks of ``solver``."""
    return checks_of(Bench(solver), KINDS)


def check_solver(solver: Solver, expected_failures: ExpectedFailures | None = None) -> None:
    """Run every check of ``solver``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}; a check named there must fail.
    """
    run_checks(Bench(solver), KINDS, expected_failures)


def parametrize_solver_with_checks(
    solvers: Iterable[Solver], expected_failures: ExpectedFailures | None = None
) -> Decorator:
    """Make one pytest test of each (solver, check), for a function of the two.

    ``expected_failures``: {check name: reason}, or a function from a solver to that; a check named
    there must fail.
    """
    return parametrized([*map(Bench, solvers)], KINDS, expected_failures, "a solver")
