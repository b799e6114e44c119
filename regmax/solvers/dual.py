"""Root of the dual for separable Ω, given by value alone."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..curvature import Diagonal
from ..optimality import Problem
from .base import Solver


class DualRoot(Solver):
    """For Ω(y) = Σ g_i(y_i): find τ with Σ_i y_i(τ) = 1, where y_i(τ) maximises
    y (z_i − τ) − g_i(y) over [0, 1], that is g_i'(y_i) = z_i − τ unless a bound holds.

    (Blondel, Martins & Niculae 2019, Prop. 5.) g_i' is inverted through a local model that is a
    power, g_i''(t) ≈ g_i''(y_i) (t/y_i)^(b−1), with b from the last two points: exact for Σ y^α and
    Σ y log y, and with the right first derivative for every Ω, so that it converges as Newton's
    method does. In the model τ is one increasing root. Rows for which this does not settle go to
    :func:`_nested`, which keeps both inversions inside brackets, so that it cannot fail on a convex
    Ω.
    """

    name: ClassVar[str] = "dual"
    LIMIT: ClassVar[int] = 25

    def unsuitable(self, problem: Problem) -> str | None:
        if problem.structured:
            return "a penalty is not separable"
        return None if problem.separable else "Ω is not separable"

    def run(self, problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        y, settled, iterations = _modelled(problem, min(self.LIMIT, max_iter))
        if max_iter > self.LIMIT and not bool(settled.all()):
            slow, more = _nested(problem, min(max_iter - self.LIMIT, 200), settled)
            better = problem.objective(slow) > problem.objective(y)
            y = torch.where(settled | ~better.unsqueeze(-1), y, slow)
            iterations = torch.where(settled, iterations, iterations + more)
        return y, iterations.squeeze(-1)


def _modelled(problem: Problem, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """y, whether the row has settled, and its iterations (the last two (*batch, 1))."""
    z, on = problem.z, problem.participants()
    info = torch.finfo(z.dtype)
    floor = info.eps**2
    count = on.sum(-1, keepdim=True).to(z.dtype)
    last = _on(on, torch.maximum(problem.initial() / 16, 1 / (16 * count)))
    y = _on(on, problem.initial().clamp_min(floor))
    problem.observe(torch.where(on, y, 0))
    (_, h0), (g, h) = _slopes(problem, last), _slopes(problem, y)
    b = _exponent(last, y, h0, h, torch.ones_like(y))
    settled = torch.zeros_like(count, dtype=torch.bool)
    iterations = torch.zeros_like(count, dtype=torch.int64)
    tau, answer = None, y
    for k in range(1, limit + 1):
        model = _Powers(z - g, y, h, b, on)
        tau = model.root(tau, count)
        new = model.at(tau)[0]
        new = new / new.sum(-1, keepdim=True)
        seen = new.clamp_min(floor)
        change = torch.where(on, (seen / y - 1).abs(), 0).amax(-1, keepdim=True)
        answer = torch.where(settled, answer, new)
        iterations = torch.where(settled, iterations, k)
        problem.observe(answer)
        settled = settled | (change <= 100 * info.eps**0.5)
        if k == limit or bool(settled.all()):
            break
        last, h0 = y, h
        y = torch.where(settled, y, _on(on, new.clamp_min(floor)))
        g, h = _slopes(problem, y)
        b = _exponent(last, y, h0, h, b)
    spread = torch.isfinite(answer).all(-1, keepdim=True)
    return torch.where(spread, answer, y), settled & spread, iterations


def _on(on: Tensor, y: Tensor) -> Tensor:
    """y where an entry takes part, 1 elsewhere, where it does not matter."""
    return torch.where(on, y, 1)


def _slopes(problem: Problem, y: Tensor) -> tuple[Tensor, Tensor]:
    """g_i' and g_i'' > 0."""
    local = problem.local(y)
    curvature = local.curvature
    h = curvature.h if isinstance(curvature, Diagonal) else curvature.matvec(torch.ones_like(y))
    info = torch.finfo(y.dtype)
    return local.gradient, torch.nan_to_num(h, nan=info.tiny).clamp(info.tiny, info.max)


def _exponent(y0: Tensor, y1: Tensor, h0: Tensor, h1: Tensor, otherwise: Tensor) -> Tensor:
    """b with g'' ∝ t^(b−1) through two points, where they are apart; never quite 0."""
    step = y1.log() - y0.log()
    b = 1 + ((h1.log() - h0.log()) / step).clamp(-3, 20)
    b = torch.where((step.abs() > 1e-3) & torch.isfinite(b), b, otherwise)
    return torch.where(b.abs() < 1e-7, 1e-7, b)


