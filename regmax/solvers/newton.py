"""Newton's method on the optimality condition: on τ alone where ∇²Ω is diagonal, in scores where
the slope of Ω is infinite at 0 or D has other bounds, on the support otherwise."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..domains import Bounded
from ..kernels import decisions, transforms
from ..kernels.simplex import row_dot
from ..optimality.problem import Point, Problem
from .base import Solver, chosen, earliest, moved, slack
from .fista import Descent
from .mirror import mirrored
from .powers import Powers, below_cap, exponent, filled


class Newton(Solver):
    """Newton's method, for any smooth Ω.

    For a separable Ω(y) = Σ g_i(y_i) it finds τ with Σ_i y_i(τ) = k, where y_i(τ) maximises
    y (z_i − τ) − g_i(y) over [l_i, u_i], that is g_i'(y_i) = z_i − τ unless a bound is active; on
    the simplex k = 1, l = 0, u = 1. (Blondel, Martins & Niculae 2019, Prop. 5.) τ = 0 without a
    sum, and where Σy ≤ k leaves Σ_i y_i(0) as it is. A local power model inverts g_i':
    g_i''(t) ≈ g_i''(y_i) (t/y_i)^(b−1), with b from the last two points. It is exact for Σ y^α and
    Σ y log y. Its first derivative is right for every Ω, so it converges as Newton's method does.
    In the model τ is the root of a monotone function.

    A coupled Ω with an infinite slope at 0, in some entries or all, takes its steps in scores, by
    ``mirrored``, as does any Ω between bounds, and rows that the root does not solve. If the slope
    of Ω is finite at 0 on the simplex, the step is J (z − ∇Ω(y)), J the
    matrix of Proposition 1, which backward reuses: each iteration takes a few FISTA steps, which
    change the support, and then Newton steps on that support with one factorisation while they
    improve. A row keeps a Newton step only if its objective does not rise, so it is never worse
    than with FISTA.
    """

    name: ClassVar[str] = "newton"
    domains: ClassVar[bool] = True
    SOON: ClassVar[int] = 16
    ROOT: ClassVar[int] = 20
    GRADIENT: ClassVar[int] = 10
    STEPS: ClassVar[int] = 5
    PATIENCE: ClassVar[int] = 5

    def unsuitable(self, problem: Problem) -> str | None:
        return "a penalty has no Hessian" if problem.structured else None

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y = problem.initial()
        problem.observe(y)
        done = torch.zeros_like(y[..., 0], dtype=torch.bool)
        iterations, spent = torch.zeros_like(done, dtype=torch.int64), 0
        if problem.separable:
            root, done, iterations = _by_root(problem, min(self.ROOT, max_iter))
            spent = self.ROOT
            if spent >= max_iter or decisions.all_of(done):
                return root, iterations
            y = chosen(done, root, y)  # far from y* a wrong root is a bad start
        if problem.legendre or problem.bounds is not None:
            other, more = mirrored(problem, tol, max_iter - spent)
            return chosen(done, y, other), torch.where(done, iterations, spent + more)
        descent = Descent(problem, y)
        small, least = min(tol, 1e-6) / 10, max(1e-12, torch.finfo(y.dtype).eps)
        value, idle = -problem.objective(y), torch.zeros_like(iterations)
        for k in range(1, max_iter - spent + 1):
            descent.take(self.GRADIENT, 2 * self.GRADIENT)
            new, left = _steps(problem, descent.y, self.STEPS, done)
            descent.restart(new, (new != descent.y).any(-1, keepdim=True))
            y = chosen(done, y, new)
            iterations = torch.where(done, iterations, spent + k)
            problem.observe(y)
            now = -problem.objective(y)
            # the last bits of the objective are rounding: a row that no longer improves stops
            gains = now < value - least * (1 + value.abs())
            value, idle = now, torch.where(gains, 0, idle + 1)
            done = done | (left <= small) | (idle > self.PATIENCE)
            if problem.finished(done, k):
                break
        return y, iterations


def _by_root(problem: Problem, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """y of a separable Ω, whether the row has converged, and its iterations."""
    z, on, bounds = problem.z, problem.movable(), problem.bounds
    assert bounds is None or isinstance(bounds, Bounded)
    info = torch.finfo(z.dtype)
    floor = info.eps**2
    middle, low = problem.domain.middle(z), 0.0 if bounds is None else bounds.low
    last = filled(on, low + torch.maximum(problem.initial() - low, middle - low) / 16)
    at = problem.first
    if problem.mask is not None or problem.start is not None or bounds is not None:
        at = problem.at(filled(on, at.y.clamp_min(floor)))
        last = last.clamp_min(floor)
    (_, h0), (g, h), y = _slopes(problem.at(last)), _slopes(at), at.y
    b, other = exponent(last, y, h0, h, torch.ones_like(y)), None
    settled = torch.zeros_like(y[..., :1], dtype=torch.bool)
    iterations = torch.zeros_like(settled, dtype=torch.int64)
    tau, answer = None, y
    for k in range(1, limit + 1):
        model = Powers(problem, z - g, y, h, b, other)
        tau, new, found = model.root(tau, middle)
        lifted = new.clamp_min(floor)
        # next to an upper bound, where Ω may be as steep as at 0, the change counts beside u − y
        room = y if bounds is None else torch.minimum(y, bounds.high - y)
        near = (lifted - y).abs() <= 100 * info.eps**0.5 * room + 2 * info.eps * y
        answer = torch.where(settled, answer, new)
        iterations = torch.where(settled, iterations, k)
        problem.observe(answer)
        settled = settled | (found & (near | ~on).all(-1, keepdim=True))
        if k == limit or (not transforms.waits(y) and bool(settled.all())):
            break
        last, h0 = y, h
        y = torch.where(settled, y, filled(on, lifted))
        g, h = _slopes(problem.at(y))
        # if the model was exact, the residual of g' = z − τ is rounding
        residual = z - g - tau
        rounding = 16 * info.eps * (z.abs() + g.abs() + tau.abs())
        below = residual <= rounding
        above = residual >= -rounding if bounds is None else (residual >= -rounding) | (y <= low)
        if bounds is not None:
            below = below | (y >= bounds.high)
        fits = below & (above | (y <= floor))
        settled = settled | found & (fits | ~on).all(-1, keepdim=True)
        if problem.finished(settled, k):
            break
        b = exponent(last, y, h0, h, b)
        if bounds is not None:
            before, left = below_cap(bounds.high, last), below_cap(bounds.high, y)
            other = exponent(before, left, h0, h, torch.ones_like(y))
    finite = torch.isfinite(answer).all(-1, keepdim=True)
    return (
        torch.where(finite, answer, y),
        (settled & finite).squeeze(-1),
        iterations.squeeze(-1),
    )


def _slopes(at: Point) -> tuple[Tensor, Tensor]:
    """g_i' and g_i'', the latter kept positive and finite."""
    gradient, h = at.diagonal
    info = torch.finfo(h.dtype)
    return gradient, torch.nan_to_num(h, nan=info.tiny).clamp(info.tiny, info.max)


