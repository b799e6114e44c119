"""The simplex Δ = {y ≥ 0, Σ y = 1}: its Euclidean projection, and points in its interior."""

from __future__ import annotations

import torch
from torch import Tensor

from . import transforms


def project(v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection P_Δ(v) = argmin_{y ∈ Δ} ½‖y − v‖², row by row.

    y = max(v − τ, 0) with τ = (Σ_S v − 1)/|S| on the support S, found by sorting
    (Michelot 1986; Duchi et al. 2008; Niculae & Blondel 2017, App. B.1). O(d log d).

    Shapes: ``v`` (*batch, d), ``mask`` bool of the same shape (True = takes part; at least one
    per row). Zeros are exactly 0. Derivatives are those of autograd. Sums are in float64: in
    float32, rounding in the sum of a million scores changes the support.
    """
    if mask is not None:
        v = v.masked_fill(~mask, -torch.inf)
    ordered = v.sort(-1, descending=True).values.double()
    u = v.double() - ordered[..., :1]
    ordered = ordered - ordered[..., :1]
    k = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=u.dtype)
    size = (1 + k * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True).clamp_min(1)  # |S|
    inside = u >= ordered.gather(-1, size - 1)
    total = torch.where(inside, u, 0).sum(-1, keepdim=True)
    tau = (total - 1) / inside.sum(-1, keepdim=True)
    y = (u - tau).clamp_min(0)
    error = (y.sum(-1, keepdim=True) - 1).abs()
    # no division where the sum is 1 up to rounding: 1/d stays 1/d
    close = error <= torch.finfo(y.dtype).eps * k[-1:].sqrt()
    return torch.where(close, y, normalize(y)).to(v.dtype)


def softmax(z: Tensor) -> Tensor:
    """exp(z) / Σ exp(z). Long rows are normalized again: torch adds in sequence and rounds more."""
    y = z.softmax(-1)
    return normalize(y) if transforms.tracing() or z.shape[-1] > 4096 else y


def normalize(y: Tensor) -> Tensor:
    """y / Σy: removes the rounding error of the threshold from the row's sum."""
    return y / y.sum(-1, keepdim=True)


def uniform(x: Tensor, mask: Tensor | None) -> Tensor:
    """Equal weight on each participant: the barycentre of each row's face of Δ."""
    if mask is None:
        return torch.full_like(x, 1 / x.shape[-1])
    return mask / mask.sum(-1, keepdim=True).to(x.dtype)


def generic(like: Tensor, phase: float = 0.0) -> Tensor:
    """A point of Δ in general position: its entries differ."""
    steps = torch.arange(1, like.shape[-1] + 1, dtype=like.dtype, device=like.device)
    weights = 1 + 0.6 * (steps * 2.399963 + phase).sin()
    return (weights / weights.sum()).expand(like.shape).contiguous()


def inward(y: Tensor) -> Tensor:
    """y with its zeros replaced by ε², so that an Ω with infinite slope at 0 can be evaluated.

    The shift is far below rounding (5e-32 in float64), and derivatives that are infinite at 0
    stay finite: multiplied by a zero, they give 0 and not NaN.
    """
    return y.clamp_min(torch.finfo(y.dtype).eps ** 2)


def positive(y: Tensor, floor: float | Tensor) -> Tensor:
    """y with zeros replaced by ε² and positive entries raised to at least ``floor``. Unlike
    :func:`inward`, this keeps y = 1e-30, which derivatives of log y need."""
    return torch.where(y > 0, y.clamp(min=floor), torch.finfo(y.dtype).eps ** 2)


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of each row, kept as a last dimension of size 1."""
    return (a * b).sum(-1, keepdim=True)


def row_sums(*entries: Tensor) -> tuple[Tensor, ...]:
    """The sum of each row of each tensor, kept as a last dimension of size 1."""
    return tuple(t.sum(-1, keepdim=True) for t in entries)


def tangent(v: Tensor, support: Tensor) -> Tensor:
    """Orthogonal projection on {w : 1ᵀw = 0, w = 0 off S}."""
    v = torch.where(support, v, 0)
    count = support.sum(-1, keepdim=True).clamp_min(1)
    for _ in range(2):  # the second pass removes the rounding error of a nearly constant v
        v = torch.where(support, v - v.sum(-1, keepdim=True) / count, 0)
    return v


def unit(v: Tensor) -> Tensor:
    """v / ‖v‖₂, or 0 for v = 0."""
    scaled: Tensor = v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return scaled
