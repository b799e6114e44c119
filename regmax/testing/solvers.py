"""The conformance kit of solvers: every promise of a Solver as a named check.

    from regmax.testing import parametrize_solver_with_checks

    @parametrize_solver_with_checks([MySolver()])
    def test_mine(solver, check):
        check(solver)

or, without pytest, ``check_solver(MySolver())``. The checks run a solver on the problems of
:mod:`regmax.testing.known` that it accepts. Their answers are known.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..solvers import Solver
from . import solver_promises
from .harness import Check, Decorator, ExpectedFailures, checks_of, parametrized, run_checks
from .promise import Kind
from .solver_bench import Bench

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in vars(solver_promises).values() if isinstance(kind, Kind)
}


def solver_checks(solver: Solver) -> list[Check]:
    """The checks of ``solver``."""
    return checks_of(Bench(solver), KINDS)


def check_solver(solver: Solver, expected_failures: ExpectedFailures | None = None) -> None:
    """Run every check of ``solver``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}; a check named there must fail.
    """
    checks = solver_checks(solver)
    run_checks(checks, solver, expected_failures, f"solver {solver.name!r}")


def parametrize_solver_with_checks(
    solvers: Iterable[Solver], expected_failures: ExpectedFailures | None = None
) -> Decorator:
    """Make one pytest test of each (solver, check), for a function of the two.

    ``expected_failures``: {check name: reason}, or a function from a solver to that; a check named
    there must fail.
    """
    benches = [(solver.name, Bench(solver)) for solver in solvers]
    return parametrized(benches, KINDS, expected_failures, "a solver")
