"""Π_Ω by a solver, with all that is checked of Ω, and what is said where rows fail."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ...domains import Bounded, Projected
from ...kernels import decisions, simplex, transforms
from ...optimality.certificates import Certificate, certify
from ...optimality.diagnosis import Defect, bounded_kinks, diagnose
from ...optimality.premises import check_convex, check_start, contradicted, refuted, unsteady
from ...optimality.problem import Problem
from ...optimality.solution import Trace
from ...optimality.subgradients import mistaken_penalty
from ...regularizers.arguments import few
from ...regularizers.cholesky import Inverse
from ...regularizers.errors import ConvergenceError, ConvergenceWarning, RegularizerError, warn
from ...regularizers.penalty import Penalized, who
from ...regularizers.registry import registry
from ...regularizers.regularizer import Regularizer, checked_value
from ...solvers import Solved, Solver, choose, either, merged, solve
from ...solvers.augmented import augmented
from ...solvers.kinks import SHORT, Tied, multiplied

OnFailure = Literal["warn", "raise", "ignore"]


LOWEST = -1e12
"""Solvers raise lower scores (finfo.min, of additive masks) to this. y is 0 or below rounding
there, and the other scores keep their digits."""


@dataclass(frozen=True)
class Settings:
    """How to solve. Neither Ω nor the derivatives depend on it.

    ``start``: the rows that a solver starts from; ``trace``: records its iterations.
    """

    solver: str | Solver = "auto"
    tol: float | None = None
    max_iter: int = 2000
    on_failure: OnFailure = "warn"
    certify: bool = False
    start: Tensor | None = None
    trace: Trace | None = None

    def tolerance(self, dtype: torch.dtype) -> float:
        """The certified error to reach: 1e-8 in float64, 1e-3 in float32, unless set.

        In float32 most of the bound is the rounding of the certificate, some 4e-7 of the scores.
        The answers are far better.
        """
        if self.tol is not None:
            return self.tol
        return 1e-8 if dtype == torch.float64 else 1e-3


@dataclass(frozen=True, eq=False)
class Forward:
    """The result of the forward pass: y, the method and why it was taken; ``solved`` is None for a
    closed form, ``iterations`` where there were none. ``tied``: answers on kinks of Ω, and the rows
    in which they do bind y; ``unknown``: the rows on kinks whose derivatives are not known."""

    y: Tensor
    path: str
    why: str
    solved: Solved | None = None
    iterations: Tensor | None = None
    tied: tuple[Tied, Tensor] | None = None
    unknown: Tensor | None = None

    def inverse(self, support: Tensor) -> Inverse | None:
        """The factorisation of J at y that the solver ended with, if there is one."""
        if self.solved is None or self.solved.at.problem.structured:
            return None
        return self.solved.at.kept_inverse(support)


LOOKED_AT = 16
"""Rows of a composition that are certified at each call."""


def few_rows(t: Tensor, batch: torch.Size, count: int) -> Tensor:
    """Some rows of t, (*batch, n) or broadcasting to it, evenly spaced."""
    flat = t.expand(*batch, t.shape[-1]).reshape(-1, t.shape[-1])
    if len(flat) <= count:
        return flat
    return flat[[round(k * (len(flat) - 1) / (count - 1)) for k in range(count)]]


def sampled(
    omega: Regularizer, x: Tensor, gamma: float | Tensor, mask: Tensor | None, y: Tensor
) -> tuple[Problem, Tensor]:
    """Some rows as one batch dimension, in float64."""
    batch = x.shape[:-1]

    def some(t: Tensor) -> Tensor:
        return few_rows(t.detach(), batch, LOOKED_AT)

    values = {k: some(t) for k, t in omega.per_row_tensors(entries=True).items() if t.ndim}
    inside = omega.tensors(fixed=True) | values
    wide = {k: t.detach().double() for k, t in inside.items() if t.dtype.is_floating_point}
    gamma = some(gamma).double() if isinstance(gamma, Tensor) and gamma.ndim else gamma
    z = (some(x).double() / gamma).clamp_min(LOWEST)
    on = None if mask is None else some(mask)
    return Problem(omega.with_tensors(wide), z, on), some(y).double()


def report(
    problem: Problem, y: Tensor, certificate: Certificate, tol: float, settings: Settings, path: str
) -> None:
    """Report the rows of a closed form whose certificate misses the tolerance."""
    wrong = mistaken_penalty(problem, y)
    if wrong is not None:
        raise RegularizerError(wrong)
    none = torch.zeros_like(y[..., 0], dtype=torch.int64)
    found = Solved(problem.at(y), none, certificate, path)
    failed = ~(certificate.error_bound <= tol)
    if bool(failed.any()):
        _report_failure(found, diagnose(problem, y, failed), tol, settings.on_failure)


def by_solver(
    omega: Regularizer,
    z: Tensor,
    mask: Tensor | None,
    settings: Settings,
    kinks: bool = False,
    bounds: Bounded | Projected | None = None,
) -> Forward:
    """Π_Ω by the solvers, with all that is checked of Ω; with ``bounds``, on another domain than
    the simplex, of a smooth Ω."""
    if z.numel() == 0:
        return Forward(z.clone(), "empty batch", "nothing to solve")
    solve = functools.partial(_by_solver, omega, z, mask, settings, kinks, bounds)
    with transforms.unhooked():
        if transforms.waits(z) and settings.trace is None and bounds is None:
            return decisions.predicted(solve, _decisions(omega, z))
        return solve()


def _by_projection(problem: Problem, domain: Projected, settings: Settings) -> Forward:
    """Π_Ω on a domain of the user's own."""
    omega = problem.omega
    if decisions.all_of(problem.infinite_slope):
        raise NotImplementedError(
            f"domain={domain.of} is known by its projection, next to which an infinite slope has "
            f"no digits: Ω must have a finite slope at 0; got {who(omega)}"
        )
    if settings.solver != "auto":
        raise ValueError(f'domain={domain.of} has solver="auto" alone; got {settings.solver!r}')
    checked_value(omega, domain.lifted(domain.middle(problem.z)), who(omega))
    y, iterations = augmented(problem, settings.max_iter)
    at = problem.at(y)
    found = Solved(at, iterations, certify(at), "augmented Lagrangian")
    checked_value(omega, at.inward, who(omega))
    check_convex(at, found.certificate.min_eigenvalue)
    _report_failure(found, None, settings.tolerance(y.dtype), settings.on_failure)
    why = f"the domain is known by {type(domain.of).__name__}.project"
    return Forward(y, found.path, why, found, iterations)


