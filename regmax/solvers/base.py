"""The interface of a solver, and the steps around each: run, Newton polish, certificate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import decisions, simplex, transforms
from ..optimality.certificates import Certificate, certify
from ..optimality.problem import Point, Problem
from ..regularizers import printing


class Solver(ABC):
    """Finds argmax_{y ∈ Δ} ⟨y, z⟩ − Ω(y) for a batch of rows.

    A solver finds the support and a point near y*. :func:`solve` then polishes the point with
    Newton steps and certifies every row. Derivatives do not depend on the solver.
    """

    name: ClassVar[str] = ""
    domains: ClassVar[bool] = False
    """Whether it solves on every domain, and not on the simplex alone."""
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
    """The result of :func:`solve`; the point ``at`` stores J, which backward can reuse."""

    at: Point
    iterations: Tensor
    certificate: Certificate
    path: str

    @property
    def y(self) -> Tensor:
        return self.at.y


def solve(problem: Problem, solver: Solver, tol: float, max_iter: int) -> Solved:
    """Run ``solver``, then clean, polish and certify its answer. No gradients are recorded."""
    if problem.trace is not None:
        problem.trace.name = solver.name
    with torch.no_grad():
        before = problem.z.clone()
        answer = solver.run(problem, tol, max_iter)
        if problem.z.shape != before.shape or decisions.rare("written", problem.z != before):
            raise ValueError(f"{type(solver).__name__}.run must not write to problem.z")
        y, iterations = _taken(problem, solver, answer)
        at, certificate = _decided(*_polished(problem.at(y), tol), tol)
        problem.observe(at.y, answer=True)
    return Solved(at, iterations, certificate, f"solver {solver.name}")


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
    if problem.bounds is not None:
        finite = torch.isfinite(y).all(-1, keepdim=True)
        return problem.inside(torch.where(finite, y, problem.initial())), iterations.clamp_min(0)
    kept = (y >= 0) & (y < torch.inf) & on | (y == 0)
    inside = y
    if decisions.rare("off the simplex", ~kept):
        finite = torch.isfinite(torch.where(on, y, 0)).all(-1, keepdim=True)
        inside = torch.where(on & finite, y.clamp_min(0), 0)
    total = inside.sum(-1, keepdim=True)
    usable = (total > 0) & (total < torch.inf)
    if decisions.rare("no answer", ~usable):
        start = problem.initial()
        inside, total = torch.where(usable, inside, start), torch.where(usable, total, 1)
    close = (total - 1).abs() <= 4 * torch.finfo(y.dtype).eps * y.shape[-1] ** 0.5
    return torch.where(close, inside, inside / total), iterations.clamp_min(0)


def polish(
    problem: Problem, y: Tensor, tol: float = 0.0, steps: int = 6
) -> tuple[Tensor, Certificate]:
    """Newton steps on the support given by the optimality condition.

    A row keeps a step if its certified bound falls. It takes one step if the bound is above
    1e-4·tol, and more while the bound is above ``tol`` or the zeros of y do not match the support.
    y ← y + J (z − ∇Ω(y)) converges quadratically, up to rounding. With a penalty, its prox first
    makes the members of each group equal.
    """
    at, certificate = _polished(problem.at(y), tol, steps)
    return at.y, certificate


def _polished(at: Point, tol: float, steps: int = 6) -> tuple[Point, Certificate]:
    best = certify(at, tested=True)
    if at.problem.structured:
        at, best = _fused(at, best)
    eps = torch.finfo(at.y.dtype).eps
    undecided = _undecided(at, best)
    # an answer exact up to rounding stays as it is
    better = (best.error_bound > 1e-4 * tol) | undecided
    going, changed = decisions.read(better, undecided) if steps else (False, False)
    for _ in range(steps):
        if not going:
            break
        current = at.problem.at(newton(at, best.support if changed else None))
        trial = certify(current, tested=True)
        settles = undecided & ~_undecided(current, trial)
        near = trial.error_bound <= torch.maximum(2 * best.error_bound, best.error_bound + 64 * eps)
        better = better & ((trial.error_bound < best.error_bound) | (settles & near))
        best = merged(better, trial, best)
        undecided = better & _undecided(current, trial)
        following = better & ((best.error_bound > tol) | undecided)
        some, rest, going, changed = decisions.read(better, ~better, following, undecided)
        if some:
            at = _some(better, current, at) if rest else current
        better = following
    return at, best


def _decided(at: Point, found: Certificate, tol: float) -> tuple[Point, Certificate]:
    """y with its stray entries set to 0: those next to 0 that the optimality condition sets to 0. A
    row in which this fails gets the bound +inf."""
    if not decisions.rare("stray entries", found.stray):
        return at, found
    current = at.problem.at(at.problem.inside(at.settled(~found.stray)))
    trial = certify(current, tested=True)
    better = (trial.error_bound <= (2 * found.error_bound).clamp_min(tol)) & ~trial.stray.any(-1)
    at, best = either(better, current, at), merged(better, trial, found)
    lost = best.stray.any(-1)
    return at, replace(best, error_bound=torch.where(lost, torch.inf, best.error_bound))


def _undecided(at: Point, certificate: Certificate) -> Tensor:
    """Rows in which the free entries of y are not those of the support."""
    return (certificate.support != at.support).any(-1)


def _fused(at: Point, found: Certificate) -> tuple[Point, Certificate]:
    """y after one proximal step, in rows where the certified bound does not grow. The step,
    P_Δ(prox_λR(y + z − ∇Ω(y))), has y* as fixed point (2017, eq. 2) and makes the members of a
    group equal bit for bit."""
    current = at.problem.at(at.problem.nearest(at.y + at.slope, 1.0))
    if not decisions.read(current.y != at.y)[0]:
        return at, found
    trial = certify(current, tested=True)
    better = trial.error_bound <= torch.maximum(2 * found.error_bound, found.error_bound + 1e-14)
    return either(better, current, at), merged(better, trial, found)


def chosen(better: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Row by row a where ``better``, else b."""
    return torch.where(better.unsqueeze(-1), a, b)


