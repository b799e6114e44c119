"""The curvature ∇²Ω(y) in four structures, and the Jacobian J built from it.

On the support S of y, with H = ∇²Ω(y)_SS, the Jacobian of Π_Ω is

    J = H⁻¹ − H⁻¹1 1ᵀH⁻¹ / (1ᵀH⁻¹1)       on S, 0 elsewhere

(Peters, Niculae & Martins 2019, Prop. 2). On the support this is the solution of
(I + A(B − I))J = A (Niculae & Blondel 2017, Prop. 1). J is symmetric and positive semidefinite. A
product with J costs O(d) for diagonal and diagonal plus rank one, O(d³) for dense, and conjugate
gradients for matrix-free.

All operations are differentiable, so a second backward differentiates the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import decisions, rowwise, transforms
from ..kernels.simplex import row_dot
from . import conjugate_gradients, printing
from .cholesky import Inverse, Reduced, least_eigenvalue

DENSE_LIMIT = 512
"""Above this number of entries a curvature by autograd is matrix-free instead of dense."""
CHUNK = 2**22
"""Entries of the vectors that one product with a stack of vectors takes."""


class Average:
    """P: the orthogonal projection that averages over groups of entries. ``means`` maps v to P v;
    ``groups`` gives the group of each entry, of the participants in ``mask`` if that is given."""

    def __init__(
        self,
        means: Callable[[Tensor], Tensor],
        groups: Callable[[], Tensor],
        mask: Tensor | None = None,
    ) -> None:
        self._means, self._groups, self._mask = means, groups, mask

    def __call__(self, v: Tensor) -> Tensor:
        """P v."""
        return self._means(v)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """P, entry by entry: (*batch, d, d)."""
        ids = self._groups()
        same = ids.unsqueeze(-1) == ids.unsqueeze(-2)
        if self._mask is not None:
            same = same & self._mask.unsqueeze(-1) & self._mask.unsqueeze(-2)
        return same / same.sum(-1, keepdim=True).clamp_min(1).to(dtype)


class Curvature(ABC):
    """A symmetric matrix per row, for vectors of shape (*batch, d)."""

    dtype: torch.dtype = torch.float32

    def __repr__(self) -> str:
        return printing.called(self, printing.arguments(self))

    @abstractmethod
    def matvec(self, v: Tensor) -> Tensor:
        """H v."""

    @abstractmethod
    def plus_diagonal(self, t: Tensor) -> Curvature:
        """H + diag(t)."""

    @abstractmethod
    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        """J v, the solution w of H_SS w_S + τ1 = v_S, 1ᵀw = 0, w = 0 off S."""

    def inverse(self, support: Tensor) -> Inverse:
        """v ↦ J v without derivatives, and the bound of :meth:`min_eigenvalue`. A structure that
        can be factorised is factorised once."""
        return Inverse(lambda v: self.jacobian(v, support), lambda: self.min_eigenvalue(support))

    @abstractmethod
    def averaged(self, average: Average) -> Curvature:
        """A matrix that acts as PHP on the range of the projection P = ``average`` and maps the
        orthogonal complement of that range to itself: H restricted to equal changes in a group."""

    def scaled(self, c: float | Tensor) -> Curvature:
        """c H, c > 0: a number, or a tensor that broadcasts to (*batch, 1)."""
        return MatrixFree(lambda v: c * self.matvec(v), self.dtype)

    def plus(self, other: Curvature) -> Curvature:
        """The sum of two matrices, in the simplest structure that can represent it."""
        for one, rest in ((self, other), (other, self)):
            if isinstance(one, Diagonal):
                return rest.plus_diagonal(one.h)
        entries = _entries(self), _entries(other)
        if entries[0] is not None and entries[1] is not None:
            return Dense(entries[0] + entries[1])
        return MatrixFree(lambda v: self.matvec(v) + other.matvec(v), self.dtype)

    @abstractmethod
    def min_eigenvalue(self, support: Tensor) -> Tensor:
        """A lower bound on the smallest eigenvalue along {w : 1ᵀw = 0, w = 0 off S}, one per row.

        Exact for dense (0 if rounding hides the sign), an estimate for matrix-free, a lower bound
        for the others; +inf where S has one element and so no such direction.
        """


def _single(support: Tensor) -> Tensor:
    return support.sum(-1) <= 1


def _one(t: Tensor) -> Tensor:
    """1 in value, with the derivative of t."""
    return (t - t.detach()).exp()


class Diagonal(Curvature):
    """H = diag(h)."""

    def __init__(self, h: Tensor) -> None:
        self.h, self.dtype = h, h.dtype

    def matvec(self, v: Tensor) -> Tensor:
        return self.h * v

    def plus_diagonal(self, t: Tensor) -> Curvature:
        return Diagonal(self.h + t)

    def scaled(self, c: float | Tensor) -> Curvature:
        return Diagonal(c * self.h)

    def averaged(self, average: Average) -> Curvature:
        return Diagonal(average(self.h))

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        # s_i = 1/h_i on S;  J v = s ∘ (v − ⟨s, v⟩ / Σs)   (2019, Prop. 2, separable case)
        # relative to the least h of S, at p, with w = s h_p and u = v − v_p, without cancellation
        # even for h_i of very different size:  J v = (w / h_p) ∘ (u − ⟨w, u⟩ / Σw)
        info = torch.finfo(self.h.dtype)
        h = torch.where(support, self.h, 1).clamp(info.tiny, info.max)
        p = torch.where(support, h.detach(), torch.inf).argmin(-1, keepdim=True)
        least = h.gather(-1, p)
        w, scale = least / h, 1 / least
        if torch.is_grad_enabled() or transforms.under_transform((h, v)):
            # derivatives through logarithms: the 1/h² of a quotient over- and underflows
            log_h = h.log()
            log_least = log_h.gather(-1, p)
            w = w.detach() * _one(log_least - log_h)
            scale = scale.detach() * _one(-log_least)
        w = torch.where(support, w, 0)
        u = torch.where(support, v - v.gather(-1, p), 0)
        total = w.sum(-1, keepdim=True)
        step = w * (scale * (u - row_dot(w, u) / torch.where(total > 0, total, 1)))
        return torch.where(support, step, 0)

    def min_eigenvalue(self, support: Tensor) -> Tensor:
        low = torch.where(support, self.h, torch.inf).amin(-1)
        return torch.where(_single(support), torch.inf, low)


class DiagonalPlusRankOne(Curvature):
    """H = diag(h) + c u uᵀ, c ≥ 0: a number, or a tensor that broadcasts to (*batch, 1)."""

    def __init__(self, h: Tensor, u: Tensor, c: float | Tensor = 1.0) -> None:
        self.h, self.u, self.c, self.dtype = h, u, c, h.dtype

    def matvec(self, v: Tensor) -> Tensor:
        return self.h * v + self.c * self.u * row_dot(self.u, v)

    def plus_diagonal(self, t: Tensor) -> Curvature:
        return DiagonalPlusRankOne(self.h + t, self.u, self.c)

    def scaled(self, c: float | Tensor) -> Curvature:
        return DiagonalPlusRankOne(c * self.h, self.u, c * self.c)

    def averaged(self, average: Average) -> Curvature:
        return DiagonalPlusRankOne(average(self.h), average(self.u), self.c)

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        # With D = J of diag(h) alone: J = D − c D u uᵀD / (1 + c uᵀD u)   (Sherman–Morrison)
        first = Diagonal(self.h)
        dv, du = first.jacobian(v, support), first.jacobian(self.u, support)
        u = torch.where(support, self.u, 0)
        return dv - du * (self.c * row_dot(u, dv) / (1 + self.c * row_dot(u, du)))

    def min_eigenvalue(self, support: Tensor) -> Tensor:
        return Diagonal(self.h).min_eigenvalue(support)


class Dense(Curvature):
    """H given entry by entry: ``matrix`` (*batch, d, d), or (d, d) for all rows."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.dtype = matrix, matrix.dtype

    def matvec(self, v: Tensor) -> Tensor:
        return rowwise.matvec(self.matrix, v)

    def plus_diagonal(self, t: Tensor) -> Curvature:
        t = t.expand(torch.broadcast_shapes(self.matrix.shape[:-1], t.shape))
        return Dense(self.matrix + t.diag_embed())

    def scaled(self, c: float | Tensor) -> Curvature:
        return Dense((c.unsqueeze(-1) if isinstance(c, Tensor) and c.ndim else c) * self.matrix)

    def block(self, rows: Tensor, index: Tensor) -> Tensor:
        """The entries ``index`` (n, m) of the matrices of ``rows`` (n,): (n, m, m)."""
        d = self.matrix.shape[-1]
        along, across = index.unsqueeze(-1), index.unsqueeze(-2)
        if self.matrix.ndim == 2:
            return self.matrix[along, across]
        return self.matrix.reshape(-1, d, d)[rows[:, None, None], along, across]

    def inverse(self, support: Tensor) -> Inverse:
        return Reduced(self.block, support)

    def averaged(self, average: Average) -> Curvature:
        # PHP + I − P
        p = average.matrix(self.dtype)
        eye = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
        return Dense(rowwise.matmul(rowwise.matmul(p, self.matrix), p) + eye - p)

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        # [[H_SS, 1], [1ᵀ, 0]] (w, τ) = (v_S, 0), with the identity off S
        on = support.to(v.dtype)
        h = self._on(support) + torch.diag_embed(1 - on)
        top = torch.cat([h, on.unsqueeze(-1)], -1)
        zero = torch.zeros_like(on[..., :1])
        corner = (on.sum(-1, keepdim=True) == 0).to(v.dtype)  # an empty S: w = 0
        bottom = torch.cat([on, corner], -1).unsqueeze(-2)
        w = _solve(torch.cat([top, bottom], -2), torch.cat([torch.where(support, v, 0), zero], -1))
        return torch.where(support, w[..., :-1], 0)

    def min_eigenvalue(self, support: Tensor) -> Tensor:
        h = torch.nan_to_num(self._on(support))
        eps = torch.finfo(h.dtype).eps
        low = least_eigenvalue(h, support.to(h.dtype), support)
        # its sign from D^(−½) H D^(−½), D the diagonal of H: the same sign by Sylvester's law of
        # inertia, and correct where rounding of entries of very different size hides that of H
        diagonal = h.diagonal(dim1=-2, dim2=-1)
        scale = torch.where(diagonal > 0, torch.where(diagonal > 0, diagonal, 1).rsqrt(), 1)
        scaled = h * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        sign = least_eigenvalue(scaled, torch.where(support, scale, 0), support)
        noise = 8 * eps * h.abs().sum(-1).amax(-1)
        low = torch.where(sign > 8 * eps * h.shape[-1], torch.maximum(low, noise), low)
        low = torch.where(sign.abs() <= 8 * eps * h.shape[-1], 0, low)
        return torch.where(_single(support), torch.inf, low)

    def _on(self, support: Tensor) -> Tensor:
        """H_SS, with zeros elsewhere (where H may be infinite)."""
        return torch.where(support.unsqueeze(-1) & support.unsqueeze(-2), self.matrix, 0)


