"""The roads to Π_Ω(x): a closed form, a prox followed by one, or a solver; their certificates."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from . import simplex
from .curvature import Inverse
from .diagnosis import diagnose, refuted
from .errors import ConvergenceError, ConvergenceWarning, RegularizerError
from .expressions import unscaled
from .fused import kernel_of, values
from .optimality import Problem
from .penalty import Penalized, penalty_of, smooth_part
from .plugins import registry
from .regularizer import Regularizer, checked_value, overrides
from .rows import Rows
from .solution import Trace
from .solvers import Solved, Solver, choose, chosen, merged, solve

OnFailure = Literal["warn", "raise", "ignore"]


LOWEST = -1e12
"""Solvers take lower scores (finfo.min, as additive masks have it) for this: y is 0, or below
rounding, there, and the others keep their digits."""


@dataclass(frozen=True)
class Settings:
    """How to solve: independent of what is solved and of how it is differentiated.

    ``start``: rows that a solver starts from; ``trace``: where it notes its iterations.
    """

    solver: str | Solver = "auto"
    tol: float | None = None
    max_iter: int = 2000
    on_failure: OnFailure = "warn"
    start: Tensor | None = None
    trace: Trace | None = None

    def tolerance(self, dtype: torch.dtype) -> float:
        """The certified error to reach: 1e-8 in float64, 1e-3 in float32, unless set.

        In float32 the certificate's own rounding, some 4e-7 of the scores, is most of the bound;
        the answers are far better.
        """
        if self.tol is not None:
            return self.tol
        return 1e-8 if dtype == torch.float64 else 1e-3


@dataclass(frozen=True, eq=False)
class Road:
    """y and how it was found; ``solved`` is None for a closed form."""

    y: Tensor
    path: str
    why: str
    solved: Solved | None = None

    def inverse(self, support: Tensor) -> Inverse | None:
        """The factorisation that the solver ended with, if it is that of J at y."""
        if self.solved is None or self.solved.problem.structured:
            return None
        return self.solved.problem.remembered(self.y, support)


def has_formula(omega: Regularizer) -> bool:
    """Whether Ω claims a closed form, of its own or by the theorem of :mod:`regmax.penalty`."""
    if overrides(omega, "closed_form"):
        return True
    composed = isinstance(omega, Penalized) and omega.base.permutation_invariant
    return composed and has_formula(smooth_part(omega))


def travel(rows: Rows, settings: Settings) -> Road:
    """Find Π_Ω(x), without gradients."""
    with torch.no_grad():
        if settings.solver == "auto":
            road = _by_formula(rows.omega, rows.x, rows.gamma, rows.mask, settings)
            if road is not None:
                return road
        return _by_solver(rows.omega, rows.z, rows.mask, settings)


def who(omega: Regularizer) -> str:
    """The classes that Ω is made of."""
    composed = type(omega) is Penalized
    parts = [type(leaf).__name__ for leaf in (smooth_part(omega) if composed else omega).leaves()]
    penalty = penalty_of(omega) if composed else None
    return " + ".join(parts if penalty is None else [*parts, penalty.name or repr(penalty)])


def _by_formula(
    omega: Regularizer, x: Tensor, gamma: float | Tensor, mask: Tensor | None, settings: Settings
) -> Road | None:
    omega, gamma = unscaled(omega, gamma)
    kernel = kernel_of(omega, x)
    if kernel is not None:
        found = values(kernel, omega, x, gamma, mask)
        return Road(found, "closed form", f"{kernel.name} kernel of {who(omega)}")
    y = closed_form(omega, x, gamma, mask)
    if y is not None:
        return Road(y, "closed form", f"{who(omega)} has one, in PyTorch")
    if isinstance(omega, Penalized) and omega.base.permutation_invariant:
        x = omega.composed(x, gamma, mask)
        road = _by_formula(omega.base, x, gamma, mask, settings)
        road = road or _by_solver(omega.base, x / gamma, mask, settings)
        return Road(
            road.y,
            f"prox, then {road.path}",
            f"{omega.base.name or who(omega.base)} is permutation-invariant, so "
            f"Π = Π_base ∘ γ prox({omega.penalty.name}); {road.why}",
            road.solved,
        )
    return None


def closed_form(
    omega: Regularizer, x: Tensor, gamma: float | Tensor, mask: Tensor | None
) -> Tensor | None:
    """What Ω's own formula gives, refused with a message unless it is a tensor like x."""
    y = omega.closed_form(x, gamma, mask)
    if y is None:
        return None
    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
        got = f"{tuple(y.shape)}, {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise RegularizerError(
            f"{type(omega).__name__}.closed_form must return a tensor like x: "
            f"{tuple(x.shape)}, {x.dtype}; got {got}"
        )
    return y


