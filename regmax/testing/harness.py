"""The checks of an Ω: what selects them, runs them, and reports them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..regularizers.errors import ConvergenceWarning
from ..regularizers.regularizer import Regularizer
from . import derivatives, kernels, layout, optimum, penalties, values
from .promise import Case, Kind, Skipped
from .search import report, smallest_broken
from .subject import Subject

ExpectedFailures = Mapping[str, str] | Callable[[Any], Mapping[str, str]]


KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (values, layout, optimum, penalties, kernels, derivatives)
    for kind in vars(module).values()
    if isinstance(kind, Kind)
}


GROUND = ("check_value", "check_value_convex", "check_grad", "check_curvature")
"""What the solver rests on: with a fault there, it takes long and ends anywhere."""


class Check:
    """One promise: ``check(omega)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Kind, subject: Subject, skip: Callable[[str], Any] | None = None):
        self.name = self.__name__ = kind.name
        self.__doc__ = kind.function.__doc__
        self._kind, self._subject, self._skip, self._of = kind, subject, skip, subject.given

    @property
    def rests_on_the_solver(self) -> bool:
        """Whether it tells nothing of an Ω without a formula whose value or slope is wrong."""
        solved = self._subject.omega.exact and not self._subject.has_formula
        return solved and self._kind.function.__module__ in (layout.__name__, derivatives.__name__)

    def __call__(self, omega: Regularizer) -> None:
        subject = self._subject if omega is self._of else Subject(omega)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # torch's forward mode compiles its own decompositions when it is first used
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated")
            try:
                self._run(subject)
            except Skipped as reason:
                if self._skip is None:
                    raise
                self._skip(str(reason))

    def _run(self, subject: Subject) -> None:
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
            raise AssertionError(report(kind.name, subject, case, error)) from error
        if case is not None:
            raise AssertionError(
                f"{kind.name} failed for {subject.omega!r} now and then\n"
                f"  expected: the same outcome each time\n  found: a failure, then none\n"
                f"  smallest input found:\n    " + case.describe().replace("\n", "\n    ") + "\n"
                f"  look at: what {subject.name} remembers or draws at random"
            )

    def __repr__(self) -> str:
        return self.name


def checks_for(omega: Regularizer) -> list[Check]:
    """The checks of all that ``omega`` defines or declares."""
    subject = Subject(omega)
    return [Check(kind, subject) for kind in KINDS.values() if kind.applies(subject)]


def check_regularizer(
    omega: Regularizer, expected_failures: ExpectedFailures | None = None
) -> None:
    """Run every check of ``omega``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}, or a function from Ω to that. A check named there
    must fail. A check that needs a package that is not installed does not count.
    """
    checks = checks_for(omega)
    expected = expected_by(expected_failures, omega, [check.name for check in checks])
    failures: list[str] = []
    ground: list[str] = []
    left_out = 0
    for check in checks:
        if ground and check.rests_on_the_solver:
            left_out += 1
            continue
        try:
            check(omega)
        except Skipped:
            continue
        except AssertionError as error:
            if check.name not in expected:
                failures.append(str(error))
                ground += [check.name] if check.name in GROUND else []
        else:
            if check.name in expected:
                failures.append(
                    f"{check.name} passed for {omega!r}, and was expected to fail: "
                    f"{expected[check.name]}. Take it out of expected_failures"
                )
    if left_out:
        failures.append(
            f"{left_out} more checks were left out: they solve with {type(omega).__name__}, and "
            f"{' and '.join(ground)} failed. Put that right first"
        )
    if failures:
        found = len(failures) - bool(left_out)
        plural = "check" if len(checks) == 1 else "checks"
        raise AssertionError(
            f"{found} of {len(checks)} {plural} failed for {omega!r}\n\n" + "\n\n".join(failures)
        )


def parametrize_with_checks(
    regularizers: Iterable[Regularizer], expected_failures: ExpectedFailures | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one pytest test of each (Ω, check), for a function of the two.

    ``expected_failures`` as in :func:`check_regularizer`; a dictionary holds for every Ω that has
    the check, and a check named there must fail.
    """
    import pytest

    def skip(reason: str) -> None:
        pytest.skip(reason)

    if isinstance(regularizers, Regularizer):
        raise TypeError(f"regularizers must be a list of them; got {regularizers!r} alone")
    omegas = list(regularizers)
    subjects = [Subject(omega) for omega in omegas]
    kinds = [[k for k in KINDS.values() if k.applies(subject)] for subject in subjects]
    everywhere = [kind.name for some in kinds for kind in some]
    parameters, seen = [], set()
    for omega, subject, some in zip(omegas, subjects, kinds, strict=True):
        per_omega = callable(expected_failures)
        names = [kind.name for kind in some] if per_omega else everywhere
        expected = expected_by(expected_failures, omega, names)
        label = next(
            name
            for k in range(1, len(omegas) + 2)
            if (name := f"{omega!r}" if k == 1 else f"{omega!r}#{k}") not in seen
        )
        seen.add(label)
        for kind in some:
            marks = []
            if kind.name in expected:
                reason = expected[kind.name]
                marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)]
            parameters.append(
                pytest.param(
                    omega, Check(kind, subject, skip), marks=marks, id=f"{label}-{kind.name}"
                )
            )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        if len(names) < 2:
            raise TypeError(
                f"{getattr(function, '__name__', function)} must take an Ω and a check; "
                f"it takes ({', '.join(names)})"
            )
        marked: Callable[..., Any] = pytest.mark.parametrize(names[:2], parameters)(function)
        return marked

    return decorate


def expected_by(
    given: ExpectedFailures | None, subject: object, names: list[str]
) -> dict[str, str]:
    """{check: reason}, refused where a check is not known or a reason is missing."""
    expected = given(subject) if callable(given) else given
    if expected is None:
        return {}
    if not isinstance(expected, Mapping):
        raise TypeError(
            f"expected_failures must be {{check name: reason}}, or a function to that; "
            f"got {expected!r}"
        )
    for name, reason in expected.items():
        if name not in names:
            raise ValueError(
                f"expected_failures names {name!r}, which is no check of {subject!r}; "
                f"accepted: {', '.join(sorted(set(names)))}"
            )
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"expected_failures[{name!r}] must be a reason, a string that is not empty; "
                f"got {reason!r}"
            )
    return dict(expected)
