"""The interface of a solver, and the steps around each: run, Newton polish, certificate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import simplex
from ..optimality.certificates import Certificate, Problem
from ..regularizers import printing


class Solver(ABC):
    """Finds argmax_{y ∈ Δ} ⟨y, z⟩ − Ω(y) for a batch of rows.

    A solver finds the support and a point near y*. :func:`solve` then polishes the point with
    Newton steps and certifies every row. Derivatives do not depend on the solver.
    """

    name: ClassVar[str] = ""
    SOON: ClassVar[int] = 200
    """Iterations after which most rows have converged; if some have not, regmax tests whether Ω
    breaks its contract before it continues."""

    def __repr__(self) -> str:
        return printing.called(self, printing.arguments(self))

    @abstractmethod
    def unsuitable(self, problem: Problem) -> str | None:
        """Why this solver cannot take the problem, or None."""

    @abstractmethod
    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        """(y, iterations): y in Δ of the shape of ``problem.z``, iterations int64 per row.

        A row stops when the solver estimates that its error is at most ``tol``, or after
        ``max_iter`` iterations. Rows are independent of each other. A solver starts at
        ``problem.initial()`` if it can, and calls ``problem.observe(y)`` for the start and for
        every iteration.
        """


@dataclass(frozen=True, eq=False)
class Solved:
    """The result of :func:`solve`; ``problem`` stores J at y, which backward can reuse."""

    y: Tensor
    iterations: Tensor
    certificate: Certificate
    path: str
    problem: Problem


def solve(problem: Problem, solver: Solver, tol: float, max_iter: int) -> Solved:
    """Run ``solver``, then clean, polish and certify its answer. No gradients are recorded."""
    if problem.trace is not None:
        problem.trace.name = solver.name
    with torch.no_grad():
        before = problem.z.clone()
        answer = solver.run(problem, tol, max_iter)
        if not torch.equal(problem.z, before):
            raise ValueError(f"{type(solver).__name__}.run must not write to problem.z")
        y, iterations = _taken(problem, solver, answer)
        y, certificate = _decided(problem, *polish(problem, y, tol), tol)
        problem.observe(y, answer=True)
    return Solved(y, iterations, certificate, f"solver {solver.name}", problem)


def _taken(problem: Problem, solver: Solver, answer: object) -> tuple[Tensor, Tensor]:
    """The answer of ``run`` as points of Δ and iterations; an error if it is no such pair. Rows
    that are not finite or have no positive entry are replaced by the initial point."""
    z = problem.z
    who = f"{type(solver).__name__}.run must return (y, iterations): "
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise TypeError(f"{who}two tensors; got {type(answer).__name__}")
    y, iterations = answer
    for name, item, like, kind in (
        ("y", y, z, str(z.dtype)),
        ("iterations", iterations, z[..., 0], "int64"),
    ):
        shape = tuple(like.shape)
        if not isinstance(item, Tensor):
            raise TypeError(f"{who}{name} a tensor of shape {shape}; got {type(item).__name__}")
        if item.shape != like.shape:
            raise ValueError(f"{who}{name} of shape {shape}; got {tuple(item.shape)}")
        right = item.dtype == z.dtype if name == "y" else not item.dtype.is_floating_point
        if not right or item.device != z.device:
            raise TypeError(f"{who}{name} {kind} on {z.device}; got {item.dtype} on {item.device}")
    on = problem.participants()
    y = y.detach()
    kept = (y >= 0) & (y < torch.inf) & on | (y == 0)
    if bool(kept.all()):
        inside = y
    else:
        finite = torch.isfinite(torch.where(on, y, 0)).all(-1, keepdim=True)
        inside = torch.where(on & finite, y.clamp_min(0), 0)
    total = inside.sum(-1, keepdim=True)
    usable = (total > 0) & (total < torch.inf)
    if not bool(usable.all()):
        start = problem.initial()
        inside, total = torch.where(usable, inside, start), torch.where(usable, total, 1)
    close = (total - 1).abs() <= 4 * torch.finfo(y.dtype).eps * y.shape[-1] ** 0.5
    return (inside if bool(close.all()) else inside / total), iterations.clamp_min(0)


def polish(
    problem: Problem, y: Tensor, tol: float = 0.0, steps: int = 6
) -> tuple[Tensor, Certificate]:
    """Newton steps on the support given by the optimality condition.

    A row keeps a step if its certified bound falls. It takes one step if the bound is above
    1e-4·tol, and more while the bound is above ``tol`` or the zeros of y do not match the support.
    y ← y + J (z − ∇Ω(y)) converges quadratically, up to rounding. With a penalty, its prox first
    makes the members of each group equal.
    """
    best = problem.tested(y)
    if problem.structured:
        y, best = _fused(problem, y, best)
    eps = torch.finfo(y.dtype).eps
    better = torch.ones_like(best.error_bound, dtype=torch.bool)
    for k in range(steps):
        enough = tol if k else 1e-4 * tol  # an answer exact up to rounding stays as it is
        undecided = _undecided(y, best)
        better = better & ((best.error_bound > enough) | undecided)
        if not bool(better.any()):
            break
        current = newton(problem, y, best.support)
        trial = problem.tested(current)
        settles = undecided & ~_undecided(current, trial)
        near = trial.error_bound <= torch.maximum(2 * best.error_bound, best.error_bound + 64 * eps)
        better = better & ((trial.error_bound < best.error_bound) | (settles & near))
        if not bool(better.any()):
            break
        y, best = chosen(better, current, y), merged(better, trial, best)
    return y, best


def _decided(
    problem: Problem, y: Tensor, found: Certificate, tol: float
) -> tuple[Tensor, Certificate]:
    """y with its stray entries set to 0: those next to 0 that the optimality condition sets to 0. A
    row in which this fails gets the bound +inf."""
    if not bool(found.stray.any()):
        return y, found
    current = problem.inside(torch.where(found.stray, 0, y))
    trial = problem.tested(current)
    better = (trial.error_bound <= (2 * found.error_bound).clamp_min(tol)) & ~trial.stray.any(-1)
    y, best = chosen(better, current, y), merged(better, trial, found)
    lost = best.stray.any(-1)
    return y, replace(best, error_bound=torch.where(lost, torch.inf, best.error_bound))


def _undecided(y: Tensor, certificate: Certificate) -> Tensor:
    """Rows in which the zeros of y do not match the support."""
    return (certificate.support != (y > 0)).any(-1)


def _fused(problem: Problem, y: Tensor, found: Certificate) -> tuple[Tensor, Certificate]:
    """y after one proximal step, in rows where the certified bound does not grow. The step has y*
    as fixed point and makes the members of a group equal bit for bit."""
    current = problem.proximal_step(y)
    if torch.equal(current, y):
        return y, found
    trial = problem.tested(current)
    better = trial.error_bound <= torch.maximum(2 * found.error_bound, found.error_bound + 1e-14)
    return chosen(better, current, y), merged(better, trial, found)


def chosen(better: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Row by row a where ``better``, else b. If all rows are better, the tensor a itself, so that
    results stored for it stay valid."""
    return a if bool(better.all()) else torch.where(better.unsqueeze(-1), a, b)


