"""Semismooth Newton steps on y = P_Δ(y + z − ∇Ω(y)), made safe by proximal gradient steps."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..optimality import Problem
from ..simplex import row_dot
from .base import Solver, moved
from .fista import Descent


class Newton(Solver):
    """For any smooth Ω: J (z − ∇Ω(y)) on the support, J the matrix of Proposition 1, which backward
    uses again.

    Where the slope of Ω is finite at 0, each iteration takes a few accelerated proximal gradient
    steps (they move the support, and alone they are FISTA), then Newton steps on that support with
    one factorisation, as long as they gain; a row keeps them where its objective does not rise and
    its residual falls, so that it is never worse off than with FISTA. Where the slope is infinite
    every entry stays positive: Newton steps in log y, halved until the objective falls.
    """

    name: ClassVar[str] = "newton"
    GRADIENT: ClassVar[int] = 10
    STEPS: ClassVar[int] = 5
    PATIENCE: ClassVar[int] = 5

    def unsuitable(self, problem: Problem) -> str | None:
        return "a penalty has no Hessian" if problem.structured else None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y = problem.initial()
        problem.observe(y)
        descent = None if problem.steep else Descent(problem, y)
        done = torch.zeros_like(y[..., 0], dtype=torch.bool)
        iterations = torch.zeros_like(done, dtype=torch.int64)
        small = min(tol, 1e-6) / 10
        value, idle = _value(problem, y), torch.zeros_like(iterations)
        for k in range(1, max_iter + 1):
            if descent is None:
                new, left = _steps(problem, y, self.STEPS, done)
            else:
                descent.take(self.GRADIENT)
                new, left = _steps(problem, descent.y, self.STEPS, done)
                descent.restart(new, (new != descent.y).any(-1, keepdim=True))
            y = torch.where(done.unsqueeze(-1), y, new)
            iterations = torch.where(done, iterations, k)
            problem.observe(y)
            now = _value(problem, y)
            # the last bits of the objective are rounding: a row that gains no more is left alone
            gains = now < value - 1e-12 * (1 + value.abs())
            value, idle = now, torch.where(gains, 0, idle + 1)
            done = done | (left <= small) | (idle > self.PATIENCE)
            if bool(done.all()):
                break
        return y, iterations


def _value(problem: Problem, y: Tensor) -> Tensor:
    return -problem.objective(y)


def _steps(problem: Problem, y: Tensor, most: int, done: Tensor) -> tuple[Tensor, Tensor]:
    """Up to ``most`` Newton steps from y with one J, and how long the next would be, per row: what
    is left of the error (inf where no step was kept).

    The first is shortened until the objective does not rise; another follows where the step after
    it is at most half as long (Deuflhard 2011, §2.1: the natural test of a simplified Newton step).
    """
    eps = torch.finfo(y.dtype).eps
    support = problem.support(y) & ~done.unsqueeze(-1)
    inverse = problem.inverse(y, support)
    step = torch.nan_to_num(inverse(problem.z - problem.local(y).gradient))
    length, value = _length(problem, y, step), _value(problem, y)
    left = torch.where(length <= 8 * eps, length, torch.inf)
    going = ~done & (length > 8 * eps)
    for k in range(most):
        new, now = _shortened(problem, y, step, support, value, going, 1 if k else 6)
        slope = problem.slope(new)
        following = torch.nan_to_num(inverse(slope))
        ahead = _length(problem, new, following)
        slack = 64 * eps * (1 + value.abs())
        shrinks = ahead <= 0.5 * length
        good = going & (now <= value + slack) & (shrinks | (now < value - slack))
        keep = good.unsqueeze(-1)
        left = torch.where(good, ahead + _outside(problem, new, slope), left)
        y, step = torch.where(keep, new, y), torch.where(keep, following, step)
        value, length = torch.where(good, now, value), torch.where(good, ahead, length)
        going = good & shrinks & (ahead > eps)
        if not bool(going.any()):
            break
    return y, left


def _shortened(
    problem: Problem,
    y: Tensor,
    step: Tensor,
    support: Tensor,
    value: Tensor,
    going: Tensor,
    trials: int,
) -> tuple[Tensor, Tensor]:
    """The point that a step leads to, a quarter of it where the objective would rise, and so on."""
    t = torch.ones_like(y[..., :1])
    slack = 64 * torch.finfo(y.dtype).eps * (1 + value.abs())
    for k in range(trials):
        new = moved(problem, y, t * step, support)
        now = _value(problem, new)
        ok = (now <= value + slack) | ~going
        if k == trials - 1 or bool(ok.all()):
            break
        t = torch.where(ok.unsqueeze(-1), t, t / 4)
    return new, now


def _length(problem: Problem, y: Tensor, step: Tensor) -> Tensor:
    """How long a step is: in y, or in log y where every entry stays positive."""
    if problem.steep:
        inside = torch.where(problem.support(y), y, 1)
        return (step / inside).abs().amax(-1)
    length: Tensor = step.norm(dim=-1)
    return length


def _outside(problem: Problem, y: Tensor, slope: Tensor) -> Tensor:
    """By how much r_i exceeds τ off the support: 0 where no entry wants to enter it."""
    rho = slope - row_dot(y, slope)
    room = 64 * torch.finfo(y.dtype).eps * problem.z.abs().amax(-1, keepdim=True)
    off = problem.participants() & (y == 0)
    return torch.where(off, (rho - room).clamp_min(0), 0).amax(-1)