def _by_solver(omega: Regularizer, z: Tensor, mask: Tensor | None, settings: Settings) -> Road:
    if z.numel() == 0:
        return Road(z.clone(), "empty batch", "nothing to solve")
    z = z.clamp_min(LOWEST)
    problem = Problem(omega, z, mask, settings.start, settings.trace)
    checked_value(omega, simplex.inward(problem.initial()))
    problem.check_start()
    if settings.solver == "auto":
        solvers, why = choose(problem)
    else:
        solvers, why = [named_solver(settings.solver)], "asked for"
        reason = solvers[0].unsuitable(problem)
        if reason is not None:
            raise ValueError(
                f"solver={solvers[0].name!r} cannot take {type(omega).__name__}: {reason}; "
                'solver="auto" chooses one that can'
            )
    tol = settings.tolerance(z.dtype)
    found = solve(problem, solvers[0], tol, settings.max_iter)
    for other in solvers[1:]:
        if bool((found.certificate.error_bound <= tol).all()):
            break
        found = _better(found, solve(problem, other, tol, settings.max_iter), tol)
    checked_value(omega, simplex.inward(found.y))
    problem.check_convex(found.y, found.certificate.lowest)
    wrong = refuted(problem, found.y, found.certificate.gap)
    if wrong is not None:
        raise RegularizerError(f"{who(omega)}: {wrong}")
    _report_failure(problem, found, tol, settings.on_failure)
    return Road(found.y, found.path, why, found)


def named_solver(solver: str | Solver) -> Solver:
    """The solver that a name stands for."""
    if isinstance(solver, Solver):
        return solver
    found: Solver = registry().get("solver", solver)()
    return found


def _better(a: Solved, b: Solved, tol: float) -> Solved:
    """Row by row a, or where it missed the tolerance the better certified of the two."""
    missed = ~(a.certificate.error_bound <= tol)
    use = missed & (b.certificate.error_bound < a.certificate.error_bound)
    return Solved(
        chosen(use, b.y, a.y),
        torch.where(missed, a.iterations + b.iterations, a.iterations),
        merged(use, b.certificate, a.certificate),
        f"{a.path}, then {b.path}" if bool(use.any()) else a.path,
        a.problem,
    )


def _report_failure(problem: Problem, found: Solved, tol: float, on_failure: OnFailure) -> None:
    bound = found.certificate.error_bound
    failed = ~(bound <= tol)
    if on_failure == "ignore" or not bool(failed.any()):
        return
    where = [tuple(int(i) for i in at) for at in failed.nonzero()[:4]]
    worst = torch.where(failed, bound, 0).max().item()
    gap = torch.where(failed, found.certificate.gap, 0).max().item()
    message = (
        f"{found.path}: {int(failed.sum())} of {failed.numel()} rows did not reach the tolerance "
        f"{tol:g} (rows {where}{', …' if int(failed.sum()) > 4 else ''}; worst certified error "
        f"{worst:.2g}, gap {gap:.2g}). Raise max_iter or tol, compute in float64, "
        "or try another solver"
    )
    defect = diagnose(problem, found.y, failed)
    if defect is not None:
        message += f". {who(problem.omega)}: {defect.said}"
        if defect.broken:
            raise RegularizerError(message)
    if on_failure == "raise":
        raise ConvergenceError(message)
    warnings.warn(message, ConvergenceWarning, stacklevel=2)
