"""The conformance kit of solvers: every promise of a Solver as a named check.

    from regmax.testing import parametrize_solver_with_checks

    @parametrize_solver_with_checks([MySolver()])
    def test_mine(solver, check):
        check(solver)

or, without pytest, ``check_solver(MySolver())``. The checks run a solver on the problems of
:mod:`regmax.testing.known` that it accepts. Their answers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..solvers import Solver
from . import solver_promises
from .conformance import (
    ConformanceCheck,
    ExpectedFailures,
    Skip,
    failure_report,
    parametrized,
    raised_in,
    run_checks,
    skip_test,
)
from .promise import Broken, Skipped
from .solver_bench import Bench, Kind, Trial

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in vars(solver_promises).values() if isinstance(kind, Kind)
}


class SolverCheck(ConformanceCheck):
    """One promise: ``check(solver)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Kind, bench: Bench, skip: Skip | None = None) -> None:
        super().__init__(kind, skip)
        self._kind, self._bench = kind, bench

    def _run(self, solver: Solver) -> None:
        __tracebackhide__ = True
        kind, bench = self._kind, self._bench
        bench = bench if solver is bench.solver else Bench(solver)
        if kind.trials is None:
            trials: list[Trial | None] = [None]
        elif bench.suited:
            trials = [t for known in bench.suited for t in kind.trials(known)]
        else:
            raise Skipped(f"{bench.name} suits no problem of the table")
        for trial in trials:
            error = _broken(kind, bench, trial)
            if error is not None:
                trial, error = _reduced(kind, bench, trial, error)
                cause = None if isinstance(error, Broken) else error
                raise AssertionError(_report(kind, bench, trial, error)) from cause


def _broken(kind: Kind, bench: Bench, trial: Trial | None) -> Exception | None:
    try:
        kind.function(bench, *(() if trial is None else (trial,)))
    except Skipped:
        raise
    except Exception as error:
        return error
    return None


def _reduced(
    kind: Kind, bench: Bench, trial: Trial | None, error: Exception
) -> tuple[Trial | None, Exception]:
    """The smallest trial found that breaks the promise."""
    for _ in range(20 if trial is not None else 0):
        assert trial is not None
        for other in trial.smaller():
            found = _broken(kind, bench, other)
            if found is not None:
                trial, error = other, found
                break
        else:
            break
    return trial, error


def _report(kind: Kind, bench: Bench, trial: Trial | None, error: Exception) -> str:
    look = raised_in(error, lambda owner: owner is bench.solver) or bench.where("run")
    described = None if trial is None else trial.describe()
    label = f"solver {bench.solver.name!r} ({bench.name})"
    return failure_report(kind.name, label, error, described, look)


def solver_checks(solver: Solver) -> list[SolverCheck]:
    """The checks of ``solver``."""
    return _checks(solver)


def _checks(solver: Solver, skip: Skip | None = None) -> list[SolverCheck]:
    bench = Bench(solver)
    return [SolverCheck(kind, bench, skip) for kind in KINDS.values()]


def check_solver(solver: Solver, expected_failures: ExpectedFailures | None = None) -> None:
    """Run every check of ``solver``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}; a check named there must fail.
    """
    checks = solver_checks(solver)
    run_checks(checks, solver, expected_failures, f"solver {solver.name!r}")


def parametrize_solver_with_checks(
    solvers: Iterable[Solver], expected_failures: ExpectedFailures | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one pytest test of each (solver, check), for a function of the two.

    ``expected_failures``: {check name: reason}, or a function from a solver to that; a check named
    there must fail.
    """
    cases = [(solver.name, solver, _checks(solver, skip_test)) for solver in solvers]
    return parametrized(cases, expected_failures, "a solver")
