"""The one matrix of Proposition 1 made explicit: J of a dense curvature, on the support alone.

With H = ∇²Ω(y) on the support S, J = H⁻¹ − H⁻¹1 1ᵀH⁻¹ / (1ᵀH⁻¹1). It does not change when a
multiple of 11ᵀ is added to H, so H need be positive definite along {w : 1ᵀw = 0} only, and one
Cholesky factorisation of the rows and columns of S gives J, and tells where H is not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import rowwise


class Reduced:
    """J on ``support``, factorised once: call it with v (*batch, d) for J v.

    ``block(rows, index)`` gives H for the entries ``index`` (n, m) of the n ``rows``, counted
    through the batch: (n, m, m), a tensor of its own. Rows whose support has one entry are left
    out; the others are cut to a size that their own support decides, so that what a row goes
    through does not depend on the rows beside it. ``min_eigenvalue``, one per row, is a lower bound
    on the least eigenvalue of H along {w : 1ᵀw = 0, w = 0 off S}, not positive where H is not
    positive definite there, and +inf where S has one element: 1/‖J‖_F, at most √m too small.
    """

    def __init__(self, block: Callable[[Tensor, Tensor], Tensor], support: Tensor) -> None:
        count = support.sum(-1)
        self.rows = (count > 1).reshape(-1).nonzero().squeeze(-1)  # J = 0 for the others
        d = support.shape[-1]
        flat = support.reshape(-1, d)[self.rows]
        own = count.reshape(-1)[self.rows]
        m = int(own.max()) if len(self.rows) else 1
        self.index, self.part = _first(flat, m)
        h = block(self.rows, self.index)
        self._pieces = [
            (where, _Piece(h[where], self.part[where], size)) for where, size in _by_size(own, m, d)
        ]
        min_eigenvalue = torch.full_like(count, torch.inf, dtype=h.dtype).reshape(-1)
        for where, piece in self._pieces:
            min_eigenvalue[self.rows[where]] = piece.min_eigenvalue
        self.min_eigenvalue = min_eigenvalue.view(count.shape)

    def __call__(self, v: Tensor) -> Tensor:
        """J v, refined once, so that the residual is that of v's own rounding."""
        given = v.reshape(-1, v.shape[-1])[self.rows]
        part = torch.where(self.part, given.gather(-1, self.index), 0)
        if len(self._pieces) == 1:
            w = self._pieces[0][1](part)
        else:
            w = torch.empty_like(part)
            for where, piece in self._pieces:
                w[where] = piece(part[where])
        found = torch.zeros_like(given).scatter(-1, self.index, w)
        if len(self.rows) == v.numel() // max(v.shape[-1], 1):
            return found.view(v.shape)
        return (
            torch.zeros(v.shape, dtype=v.dtype, device=v.device)
            .view(-1, v.shape[-1])
            .index_copy(0, self.rows, found)
            .view(v.shape)
        )