class _Powers:
    """t_i(τ), the root of g_i'(y_i) + y_i h_i ((t/y_i)^b − 1)/b = z_i − τ, within [0, 1]."""

    def __init__(self, a: Tensor, y: Tensor, h: Tensor, b: Tensor, on: Tensor) -> None:
        self.a, self.y, self.b, self.on = a, y, b, on
        self.scale = (y * h).clamp_min(torch.finfo(y.dtype).tiny)

    def at(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """t and −dt/dτ."""
        base = 1 + self.b * ((self.a - tau) / self.scale)
        positive = base > 0
        base = torch.where(positive, base, 1)
        t = self.y * (base.log() / self.b).exp()
        t = torch.where(positive, t, torch.where(self.b > 0, 0.0, torch.inf))
        slope = torch.where(positive & (t < 1) & self.on, t / (base * self.scale), 0)
        return torch.where(self.on, t.clamp_max(1), 0), slope

    def _threshold(self, t: Tensor) -> Tensor:
        """The τ at which some t_i, and no other, reaches t."""
        rise = self.scale * torch.expm1(self.b * (t.log() - self.y.log())) / self.b
        info = torch.finfo(rise.dtype)
        tau = torch.nan_to_num(self.a - rise, nan=0.0).clamp(info.min / 4, info.max / 4)
        return torch.where(self.on, tau, -torch.inf).amax(-1, keepdim=True)

    def root(self, tau: Tensor | None, count: Tensor) -> Tensor:
        """τ with Σ t_i(τ) = 1, to half the digits of all but the largest.
        Newton on log Σ t_i, inside a bracket; whether all rows are done is asked every second
        step."""
        low, high = self._threshold(torch.ones_like(count)), self._threshold(1 / count)
        tau = high if tau is None else torch.minimum(torch.maximum(tau, low), high)
        eps = torch.finfo(tau.dtype).eps
        for k in range(80):
            t, slope = self.at(tau)
            total = t.sum(-1, keepdim=True)
            low, high = torch.where(total > 1, tau, low), torch.where(total <= 1, tau, high)
            trial = tau + total * total.log() / slope.sum(-1, keepdim=True)
            safe = (trial >= low) & (trial <= high)
            if k >= 10:  # Newton creeps where t is flat in τ
                safe = safe & (k % 3 > 0)
            rest = total - t.amax(-1, keepdim=True)  # near a vertex it is these that τ must fit
            near = (total - 1).abs() <= eps**0.5 * rest + 4 * eps
            done = near | (high - low <= eps / 2 * high.abs())
            tau = torch.where(done, tau, torch.where(safe, trial, low + (high - low) / 2))
            if k % 2 and bool(done.all()):
                break
        return tau


def _nested(problem: Problem, limit: int, settled: Tensor) -> tuple[Tensor, Tensor]:
    """τ by bracketed Newton steps outside, y_i(τ) by bracketed Newton steps on log y inside."""
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
        if bool(done.all()):
            break
        # dy_i/dτ = −1/g''(y_i) on the interior
        inside = on & (y > 0) & (y < 1)
        slope = torch.where(inside, 1 / _slopes(problem, y)[1], 0).sum(-1, keepdim=True)
        trial = tau + (total - 1) / slope
        safe = (trial > low) & (trial < high) & torch.isfinite(trial)
        tau = torch.where(done, tau, torch.where(safe, trial, (low + high) / 2))
    return best, iterations


def _inverse(problem: Problem, tau: Tensor, start: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """y_i(τ) and its logarithm, from the last τ's."""
    eps = torch.finfo(tau.dtype).eps
    lowest = torch.full_like(start, 2 * torch.log(torch.tensor(eps)).item())
    low, high = lowest, torch.zeros_like(start)
    logs = start.clamp(lowest, high)
    zero = ~on | (problem.slope(torch.zeros_like(start)) <= tau)  # z_i − g_i'(0) ≤ τ
    one = on & (problem.slope(torch.ones_like(start)) >= tau)
    settled = zero | one
    for _ in range(100):
        y = logs.exp()
        g, h = _slopes(problem, y)
        rise = problem.z - g - tau  # decreases in y
        low = torch.where(rise > 0, logs, low)
        high = torch.where(rise <= 0, logs, high)
        step = rise / (h * y)  # Newton on log y
        trial = logs + step
        near = step.abs() <= eps**0.5
        safe = near | ((trial > low) & (trial < high) & torch.isfinite(trial))
        trial = torch.where(safe, trial, (low + high) / 2).clamp(lowest, torch.zeros_like(logs))
        logs = torch.where(settled, logs, trial)
        # where g' jumps the bracket closes on the jump
        settled = settled | near | (high - low <= 4 * eps * low.abs())
        if bool(settled.all()):
            break
    y = torch.where(zero, 0, torch.where(one, 1, logs.exp()))
    return y, logs
