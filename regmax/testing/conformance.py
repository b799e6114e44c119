"""What the two conformance kits share: a check runs, failures are reported, some are expected."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..regularizers.errors import ConvergenceWarning
from .promise import Broken, Skipped, show

ExpectedFailures = Mapping[str, str] | Callable[[Any], Mapping[str, str]]
Skip = Callable[[str], Any]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Promised(Protocol):
    """A promise: its name, and the function that raises where it is broken."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., None]: ...


class ConformanceCheck(ABC):
    """One promise: ``check(given)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Promised, skip: Skip | None = None) -> None:
        self.name = self.__name__ = kind.name
        self.__doc__ = kind.function.__doc__
        self._skip = skip

    def __call__(self, given: Any) -> None:
        __tracebackhide__ = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # torch's forward mode compiles its own decompositions when it is first used
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated")
            try:
                self._run(given)
            except Skipped as reason:
                if self._skip is None:
                    raise
                self._skip(str(reason))

    @abstractmethod
    def _run(self, given: Any) -> None: ...

    def depends_on(self, failed: list[str]) -> bool:
        """Whether the failure of the checks ``failed`` leaves this one without meaning."""
        return False

    def __repr__(self) -> str:
        return self.name


# -- all checks of one -----------------------------------------------------------------------------


def run_checks(
    checks: Sequence[ConformanceCheck],
    given: object,
    expected_failures: ExpectedFailures | None,
    label: str,
) -> None:
    """Run ``checks`` on ``given``; one AssertionError, with ``label`` in it, lists all failures."""
    expected = expected_by(expected_failures, given, [check.name for check in checks])
    failures: list[str] = []
    failed: list[str] = []
    left_out: list[ConformanceCheck] = []
    for check in checks:
        if check.depends_on(failed):
            left_out.append(check)
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
        causes = [name for name in failed if left_out[0].depends_on([name])]
        failures.append(
            f"{len(left_out)} more checks were left out: they solve with {type(given).__name__}, "
            f"and {' and '.join(causes)} failed. Put that right first"
        )
    if failures:
        plural = "check" if len(checks) == 1 else "checks"
        raise AssertionError(
            f"{found} of {len(checks)} {plural} failed for {label}\n\n" + "\n\n".join(failures)
        )


def expected_by(
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


# -- pytest ----------------------------------------------------------------------------------------


def skip_test(reason: str) -> None:
    import pytest

    pytest.skip(reason)


def parametrized(
    cases: Sequence[tuple[str, Any, Sequence[ConformanceCheck]]],
    expected_failures: ExpectedFailures | None,
    noun: str,
) -> Decorator:
    """Make one pytest test of each (object, check).

    ``cases``: label, object and its checks. ``noun``: what an object is, for an error message. A
    dictionary of expected failures holds for every object that has the check.
    """
    import pytest

    everywhere = [check.name for _, _, checks in cases for check in checks]
    parameters = []
    for label, (_, given, checks) in zip(_distinct(c[0] for c in cases), cases, strict=True):
        own = [check.name for check in checks]
        expected = expected_by(
            expected_failures, given, own if callable(expected_failures) else everywhere
        )
        for check in checks:
            marks = []
            if check.name in expected:
                reason = expected[check.name]
                marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)]
            parameters.append(pytest.param(given, check, marks=marks, id=f"{label}-{check.name}"))

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


def _distinct(names: Iterable[str]) -> list[str]:
    """Each name; ``name#2``, ``name#3`` where it came before."""
    labels: dict[str, None] = {}
    for name in names:
        label, k = name, 2
        while label in labels:
            label, k = f"{name}#{k}", k + 1
        labels[label] = None
    return list(labels)


# -- the report of a failure -----------------------------------------------------------------------


def failure_report(
    name: str, label: str, error: Exception, described: str | None, look: str
) -> str:
    """What a failed check says.

    ``label``: the object under test. ``described``: the smallest input, as code. ``look``: where to
    look, where ``error`` is no :class:`Broken` that says so itself.
    """
    if isinstance(error, Broken):
        expected, found, tensors = error.expected, error.found, error.tensors
        look = error.look or look
    else:
        expected, found, tensors = "no exception", f"{type(error).__name__}: {error}", {}
    lines = [f"{name} failed for {label}", f"  expected: {expected}", f"  found: {found}"]
    if described is not None:
        lines.append("  smallest input found:")
        lines += [f"    {line}" for line in described.splitlines()]
    lines += [f"    {key} = {show(t)}" for key, t in tensors.items()]
    return "\n".join([*lines, f"  look at: {look}"])


def raised_in(error: Exception, under_test: Callable[[Any], bool]) -> str | None:
    """``Class.method, line`` of the innermost method, of an object ``under_test``, in the
    traceback."""
    found, frames = None, error.__traceback__
    while frames is not None:
        frame = frames.tb_frame
        owner = frame.f_locals.get("self")
        if owner is not None and under_test(owner):
            found = f"{type(owner).__name__}.{frame.f_code.co_name}, line {frames.tb_lineno}"
        frames = frames.tb_next
    return found