class _Piece:
    """J of rows that are cut, or padded with zeros, to one size."""

    def __init__(self, h: Tensor, part: Tensor, size: int) -> None:
        self._given = part.shape[-1]
        h, part = rowwise.square(h, size), rowwise.resized(part, size)
        count = part.sum(-1, keepdim=True)
        h.masked_fill_(~(part.unsqueeze(-1) & part.unsqueeze(-2)), 0)
        # in units in which each row's largest entry is 1: near an entropy H has 1/y on its diagonal
        largest = h.abs().amax(-1)
        s = torch.where(part & (largest > 0), largest, 1).rsqrt()
        s = torch.where(part, s, 0)
        q = s / rowwise.norm(s)
        k = (h * s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        k.add_((count * q).unsqueeze(-1) * q.unsqueeze(-2))
        pads = (~part).to(k.dtype)
        k.diagonal(dim1=-2, dim2=-1).add_(pads)
        factor, failed = torch.linalg.cholesky_ex(k)
        eye = torch.eye(size, dtype=k.dtype, device=k.device)
        j = torch.cholesky_inverse(torch.where((failed != 0)[:, None, None], eye, factor))
        j = j.contiguous()
        j.diagonal(dim1=-2, dim2=-1).sub_(pads)
        w = rowwise.times(j, s)
        total = rowwise.dot(s, w).clamp_min(torch.finfo(s.dtype).tiny)
        j.sub_(w.unsqueeze(-1) * (w / total).unsqueeze(-2))
        norm = _norm(j)  # of J, in these units
        eps = torch.finfo(s.dtype).eps
        lost = (failed != 0) | ~(norm * 8 * eps * count.squeeze(-1) < 1)
        j.mul_(s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        self.min_eigenvalue = 1 / _norm(j)
        if bool(lost.any()):
            self.min_eigenvalue[lost] = _lowest(h[lost], part[lost])
            j[lost] = _pseudo(h[lost], part[lost])
        self._h, self._j, self._part, self._count = h, j, part, count

    def __call__(self, v: Tensor) -> Tensor:
        v = rowwise.resized(v, self._h.shape[-1])
        w = self._times(v)
        w = w + self._times(v - rowwise.times(self._h, w))
        return rowwise.resized(torch.where(self._part, w, 0), self._given)

    def _times(self, v: Tensor) -> Tensor:
        # J annihilates constants, and so does not round them
        v = torch.where(self._part, v - v.sum(-1, keepdim=True) / self._count, 0)
        return rowwise.times(self._j, v)


def _by_size(count: Tensor, most: int, d: int) -> list[tuple[Tensor | slice, int]]:
    """The rows of each size, as many at a time as a cache holds."""
    if not len(count):
        return []
    sizes = torch.tensor([rowwise.size(k, d) for k in range(most + 1)], device=count.device)[count]
    found: list[tuple[Tensor | slice, int]] = []
    for size in sizes.unique().tolist():
        where = (sizes == size).nonzero().squeeze(-1)
        rows = rowwise.at_once(where, size)
        if len(where) == len(count):
            found += [(slice(k, k + rows), size) for k in range(0, len(where), rows)]
        else:
            found += [(some, size) for some in where.split(rows)]
    return found


def _first(support: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The indices of the support first, m a row, and which of them belong to it."""
    if m == support.shape[-1] and bool(support.all()):
        index = torch.arange(m, device=support.device).expand(support.shape)
        return index, support
    index = (~support).to(torch.uint8).argsort(dim=-1, stable=True)[..., :m]
    return index, support.gather(-1, index)


def _norm(j: Tensor) -> Tensor:
    """‖J‖_F."""
    return j.square().sum(-1).sum(-1).sqrt()


def _across(h: Tensor, part: Tensor, away: Tensor | None = None) -> Tensor:
    """P H P, P the orthogonal projection on {w : 1ᵀw = 0, w = 0 off S}, plus away (I − P)."""
    on = part.to(h.dtype)
    count = on.sum(-1, keepdim=True).clamp_min(1)
    mean = h.sum(-1) / count
    inside = on.unsqueeze(-1) * on.unsqueeze(-2)
    total = (mean.sum(-1, keepdim=True) / count).unsqueeze(-1)
    h = (h - mean.unsqueeze(-1) - mean.unsqueeze(-2) + total) * inside
    if away is not None:
        h = h + away * (torch.diag_embed(1 - on) + inside / count.unsqueeze(-1))
    return h


def _lowest(h: Tensor, part: Tensor) -> Tensor:
    """The least eigenvalue along the tangent, 0 where rounding hides its sign."""
    h = torch.nan_to_num(h)
    size = h.abs().sum(-1).amax(-1)
    low = torch.linalg.eigvalsh(_across(h, part, (size + 1)[..., None, None]))[..., 0]
    noise = 8 * torch.finfo(h.dtype).eps * part.sum(-1) * size
    return torch.where(low.abs() <= noise, 0, low)


def _pseudo(h: Tensor, part: Tensor) -> Tensor:
    """(P H P)⁺ with the directions of no curvature left out: where J does not exist."""
    low, vectors = torch.linalg.eigh(_across(torch.nan_to_num(h), part))
    noise = 64 * torch.finfo(h.dtype).eps * part.sum(-1, keepdim=True)
    noise = noise * low.abs().amax(-1, keepdim=True)
    kept = torch.where(low > noise, 1 / torch.where(low > noise, low, 1), 0)
    return rowwise.matmul(vectors * kept.unsqueeze(-2), vectors.mT)