def _solvers(problem: Problem, settings: Settings) -> tuple[list[Solver], str]:
    """The solvers to take in turn, and why."""
    if settings.solver == "auto":
        return choose(problem)
    omega, solver = problem.omega, named_solver(settings.solver)
    reason = solver.unsuitable(problem)
    if problem.bounds is None and reason is not None:
        raise ValueError(
            f"solver={solver.name!r} cannot take {type(omega).__name__}: {reason}; "
            'solver="auto" chooses one that can'
        )
    if problem.bounds is not None and not solver.domains:
        reason = 'it solves on the simplex alone; solver="interior" takes domain='
    if reason is not None:
        raise ValueError(f"solver={solver.name!r} cannot take {who(omega)} with domain=: {reason}")
    return [solver], "asked for"


def _by_solver(
    omega: Regularizer,
    z: Tensor,
    mask: Tensor | None,
    settings: Settings,
    kinks: bool,
    bounds: Bounded | Projected | None,
) -> Forward:
    given, z = z, z.clamp_min(LOWEST) if bounds is None else z.clamp(LOWEST, -LOWEST)
    problem = Problem(omega, z, mask, settings.start, settings.trace, bounds)
    if isinstance(bounds, Projected):
        return _by_projection(problem, bounds, settings)
    tol = settings.tolerance(z.dtype)
    free = kinks and settings.solver == "auto" and settings.max_iter >= BUDGET
    short = z.shape[-1] <= SHORT and not (problem.proximal or transforms.waits(z))
    tied = multiplied(problem) if free and short else None
    if tied is not None and decisions.all_of(tied.certificate.error_bound <= tol):
        checked_value(omega, simplex.inward(tied.y), who(omega))
        _check(problem, tied, settings)
        return _on_kinks(tied, tied)
    start = simplex.inward(problem.initial())  # of one row too, a sum over more than it shows
    checked_value(omega, start if start.ndim > 1 else start.unsqueeze(0), who(omega))
    if bounds is None:
        check_start(problem)
    solvers, why = _solvers(problem, settings)
    if bounds is None:
        found, defect = _searched(problem, solvers, tol, settings)
    else:
        found, defect = _in_turn(problem, solvers, tol, settings.max_iter), None
    if tied is not None:
        found = _better(tied, found, tol)
    elif free and not short and not decisions.all_of(found.certificate.error_bound <= tol):
        tied = multiplied(problem)
        found = found if tied is None else _better(found, tied, tol)
    checked_value(omega, simplex.inward(found.y), who(omega))
    check_convex(found.at, found.certificate.min_eigenvalue)
    if bounds is not None:
        # a score that was raised counts where its weight is above the lower bound
        moved = ((given < z) & (found.y > bounds.low)) | ((given > z) & (found.y < bounds.high))
        known = found.certificate.error_bound.masked_fill(moved.any(-1), torch.inf)
        found = replace(found, certificate=replace(found.certificate, error_bound=known))
    _check(problem, found, settings)
    _report_failure(found, defect, tol, settings.on_failure)
    if tied is not None:
        return _on_kinks(found, tied)
    return Forward(found.y, found.path, why, found, found.iterations)


BUDGET = 200
"""The steps on kinks have a budget of their own, below this."""


def _on_kinks(found: Solved, tied: Tied) -> Forward:
    """What was found, with the rows of it that are on kinks of Ω."""
    rows = tied.bound & (found.y == tied.y).all(-1)
    on, why = (tied, rows) if rows.any() else None, "its value has kinks"
    return Forward(found.y, found.path, why, found, found.iterations, tied=on)


