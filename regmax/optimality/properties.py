"""Properties of an Ω at the scores of a batch: its slope at 0, its rounding, its declared β."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..regularizers.autodiff import nodes
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import CHUNK, DENSE_LIMIT, Curvature
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import value_of, who
from ..regularizers.regularizer import Regularizer


def infinite_slope(smooth: Regularizer, z: Tensor, separable: bool) -> Tensor:
    """The entries (d,) in which the slope of Ω is infinite at 0.

    From ε to ε² and from ε² to ε⁴ a finite slope changes less and less; logarithms and negative
    powers do not. Where Ω is ``separable``, all entries are asked together. Else each entry is
    asked alone, while the others stay on Δ: the slope of Σ_g s_g log s_g is finite where only a
    part of a group s_g is 0. Each row asks some of the entries; in long rows several entries that
    have no order are asked together.
    """
    eps = torch.finfo(z.dtype).eps
    if not z.numel():
        return torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    middle, d = simplex.generic(z), z.shape[-1]
    rows, blocks = z.numel() // d, 1 if separable else min(d, DENSE_LIMIT)
    own = simplex.generic(z.new_empty(d)).argsort() % blocks
    passes = torch.arange(-(-blocks // rows) * rows, device=z.device)
    finite = torch.zeros_like(own, dtype=torch.bool)
    for block in passes.view(-1, *z.shape[:-1], 1).split(max(1, CHUNK // z.numel())):
        asked = own == block % blocks
        rest = torch.where(asked, 0, middle)
        rest = rest / rest.sum(-1, keepdim=True).clamp_min(eps)
        near, nearer, nearest = slopes(smooth, asked, rest, eps)
        change, noise = (nearer - near).abs(), 64 * eps * (near.abs() + nearer.abs())
        grows = (nearest - nearer).abs() > 0.5 * change + noise
        finite = finite | (asked & ~grows).flatten(0, -2).any(0)
    return ~finite


def slopes(smooth: Regularizer, asked: Tensor, rest: Tensor, size: float) -> list[Tensor]:
    """∇Ω where the entries ``asked`` are t, t² and t⁴ for t = ``size``, and others those of
    ``rest``."""
    with torch.no_grad():
        return [smooth.grad(torch.where(asked, size**k, rest)) for k in (1, 2, 4)]


def magnitude(curvature: Curvature, v: Tensor) -> Tensor:
    """An estimate of |H| |v|, by two vectors of signs."""
    found = torch.zeros_like(v)
    for phase in (0.0, 2.1):
        signs = torch.where(simplex.generic(v, phase) * v.shape[-1] > 1, 1.0, -1.0).to(v.dtype)
        found = torch.maximum(found, torch.nan_to_num(curvature.matvec(signs * v)).abs())
    return found


def softest(inverse: Inverse, v: Tensor, steps: int) -> Tensor:
    """A direction in which Ω bends least, of any length: J^steps v but for its length."""
    for _ in range(steps):
        v = torch.nan_to_num(inverse(simplex.unit(v)))
    return v


def rounding(omega: Regularizer, z: Tensor, mask: Tensor | None) -> float:
    """The ε of what Ω computes: that of float32 where its value goes through it."""
    at = simplex.inward(simplex.uniform(z, mask)).requires_grad_()
    fixed = {name: t.detach() for name, t in omega.tensors().items()}
    with torch.enable_grad():  # of y alone: numbers may have come in float32
        value = value_of(omega.with_tensors(fixed), at, mask)
    copied = any(node.name() == "ToCopyBackward0" for node in nodes(value))
    return torch.finfo(torch.float32 if copied else z.dtype).eps


def strong_convexity(smooth: Regularizer, z: Tensor) -> Tensor | None:
    """β as Ω declares it, for the rows of z: (*batch, 1)."""
    declared, name = smooth.strong_convexity, who(smooth)
    if declared is None:
        return None
    shape = (*z.shape[:-1], 1)
    if not isinstance(declared, Tensor | int | float):
        raise TypeError(
            f"{name}.strong_convexity must be a number, a Tensor or None; got "
            f"{type(declared).__name__}"
        )
    beta = declared.to(z) if isinstance(declared, Tensor) else z.new_full((), declared)
    try:
        beta = beta.expand(shape)
    except RuntimeError:
        raise RegularizerError(
            f"{name}.strong_convexity must be a number or broadcast to {shape}; got shape "
            f"{tuple(beta.shape)}"
        ) from None
    if decisions.rare("wrong strong_convexity", ~((beta > 0) & torch.isfinite(beta))):
        raise RegularizerError(
            f"{name}.strong_convexity must be > 0 and finite, or None; got {beta.min().item():g}"
        )
    return beta
