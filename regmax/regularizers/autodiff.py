"""∇²Ω by autograd at the many points of one problem. The structure of ∇²Ω is found once.

If ∂²Ω/∂y_i∂y_j, i ≠ j, is 0, one Hessian–vector product gives the diagonal. Otherwise m products
give the block of m entries that a Newton step needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import decisions, simplex, transforms
from . import curvature as curvatures
from .curvature import Curvature, Diagonal, MatrixFree
from .errors import RegularizerError

Product = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor], Tensor]


class Local(NamedTuple):
    """∇Ω and ∇²Ω at a point."""

    gradient: Tensor
    curvature: Curvature


def local_product(gradient: Gradient, y: Tensor) -> tuple[Tensor, Product]:
    """∇Ω(y), and v ↦ ∇²Ω(y) v for one vector per row or a stack of them. Where grad mode is on,
    the products are differentiable in y and in all tensors that ``gradient`` uses."""
    with torch.enable_grad():
        z = alias(y)
        g = gradient(z)
    return g, functools.partial(products, g, z)


def products(g: Tensor, z: Tensor, v: Tensor) -> Tensor:
    """The derivative of g at z times v, or times each vector of the stack v."""
    if not g.requires_grad:
        return torch.zeros_like(v)
    stack, root = v.ndim > z.ndim, g
    along: Tensor | None = v
    if not (stack or v.requires_grad):  # autograd.grad imports sympy for v, which takes .5 s
        with torch.enable_grad():
            root, along = (g * v).sum(), None
    try:
        (hv,) = torch.autograd.grad(
            root,
            z,
            along,
            create_graph=torch.is_grad_enabled(),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=stack,
        )
    except RuntimeError:  # an operation of Ω cannot be vectorised
        if not stack:
            raise
        return torch.stack([products(g, z, each) for each in v])
    return torch.zeros_like(v) if hv is None else hv


def nodes(root: Tensor) -> Iterator[Any]:
    """Each node of the graph that autograd recorded for ``root``."""
    seen, stack = {None}, [root.grad_fn]
    while stack:
        node: Any = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += [following for following, _ in node.next_functions]


def alias(t: Tensor) -> Tensor:
    """t as a variable of its own, of which derivatives are taken; where t requires grad they lead
    back to it."""
    return t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


class Hessian:
    """∇²Ω at points of the shape of ``like``, from ``gradient`` alone, without derivatives;
    ``name`` distinguishes it among those of one solve. Whether it is ``diagonal`` is found once."""

    def __init__(
        self, gradient: Gradient, like: Tensor, separable: bool | None, name: str = ""
    ) -> None:
        self.gradient, self._separable, self._like, self._name = gradient, separable, like, name
        self.diagonal = self._is_diagonal()

    def look(self, y: Tensor) -> Local:
        """∇Ω(y) and ∇²Ω(y). A structure that was found before is tested at y."""
        g, product = self._product(y)
        if self.diagonal:
            h = product(torch.ones_like(y))
            if not decisions.rare("structure", _unlike(product, h, y)):
                return Local(g, Diagonal(h))
        return Local(g, MatrixFree(product, y.dtype, y))

    def _product(self, y: Tensor) -> tuple[Tensor, Product]:
        g, product = local_product(self.gradient, y.detach())
        return g.detach(), torch.no_grad()(product)

    def _is_diagonal(self) -> bool:
        like = self._like
        if like.numel() == 0 or self._separable is False:
            return bool(self._separable)
        y, middle = simplex.generic(like), torch.full_like(like, 1 / like.shape[-1])
        product = self._product(y)[1]
        h = product(torch.ones_like(y))
        coupled = self._usual("coupled", _unlike(product, h, y))
        if not coupled:  # Ω may have mixed derivatives only where entries are equal
            noise = 64 * torch.finfo(y.dtype).eps * torch.nan_to_num(h).abs().amax()
            product = self._product(middle)[1]
            unlike = _unlike(product, product(torch.ones_like(y)), middle, noise)
            coupled = self._usual("coupled where equal", unlike)
        if coupled and self._separable:
            raise RegularizerError(
                "separable = True is declared, and ∂²Ω/∂y_i∂y_j is not 0 for i ≠ j: "
                "leave separable = None, and regmax finds the structure"
            )
        return not coupled

    def _usual(self, what: str, flag: Tensor) -> bool:
        return decisions.usual((what, self._name), flag)


def _unlike(product: Product, h: Tensor, y: Tensor, noise: float | Tensor = 0.0) -> Tensor:
    """Entries in which H r ≠ h ∘ r for one r, beyond ``noise``."""
    steps = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    probe = (steps * 12.9898).sin() + 2  # fixed: vmap does not allow random numbers
    got, expected = product(probe.expand_as(y)), h * probe
    eps = torch.finfo(y.dtype).eps
    same = (got - expected).abs() <= eps**0.6 * expected.abs() + noise
    # next to y_i = 0 the curvature may be so large that rounding hides the structure
    unlike: Tensor = ~(same | (y <= eps))
    return unlike


def by_autograd(gradient: Gradient, y: Tensor, separable: bool | None) -> Curvature:
    """∇²Ω(y) from ∇Ω alone: diagonal if Ω is separable, else dense or matrix-free.

    With ``separable`` None, H r = (H1) ∘ r is tested on one r, but under a transform, where the
    code may not depend on y's numbers. The result is differentiable in y and in all tensors that
    ``gradient`` uses, when grad mode is enabled.
    """
    if transforms.under_transform((y,)):
        pull = torch.func.vjp(gradient, y)[1]  # H is symmetric: vᵀH = H v
        free, separable = MatrixFree(lambda v: pull(v)[0], y.dtype), bool(separable)
    else:
        free = MatrixFree(local_product(gradient, y)[1], y.dtype, y)
    if separable is not False:
        h = free.product(torch.ones_like(y))
        if separable is None:
            owner = type(getattr(gradient, "__self__", gradient)).__name__
            with torch.no_grad():
                unlike = _unlike(free.product, h, y)
            separable = not decisions.usual(("coupled by autograd", owner), unlike)
        if separable:
            return Diagonal(h)
    if y.shape[-1] > curvatures.DENSE_LIMIT:
        return MatrixFree(free.product, y.dtype)
    return free.dense(y)