def _check(problem: Problem, found: Solved, settings: Settings) -> None:
    """Refuse an Ω whose values contradict an answer, or whose methods do."""
    wrong = unsteady(problem, found.y) or refuted(found.at, found.certificate.gap)
    if wrong is not None:
        raise RegularizerError(f"{who(problem.omega)}: {wrong}")
    if settings.on_failure != "ignore":
        everywhere = torch.ones_like(found.iterations, dtype=torch.bool)
        wrong = mistaken_penalty(problem, found.y) or contradicted(problem, found.y, everywhere)
        if wrong is not None:
            raise RegularizerError(wrong)


_DECISIONS: dict[Any, decisions.Memory] = {}


def _decisions(omega: Regularizer, z: Tensor) -> decisions.Memory:
    """How the decisions of a solve went for an Ω like this one. They are only predictions."""
    kinds = (bool, int, float, str)
    parts = ((type(m), *(v for v in vars(m).values() if type(v) in kinds)) for m in omega.modules())
    if len(_DECISIONS) >= 512:
        _DECISIONS.clear()
    return _DECISIONS.setdefault((z.shape[-1], z.dtype, *parts), {})


def _searched(
    problem: Problem, solvers: list[Solver], tol: float, settings: Settings
) -> tuple[Solved, Defect | None]:
    """The best answer of the solvers, and what is wrong with Ω where they miss the tolerance. This
    is looked for early: at a kink a solver would spend its whole budget."""
    budget = settings.max_iter
    quick = [solver for solver in solvers if budget > solver.SOON]
    if quick and settings.trace is None:
        found = _in_turn(problem, quick[:2], tol, None)
        failed = ~(found.certificate.error_bound <= tol)
        if not decisions.read(failed)[0]:
            return found, None
        wrong = mistaken_penalty(problem, found.y)
        defect = Defect(wrong, broken=True) if wrong else diagnose(problem, found.y, failed)
        if defect is not None:
            return found, defect
    found = _in_turn(problem, solvers, tol, budget)
    failed = ~(found.certificate.error_bound <= tol)
    reported = settings.on_failure != "ignore"
    if not (reported and decisions.read(failed)[0]):
        return found, None
    return found, diagnose(problem, found.y, failed)


def _in_turn(problem: Problem, solvers: list[Solver], tol: float, max_iter: int | None) -> Solved:
    """Each solver for the rows that those before it missed, within ``max_iter``, or its
    ``SOON``."""
    found = solve(problem, solvers[0], tol, max_iter or solvers[0].SOON)
    for other in solvers[1:]:
        if decisions.all_of(found.certificate.error_bound <= tol):
            break
        found = _better(found, solve(problem, other, tol, max_iter or other.SOON), tol)
    return found


def named_solver(solver: str | Solver) -> Solver:
    """The solver that a name stands for."""
    if isinstance(solver, Solver):
        return solver
    found: Solver = registry().get("solver", solver)()
    return found


def _better(a: Solved, b: Solved, tol: float) -> Solved:
    """Row by row a, or where a missed the tolerance the one with the smaller certified error."""
    missed = ~(a.certificate.error_bound <= tol)
    use = missed & (b.certificate.error_bound < a.certificate.error_bound)
    return Solved(
        either(use, b.at, a.at),
        torch.where(missed, a.iterations + b.iterations, a.iterations),
        merged(use, b.certificate, a.certificate),
        f"{a.path}, then {b.path}" if decisions.read(use)[0] else a.path,
    )


def _report_failure(
    found: Solved, defect: Defect | None, tol: float, on_failure: OnFailure
) -> None:
    bound = found.certificate.error_bound
    failed = ~(bound <= tol)
    broken = defect is not None and defect.broken
    if not decisions.read(failed)[0] or (on_failure == "ignore" and not broken):
        return
    where = few(failed)
    worst = torch.where(failed, bound, 0).max().item()
    gap = torch.where(failed, found.certificate.gap, 0).max().item()
    message = (
        f"{found.path}: {int(failed.sum())} of {failed.numel()} rows did not reach the tolerance "
        f"{tol:g} (rows {where}{', …' if int(failed.sum()) > 4 else ''}; worst certified error "
        f"{worst:.2g}, gap {gap:.2g})"
    )
    omega = found.at.problem.omega
    if found.at.problem.bounds is not None:
        said = bounded_kinks(found.at.problem)
        defect = None if said is None else Defect(said, broken=False)
    known = isinstance(omega, Penalized) or omega.separable or omega.declares("closed_form")
    if defect is None and found.at.problem.eps > torch.finfo(found.y.dtype).eps:
        message += ". value computes in float32: take float64 there, or raise tol"
    elif defect is None and known:
        message += ". Raise max_iter or tol, compute in float64, or try another solver"
    elif defect is None:
        message += (
            ". Raise max_iter or tol, try another solver, or write the norm of a group, if value "
            "has one, as a regmax.Penalty"
        )
    else:
        message += f". {who(omega)}: {defect.said}"
        if defect.broken:
            raise RegularizerError(message)
    if on_failure == "raise":
        raise ConvergenceError(message)
    warn(message, ConvergenceWarning)
