"""The one matrix of Proposition 1 made explicit: J of a dense curvature, on the support alone.

With H = ∇²Ω(y) on the support S, J = H⁻¹ − H⁻¹1 1ᵀH⁻¹ / (1ᵀH⁻¹1). It does not change when a
multiple of 11ᵀ is added to H, so H need be positive definite along {w : 1ᵀw = 0} only, and one
Cholesky factorisation of the rows and columns of S gives J, and tells where H is not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Reduced:
    """J on ``support``, factorised once: call it with v (*batch, d) for J v.

    ``block(rows, index)`` gives H for the entries ``index`` (n, m) of the n ``rows``, counted
    through the batch: (n, m, m), a tensor of its own. Rows are cut to the largest support of the
    batch, and those whose support has one entry are left out. ``lowest``, one per row, is a lower
    bound on the least eigenvalue of H along {w : 1ᵀw = 0, w = 0 off S}, not positive where H is not
    positive definite there, and +inf where S has one element: 1/‖J‖_F, at most √m too small.
    """

    def __init__(self, block: Callable[[Tensor, Tensor], Tensor], support: Tensor) -> None:
        count = support.sum(-1)
        self.rows = (count > 1).reshape(-1).nonzero().squeeze(-1)  # J = 0 for the others
        flat = support.reshape(-1, support.shape[-1])[self.rows]
        m = int(count.max()) if len(self.rows) else 1
        self.index, self.part = _first(flat, m)
        h = block(self.rows, self.index)
        h.masked_fill_(~(self.part.unsqueeze(-1) & self.part.unsqueeze(-2)), 0)
        # in units in which each row's largest entry is 1: near an entropy H has 1/y on its diagonal
        size = torch.linalg.vector_norm(h, torch.inf, dim=-1)
        s = torch.where(self.part & (size > 0), size, 1).rsqrt()
        s = torch.where(self.part, s, 0)
        q = s / s.norm(dim=-1, keepdim=True)
        k = (h * s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        k.baddbmm_(q.unsqueeze(-1), q.unsqueeze(-2), alpha=m)
        pads = (~self.part).to(k.dtype)
        k.diagonal(dim1=-2, dim2=-1).add_(pads)
        factor, failed = torch.linalg.cholesky_ex(k)
        eye = torch.eye(m, dtype=k.dtype, device=k.device)
        j = torch.cholesky_inverse(torch.where((failed != 0)[:, None, None], eye, factor))
        j.diagonal(dim1=-2, dim2=-1).sub_(pads)
        w = (j @ s.unsqueeze(-1)).squeeze(-1)
        total = (s * w).sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        j.baddbmm_(w.unsqueeze(-1), (w / total).unsqueeze(-2), alpha=-1)
        norm = torch.linalg.vector_norm(j, dim=(-2, -1))  # of J, in these units
        eps = torch.finfo(s.dtype).eps
        lost = (failed != 0) | ~(norm * 8 * eps * m < 1)
        j.mul_(s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        low = 1 / torch.linalg.vector_norm(j, dim=(-2, -1))
        if bool(lost.any()):
            low[lost] = _lowest(h[lost], self.part[lost])
            j[lost] = _pseudo(h[lost], self.part[lost])
        self._h, self._j = h, j
        lowest = torch.full_like(count, torch.inf, dtype=h.dtype).reshape(-1)
        lowest[self.rows] = low
        self.lowest = lowest.view(count.shape)

    def __call__(self, v: Tensor) -> Tensor:
        """J v, refined once, so that the residual is that of v's own rounding."""
        given = v.reshape(-1, v.shape[-1])[self.rows]
        part = torch.where(self.part, given.gather(-1, self.index), 0)
        w = self._times(part)
        w = w + self._times(part - (self._h @ w.unsqueeze(-1)).squeeze(-1))
        found = torch.zeros_like(given).scatter(-1, self.index, torch.where(self.part, w, 0))
        if len(self.rows) == v.numel() // max(v.shape[-1], 1):
            return found.view(v.shape)
        return (
            torch.zeros(v.shape, dtype=v.dtype, device=v.device)
            .view(-1, v.shape[-1])
            .index_copy(0, self.rows, found)
            .view(v.shape)
        )

    def _times(self, v: Tensor) -> Tensor:
        # J annihilates constants, and so does not round them
        count = self.part.sum(-1, keepdim=True).clamp_min(1)
        v = torch.where(self.part, v - v.sum(-1, keepdim=True) / count, 0)
        return (self._j @ v.unsqueeze(-1)).squeeze(-1)


def _first(support: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The indices of the support first, m a row, and which of them belong to it."""
    if m == support.shape[-1]:
        index = torch.arange(m, device=support.device).expand(support.shape)
        return index, support
    index = (~support).to(torch.uint8).argsort(dim=-1, stable=True)[..., :m]
    return index, support.gather(-1, index)


def _tangent_basis(part: Tensor, dtype: torch.dtype) -> Tensor:
    """P, the orthogonal projection on {w : 1ᵀw = 0, w = 0 off S}."""
    on = part.to(dtype)
    count = on.sum(-1, keepdim=True).clamp_min(1)
    return torch.diag_embed(on) - on.unsqueeze(-1) * (on / count).unsqueeze(-2)


def _lowest(h: Tensor, part: Tensor) -> Tensor:
    """The least eigenvalue along the tangent, 0 where rounding hides its sign."""
    p = _tangent_basis(part, h.dtype)
    h = torch.nan_to_num(h)
    size = h.abs().sum(-1).amax(-1)
    eye = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
    low = torch.linalg.eigvalsh(p @ h @ p + (size + 1)[..., None, None] * (eye - p))[..., 0]
    noise = 8 * torch.finfo(h.dtype).eps * h.shape[-1] * size
    return torch.where(low.abs() <= noise, 0, low)


def _pseudo(h: Tensor, part: Tensor) -> Tensor:
    """(P H P)⁺ with the directions of no curvature left out: where J does not exist."""
    p = _tangent_basis(part, h.dtype)
    low, vectors = torch.linalg.eigh(p @ torch.nan_to_num(h) @ p)
    noise = 64 * torch.finfo(h.dtype).eps * h.shape[-1] * low.abs().amax(-1, keepdim=True)
    kept = torch.where(low > noise, 1 / torch.where(low > noise, low, 1), 0)
    j: Tensor = (vectors * kept.unsqueeze(-2)) @ vectors.mT
    return j
