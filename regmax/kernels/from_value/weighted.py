"""Π_Ω of Ω = Σ a_i f(b_i y_i) where f is a power or an exponential: that of one f with weights,

    Σ m_i c_i f(y_i/m_i),    m = 1/b,  c = ab,

by :mod:`regmax.kernels.cpu.weighted_rows`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..base import Hyper
from ..cpu import between
from ..cpu.job import LEAST
from .between import slopes_of
from .compiled import Function
from .parts import Parts, moved
from .template import Power, Template

_EPS = 8 * torch.finfo(torch.float64).eps
_SAME = 1e-11
"""How much the power of f may differ from place to place, in rounding."""


def weighted(
    base: Template | None, parts: Parts, theta: Hyper, slopes: Function, numbers: Tensor
) -> Template | None:
    """What computes rows with these ``parts``; ``base`` does for f with these derivatives. None
    where f is another function."""
    if not isinstance(base, Power) or base.alpha > 2:
        return None
    alpha = base.alpha
    a, b = (parts.of(part, theta) for part in (parts.factor, parts.scale))
    b = torch.ones_like(a) if b is None else b  # type: ignore[arg-type]
    c = b if a is None else a * b
    least, most = b.amin().item(), b.amax().item()
    if not (least > 0 and most < 1e150 and c.amin().item() > 0 and c.amax().item() < 1e150):
        return None
    points = torch.logspace(0, math.log10(max(most, 1)), 16, dtype=torch.float64, device="cpu")
    slope, bent, curved = slopes_of(slopes, numbers, points)
    same = (points * curved / bent - (alpha - 2)).abs() <= _SAME
    if not bool(same.all()):
        return None  # it is another function above 1
    shift = parts.of(parts.linear, theta)
    # e' of the kernel has another value at 1, which counts where ab is not the same everywhere
    at_one = 1 / (alpha - 1) if alpha - 1 > LEAST else 0.0
    away = slope[0].item() - base.scale * at_one
    if not _constant(c):
        shift = away * c if shift is None else shift + away * c
    if shift is not None and _constant(shift, base.scale * c.amax().item()):
        shift = None
    return _Rows(base, 1 / b, 1 / c, shift)


def _constant(t: Tensor, size: float = 0.0) -> bool:
    """Whether all entries of a row have the same number, but for the rounding of numbers of this
    size."""
    most = t.abs().amax(-1).clamp_min(size)
    return bool((t.amax(-1) - t.amin(-1) <= _EPS * most).all())


class _Rows(Template):
    """A template with weights; the scores move by ``shift``."""

    alike = False

    def __init__(self, base: Power, sizes: Tensor, rates: Tensor, shift: Tensor | None) -> None:
        self.rows: Any = between.weighted(base.rows)
        self.theta, self.scale, self.bound = base.theta, base.scale, base.bound
        sizes, rates = torch.broadcast_tensors(sizes, rates)
        self._weights, self._shift = (sizes.contiguous(), rates.contiguous()), shift

    def forward(self, x: Tensor, gamma: Tensor, mask: Tensor | None) -> tuple[Tensor, float]:
        z = x
        if self._shift is not None:  # where c is small, y magnifies the rounding of z
            z = moved(x.double(), gamma, self._shift)
        y = self.rows.solve(z, gamma * self.scale, self.theta, self._weights, mask)
        return (x, math.inf) if y is None else (y.to(x.dtype), self.bound)

    def backward(self, y: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
        found: Tensor = self.rows.product(y, v, gamma * self.scale, self.theta, self._weights)
        return found