def merged(better: Tensor, a: Certificate, b: Certificate) -> Certificate:
    """The certificates of :func:`chosen`."""
    min_eigenvalue = b.min_eigenvalue
    if a.min_eigenvalue is not None and b.min_eigenvalue is not None:
        min_eigenvalue = torch.where(better, a.min_eigenvalue, b.min_eigenvalue)
    return Certificate(
        torch.where(better, a.gap, b.gap),
        torch.where(better, a.error_bound, b.error_bound),
        b.estimated,
        torch.where(better.unsqueeze(-1), a.support, b.support),
        torch.where(better.unsqueeze(-1), a.stray, b.stray),
        min_eigenvalue,
    )


def newton(problem: Problem, y: Tensor, support: Tensor | None = None) -> Tensor:
    """One Newton step inside Δ, on ``support`` or that of y. An entry that it would make negative
    leaves the support.

    If the slope of Ω is infinite at 0, no entry can leave, and the step is taken in log y, where
    the gradients of entropies are nearly linear: y ∝ y exp(Δy/y).
    """
    current = problem.support(y)
    if support is None or torch.equal(support, current):
        support = current
    elif problem.legendre:  # a step in log y cannot make a zero positive
        y = simplex.normalize(torch.where(support & ~current, 1e-3 / y.shape[-1], y))
    else:
        y = torch.where(support, y, 0)
    return moved(problem, y, torch.nan_to_num(problem.newton_step(y, support)), support)


def moved(problem: Problem, y: Tensor, step: Tensor, support: Tensor) -> Tensor:
    """The point of Δ after a step on the support."""
    if problem.legendre:
        inside = torch.where(support, y, 1)
        logs = torch.where(support, inside.log() + step / inside, -torch.inf)
        return simplex.normalize(logs.softmax(-1))
    return simplex.normalize((y + step).clamp_min(0))