def _entries(a: Curvature) -> Tensor | None:
    if isinstance(a, DiagonalPlusRankOne) and a.h.shape[-1] <= DENSE_LIMIT:
        return (a.c * a.u).unsqueeze(-1) * a.u.unsqueeze(-2) + torch.diag_embed(a.h)
    return a.matrix if isinstance(a, Dense) else None


def _solve(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹ b. Under transforms torch.linalg.inv is used: torch.linalg.solve is silently wrong in
    forward mode, nested (pytorch#196695) or under vmap (measured with torch 2.13)."""
    size = rowwise.whole(a.shape[-1])
    pads = torch.arange(size, device=a.device) >= a.shape[-1]
    a = rowwise.square(a, size) + torch.diag(pads.to(a.dtype))
    found: Tensor
    if transforms.under_transform((a, b)):
        found = rowwise.times(torch.linalg.inv(a), rowwise.resized(b, size))
    else:
        columns = rowwise.resized(b, size).unsqueeze(-1)
        found, failed = torch.linalg.solve_ex(a, columns)
        if decisions.rare("singular matrix", failed != 0):
            found = torch.linalg.solve(a, columns)  # the message of torch
        found = found.squeeze(-1)
    return found[..., : b.shape[-1]]


class MatrixFree(Curvature):
    """H given by its product with a vector; systems are solved by conjugate gradients.

    ``product`` maps v to H v, both of shape (*batch, d) and of ``dtype``. Derivatives of
    ``jacobian`` are exact up to the second order (those of Π_Ω up to the third): two refinement
    steps, of value zero, carry them.

    ``like``: a tensor (*batch, d), if ``product`` also takes a stack of vectors (n, *batch, d). A
    block of m entries of H then costs m products: where a support has at most ``DENSE_LIMIT``
    entries, its block is factorised instead, and ``jacobian`` has no derivatives.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        like: Tensor | None = None,
    ) -> None:
        self.product, self.dtype, self.like = product, dtype, like
        self._scale: Tensor | None = None

    def matvec(self, v: Tensor) -> Tensor:
        return self.product(v)

    def plus_diagonal(self, t: Tensor) -> Curvature:
        return MatrixFree(lambda v: self.product(v) + t * v, self.dtype, self.like)

    def averaged(self, average: Average) -> Curvature:
        if self.like is not None and self.like.shape[-1] <= DENSE_LIMIT:
            return self.dense(self.like).averaged(average)
        return MatrixFree(lambda v: average(self.product(average(v))) + v - average(v), self.dtype)

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        if transforms.under_transform((v,)) or transforms.dual_level():
            if v.shape[-1] > DENSE_LIMIT:
                raise NotImplementedError(
                    "transforms of torch.func, forward mode and compile need Ω to declare its "
                    "curvature (not by products alone), or separable=True, above "
                    f"d = {DENSE_LIMIT}; got d = {v.shape[-1]}"
                )
            return self.dense(v).jacobian(v, support)
        if self.like is not None:
            return self.inverse(support)(v)
        w = self._solution(v, support)
        if not torch.is_grad_enabled():
            return w
        for _ in range(2):  # w = w + J (v − H w): zero in value, exact in derivative
            residual = v - self.product(w)
            w = w + self._change(residual - residual.detach(), support)
        return w

    def inverse(self, support: Tensor) -> Inverse:
        if self.like is None:
            return super().inverse(support)
        if support.shape[-1] <= DENSE_LIMIT:
            return Reduced(self.block, support)
        large = support.sum(-1, keepdim=True) > DENSE_LIMIT
        if not decisions.usual("large support", large):
            return Reduced(self.block, support)
        free = MatrixFree(self.product, self.dtype).inverse(support & large)
        return Inverse.by_row(large, free, Reduced(self.block, support & ~large))

    def min_eigenvalue(self, support: Tensor) -> Tensor:
        if self.like is not None:
            return self.inverse(support).min_eigenvalue
        with torch.no_grad():
            scale = self._scaling(support)
            low = conjugate_gradients.least_eigenvalue(self.product, support, scale)
            return torch.where(_single(support), torch.inf, low)

    def dense(self, at: Tensor) -> Dense:
        """All entries, by products with unit vectors like ``at`` (*batch, d)."""
        d = at.shape[-1]
        eye = torch.eye(d, dtype=at.dtype, device=at.device)
        if self.like is None:
            return Dense(torch.stack([self.product(unit.expand_as(at)) for unit in eye], -1))
        units = eye.view(d, *(1,) * (at.ndim - 1), d).expand(d, *at.shape)
        return Dense(self.product(units).movedim(0, -1))

    def block(self, rows: Tensor, index: Tensor) -> Tensor:
        """The entries ``index`` (n, m) of the matrices of ``rows`` (n,): (n, m, m)."""
        like = self.like
        assert like is not None
        if not len(rows):
            return like.new_zeros(0, index.shape[-1], index.shape[-1])
        d = like.shape[-1]
        places = torch.zeros(
            like.numel() // d, index.shape[-1], dtype=index.dtype, device=index.device
        ).index_copy(0, rows, index)
        columns = []
        for some in places.T.split(max(1, CHUNK // max(like.numel(), 1))):
            shape = (len(some), len(places), d)
            units = torch.zeros(shape, dtype=like.dtype, device=index.device)
            units = units.scatter_(-1, some.unsqueeze(-1), 1)
            found = self.product(units.view(len(some), *like.shape))
            found = found.reshape(len(some), -1, d)[:, rows]
            columns.append(found.gather(-1, index.expand(len(some), *index.shape)))
        h = torch.cat(columns).movedim(0, -1)
        h = (h + h.mT) / 2
        return h

    def _scaling(self, support: Tensor) -> Tensor:
        if self._scale is None:
            with torch.no_grad():
                like = torch.zeros(support.shape, dtype=self.dtype, device=support.device)
                self._scale = conjugate_gradients.scaling(self.product, like)
        return self._scale

    def _solution(self, v: Tensor, support: Tensor) -> Tensor:
        """J v, without derivatives."""
        with torch.no_grad():
            scale = self._scaling(support)
            return conjugate_gradients.solve(self.product, v, support, scale)[0]

    def _change(self, v: Tensor, support: Tensor) -> Tensor:
        """J v for a fixed J, with derivatives in v: J is symmetric, so that its vector–Jacobian
        product is v ↦ J v again."""
        w = self._solution(v, support)
        if torch.is_grad_enabled() and v.requires_grad:
            change = v - v.detach()
            change.register_hook(lambda g: None if g is None else self._change(g, support))
            w = w + change
        return w
