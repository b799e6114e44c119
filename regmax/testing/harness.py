"""The conformance kit: each promise as a named check, for Ω here and for solvers in
:mod:`regmax.testing.solvers`."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..regularizers.errors import ConvergenceWarning
from ..regularizers.regularizer import Regularizer
from . import derivatives, layout, optimum, penalties, values, ways
from .promise import Broken, Kind, Skipped, Tested, kinds_of
from .search import Case, show, shrunk
from .subject import Subject

ExpectedFailures = Mapping[str, str] | Callable[[Any], Mapping[str, str]]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

KINDS = kinds_of(*map(vars, (values, layout, optimum, penalties, ways, derivatives)))
GROUND = ("check_value", "check_value_convex", "check_grad", "check_curvature")
"""Checks of what a solver needs. If one fails, a solver takes long and its answer means nothing."""


class Check:
    """One promise: ``check(given)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Kind, subject: Tested) -> None:
        self.name = self.__name__ = kind.name
        self.__doc__ = kind.function.__doc__
        self._kind, self._subject = kind, subject

    def __call__(self, given: Any) -> None:
        __tracebackhide__ = True
        make: Any = type(self._subject)
        known = given is self._subject.given
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # torch's forward mode compiles its own decompositions when it is first used
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated")
            self._run(self._subject if known else make(given))

    def __repr__(self) -> str:
        return self.name

    @property
    def rests_on(self) -> Sequence[str]:
        """The checks whose failure leaves this one without meaning."""
        s, module = self._subject, self._kind.function.__module__
        solved = isinstance(s, Subject) and s.omega.exact and not s.has_formula
        return GROUND if solved and module in (layout.__name__, derivatives.__name__) else ()

    def _run(self, subject: Tested) -> None:
        __tracebackhide__ = True
        kind = self._kind
        cases = [None] if kind.which is None else subject.cases(kind.costly, **kind.which)
        for case in cases:
            error = self._error(subject, case)
            if error is not None:
                break
        else:
            return
        if case is not None:
            quick = subject.has_formula and not kind.costly
            broken = type(error)  # a part with an error of another type breaks something else

            def breaks(part: Case) -> bool:
                return type(self._error(subject, part)) is broken

            case = shrunk(breaks, case, subject.any_size, 400 if quick else 40)
            error = self._error(subject, case)
            if error is None:
                error = Broken(
                    "the same outcome each time",
                    "a failure, then none",
                    f"what {type(subject.given).__name__} remembers or draws at random",
                )
        cause = None if isinstance(error, Broken) else error  # the report says all of it
        raise AssertionError(self._report(subject, case, error)) from cause

    def _error(self, subject: Tested, case: Case | None) -> Exception | None:
        try:
            self._kind.function(subject, *(() if case is None else (case,)))
        except Skipped:
            raise
        except Exception as error:
            return error
        return None

    def _report(self, subject: Tested, case: Case | None, error: Exception) -> str:
        look = _raised_in(error, subject.written) or subject.look
        if isinstance(error, Broken):
            expected, found, tensors = error.expected, error.found, error.tensors
            look = error.look or look
        else:
            expected, found, tensors = "no exception", f"{type(error).__name__}: {error}", {}
            # an Ω reduced to its value has the class Definition: name the author's class instead
            found = found.replace("Definition.value", subject.look)
        lines = [f"{self.name} failed for {subject.label}"]
        lines += [f"  expected: {expected}", f"  found: {found}"]
        if case is not None:
            lines.append("  smallest input found:")
            lines += [f"    {line}" for line in case.describe().splitlines()]
        lines += [f"    {key} = {show(t)}" for key, t in tensors.items()]
        return "\n".join([*lines, f"  look at: {look}"])


