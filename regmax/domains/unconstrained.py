"""Systems H_FF w = v_F without a fixed sum: J where entries move by themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.simplex import row_dot
from ..regularizers.curvature import Curvature, Dense, Diagonal, DiagonalPlusRankOne


def solve(curvature: Curvature, v: Tensor, free: Tensor) -> Tensor:
    """w with H_FF w_F = v_F, and 0 off F; differentiable."""
    if isinstance(curvature, Diagonal):
        info = torch.finfo(curvature.h.dtype)
        h = torch.where(free, curvature.h, 1).clamp(info.tiny, info.max)
        return torch.where(free, v / h, 0)
    if isinstance(curvature, DiagonalPlusRankOne):  # Sherman–Morrison
        first, u, c = Diagonal(curvature.h), torch.where(free, curvature.u, 0), curvature.c
        dv, du = solve(first, v, free), solve(first, u, free)
        return dv - du * (c * row_dot(u, dv) / (1 + c * row_dot(u, du)))
    h = block(curvature, free) + torch.diag_embed(1 - free.to(v.dtype))
    found: Tensor = torch.linalg.solve(h, torch.where(free, v, 0).unsqueeze(-1)).squeeze(-1)
    return found


def least(curvature: Curvature, free: Tensor) -> Tensor:
    """A lower bound on the least eigenvalue of H_FF, (*batch); +inf where F is empty."""
    if isinstance(curvature, Diagonal | DiagonalPlusRankOne):
        return torch.where(free, curvature.h, torch.inf).amin(-1)
    h = torch.nan_to_num(block(curvature, free))
    # 1/‖H⁻¹‖_F, of H with a diagonal of 1: next to an entry of 1e31, an eigenvalue of 1 is rounding
    own = h.diagonal(dim1=-2, dim2=-1)
    s = torch.where(free & (own > 0), torch.where(own > 0, own, 1).rsqrt(), 0)
    scaled = h * s.unsqueeze(-1) * s.unsqueeze(-2) + torch.diag_embed(torch.where(s > 0, 0.0, 1.0))
    factor, failed = torch.linalg.cholesky_ex(scaled)
    eye = torch.eye(free.shape[-1], dtype=h.dtype, device=h.device)
    inverse = torch.cholesky_solve(eye.expand(h.shape), factor)
    eps = torch.finfo(h.dtype).eps
    known = (failed == 0) & (inverse.flatten(-2).norm(dim=-1) * 8 * eps * free.sum(-1) < 1)
    known = known & ((s > 0) | ~free).all(-1)
    low = 1 / (inverse * s.unsqueeze(-1) * s.unsqueeze(-2)).flatten(-2).norm(dim=-1)
    if transforms.waits(known) or not bool(known.all()):
        beyond = h.abs().sum(-1).amax(-1, keepdim=True) + 1
        plain = torch.linalg.eigvalsh(h + torch.diag_embed(torch.where(free, 0, beyond)))[..., 0]
        low = torch.where(known, low, plain)
    return torch.where(free.any(-1), low, torch.inf)


def block(curvature: Curvature, free: Tensor) -> Tensor:
    """H_FF, with zeros elsewhere."""
    if isinstance(curvature, Dense):
        h = curvature.matrix
    else:
        eye = torch.eye(free.shape[-1], dtype=curvature.dtype, device=free.device)
        h = torch.stack([curvature.matvec(unit.expand(free.shape)) for unit in eye], -1)
    return torch.where(free.unsqueeze(-1) & free.unsqueeze(-2), h, 0)
