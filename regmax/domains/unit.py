"""The simplex {y ≥ 0, Σy = 1} as a region: the operations of :mod:`regmax.kernels.simplex`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import simplex
from .base import Face, Faced


class Unit(Faced):
    """Δ of the entries that take part. Upper bounds are not needed: they follow from the sum."""

    fixed_total = True
    diameter = 2**0.5

    def __init__(self, on: Tensor | None) -> None:
        self.on = on

    def _fill(self, t: Tensor, value: float) -> Tensor:
        return t if self.on is None else t.masked_fill(~self.on, value)

    def middle(self, like: Tensor, part: Tensor | None = None) -> Tensor:
        return simplex.uniform(like, self.on if part is None else part)

    def nearest(self, v: Tensor) -> Tensor:
        return simplex.project(v, self.on)

    def inside(self, y: Tensor) -> Tensor:
        return simplex.normalize(self._fill(y.clamp_min(0), 0))

    def excess(self, y: Tensor) -> Tensor:
        return (y.sum(-1) - 1).abs()

    def feasible(self, y: Tensor) -> Tensor:
        close = self.excess(y) <= 4 * torch.finfo(y.dtype).eps * y.shape[-1] ** 0.5
        right = y >= 0 if self.on is None else (y >= 0) & (self.on | (y == 0))
        inside: Tensor = close & right.all(-1)
        return inside

    def room(self, y: Tensor, rho: Tensor) -> Tensor:
        return torch.where(rho <= 0, y, torch.inf)

    def width(self, y: Tensor) -> Tensor:
        return y

    def multiplier(self, r: Tensor, y: Tensor, along: Tensor) -> Tensor:
        return along

    def vertex(self, y: Tensor, rho: Tensor, rounding: Tensor) -> Tensor:
        others = y == 0 if self.on is None else (y == 0) & self.on
        downhill: Tensor = ((rho + rounding < 0) | ~others).all(-1)
        return ((y > 0).sum(-1) == 1) & downhill

    def tangent(self, v: Tensor, face: Face) -> Tensor:
        return simplex.tangent(v, face.free)

    def best(self, r: Tensor) -> Tensor:
        top = self._fill(r, -torch.inf).argmax(-1, keepdim=True)
        return torch.zeros_like(r).scatter(-1, top, 1)

    def most(self, r: Tensor, tau: Tensor) -> Tensor:
        return self._fill(r, -torch.inf).amax(-1, keepdim=True)
