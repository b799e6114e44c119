"""Scalar root of the dual, for a separable value-only Ω."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels import decisions, simplex, transforms
from ..optimality.problem import Point, Problem
from .base import Solver


class DualRoot(Solver):
    """One scalar root, for a separable Ω.

    For Ω(y) = Σ g_i(y_i) it finds τ with Σ_i y_i(τ) = 1, where y_i(τ) maximises
    y (z_i − τ) − g_i(y) over [0, 1], that is g_i'(y_i) = z_i − τ unless a bound is active.
    (Blondel, Martins & Niculae 2019, Prop. 5.) A local power model inverts g_i':
    g_i''(t) ≈ g_i''(y_i) (t/y_i)^(b−1), with b from the last two points. It is exact for Σ y^α and
    Σ y log y. Its first derivative is right for every Ω, so it converges as Newton's method does.
    In the model τ is the root of a monotone function. Rows that do not converge go to ``_nested``,
    which brackets both inversions and so cannot fail on a convex Ω.
    """

    name: ClassVar[str] = "dual"
    SOON: ClassVar[int] = 12
    LIMIT: ClassVar[int] = 25

    def unsuitable(self, problem: Problem) -> str | None:
        if problem.structured:
            return "a penalty is not separable"
        return None if problem.separable else "Ω is not separable"

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y, settled, iterations = _modelled(problem, min(self.LIMIT, max_iter))
        if max_iter > self.LIMIT and not decisions.all_of(settled):
            slow, more = _nested(problem, min(max_iter - self.LIMIT, 200), settled)
            worse = problem.objective(slow) <= problem.objective(y)
            y = torch.where(settled | worse.unsqueeze(-1), y, slow)
            iterations = torch.where(settled, iterations, iterations + more)
        return y, iterations.squeeze(-1)


def _modelled(problem: Problem, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """y, whether the row has converged, and its iterations (the last two (*batch, 1))."""
    z, on = problem.z, problem.participants()
    info = torch.finfo(z.dtype)
    floor = info.eps**2
    count = on.sum(-1, keepdim=True).to(z.dtype)
    last = _on(on, torch.maximum(problem.initial() / 16, 1 / (16 * count)))
    at = problem.first
    problem.observe(at.y)
    if problem.mask is not None or problem.start is not None:
        at = problem.at(_on(on, at.y.clamp_min(floor)))
    (_, h0), (g, h), y = _slopes(problem.at(last)), _slopes(at), at.y
    b = _exponent(last, y, h0, h, torch.ones_like(y))
    settled = torch.zeros_like(count, dtype=torch.bool)
    iterations = torch.zeros_like(count, dtype=torch.int64)
    tau, answer = None, y
    for k in range(1, limit + 1):
        model = _Powers(z - g, y, h, b, problem.mask)
        tau, new, found = model.root(tau, count)
        new = simplex.normalize(new)
        lifted = new.clamp_min(floor)
        change = torch.where(on, (lifted / y - 1).abs(), 0).amax(-1, keepdim=True)
        answer = torch.where(settled, answer, new)
        iterations = torch.where(settled, iterations, k)
        problem.observe(answer)
        settled = settled | (found & (change <= 100 * info.eps**0.5))
        if k == limit or (not transforms.waits(y) and bool(settled.all())):
            break
        last, h0 = y, h
        y = torch.where(settled, y, _on(on, lifted))
        g, h = _slopes(problem.at(y))
        # if the model was exact, the residual of g' = z − τ is rounding
        residual = z - g - tau
        rounding = 16 * info.eps * (z.abs() + g.abs() + tau.abs())
        fits = torch.where(y > floor, residual.abs(), residual) <= rounding
        settled = settled | found & (fits | ~on).all(-1, keepdim=True)
        if problem.finished(settled, k):
            break
        b = _exponent(last, y, h0, h, b)
    finite = torch.isfinite(answer).all(-1, keepdim=True)
    return torch.where(finite, answer, y), settled & finite, iterations


def _on(on: Tensor, y: Tensor) -> Tensor:
    """y at participants, and 1 (any positive number) at masked entries."""
    return torch.where(on, y, 1)


def _slopes(at: Point) -> tuple[Tensor, Tensor]:
    """g_i' and g_i'', the latter kept positive and finite."""
    gradient, h = at.diagonal
    info = torch.finfo(h.dtype)
    return gradient, torch.nan_to_num(h, nan=info.tiny).clamp(info.tiny, info.max)


