"""∇²Ω by autograd at the many points of one problem. The structure of ∇²Ω is found once.

If ∂²Ω/∂y_i∂y_j, i ≠ j, is 0 or does not depend on y (a quadratic form plus separable terms), one
Hessian–vector product gives the diagonal. Otherwise m products give the block of m entries that a
Newton step needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import decisions, rowwise, simplex, transforms
from ..kernels.products import matmul
from . import curvature as curvatures
from .cholesky import Reduced
from .curvature import Average, Curvature, Dense, Diagonal, Inverse, MatrixFree
from .errors import RegularizerError

CHUNK = 2**22
"""Entries of the vectors that one batched Hessian–vector product takes."""

Product = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor], Tensor]


class Local(NamedTuple):
    """∇Ω and ∇²Ω at a point."""

    gradient: Tensor
    curvature: Curvature


class Shared(Dense):
    """H = O + diag(h): ``off`` (d, d), with zeros on its diagonal, is the same for all rows."""

    def __init__(self, off: Tensor, h: Tensor) -> None:
        self.off, self.h = off, h

    @property
    def matrix(self) -> Tensor:  # type: ignore[override]
        return self.off + torch.diag_embed(self.h)

    def matvec(self, v: Tensor) -> Tensor:
        return matmul(v, self.off) + self.h * v  # off is symmetric

    def plus_diagonal(self, t: Tensor) -> Curvature:
        return Shared(self.off, self.h + t)

    def block(self, rows: Tensor, index: Tensor) -> Tensor:
        h = self.off[index.unsqueeze(-1), index.unsqueeze(-2)]
        diagonals = self.h.reshape(-1, self.h.shape[-1])[rows]
        h.diagonal(dim1=-2, dim2=-1).add_(diagonals.gather(-1, index))
        return h


class Columns(MatrixFree):
    """H by its product, which takes one vector per row or a stack of them. A block of m entries
    costs m products. Supports of at most ``DENSE_LIMIT`` entries are factorised."""

    def __init__(self, product: Product, like: Tensor, extra: Tensor | None = None) -> None:
        super().__init__(product if extra is None else _plus_diagonal(product, extra), like.dtype)
        self.like, self._pure, self._extra = like, product, extra

    def dense(self) -> Dense:
        """All entries."""
        d, like = self.like.shape[-1], self.like
        eye = torch.eye(d, dtype=like.dtype, device=like.device)
        units = eye.view(d, *(1,) * (like.ndim - 1), d).expand(d, *like.shape)
        return Dense(self.matvec(units).movedim(0, -1))

    def plus_diagonal(self, t: Tensor) -> Curvature:
        t = t.expand(self.like.shape)
        return Columns(self._pure, self.like, t if self._extra is None else self._extra + t)

    def averaged(self, average: Average) -> Curvature:
        small = self.like.shape[-1] <= curvatures.DENSE_LIMIT
        return self.dense().averaged(average) if small else super().averaged(average)

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        return self.inverse(support)(v)

    def min_eigenvalue(self, support: Tensor) -> Tensor:
        return self.inverse(support).min_eigenvalue

    def inverse(self, support: Tensor) -> Inverse:
        if support.shape[-1] <= curvatures.DENSE_LIMIT:
            return Reduced(self.block, support)
        large = support.sum(-1, keepdim=True) > curvatures.DENSE_LIMIT
        if not decisions.usual("large support", large):
            return Reduced(self.block, support)
        free = MatrixFree(self.product, self.dtype).inverse(support & large)
        return ByRow(large, free, Reduced(self.block, support & ~large))

    def block(self, rows: Tensor, index: Tensor) -> Tensor:
        if not len(rows):
            return self.like.new_zeros(0, index.shape[-1], index.shape[-1])
        d = self.like.shape[-1]
        places = torch.zeros(
            self.like.numel() // d, index.shape[-1], dtype=index.dtype, device=index.device
        ).index_copy(0, rows, index)
        columns = []
        for some in places.T.split(max(1, CHUNK // max(self.like.numel(), 1))):
            shape = (len(some), len(places), d)
            units = torch.zeros(shape, dtype=self.like.dtype, device=index.device)
            units = units.scatter_(-1, some.unsqueeze(-1), 1)
            found = self.product(units.view(len(some), *self.like.shape))
            found = found.reshape(len(some), -1, d)[:, rows]
            columns.append(found.gather(-1, index.expand(len(some), *index.shape)))
        h = torch.cat(columns).movedim(0, -1)
        h = (h + h.mT) / 2
        return h


def _plus_diagonal(product: Product, t: Tensor) -> Product:
    return lambda v: product(v) + t * v


class ByRow:
    """J by ``one`` in the rows ``where``, and by ``other`` elsewhere."""

    def __init__(self, where: Tensor, one: Inverse, other: Inverse) -> None:
        self._where, self._one, self._other = where, one, other

    @property
    def min_eigenvalue(self) -> Tensor:
        return torch.where(
            self._where.squeeze(-1), self._one.min_eigenvalue, self._other.min_eigenvalue
        )

    def __call__(self, v: Tensor) -> Tensor:
        return torch.where(self._where, self._one(v), self._other(v))


def _product(g: Tensor, z: Tensor, v: Tensor) -> Tensor:
    with torch.enable_grad():  # of a sum: autograd.grad imports sympy for v, which takes .5 s
        total = (g * v).sum()
    (hv,) = torch.autograd.grad(total, z, retain_graph=True, allow_unused=True)
    return torch.zeros_like(z) if hv is None else hv


def products(g: Tensor, z: Tensor, v: Tensor) -> Tensor:
    """The derivative of g at z times each vector of the stack v."""
    try:  # fails if an operation of Ω cannot be vectorised
        (hv,) = torch.autograd.grad(
            g, z, v, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:
        return torch.stack([_product(g, z, each) for each in v])
    return torch.zeros_like(v) if hv is None else hv


class Hessian:
    """∇²Ω at points of the shape of ``like``, from ``gradient`` alone, without derivatives;
    ``name`` distinguishes it among those of one solve."""

    def __init__(
        self, gradient: Gradient, like: Tensor, separable: bool | None, name: str = ""
    ) -> None:
        self.gradient, self._separable, self._like, self._name = gradient, separable, like, name
        self.off: Tensor | None = None
        self.diagonal = self._find_structure()

    def look(self, y: Tensor) -> Local:
        """∇Ω(y) and ∇²Ω(y). The structure that was found before is tested at y."""
        g, product = self._product(y)
        if self.diagonal or self.off is not None:
            h = product(torch.ones_like(y))
            if self.off is not None:
                h = h - self.off.sum(-1)
            if not decisions.rare("structure", self._unlike(product, h, y)):
                local = Diagonal(h) if self.off is None else Shared(self.off, h)
                return Local(g.detach(), local)
        return Local(g.detach(), Columns(product, y))

    def diagonal_at(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """∇Ω(y) and ∇²Ω(y)1."""
        g, product = self._product(y)
        return g.detach(), product(torch.ones_like(y))

    def _product(self, y: Tensor) -> tuple[Tensor, Product]:
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            g = self.gradient(z)

        def product(v: Tensor) -> Tensor:
            if not g.requires_grad:
                return torch.zeros_like(v)
            return _product(g, z, v) if v.shape == y.shape else products(g, z, v)

        return g, product

    def _find_structure(self) -> bool:
        """Whether ∇²Ω is diagonal; sets ``off`` if the off-diagonal part does not depend on y."""
        if self._like.numel() == 0:
            return bool(self._separable)
        y, d = simplex.generic(self._like), self._like.shape[-1]
        if self._separable is not False:
            # also at the barycentre: Ω may have mixed derivatives only where entries are equal
            middle, (product, h) = torch.full_like(y, 1 / d), self._diagonal_of(y)
            noise = 64 * torch.finfo(y.dtype).eps * torch.nan_to_num(h).abs().amax()
            if not self._usual("coupled", self._unlike(product, h, y)) and not self._usual(
                "coupled where equal", self._unlike(*self._diagonal_of(middle), middle, noise)
            ):
                return True
            if self._separable:
                raise RegularizerError(
                    "separable = True is declared, and ∂²Ω/∂y_i∂y_j is not 0 for i ≠ j: "
                    "leave separable = None, and regmax finds the structure"
                )
        if d > curvatures.DENSE_LIMIT:
            return False
        try:  # for one row: this fails if Ω holds one number per row
            one = y.reshape(-1, d)[:1].reshape(*(1,) * (y.ndim - 1), d)
            _, single = self._product(one)
            eye = torch.eye(d, dtype=y.dtype, device=y.device)
            off = single(eye.view(d, *one.shape)).reshape(d, d)
        except (RuntimeError, ValueError, IndexError):
            return False
        off = (off + off.T) / 2
        off.fill_diagonal_(0)
        self.off = off
        for phase in (0.0, 7.3):
            point = simplex.generic(self._like, phase)
            _, product = self._product(point)
            h = product(torch.ones_like(point)) - off.sum(-1)
            if self._usual(f"general at {phase}", self._unlike(product, h, point)):
                self.off = None
                return False
        return False

    def _usual(self, what: str, flag: Tensor) -> bool:
        return decisions.usual((what, self._name), flag)

    def _diagonal_of(self, y: Tensor) -> tuple[Product, Tensor]:
        """∇²Ω(y) by its product, and ∇²Ω(y)1."""
        _, product = self._product(y)
        return product, product(torch.ones_like(y))

    def _unlike(
        self, product: Product, h: Tensor, y: Tensor, noise: float | Tensor = 0.0
    ) -> Tensor:
        """Entries in which H r ≠ O r + h ∘ r for one r, beyond ``noise``."""
        probe = _probe(y)
        got, expected = product(probe.expand_as(y)), h * probe
        size = expected.abs()
        if self.off is not None:
            rest = rowwise.matvec(self.off, probe)
            expected, size = expected + rest, size + rest.abs()
        eps = torch.finfo(y.dtype).eps
        same = (got - expected).abs() <= eps**0.6 * size + noise
        # next to y_i = 0 the curvature may be so large that rounding hides the structure
        unlike: Tensor = ~(same | (y <= eps))
        return unlike


def _probe(y: Tensor) -> Tensor:
    """A fixed vector: vmap does not allow random numbers."""
    steps = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return (steps * 12.9898).sin() + 2


def by_autograd(
    gradient: Callable[[Tensor], Tensor], y: Tensor, separable: bool | None
) -> Curvature:
    """∇²Ω(y) from ∇Ω alone: diagonal if Ω is separable, else dense or matrix-free.

    With ``separable`` None, H r = (H1) ∘ r is tested on one random r. The result is
    differentiable in y and in all tensors that ``gradient`` uses, when grad mode is enabled.
    """
    if transforms.under_transform((y,)):
        return _by_transform(gradient, y, separable)
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        z = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
        g = gradient(z)

    def product(v: Tensor) -> Tensor:
        if not g.requires_grad:
            return torch.zeros_like(z)
        (hv,) = torch.autograd.grad(
            g, z, v, create_graph=torch.is_grad_enabled(), retain_graph=True, allow_unused=True
        )
        return torch.zeros_like(z) if hv is None else hv

    with torch.set_grad_enabled(keep):
        diagonal = product(torch.ones_like(y))
        if separable is None:
            probe = _probe(y)
            got, expected = product(probe.expand_as(y)).detach(), diagonal.detach() * probe
            tol = torch.finfo(y.dtype).eps ** 0.6
            same = (got - expected).abs() <= tol * expected.abs()
            # next to y_i = 0 the curvature may be so large that rounding hides the structure
            unlike = ~(same | (y.detach() <= torch.finfo(y.dtype).eps))
            owner = type(getattr(gradient, "__self__", gradient)).__name__
            separable = not decisions.usual(("coupled by autograd", owner), unlike)
        if separable:
            return Diagonal(diagonal)
        if y.shape[-1] > curvatures.DENSE_LIMIT:
            return MatrixFree(product, y.dtype)
        eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
        return Dense(_columns(g, z, eye, product))


def _by_transform(
    gradient: Callable[[Tensor], Tensor], y: Tensor, separable: bool | None
) -> Curvature:
    """:func:`by_autograd` under a transform: the code may not depend on y's numbers."""
    pull = torch.func.vjp(gradient, y)[1]  # H is symmetric: vᵀH = H v
    if separable:
        return Diagonal(pull(torch.ones_like(y))[0])
    d = y.shape[-1]
    if d > curvatures.DENSE_LIMIT:
        raise NotImplementedError(
            f"transforms of torch.func, forward mode and compile need Ω to declare its curvature, "
            f"or separable=True, above d = {curvatures.DENSE_LIMIT}; got d = {d}"
        )
    eye = torch.eye(d, dtype=y.dtype, device=y.device)
    rows = [pull(v.expand_as(y))[0] for v in eye]
    return Dense(torch.stack(rows, -1))


def _columns(g: Tensor, z: Tensor, eye: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    """H by its columns: in one call if every operation of Ω can be vectorised."""
    vectors = eye.view(-1, *(1,) * (z.ndim - 1), z.shape[-1]).expand(-1, *z.shape)
    try:
        (columns,) = torch.autograd.grad(
            g,
            z,
            vectors,
            create_graph=torch.is_grad_enabled(),
            retain_graph=True,
            is_grads_batched=True,
        )
    except RuntimeError:
        columns = torch.stack([product(v) for v in vectors])
    return columns.movedim(0, -1)