def _steps(problem: Problem, y: Tensor, most: int, done: Tensor) -> tuple[Tensor, Tensor]:
    """Up to ``most`` Newton steps from y with one J, and per row the length of the next step, an
    estimate of the remaining error (inf if no step was kept).

    A step is kept if the objective does not rise and the next step is at most half as long
    (Deuflhard 2011, §2.1: the natural test of a simplified Newton step). If the first step fails,
    it is shortened until the objective falls.
    """
    eps = torch.finfo(y.dtype).eps
    at = problem.at(y)
    support = at.support & ~done.unsqueeze(-1)
    inverse = at.inverse(support)
    step = inverse(problem.z - at.defined.gradient)
    length, value = step.norm(dim=-1), -problem.objective(y)
    left = torch.where(length <= 8 * eps, length, torch.inf)
    going = ~done & (length > 8 * eps)
    for k in range(most):
        new = moved(problem, y, step, support)
        slope, now = problem.slope(new), -problem.objective(new)
        following = inverse(slope)
        ahead = following.norm(dim=-1)  # NaN where Ω has no slope there
        good = going & (now <= value + slack(value)) & (ahead <= 0.5 * length)
        failed = going & ~good
        if k == 0 and (transforms.waits(y) or bool(failed.any())):
            shorter = _searched(problem, y, step, support, failed)
            falls = failed & (-problem.objective(shorter) < value - slack(value))
            y = chosen(falls, shorter, y)
        keep = good.unsqueeze(-1)
        left = torch.where(good, ahead + _outside(problem, new, slope), left)
        y, step = torch.where(keep, new, y), torch.where(keep, following, step)
        value, length = torch.where(good, now, value), torch.where(good, ahead, length)
        going = good & (ahead > eps)
        if not transforms.waits(y) and not bool(going.any()):
            break
    return y, left


def _searched(problem: Problem, y: Tensor, step: Tensor, support: Tensor, where: Tensor) -> Tensor:
    """Line search: the point where the directional derivative of the objective is close to 0, by
    dividing the interval into two parts, or into 16 where testing for the end would wait. Fixed
    fractions of the step fail if the curvature of Ω changes sharply along it."""
    parts, rounds = (16, 6) if transforms.waits(y) else (2, 40)
    low, high = torch.zeros_like(y[..., :1]), torch.ones_like(y[..., :1])
    first = row_dot(problem.slope(y), step)
    fractions = torch.arange(1, parts, dtype=y.dtype, device=y.device) / parts
    fractions = fractions.view(-1, *(1,) * y.ndim)
    t, best, found = high.unsqueeze(0), high, ~where.unsqueeze(-1)
    for _ in range(rounds):
        slope = problem.slope(moved(problem, y, t * step, support))
        slope = torch.nan_to_num(row_dot(slope, step))
        near = slope.abs() <= 0.1 * first.abs()
        before = ((slope > 0) & ~near).cumprod(0) > 0  # points before the end of the search
        low = torch.where(before, t, low).amax(0)
        high = torch.where(before.all(0), high, earliest(~before, t))
        best = torch.where(found, best, torch.where(low > 0, low, high))
        ends = earliest(~before, near) & ~before.all(0) & ~found
        best, found = torch.where(ends, high, best), found | ends
        if not transforms.waits(y) and bool((found | (high - low <= 1e-12)).all()):
            break
        t = low + (high - low) * fractions
    return moved(problem, y, best * step, support)


def _outside(problem: Problem, y: Tensor, slope: Tensor) -> Tensor:
    """The largest excess of r_i over τ off the support; 0 if no entry must enter the support."""
    rho = slope - row_dot(y, slope)
    room = 64 * torch.finfo(y.dtype).eps * problem.z.abs().amax(-1, keepdim=True)
    off = problem.participants() & (y == 0)
    return torch.where(off, (rho - room).clamp_min(0), 0).amax(-1)