def _raised_in(error: Exception, written: Callable[[object], bool]) -> str | None:
    """``Class.method, line`` of the innermost method in the traceback that was ``written`` by the
    author under test."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if owner is not None and written(owner):
            found = f"{type(owner).__name__}.{frame.f_code.co_name}, line {line}"
    return found


# -- the checks of an Ω ----------------------------------------------------------------------------


def checks_for(omega: Regularizer) -> list[Check]:
    """The checks of all that ``omega`` defines or declares."""
    return checks_of(Subject(omega), KINDS)


def check_regularizer(
    omega: Regularizer, expected_failures: ExpectedFailures | None = None
) -> None:
    """Run every check of ``omega``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}, or a function from Ω to that. A check named there
    must fail. A check that needs a package that is not installed does not count.
    """
    run_checks(Subject(omega), KINDS, expected_failures)


def parametrize_with_checks(
    regularizers: Iterable[Regularizer], expected_failures: ExpectedFailures | None = None
) -> Decorator:
    """Make one pytest test of each (Ω, check), for a function of the two.

    ``expected_failures`` as in :func:`check_regularizer`; a dictionary holds for every Ω that has
    the check, and a check named there must fail.
    """
    if isinstance(regularizers, Regularizer):
        raise TypeError(f"regularizers must be a list of them; got {regularizers!r} alone")
    return parametrized([*map(Subject, regularizers)], KINDS, expected_failures, "an Ω")


# -- the checks of a subject -----------------------------------------------------------------------


def checks_of(subject: Tested, kinds: Mapping[str, Kind]) -> list[Check]:
    return [Check(kind, subject) for kind in kinds.values() if kind.applies(subject)]


def run_checks(
    subject: Tested, kinds: Mapping[str, Kind], expected_failures: ExpectedFailures | None
) -> None:
    """Run the checks of a subject; one AssertionError lists all failures."""
    checks, given = checks_of(subject, kinds), subject.given
    expected = _expected(expected_failures, given, [check.name for check in checks])
    failures: list[str] = []
    failed: list[str] = []
    left_out = 0
    for check in checks:
        if any(name in failed for name in check.rests_on):
            left_out += 1
            continue
        try:
            check(given)
        except Skipped:
            continue
        except AssertionError as error:
            if check.name not in expected:
                failures.append(str(error))
                failed.append(check.name)
        else:
            if check.name in expected:
                failures.append(
                    f"{check.name} passed for {given!r}, and was expected to fail: "
                    f"{expected[check.name]}. Take it out of expected_failures"
                )
    found = len(failures)
    if left_out:
        causes = " and ".join(name for name in GROUND if name in failed)
        failures.append(
            f"{left_out} more checks were left out: they solve with {type(given).__name__}, "
            f"and {causes} failed. Put that right first"
        )
    if failures:
        plural = "check" if len(checks) == 1 else "checks"
        listed = "\n\n".join(failures)
        raise AssertionError(
            f"{found} of {len(checks)} {plural} failed for {subject.label}\n\n{listed}"
        )


def _expected(
    expected_failures: ExpectedFailures | None, given: object, names: Sequence[str]
) -> dict[str, str]:
    """{check: reason}, refused where a check is not known or a reason is missing."""
    expected = expected_failures(given) if callable(expected_failures) else expected_failures
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
                f"expected_failures names {name!r}, which is no check of {given!r}; "
                f"accepted: {', '.join(sorted(set(names)))}"
            )
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"expected_failures[{name!r}] must be a reason, a string that is not empty; "
                f"got {reason!r}"
            )
    return dict(expected)


def parametrized(
    subjects: Sequence[Tested],
    kinds: Mapping[str, Kind],
    expected_failures: ExpectedFailures | None,
    noun: str,
) -> Decorator:
    """Make one pytest test of each (subject, check).

    ``noun``: what a subject is, for an error message. A dictionary of expected failures holds for
    every subject that has the check.
    """
    import pytest

    each = [(subject, checks_of(subject, kinds)) for subject in subjects]
    everywhere = [check.name for _, checks in each for check in checks]
    parameters = []
    for subject, checks in each:
        own = [check.name for check in checks] if callable(expected_failures) else everywhere
        expected = _expected(expected_failures, subject.given, own)
        for check in checks:
            marks = []
            if check.name in expected:
                reason = expected[check.name]
                marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)]
            name = f"{subject.id}-{check.name}"
            parameters.append(pytest.param(subject.given, check, marks=marks, id=name))

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        if len(names) < 2:
            raise TypeError(
                f"{getattr(function, '__name__', function)} must take {noun} and a check; "
                f"it takes ({', '.join(names)})"
            )
        marked: Callable[..., Any] = pytest.mark.parametrize(names[:2], parameters)(function)
        return marked

    return decorate
