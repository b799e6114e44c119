"""The power model of a separable Ω: its maximiser over a domain, by one root."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ..domains import Bounded
from ..kernels import transforms
from ..kernels.clipped import add
from ..optimality.problem import Problem


def filled(on: Tensor, y: Tensor) -> Tensor:
    """y at participants, and 1 (any positive number) at masked entries."""
    return torch.where(on, y, 1)


def exponent(y0: Tensor, y1: Tensor, h0: Tensor, h1: Tensor, otherwise: Tensor) -> Tensor:
    """b with g'' ∝ t^(b−1) through two points; ``otherwise`` if these are too close. |b| ≥ 1e-7."""
    step = y1.log() - y0.log()
    b = 1 + ((h1.log() - h0.log()) / step).clamp(-3, 20)
    b = torch.where((step.abs() > 1e-3) & torch.isfinite(b), b, otherwise)
    return torch.where(b.abs() < 1e-7, 1e-7, b)


def below_cap(high: Tensor, y: Tensor) -> Tensor:
    """u − y, of the point at which Ω is evaluated where y = u."""
    return torch.maximum(high - y, torch.finfo(y.dtype).eps / 2 * high)


class Powers:
    """t_i(τ), the root of g_i'(y_i) + y_i h_i ((t/y_i)^b − 1)/b = z_i − τ, within [l_i, u_i].

    Where b > STEEP the curvature grows towards u_i as by a pole there (log(1 − y)): the model is
    then a power of u_i − t, with the exponent ``other``.
    """

    STEEP: ClassVar[float] = 3.0

    def __init__(
        self, problem: Problem, a: Tensor, y: Tensor, h: Tensor, b: Tensor, other: Tensor | None
    ) -> None:
        info = torch.finfo(y.dtype)
        self.domain, bounds, self.mask = problem.domain, problem.bounds, problem.mask
        assert bounds is None or isinstance(bounds, Bounded)
        self.bounds = bounds
        self.low, self.high = y.new_zeros(()), y.new_ones(())
        self.total = self.high
        if bounds is not None:
            self.low, self.high, self.mask = bounds.low, bounds.high, problem.movable()
            self.total = self.total if bounds.total is None else bounds.total
        self.turned, size = None, y
        if other is not None:
            self.turned = (b > self.STEEP) & problem.movable()
            size = torch.where(self.turned, below_cap(self.high, y), y)
            b = torch.where(self.turned, other, b)
        self.a, self.logs, self.b = a, size.log(), b
        self.scale = (size * h).clamp_min(info.tiny)
        self.rate, self.root_of = b / self._signed(self.scale), 1 / b
        self.bend = self._signed(1 - b)
        # t is set to 0 where it is within the rounding of a − τ, except at the largest a
        noise = 8 * info.eps * a.abs().amax(-1, keepdim=True) * self.rate.abs()
        masked = self._moving(a)
        below = masked < masked.amax(-1, keepdim=True)
        self.least = torch.where(below & (b > 0), noise - 1, -1)
        self.logs = self._moving(self.logs)  # exp(−∞) = 0

    def _moving(self, t: Tensor) -> Tensor:
        """t, and −∞ at entries that do not move."""
        return t if self.mask is None else t.masked_fill(~self.mask, -torch.inf)

    def _turn(self, t: Tensor) -> Tensor:
        """t, and u − t where the model is one of it."""
        return t if self.turned is None else torch.where(self.turned, self.high - t, t)

    def _signed(self, t: Tensor) -> Tensor:
        return t if self.turned is None else torch.where(self.turned, -t, t)

    def at(self, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t, −dt/dτ and d²t/dτ²."""
        # below the range of the model log1p(−1) = −∞, and t is 0, or its maximum if b < 0
        rise = (self.a - tau) * self.rate
        rise = torch.where(rise <= self.least, -1, rise)
        size = rise.log1p().mul_(self.root_of).add_(self.logs).exp_()
        t = self._turn(size).clamp_(self.low, self.high)
        inside = (t > self.low) & (t < self.high)
        logarithmic = torch.where(inside, rise.add_(1).mul_(self.scale).reciprocal_(), 0)
        slope = self._turn(t) * logarithmic
        return t, slope, logarithmic.mul_(slope).mul_(self.bend)

    def _thresholds(self, t: Tensor) -> Tensor:
        """The τ at which t_i equals t."""
        rise = self.scale * torch.expm1(self.b * (self._turn(t).log() - self.logs)) * self.root_of
        info = torch.finfo(rise.dtype)
        tau = torch.nan_to_num(self.a - self._signed(rise), nan=0.0)
        return self._moving(tau.clamp(info.min / 4, info.max / 4))

    def _bracket(self, middle: Tensor) -> tuple[Tensor, Tensor]:
        """τ at which Σ t_i is at least k, and at most; ``middle`` is a point of D."""
        high = self._thresholds(middle).amax(-1, keepdim=True)
        if self.bounds is not None and self.bounds.total is None:
            return torch.zeros_like(high), torch.zeros_like(high)
        if self.bounds is not None and self.bounds.at_most:
            less = add(self.at(torch.zeros_like(high))[0]) <= self.total
            return torch.zeros_like(high), torch.where(less, 0, high.clamp_min(0))
        # those entries that reach u first, until their sum is k
        first = self.domain.best(self.ends) > self.low
        low = torch.where(first, self.ends, torch.inf).amin(-1, keepdim=True)
        return torch.minimum(low, high), high

    def root(self, tau: Tensor | None, middle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """τ with Σ t_i(τ) = k, the point of D next to t(τ), and the rows in which τ was found:
        Newton on (Σ t_i)^p inside a bracket. p makes the second derivative of (Σ t_i)^p zero.
        Between bounds, Σ is over the entries that τ moves and k what the others leave: if that is
        0, τ is where the first of these leaves u_i. Every second step tests whether all rows are
        done; where this would wait, ten steps are taken."""
        self.ends = self._thresholds(self.high)
        low, high = self._bracket(middle)
        tau = high if tau is None else torch.minimum(torch.maximum(tau, low), high)
        eps, goal = torch.finfo(tau.dtype).eps, self.total
        waits = transforms.waits(tau)
        for k in range(10 if waits else 80):
            t, slope, second = self.at(tau)
            moving, free = t, torch.ones_like(tau, dtype=torch.bool)
            if self.bounds is not None:
                held = torch.where(slope > 0, 0, t)
                moving, goal = t - held, self.total - add(held)
                capped = (t >= self.high) & (self.ends > -torch.inf)
                leaves = torch.where(capped, self.ends, torch.inf).amin(-1, keepdim=True)
                free = (goal > 0) | (tau >= leaves) | leaves.isinf()
            total = moving.sum(-1, keepdim=True)
            rest = total - moving.amax(-1, keepdim=True)  # near a vertex these determine τ
            above = total > goal
            low, high = torch.where(above, tau, low), torch.where(above, high, tau)
            slope, second = slope.sum(-1, keepdim=True), second.sum(-1, keepdim=True)
            power = (1 - total * second / slope.square()).clamp(-1, 1)
            power = torch.where(power.abs() > 1e-3, power, 1e-3)  # NaN as well
            trial = tau - total * torch.expm1(-power * (total / goal).log()) / (power * slope)
            if self.bounds is not None:
                trial = torch.where(goal > 0, trial, leaves)
            safe = (trial >= low) & (trial <= high)
            if k >= 10:  # Newton is slow where t is flat in τ
                safe = safe & (k % 3 > 0)
            rounding = 16 * eps * rest + 4 * eps * self.total + 2 * eps * tau.abs() * slope
            done = ((total - goal).abs() <= rounding) & free
            done = done | (high - low <= eps / 2 * high.abs())
            tau = torch.where(done, tau, torch.where(safe, trial, low + (high - low) / 2))
            if k % 2 and not waits and bool(done.all()):
                break
        t = self.domain.inside(t)
        if self.bounds is not None and self.bounds.at_most:
            t = torch.where(tau > 0, replace(self.bounds, at_most=False).inside(t), t)
        return tau, t, done
