"""Scalar roots, one per row, for closed forms that need one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import transforms

HALVINGS, STEPS = 24, 4
"""Rounds of bisection, then of Newton's method, in a graph."""


def increasing_root(
    residual: Callable[[Tensor], tuple[Tensor, Tensor]],
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
    noise: float = 4,
) -> Tensor:
    """t with f(t) = 0 for an increasing f, f(low) ≤ 0 ≤ f(high): Newton kept inside a bracket.

    ``residual(t)`` returns f(t) and f'(t), all of shape (*batch, 1). Each row stops when
    |f| ≤ ``noise``·ε, after one more step, or when a step no longer changes t. A step ends at the
    bracket. Bisection replaces a step, not the first, that is longer than half of the one before.
    ``start``: high unless given; it lies in the bracket.

    A graph cannot stop a row: it has a fixed number of rounds.
    """
    if transforms.tracing():
        return _fixed(residual, low, high)
    eps = torch.finfo(low.dtype).eps
    # often the root itself, if Π_Ω(x) is a vertex
    t = high.clone() if start is None else start
    width = 2 * (high - low)
    done = torch.zeros_like(low, dtype=torch.bool)
    for _ in range(200):
        f, slope = residual(t)
        low, high = torch.where(f <= 0, t, low), torch.where(f >= 0, t, high)
        trial = torch.minimum(torch.maximum(t - f / slope, low), high)
        step = trial - t
        # at most half as long as the last step, and not NaN
        safe = step.abs() <= width / 2
        middle = low + (high - low) / 2
        settled = (f.abs() <= noise * eps) | ~torch.isfinite(f)
        following = torch.where(safe, trial, torch.where(settled, t, middle))
        width = torch.where(safe, step.abs(), (high - low) / 2)
        moved = (following - t).abs()
        t = torch.where(done, t, following)
        done = done | settled | (moved <= eps * t.abs())
        if bool(done.all()):
            break
    return t


def _fixed(
    residual: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor
) -> Tensor:
    """The root in a fixed number of rounds, wrong by at most (high − low)/2^24: Newton's steps stay
    in the bracket that bisection leaves, and most often end at the rounding of t."""
    top = high
    at_top = residual(top)[0] <= 4 * torch.finfo(low.dtype).eps
    for _ in range(HALVINGS):
        t = (low + high) / 2
        below = residual(t)[0] <= 0
        low, high = torch.where(below, t, low), torch.where(below, high, t)
    t = low
    for _ in range(STEPS):
        f, slope = residual(t)
        t = torch.minimum(torch.maximum(t - f / slope, low), high)
    return torch.where(at_top, top, t)
