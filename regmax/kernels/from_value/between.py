"""Π_Ω between bounds, l ≤ y ≤ u, of a separable Ω = Σ e(y_i): the inverse of e', and how far a
row is from the maximiser, by compiled derivatives of e alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..clipped import clip
from .compiled import Function

STEPS, BISECTIONS, CLOSE = 32, 6, 1e-7
"""The most steps to the inverse of e', how many of them are bisections, and the last one's size."""
_LEAST = 1e-30
"""Where e is evaluated instead of at 0."""
_SMALLEST = 1e-300
"""The least y > 0 of p."""
_NONE = torch.zeros(1, 1, dtype=torch.float64, device="cpu")


def slopes_of(slopes: Function, numbers: Tensor, y: Tensor) -> Tensor:
    """The first three derivatives of e."""
    y, count = y.contiguous(), y.numel()
    found = torch.empty(3, count, dtype=torch.float64, device="cpu")
    slopes(count, y, numbers, _NONE, count, found)
    return found.view(3, *y.shape)


def inverse(slopes: Function, numbers: Tensor, u: Tensor, least: float) -> Tensor:
    """y ≤ e^0.2 with e'(y) = u, 0 below ``least``: by bisection on log y, then by steps that are
    exact where e' is a power of y, up to a constant."""
    ends = u.new_tensor((math.log(least), 0.2))
    first, last = slopes_of(slopes, numbers, ends.exp())[0]
    low, high = ends[0].expand_as(u), ends[1].expand_as(u)
    s, zero, most = (low + high) / 2, u <= first, u >= last
    done = zero | most
    for k in range(STEPS):
        y = s.exp()
        g, h, c = slopes_of(slopes, numbers, y)
        low, high = torch.where(g < u, s, low), torch.where(g < u, high, s)
        if k < BISECTIONS:
            s = (low + high) / 2
            continue
        # for e' = a + y^b: y (1 + bw)^(1/b)
        w, b = (u - g) / (y * h), 1 + y * c / h
        b = torch.where((b.abs() > 1e-6) & (b.abs() < 1e6), b, 1e-6)  # of numbers that overflow too
        near = s + torch.log1p(b * w) / b
        close = (near - s).abs() <= CLOSE
        inside = close | (near > low) & (near < high)
        # an entry that is done stays as it is, whatever the others
        s = torch.where(done, s, torch.where(inside, near, (low + high) / 2))
        done = done | close
        if bool(done.all()):
            break
    return torch.where(zero, 0, torch.where(most, ends[1], s).exp())


def boxed(slopes: Function, numbers: Tensor, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """clip(p(z), l, u) of u ≤ 1."""
    return clip(inverse(slopes, numbers, z.reshape(-1), _SMALLEST).view(z.shape), low, high)


def bound(
    slopes: Function, numbers: Tensor, z: Tensor, y: Tensor, low: Tensor, high: Tensor,
    total: Tensor | None, on: Tensor | None,
) -> Tensor:  # fmt: skip
    """A bound on the distance of y to the maximiser of ⟨y, z⟩ − Σ e(y_i) over l ≤ y ≤ u, Σy =
    ``total``, for which e' need only rise; +inf where there is none. Without a total, τ = 0.

    With z_i − e'(y_i) in [τ₁, τ₂] between the bounds, at most τ₂ at l and at least τ₁ at u, the
    maximiser is between the y(τ) of the two (Blondel, Martins & Niculae 2019, Prop. 5).
    """
    low, high = (t if on is None else torch.where(on, t, 0) for t in (low, high))
    up, down, eps = y >= high, y <= low.clamp_min(_LEAST), 4 * torch.finfo(y.dtype).eps
    g, h, _ = slopes_of(slopes, numbers, y.clamp(_LEAST, 1))
    r, noise = z - g, eps * (z.abs() + g.abs())
    first = torch.where(down, torch.inf, r - noise)
    last = torch.where(up, -torch.inf, r + noise)
    if total is None:
        first, last = first.minimum(-noise), last.maximum(noise)
    else:
        first, last = first.amin(-1, keepdim=True), last.amax(-1, keepdim=True)
        vertex, middle = first > last, ((first + last) / 2).nan_to_num(0)
        first, last = torch.where(vertex, middle, first), torch.where(vertex, middle, last)
    step = 2 * (last - first + noise) / h + eps * y
    more = torch.where(down & (r + noise <= first), y, y + step)
    less = torch.where(up & (r - noise >= last), y, y - step)
    beyond, before = (slopes_of(slopes, numbers, t.clamp(_LEAST, 1))[0] for t in (more, less))
    above = (more == y) | (more >= high) | (z - beyond <= first)
    below = (less == y) | (less <= low.clamp_min(_LEAST)) | (z - before >= last)
    each = torch.maximum(more.minimum(high) - y, y - less.maximum(low)) + _LEAST
    found = each.norm(dim=-1)
    if total is not None:
        found = found + (y.sum(-1) - total.squeeze(-1)).abs()
    return torch.where((above & below).all(-1), found, torch.inf)
