"""The search for an input on which a promise is broken, and the message that reports it.

A promise is a function of (Ω, case). The search tries fixed cases, then drawn ones. It reduces the
first case that breaks the promise: fewer rows, fewer entries, rounder scores.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..regularizers.curvature import Curvature
from ..regularizers.penalty import Penalty
from ..regularizers.regularizer import Definition, Regularizer
from .conformance import failure_report, raised_in
from .inputs import normal
from .promise import Broken, Case, Promise, Search, Skipped
from .subject import Subject

GAMMAS = (1.0, 0.5, 2.0)


def smallest_broken(promise: Promise, subject: Subject, search: Search) -> Case | None:
    """The smallest case found on which ``promise`` raises, or None."""
    quick = subject.has_formula and not search.costly
    sizes = range(1, 7) if subject.any_size else subject.sizes[:1]
    number = 10 if quick else 4 if subject.has_formula else 2
    draws = Draws(sizes, search.masks, number)
    fixed = list(fixed_cases(subject.sizes, search.masks))
    if not subject.has_formula:
        fixed = fixed[-2:] if search.costly else fixed[1:]
    for case in (*fixed, *_drawn(draws)):
        if _breaks(promise, subject, case):
            drawn = _shrunk(promise, subject, draws) if quick else None
            return drawn or _reduced(promise, subject, case)
    return None


def fixed_cases(sizes: Sequence[int], masks: bool) -> Iterator[Case]:
    """Rows of every size, far apart, tied, close together, and masked."""
    for k, d in enumerate(sizes):
        yield Case(normal(2, d, seed=k), seed=k)
    d = sizes[-1]
    yield Case(normal(3, d, seed=11) * 4, 0.5, seed=11)
    yield Case((normal(3, d, seed=12) * 2).round() / 2, 2.0, seed=12)
    yield Case(normal(3, d, seed=15) / 4, seed=15)
    if masks and d > 1:
        mask = normal(4, d, seed=13) < 0.5
        mask[:, 1] = True
        yield Case(normal(4, d, seed=14) * 2, 0.5, mask, seed=13)


def _breaks(promise: Promise, subject: Subject, case: Case) -> bool:
    try:
        promise(subject, case)
    except Skipped:
        raise
    except Exception:
        return True
    return False


def hypothesis() -> ModuleType:
    """The package that draws and shrinks inputs."""
    try:
        import hypothesis as package
    except ImportError as error:
        raise ImportError(
            "regmax.testing draws its inputs with hypothesis: pip install regmax[testing]"
        ) from error
    return package


@dataclass(frozen=True)
class Draws:
    """What to draw: ``number`` cases with rows of these sizes, with or without masks."""

    sizes: Sequence[int]
    masks: bool
    number: int


@functools.cache
def _drawn(draws: Draws) -> tuple[Case, ...]:
    """The drawn cases. They are the same for every promise, so that a subject can cache answers."""
    cases: list[Case] = []
    _attempts(draws, cases.append)
    return tuple(cases)


def _shrunk(promise: Promise, subject: Subject, draws: Draws) -> Case | None:
    """The smallest of the drawn cases, shrunk, that break ``promise``, or None."""
    broken: list[Case] = []

    def attempt(case: Case) -> None:
        try:
            promise(subject, case)
        except Exception:
            broken.append(case)
            raise

    try:
        _attempts(draws, attempt)
    except Exception:
        # hypothesis raises an error of its own if a failure is not reproducible
        if not broken:
            raise
    return min(broken, key=_size) if broken else None


def _attempts(draws: Draws, use: Callable[[Case], None]) -> None:
    package = hypothesis()
    st = package.strategies

    @st.composite  # type: ignore[untyped-decorator]
    def cases(draw: Callable[[Any], Any]) -> Case:
        n, d = draw(st.integers(1, 3)), draw(st.sampled_from(draws.sizes))
        eighths = draw(st.lists(st.integers(-32, 32), min_size=n * d, max_size=n * d))
        gamma, seed = draw(st.sampled_from(GAMMAS)), draw(st.integers(0, 7))
        off = draw(st.lists(st.booleans(), min_size=n * d, max_size=n * d))
        x = torch.tensor(eighths, dtype=torch.float64, device="cpu").reshape(n, d) / 8
        masked = torch.tensor(off, device="cpu").reshape(n, d)  # shrinks to no mask
        masked = masked & ~masked.all(-1, keepdim=True)
        mask = ~masked if draws.masks and bool(masked.any()) else None
        return Case(x, gamma, mask, seed)

    @package.settings(  # type: ignore[untyped-decorator]
        max_examples=draws.number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(package.Phase.generate, package.Phase.shrink),
        suppress_health_check=list(package.HealthCheck),
        report_multiple_bugs=False,
        verbosity=package.Verbosity.quiet,
    )
    @package.given(cases())  # type: ignore[untyped-decorator]
    def attempt(case: Case) -> None:
        use(case)

    attempt()


def _size(case: Case) -> tuple[float, ...]:
    return (
        case.x.numel(),
        case.mask is not None,
        GAMMAS.index(case.gamma),
        float(case.x.abs().sum()),
    )


def _reduced(promise: Promise, subject: Subject, case: Case) -> Case:
    """``case`` with fewer rows, then fewer entries, then rounder scores, while it breaks."""

    def smaller(case: Case) -> Iterator[Case]:
        n, d = case.x.shape
        if n > 1:
            yield from (case.rows(torch.tensor([i], device="cpu")) for i in range(n))
        if case.mask is not None:
            yield replace(case, mask=None)
        for j in range(d):
            keep = torch.tensor([i for i in range(d) if i != j], device="cpu")
            if d - 1 in subject.sizes and bool(case.entries(keep).participants().any(-1).all()):
                yield case.entries(keep)
        for digits in (0, 1, 2):
            rounder = case.x.round(decimals=digits)
            if not torch.equal(rounder, case.x) and digits < _digits(case.x):
                yield replace(case, x=rounder)

    with contextlib.suppress(StopIteration):
        while True:
            case = next(c for c in smaller(case) if _breaks(promise, subject, c))
    return case


def _digits(x: Tensor) -> int:
    """The number of decimals of the scores, 16 at most."""
    return next((k for k in range(16) if torch.equal(x.round(decimals=k), x)), 16)


def report(name: str, subject: Subject, case: Case | None, error: Exception) -> str:
    """What a failed check says."""
    look = raised_in(error, _by_an_author) or subject.where("value")
    described = None if case is None else case.describe()
    text = failure_report(name, f"{subject.omega!r}", error, described, look)
    # an Ω reduced to its value has the class Definition: name the author's class instead
    own = isinstance(error, Broken)
    return text if own else text.replace("Definition.value", subject.where("value"))


def _by_an_author(owner: Any) -> bool:
    """Whether its class comes from a plugin, or from a user."""
    author = isinstance(owner, Regularizer | Penalty | Curvature)
    return author and not isinstance(owner, Definition)
