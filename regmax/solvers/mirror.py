"""Newton's method in scores, for a coupled Ω with an infinite slope at 0 or between bounds.

Ω = e + C, e = Σ e_i(y_i) with the slope of Ω next to 0: e_i'(t) = A_i (t^b_i − 1)/b_i, A_i log t
where b_i = 0. If that slope is finite, b_i > 0, and A_i is at least the curvature of Ω in the
middle of D. y is the optimum if it is Π_e(a), the maximiser of ⟨y, a⟩ − e(y) over D, for the
scores a = z − ∇C(y). Π_e has the digits of an entry of 1e-40 and the bounds of D exactly, and ∇C
is finite at 0. If b_i > 0, Π_e has exact zeros. With R = z − ∇C(y) − a and J of Proposition 1 on
the face of y, Newton's step is

    a + R − ∇²C(y) w,    w = J R,    which moves y by w,    ⟨∇Ω(y) − z, w⟩ = −⟨R, J R⟩ ≤ 0.

It is halved until the objective does not rise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from ..optimality.properties import magnitude, slopes
from ..regularizers.curvature import CHUNK
from .base import chosen, slack
from .powers import Powers, filled

STEPS, HALVES, CHECK = 60, 12, 6
"""The most steps, how often one is halved, and the steps between two certificates."""
BLOCKS = 8
"""The parts of a row, in each of which Ω is evaluated next to 0 while the others stay."""
LOG = -1e-14
"""The exponent b of a logarithm."""


class _Separable:
    """e of a problem; ``known``: the rows with one."""

    def __init__(self, problem: Problem) -> None:
        self._problem, on = problem, problem.movable()
        self._middle = problem.domain.middle(problem.z)
        eps = torch.finfo(problem.z.dtype).eps
        t, middle = eps**0.5, filled(on, self._middle)
        first, second, third = self._slopes(t)
        rise, more = first - second, second - third
        # (t²ᵇ − t⁴ᵇ) / (tᵇ − t²ᵇ) = tᵇ + t²ᵇ
        b = ((((1 + 4 * more / rise).sqrt() - 1) / 2).log() / math.log(t)).clamp_min(-8)
        seen = more > 64 * eps * (first.abs() + second.abs())
        b = torch.where(seen & (b < 1), b, 1)
        log = (b.abs() < max(1e-5, 4 * t)) | (problem.infinite_slope & (b > 0))
        b = torch.where(on, torch.where(log, LOG, b), 1)
        double = 2 * b * math.log(t)
        a = -more * b / (double.exp() * torch.expm1(double))
        bent = magnitude(problem.curvature(middle), torch.ones_like(middle))
        bent = torch.xlogy(1 - b, middle).exp() * bent  # ``**`` rounds by the place in the batch
        a = torch.where(b > 0, torch.maximum(torch.where(b < 1, a, 0), bent), a)
        fits = (a > 0) & (a < torch.inf)
        self.known = (fits | ~on).all(-1)
        self._a, self._b = torch.where(fits & on, a, 1), b

    def _slopes(self, t: float) -> list[Tensor]:
        """∇Ω at each entry where it is t, t² and t⁴, with the entries of its part."""
        smooth, middle = self._problem.smooth, self._middle
        d, rows = middle.shape[-1], max(1, CHUNK // max(1, middle.numel()))
        own = simplex.generic(middle.new_empty(d)).argsort() % BLOCKS
        parts = torch.arange(min(d, BLOCKS), device=middle.device)
        found = [torch.zeros_like(middle)] * 3
        for some in parts.view(-1, *(1,) * middle.ndim).split(rows):
            asked = (own == some).expand(-1, *middle.shape)
            rest = simplex.inward(middle).expand(asked.shape)
            each = [torch.where(asked, g, 0).sum(0) for g in slopes(smooth, asked, rest, t)]
            found = [g + new for g, new in zip(found, each, strict=True)]
        return found

    def slope(self, y: Tensor) -> Tensor:
        return self._a * torch.expm1(self._b * y.log()) / self._b

    def second(self, y: Tensor) -> Tensor:
        return self._a * ((self._b - 1) * y.log()).exp()

    def best(self, scores: Tensor) -> Tensor:
        """Π_e."""
        model = Powers(self._problem, scores, torch.ones_like(scores), self._a, self._b, None)
        return model.root(None, self._middle)[1]


def mirrored(problem: Problem, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """(y, iterations). A row in which no step lowers the objective stays as it is."""
    e, z = _Separable(problem), problem.z
    eps, on = torch.finfo(z.dtype).eps, problem.movable()
    start = problem.at(problem.initial())
    scores = torch.where(on, z - (start.defined.gradient - e.slope(start.inward)), 0)
    y = torch.where(e.known.unsqueeze(-1), e.best(scores), start.y)
    value, done = -problem.objective(y), ~e.known
    problem.observe(y)
    iterations = torch.zeros_like(done, dtype=torch.int64)
    least = max(min(tol, 1e-6) / 10, 8 * eps)
    noise = 1e-6 + 64 * eps * z.abs().amax(-1)
    for k in range(1, min(STEPS, max_iter) + 1):
        at = problem.at(y)
        rest = z - (at.defined.gradient - e.slope(at.inward)) - scores
        w = torch.nan_to_num(at.inverse(at.support)(rest))
        change = rest - (at.defined.curvature.matvec(w) - e.second(at.inward) * w)
        change = torch.nan_to_num(torch.where(on, change, 0))
        last, before, t = y, scores, 1.0
        searched, whole = ~done, torch.zeros_like(done)
        for _ in range(HALVES):
            ahead = before + t * change
            new = e.best(ahead)
            level = -problem.objective(new)
            good = searched & (level <= value + slack(value))
            y, scores = chosen(good, new, y), chosen(good, ahead, scores)
            value = torch.where(good, level, value)
            whole, searched = whole | (good & (t == 1)), searched & ~good
            if not transforms.waits(y) and not bool(searched.any()):
                break
            t = t / 2
        iterations = torch.where(done, iterations, k)
        problem.observe(y)
        near = (y - last).abs().amax(-1) <= least
        done = done | searched | (whole & near & ((scores - before).abs().amax(-1) <= noise))
        if k % CHECK == 0:
            done = done | (certify(problem.at(y)).error_bound <= tol)
        if problem.finished(done, k):
            break
    return y, iterations