def earliest(fits: Tensor, options: Tensor) -> Tensor:
    """Row by row the first of the options that fits, both (options, *batch, …)."""
    at = fits.to(torch.uint8).argmax(0, keepdim=True)
    return options.take_along_dim(at, 0).squeeze(0)


def either(better: Tensor, a: Point, b: Point) -> Point:
    """The point of :func:`chosen`. If all rows are better, a itself, with its computed results."""
    return a if decisions.all_of(better) else _some(better, a, b)


def _some(better: Tensor, a: Point, b: Point) -> Point:
    return b.problem.at(chosen(better, a.y, b.y))


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


def newton(at: Point, support: Tensor | None = None) -> Tensor:
    """One Newton step inside Δ, on ``support`` or that of y. An entry that it would make negative
    leaves the support.

    If the slope of Ω is infinite at 0, no entry can leave, and the step is taken in log y, where
    the gradients of entropies are nearly linear: y ∝ y exp(Δy/y).
    """
    problem, y, current = at.problem, at.y, at.support
    if support is None or (not transforms.waits(y) and torch.equal(support, current)):
        support = current
    else:
        y = at.settled(support)
        if problem.legendre:  # a step in log y cannot make a zero positive
            y = torch.where(support & problem.infinite_slope & (y == 0), 1e-3 / y.shape[-1], y)
            y = problem.inside(y)
        at = problem.at(y)
    return moved(problem, at.y, torch.nan_to_num(at.newton_step(support)), support)


def moved(problem: Problem, y: Tensor, step: Tensor, support: Tensor) -> Tensor:
    """The point of D after a step on the support."""
    new = y + step
    if problem.bounds is not None:
        return problem.inside(torch.where(problem.infinite_slope, torch.maximum(new, y / 100), new))
    new = new.clamp_min(0)
    if problem.legendre:
        inside = torch.where(support, y, 1)
        logs = torch.where(problem.infinite_slope, inside.log() + step / inside, new.log())
        new = torch.where(support, logs, -torch.inf).softmax(-1)
    return simplex.normalize(new)


def tried(problem: Problem, y: Tensor, done: Tensor, tol: float) -> tuple[Tensor, Tensor]:
    """y, or Newton's step from it in rows that this brings within ``tol``, and the rows that are
    done. If the support and the groups of y are right, the step reaches y*."""
    at = problem.at(y)
    found = certify(at)
    candidate = newton(at, found.support)
    other = certify(problem.at(candidate)).error_bound
    reached = torch.minimum(found.error_bound, other) <= tol
    better = ~done & (other < found.error_bound) & reached
    return chosen(better, candidate, y), done | reached


def slack(value: Tensor) -> Tensor:
    """A bound on the rounding error of an objective."""
    return 64 * torch.finfo(value.dtype).eps * (1 + value.abs())
