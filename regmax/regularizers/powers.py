"""The deformed logarithm log_α and its inverse, continuous and differentiable in α at α = 1."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import transforms


def log_alpha(alpha: float | Tensor, log: Tensor) -> Tensor:
    """log_α(y) = (y^a − 1)/a, a = α − 1, from log y: log y itself at a = 0."""
    a = alpha - 1
    if not isinstance(a, Tensor):
        return torch.expm1(a * log) / a if a else log
    u = a * log
    if not (a.requires_grad or transforms.transforming() or transforms.dual_level()):
        return torch.where(a == 0, log, torch.expm1(u) / torch.where(a == 0, 1, a))
    # φ(u) = (e^u − 1)/u; by its series near 0, where derivatives in α suffer from cancellation
    near = u.abs() < 1
    small = torch.where(near, u, 0)
    series = torch.ones_like(small)
    for k in range(20, 0, -1):  # φ(u) = 1 + u/2 (1 + u/3 (1 + …))
        series = 1 + small / (k + 1) * series
    large = torch.where(near, 1, u)
    return log * torch.where(near, series, torch.expm1(large) / large)


def exp_alpha(alpha: float | Tensor, v: Tensor) -> Tensor:
    """y with log_α(y) = v: (1 + a v)₊^(1/a), e^v at a = 0."""
    a = alpha - 1
    if not isinstance(a, Tensor):
        return (torch.log1p((a * v).clamp_min(-1)) / a if a else v).exp()
    zero = a == 0
    power = torch.log1p((a * v).clamp_min(-1)) / torch.where(zero, 1, a)
    return torch.where(zero, v, power).exp()
