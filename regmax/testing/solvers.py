"""The conformance kit of solvers: every promise of a Solver as a named check.

    from regmax.testing import parametrize_solver_with_checks

    @parametrize_solver_with_checks([MySolver()])
    def test_mine(solver, check):
        check(solver)

or, without pytest, ``check_solver(MySolver())``. A solver is tried on the problems of
:mod:`regmax.testing.known` that it says it suits, whose answers are known.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..regularizers.errors import ConvergenceWarning
from ..solvers import Solver
from . import solver_promises
from .harness import ExpectedFailures, expected_by
from .promise import Broken, Skipped, show
from .solver_bench import Bench, Kind, Trial

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in vars(solver_promises).values() if isinstance(kind, Kind)
}


class SolverCheck:
    """One promise: ``check(solver)`` returns, or raises an AssertionError that says why not."""

    def __init__(self, kind: Kind, bench: Bench, skip: Callable[[str], Any] | None = None) -> None:
        self.name = self.__name__ = kind.name
        self.__doc__ = kind.function.__doc__
        self._kind, self._bench, self._skip = kind, bench, skip

    def __call__(self, solver: Solver) -> None:
        bench = self._bench if solver is self._bench.solver else Bench(solver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                self._run(bench)
            except Skipped as reason:
                if self._skip is None:
                    raise
                self._skip(str(reason))

    def _run(self, bench: Bench) -> None:
        kind = self._kind
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
                raise AssertionError(_report(kind, bench, trial, error)) from error

    def __repr__(self) -> str:
        return self.name


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
    if isinstance(error, Broken):
        expected, found, look, tensors = error.expected, error.found, error.look, error.tensors
    else:
        expected, found = "no exception", f"{type(error).__name__}: {error}"
        look, tensors = _raiser(error, bench) or bench.where("run"), {}
    lines = [f"{kind.name} failed for solver {bench.solver.name!r} ({bench.name})"]
    lines += [f"  expected: {expected}", f"  found: {found}"]
    if trial is not None:
        lines.append("  smallest input found:")
        lines += [f"    {line}" for line in trial.describe().splitlines()]
    lines += [f"    {key} = {show(t)}" for key, t in tensors.items()]
    return "\n".join([*lines, f"  look at: {look}"])


def _raiser(error: Exception, bench: Bench) -> str | None:
    """``Class.method, line`` of the innermost code of the solver in the traceback."""
    found, frames = None, error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_locals.get("self") is bench.solver:
            found = f"{bench.name}.{frames.tb_frame.f_code.co_name}, line {frames.tb_lineno}"
        frames = frames.tb_next
    return found


def solver_checks(solver: Solver) -> list[SolverCheck]:
    """The checks of ``solver``."""
    bench = Bench(solver)
    return [SolverCheck(kind, bench) for kind in KINDS.values()]


def check_solver(solver: Solver, expected_failures: ExpectedFailures | None = None) -> None:
    """Run every check of ``solver``; one AssertionError lists all that failed.

    ``expected_failures``: {check name: reason}; a check named there must fail.
    """
    checks = solver_checks(solver)
    expected = expected_by(expected_failures, solver, [check.name for check in checks])
    failures = []
    for check in checks:
        try:
            check(solver)
        except Skipped:
            continue
        except AssertionError as error:
            if check.name not in expected:
                failures.append(str(error))
        else:
            if check.name in expected:
                failures.append(
                    f"{check.name} passed for {solver!r}, and was expected to fail: "
                    f"{expected[check.name]}. Take it out of expected_failures"
                )
    if failures:
        raise AssertionError(
            f"{len(failures)} of {len(checks)} checks failed for solver {solver.name!r}\n\n"
            + "\n\n".join(failures)
        )


def parametrize_solver_with_checks(
    solvers: Iterable[Solver], expected_failures: ExpectedFailures | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one pytest test of each (solver, check), for a function of the two.

    ``expected_failures``: {check name: reason}, or a function from a solver to that; a check named
    there must fail.
    """
    import pytest

    def skip(reason: str) -> None:
        pytest.skip(reason)

    given = list(solvers)
    benches = [Bench(solver) for solver in given]
    parameters = []
    for label, bench in zip(_labelled([s.name for s in given]), benches, strict=True):
        expected = expected_by(expected_failures, bench.solver, list(KINDS))
        for kind in KINDS.values():
            marks = []
            if kind.name in expected:
                reason = expected[kind.name]
                marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)]
            check = SolverCheck(kind, bench, skip)
            parameters.append(
                pytest.param(bench.solver, check, marks=marks, id=f"{label}-{kind.name}")
            )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        if len(names) < 2:
            raise TypeError(
                f"{getattr(function, '__name__', function)} must take a solver and a check; "
                f"it takes ({', '.join(names)})"
            )
        marked: Callable[..., Any] = pytest.mark.parametrize(names[:2], parameters)(function)
        return marked

    return decorate


def _labelled(names: Iterable[str]) -> Iterator[str]:
    """Each name, with a number where it came before."""
    seen: set[str] = set()
    for name in names:
        label, k = name, 2
        while label in seen:
            label, k = f"{name}#{k}", k + 1
        seen.add(label)
        yield label
