"""The matrix of Proposition 1 on a support: a function of v, explicit for a dense curvature.

With H = ∇²Ω(y) on the support S, J = H⁻¹ − H⁻¹1 1ᵀH⁻¹ / (1ᵀH⁻¹1). Adding a multiple of 11ᵀ to H
does not change J, so H must be positive definite only along {w : 1ᵀw = 0}. One Cholesky
factorisation of H_SS gives J, and fails if H is not positive definite there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import decisions, rowwise, transforms

WHOLE = 128
"""Rows up to this length are factorised whole where reading the size of a support would wait."""


class Inverse:
    """J on a support as a function of v, without derivatives."""

    def __init__(self, product: Callable[[Tensor], Tensor], least: Callable[[], Tensor]) -> None:
        self._product, self._least = product, least

    @functools.cached_property
    def min_eigenvalue(self) -> Tensor:
        """A lower bound on the least curvature, one per row."""
        with torch.no_grad():
            return self._least()

    def __call__(self, v: Tensor) -> Tensor:
        """J v."""
        with torch.no_grad():
            return self._product(v)

    @staticmethod
    def by_row(where: Tensor, one: Inverse, other: Inverse) -> Inverse:
        """J by ``one`` in the rows ``where`` (*batch, 1), and by ``other`` elsewhere."""
        return Inverse(
            lambda v: torch.where(where, one(v), other(v)),
            lambda: torch.where(where.squeeze(-1), one.min_eigenvalue, other.min_eigenvalue),
        )


class Reduced(Inverse):
    """J on ``support``, factorised once: call it with v (*batch, d) for J v.

    ``block(rows, index)`` returns H for the entries ``index`` (n, m) of the n ``rows`` of the
    flattened batch: a new tensor (n, m, m). Rows whose support has one entry are skipped. The
    others are cut to a size that depends on their support, or on d alone, so that a row's result
    does not depend on its batch. ``min_eigenvalue``, one per row, is a lower bound on the least
    eigenvalue of H along {w : 1ᵀw = 0, w = 0 off S}: 1/‖J‖_F, at most a factor √m too small. It is
    not positive where H is not positive definite there, and +inf where S has one element.
    """

    def __init__(self, block: Callable[[Tensor, Tensor], Tensor], support: Tensor) -> None:
        count, d = support.sum(-1), support.shape[-1]
        counts = count.reshape(-1)
        if d <= WHOLE and transforms.waits(support):
            flat = (support & (count > 1).unsqueeze(-1)).reshape(-1, d)
            self.rows = torch.arange(len(flat), device=support.device)
            sizes = [d] * len(flat)
        else:
            order = counts.argsort(stable=True)
            sizes = [k for k in counts[order].tolist() if k > 1]  # J = 0 for the others
            self.rows = order[len(order) - len(sizes) :]
            flat = support.reshape(-1, d)[self.rows]
        # as many indices per row as the largest support has, those of the support first
        index = (~flat).to(torch.uint8).argsort(dim=-1, stable=True)
        self.index = index[..., : sizes[-1] if sizes else 1]
        self.part = flat.gather(-1, self.index)
        h = block(self.rows, self.index)
        self._pieces = [
            (where, _Piece(h[where], self.part[where], size))
            for where, size in _by_size(sizes, d, counts)
        ]
        min_eigenvalue = torch.full_like(counts, torch.inf, dtype=h.dtype)
        for where, piece in self._pieces:
            min_eigenvalue[self.rows[where]] = piece.min_eigenvalue
        low = min_eigenvalue.view(count.shape)
        self._least = lambda: low

    @torch.no_grad()
    def __call__(self, v: Tensor) -> Tensor:
        """J v with one step of iterative refinement: the residual is at the rounding of v."""
        given = v.reshape(-1, v.shape[-1])[self.rows]
        part = torch.where(self.part, given.gather(-1, self.index), 0)
        w = torch.empty_like(part)
        for where, piece in self._pieces:
            w[where] = piece(part[where])
        found = torch.zeros_like(given).scatter(-1, self.index, w)
        return (
            torch.zeros(v.shape, dtype=v.dtype, device=v.device)
            .view(-1, v.shape[-1])
            .index_copy(0, self.rows, found)
            .view(v.shape)
        )


class _Piece:
    """J for rows of one size, to which they are cut or padded with zeros."""

    def __init__(self, h: Tensor, part: Tensor, size: int) -> None:
        self._given = part.shape[-1]
        h, part = rowwise.square(h, size), rowwise.resized(part, size)
        count = part.sum(-1, keepdim=True)
        h.masked_fill_(~(part.unsqueeze(-1) & part.unsqueeze(-2)), 0)
        # scaled so that the largest entry of each row is 1: an entropy has 1/y on the diagonal
        largest = h.abs().amax(-1)
        s = torch.where(part & (largest > 0), largest, 1).rsqrt()
        s = torch.where(part, s, 0)
        q = s / rowwise.norm(s).clamp_min(torch.finfo(s.dtype).tiny)
        k = (h * s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        k.add_((count * q).unsqueeze(-1) * q.unsqueeze(-2))
        pads = (~part).to(k.dtype)
        k.diagonal(dim1=-2, dim2=-1).add_(pads)
        factor, failed = torch.linalg.cholesky_ex(k)
        eye = torch.eye(size, dtype=k.dtype, device=k.device)
        j = _inverse(torch.where((failed != 0)[:, None, None], eye, factor), eye).contiguous()
        j.diagonal(dim1=-2, dim2=-1).sub_(pads)
        w = rowwise.times(j, s)
        total = rowwise.dot(s, w).clamp_min(torch.finfo(s.dtype).tiny)
        j.sub_(w.unsqueeze(-1) * (w / total).unsqueeze(-2))
        norm = _norm(j)  # of the scaled J
        eps = torch.finfo(s.dtype).eps
        lost = (failed != 0) | ~(norm * 8 * eps * count.squeeze(-1) < 1)
        j.mul_(s.unsqueeze(-1)).mul_(s.unsqueeze(-2))
        self.min_eigenvalue = 1 / _norm(j)
        if decisions.rare("factorisation", lost):
            self.min_eigenvalue[lost] = _surely_least(h[lost], part[lost])
            j[lost] = _pseudoinverse(h[lost], part[lost])
        self._h, self._j, self._part, self._count = h, j, part, count

    def __call__(self, v: Tensor) -> Tensor:
        v = rowwise.resized(v, self._h.shape[-1])
        w = self._times(v)
        w = w + self._times(v - rowwise.times(self._h, w))
        return rowwise.resized(torch.where(self._part, w, 0), self._given)

    def _times(self, v: Tensor) -> Tensor:
        # J 1 = 0: subtracting the mean first removes the rounding of a large constant
        v = torch.where(self._part, v - v.sum(-1, keepdim=True) / self._count, 0)
        return rowwise.times(self._j, v)


def _inverse(factor: Tensor, eye: Tensor) -> Tensor:
    """The inverse of L Lᵀ. ``cholesky_inverse`` tests for errors, for which it waits."""
    if not transforms.waits(factor):
        return torch.cholesky_inverse(factor)
    half = torch.linalg.solve_triangular(factor, eye, upper=False)
    found: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return found


def _by_size(counts: list[int], d: int, like: Tensor) -> list[tuple[slice, int]]:
    """The rows of each size, in chunks that fit in the cache; ``counts`` increase."""
    found, start = [], 0
    for size, some in itertools.groupby(rowwise.size(k, d) for k in counts):
        stop = start + len(list(some))
        rows = rowwise.at_once(like, size)
        found += [(slice(k, min(k + rows, stop)), size) for k in range(start, stop, rows)]
        start = stop
    return found


def _norm(j: Tensor) -> Tensor:
    """‖J‖_F."""
    return j.square().sum(-1).sum(-1).sqrt()


def _finite(h: Tensor) -> Tensor:
    """H with entries whose squares are finite: next to a bound a curvature may be any number."""
    most = torch.finfo(h.dtype).max ** 0.5
    return torch.nan_to_num(h).clamp(-most, most)


def _projected(h: Tensor, normal: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """P H P and I − P, P the orthogonal projection on {w : ⟨normal, w⟩ = 0, w = 0 off S}."""
    q = normal / rowwise.norm(normal).clamp_min(torch.finfo(h.dtype).tiny)
    h = torch.where(part.unsqueeze(-1) & part.unsqueeze(-2), _finite(h), 0)
    hq = rowwise.matvec(h, q)
    cross, outer = q.unsqueeze(-1) * hq.unsqueeze(-2), q.unsqueeze(-1) * q.unsqueeze(-2)
    h = h - (cross + cross.mT) + rowwise.dot(q, hq).unsqueeze(-1) * outer
    return h, torch.diag_embed(1 - part.to(h.dtype)) + outer


def least_eigenvalue(h: Tensor, normal: Tensor, part: Tensor) -> Tensor:
    """The least eigenvalue of H along {w : ⟨normal, w⟩ = 0, w = 0 off S}, S = ``part``."""
    size = rowwise.whole(h.shape[-1])
    h, part = rowwise.square(h, size), rowwise.resized(part, size)
    inside, outside = _projected(h, rowwise.resized(normal, size), part)
    away = inside.abs().sum(-1).amax(-1)[..., None, None] + 1  # above every eigenvalue
    low: Tensor = torch.linalg.eigvalsh(inside + away * outside)[..., 0]
    return low


def _surely_least(h: Tensor, part: Tensor) -> Tensor:
    """The least eigenvalue along the tangent space, or 0 where rounding hides its sign."""
    h = _finite(h)
    low = least_eigenvalue(h, part.to(h.dtype), part)
    noise = 8 * torch.finfo(h.dtype).eps * part.sum(-1) * h.abs().sum(-1).amax(-1)
    return torch.where(low.abs() <= noise, 0, low)


def _pseudoinverse(h: Tensor, part: Tensor) -> Tensor:
    """(P H P)⁺ on the directions of positive curvature, for rows in which J does not exist."""
    low, vectors = torch.linalg.eigh(_projected(h, part.to(h.dtype), part)[0])
    noise = 64 * torch.finfo(h.dtype).eps * part.sum(-1, keepdim=True)
    noise = noise * low.abs().amax(-1, keepdim=True)
    kept = torch.where(low > noise, 1 / torch.where(low > noise, low, 1), 0)
    return rowwise.matmul(vectors * kept.unsqueeze(-2), vectors.mT)