def _exponent(y0: Tensor, y1: Tensor, h0: Tensor, h1: Tensor, otherwise: Tensor) -> Tensor:
    """b with g'' ∝ t^(b−1) through two points; ``otherwise`` if these are too close. |b| ≥ 1e-7."""
    step = y1.log() - y0.log()
    b = 1 + ((h1.log() - h0.log()) / step).clamp(-3, 20)
    b = torch.where((step.abs() > 1e-3) & torch.isfinite(b), b, otherwise)
    return torch.where(b.abs() < 1e-7, 1e-7, b)


class _Powers:
    """t_i(τ), the root of g_i'(y_i) + y_i h_i ((t/y_i)^b − 1)/b = z_i − τ, within [0, 1]."""

    def __init__(self, a: Tensor, y: Tensor, h: Tensor, b: Tensor, mask: Tensor | None) -> None:
        info = torch.finfo(y.dtype)
        self.a, self.logs, self.b, self.mask = a, y.log(), b, mask
        self.scale = (y * h).clamp_min(info.tiny)
        self.rate, self.root_of = b / self.scale, 1 / b
        self.bend = 1 - b
        # t is set to 0 where it is within the rounding of a − τ, except at the largest a
        noise = 8 * info.eps * a.abs().amax(-1, keepdim=True) * self.rate
        masked = a if mask is None else a.masked_fill(~mask, -torch.inf)
        below = masked < masked.amax(-1, keepdim=True)
        self.least = torch.where(below & (b > 0), noise - 1, -1)
        if mask is not None:  # exp(−∞) = 0
            self.logs = self.logs.masked_fill(~mask, -torch.inf)

    def at(self, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t, −dt/dτ and d²t/dτ²."""
        # below the range of the model log1p(−1) = −∞, and t is 0, or its maximum if b < 0
        rise = (self.a - tau) * self.rate
        rise = torch.where(rise <= self.least, -1, rise)
        t = rise.log1p().mul_(self.root_of).add_(self.logs).exp_().clamp_max_(1)
        inside = (rise > -1) & (t < 1)
        logarithmic = torch.where(inside, rise.add_(1).mul_(self.scale).reciprocal_(), 0)
        slope = t * logarithmic
        return t, slope, logarithmic.mul_(slope).mul_(self.bend)

    def _threshold(self, t: Tensor) -> Tensor:
        """The largest τ at which some t_i equals t."""
        rise = self.scale * torch.expm1(self.b * (t.log() - self.logs)) * self.root_of
        info = torch.finfo(rise.dtype)
        tau = torch.nan_to_num(self.a - rise, nan=0.0).clamp(info.min / 4, info.max / 4)
        if self.mask is not None:
            tau = tau.masked_fill(~self.mask, -torch.inf)
        return tau.amax(-1, keepdim=True)

    def root(self, tau: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """τ with Σ t_i(τ) = 1, t(τ), and the rows in which it was found: Newton on (Σ t_i)^p inside
        a bracket. p makes the second derivative of (Σ t_i)^p zero. Every second step tests whether
        all rows are done; where this would wait, ten steps are taken."""
        low, high = self._threshold(torch.ones_like(count)), self._threshold(1 / count)
        tau = high if tau is None else torch.minimum(torch.maximum(tau, low), high)
        eps = torch.finfo(tau.dtype).eps
        waits = transforms.waits(tau)
        for k in range(10 if waits else 80):
            t, slope, second = self.at(tau)
            total = t.sum(-1, keepdim=True)
            rest = total - t.amax(-1, keepdim=True)  # near a vertex these determine τ
            above = total > 1
            low, high = torch.where(above, tau, low), torch.where(above, high, tau)
            slope, second = slope.sum(-1, keepdim=True), second.sum(-1, keepdim=True)
            power = (1 - total * second / slope.square()).clamp(-1, 1)
            power = torch.where(power.abs() > 1e-3, power, 1e-3)  # NaN as well
            trial = tau - total * torch.expm1(-power * total.log()) / (power * slope)
            safe = (trial >= low) & (trial <= high)
            if k >= 10:  # Newton is slow where t is flat in τ
                safe = safe & (k % 3 > 0)
            rounding = 16 * eps * rest + 4 * eps + 2 * eps * tau.abs() * slope
            done = ((total - 1).abs() <= rounding) | (high - low <= eps / 2 * high.abs())
            tau = torch.where(done, tau, torch.where(safe, trial, low + (high - low) / 2))
            if k % 2 and not waits and bool(done.all()):
                break
        return tau, t, done


def _nested(problem: Problem, limit: int, settled: Tensor) -> tuple[Tensor, Tensor]:
    """Outer bracketed Newton steps on τ; inner bracketed Newton steps on log y for y_i(τ)."""
    on, z = problem.participants(), problem.z
    ones = torch.ones_like(z)
    count = on.sum(-1, keepdim=True).to(z.dtype)
    # at ``low`` some y_i is 1; at ``high`` each is at most 1/d
    low = torch.where(on, problem.slope(ones), -torch.inf).amax(-1, keepdim=True)
    high = torch.where(on, problem.slope(ones / count), -torch.inf).amax(-1, keepdim=True)
    logs = torch.where(on, -count.log(), -torch.inf).expand_as(z)
    tau = high
    done = settled
    iterations = torch.zeros_like(low, dtype=torch.int64)
    best = torch.where(on, 1 / count, 0).expand_as(z)
    for k in range(1, limit + 1):
        y, logs = _inverse(problem, tau, logs, on)
        total = y.sum(-1, keepdim=True)
        best = torch.where(done | (total <= 0), best, y / total)
        problem.observe(best)
        iterations = torch.where(done, iterations, k)
        low = torch.where(total > 1, tau, low)
        high = torch.where(total <= 1, tau, high)
        eps = torch.finfo(z.dtype).eps
        done = done | (high - low <= 2 * eps * tau.abs()) | ((total - 1).abs() <= 4 * eps)
        if problem.finished(done, k):
            break
        # dy_i/dτ = −1/g''(y_i) on the interior
        inside = on & (y > 0) & (y < 1)
        slope = torch.where(inside, 1 / _slopes(problem.at(y))[1], 0).sum(-1, keepdim=True)
        trial = tau + (total - 1) / slope
        safe = (trial > low) & (trial < high) & torch.isfinite(trial)
        tau = torch.where(done, tau, torch.where(safe, trial, (low + high) / 2))
    return best, iterations


def _inverse(problem: Problem, tau: Tensor, start: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """y_i(τ) and its logarithm, starting at the logarithms of the last τ."""
    eps = torch.finfo(tau.dtype).eps
    lowest = torch.full_like(start, 2 * math.log(eps))
    low, high = lowest, torch.zeros_like(start)
    logs = start.clamp(lowest, high)
    zero = ~on | (problem.slope(torch.zeros_like(start)) <= tau)  # z_i − g_i'(0) ≤ τ
    one = on & (problem.slope(torch.ones_like(start)) >= tau)
    settled = zero | one
    for k in range(1, 101):
        y = logs.exp()
        g, h = _slopes(problem.at(y))
        rise = problem.z - g - tau  # decreases in y
        low = torch.where(rise > 0, logs, low)
        high = torch.where(rise <= 0, logs, high)
        step = rise / (h * y)  # Newton on log y
        trial = logs + step
        near = step.abs() <= eps**0.5
        safe = near | ((trial > low) & (trial < high) & torch.isfinite(trial))
        trial = torch.where(safe, trial, (low + high) / 2).clamp(lowest, torch.zeros_like(logs))
        logs = torch.where(settled, logs, trial)
        # if g' jumps, the bracket shrinks to the jump
        settled = settled | near | (high - low <= 4 * eps * low.abs())
        if decisions.due(k, y) and decisions.all_of(settled):
            break
    y = torch.where(zero, 0, torch.where(one, 1, logs.exp()))
    return y, logs
