"""The conformance kit of an Ω: every promise of an Ω as a named check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..regularizers.regularizer import Regularizer
from . import derivatives, kernels, layout, optimum, penalties, sharded, values
from .conformance import (
    ConformanceCheck,
    ExpectedFailures,
    Skip,
    parametrized,
    run_checks,
    skip_test,
)
from .promise import Broken, Case, Kind, Skipped
from .search import report, smallest_broken
from .subject import Subject

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (values, layout, optimum, penalties, kernels, sharded, derivatives)
    for kind in vars(module).values()
    if isinstance(kind, Kind)
}


GROUND = ("check_value", "check_value_convex", "check_grad", "check_curvature")
"""Checks of what a solver needs. If one fails, a solver takes long and its answer means nothing."""


class Check(ConformanceCheck):
    """One promise: ``check(omega)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Kind, subject: Subject, skip: Skip | None = None) -> None:
        super().__init__(kind, skip)
        self._kind, self._subject, self._of = kind, subject, subject.given

    @property
    def rests_on_the_solver(self) -> bool:
        """Whether it needs a solver, and so a right value, gradient and curvature of Ω."""
        solved = self._subject.omega.exact and not self._subject.has_formula
        return solved and self._kind.function.__module__ in (layout.__name__, derivatives.__name__)

    def depends_on(self, failed: list[str]) -> bool:
        return self.rests_on_the_solver and any(name in GROUND for name in failed)

    def _run(self, omega: Regularizer) -> None:
        __tracebackhide__ = True
        subject = self._subject if omega is self._of else Subject(omega)
        kind, case = self._kind, None
        arguments: tuple[Case, ...] = ()
        if kind.search is not None:
            case = smallest_broken(kind.function, subject, kind.search)
            if case is None:
                return
            arguments = (case,)
        try:
            kind.function(subject, *arguments)
        except Skipped:
            raise
        except Exception as error:
            cause = None if isinstance(error, Broken) else error  # the report says all of it
            raise AssertionError(report(kind.name, subject, case, error)) from cause
        if case is not None:
            raise AssertionError(
                f"{kind.name} failed for {subject.omega!r} now and then\n"
                f"  expected: the same outcome each time\n  found: a failure, then none\n"
                f"  smallest input found:\n    " + case.describe().replace("\n", "\n    ") + "\n"
                f"  look at: what {subject.name} remembers or draws at random"
            )


def checks_for(omega: Regularizer) -> list[Check]:
    """The checks of all that ``omega`` defines or declares."""
    return _checks(omega)


def _checks(omega: Regularizer, skip: Skip | None = None) -> list[Check]:
    subject = Subject(omega)
    return [Check(kind, subject, skip) for kind in KINDS.values() if kind.applies(subject)]


def check_regularizer(
    omega: Regularizer, expected_failures: ExpectedFailures | None = None
) -> None:
    """Run every check of ``omega``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}, or a function from Ω to that. A check named there
    must fail. A check that needs a package that is not installed does not count.
    """
    run_checks(checks_for(omega), omega, expected_failures, f"{omega!r}")


def parametrize_with_checks(
    regularizers: Iterable[Regularizer], expected_failures: ExpectedFailures | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one pytest test of each (Ω, check), for a function of the two.

    ``expected_failures`` as in :func:`check_regularizer`; a dictionary holds for every Ω that has
    the check, and a check named there must fail.
    """
    if isinstance(regularizers, Regularizer):
        raise TypeError(f"regularizers must be a list of them; got {regularizers!r} alone")
    cases = [(f"{omega!r}", omega, _checks(omega, skip_test)) for omega in regularizers]
    return parametrized(cases, expected_failures, "an Ω")
