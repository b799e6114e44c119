"""Π_Ω on a domain other than the simplex: by a threshold, after a prox, or by a solver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...domains import Bounded, Domain, Simplex
from ...domains.sets import region_of
from ...kernels import Kernel, transforms, wrappers
from ...optimality.jacobian import averaging, hyperparameter_product
from ...regularizers import threshold
from ...regularizers.curvature import Curvature
from ...regularizers.identity import unscaled
from ...regularizers.penalty import Penalized, penalty_of, proxed, smooth_part, who
from ...regularizers.regularizer import Regularizer
from ..rows import Rows, flat, numbered
from .base import Method, Missed, reduced
from .closed_form import Computed
from .kernel import kernel_of, numbers_of
from .solver import Forward, Settings, on_domain


class Between(Method):
    """By the kernel of an Ω between bounds, for scores as the user gives them. ``limits``: l, u and
    k for their rows, without gradients."""

    __slots__ = ("_bounds", "_limits")

    def __init__(self, method: Method, limits: tuple[Any, Any, Any], rows: Tensor) -> None:
        kernel, self._bounds = between(method.kernel, limits, rows)
        super().__init__(kernel, method.omega, method.numbers)
        self._limits = limits

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        gamma, *theta = [numbered(t, x) for t in self.filled(tensors)]
        on = None if mask is None else flat(wrappers.allocated(mask)).contiguous()
        y = self.kernel.solve(flat(x), gamma, tuple(theta), self._bounds, on)
        if y is None:
            raise Missed
        return y.view(x.shape), None

    def backward(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        gamma, *theta = [numbered(t, y) for t in self.filled(tensors)]
        v, low_high = flat(wrappers.allocated(v)), self._bounds[:2]
        given = gamma, tuple(theta), low_high, True in wants
        gx, found = self.kernel.product(flat(y), v, *given)
        each = zip(found or (), self.numbers[1:], strict=False)
        return gx.view(y.shape), [t.view(*y.shape[:-1], 1) for t, own in each if own is None]

    def differentiable(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        gamma, *theta = self.filled(tensors)
        omega = self.omega.with_tensors(dict(zip(self.names, theta, strict=True)))
        first = int(self.numbers[0] is None)
        names = [k for k, t in zip(self.names, self.numbers[1:], strict=True) if t is None]
        y = torch.where(torch.isnan(y.detach()), 0, y)
        bounds = region_of(self._limits, y.detach(), y.detach() > 0, False)
        with transforms.full_precision(y.device.type):
            w, _ = _product(omega, bounds, y, part, v)
            given = omega, names, tensors[first:], wants[first:], y, w, part
            products = [None] * first + hyperparameter_product(*given)
        return w / gamma, [
            None if t is None else reduced(t, item)
            for t, item in zip(products, tensors, strict=True)
        ]


def bounded(kernel: Kernel, domain: Domain) -> bool:
    """Whether :class:`Between` computes an Ω with this kernel on the domain: outside of transforms,
    with l, u and k that take no gradients."""
    if not isinstance(domain, Simplex) or kernel.between(False) is None:
        return False
    given = tuple(domain.tensors().values())
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    return not (learns or transforms.under_transform(given) or transforms.dual_level())


def between(kernel: Any, limits: tuple[Any, Any, Any], rows: Tensor) -> tuple[Any, Any]:
    """The kernel of an Ω between bounds, None if there is none, and the bounds as it takes them."""
    low, high, total = limits
    high = math.inf if high is None else high
    each = not (_of_row(low) and _of_row(high))
    found = kernel.between(each)
    if found is None:
        return None, ()
    return found, (_laid_out(low, rows, each), _laid_out(high, rows, each), numbered(total, rows))


def _of_row(item: Any) -> bool:
    """Whether all entries of a row have the same bound."""
    return not isinstance(item, Tensor) or item.shape[-1] == 1 or item.stride(-1) == 0


def _laid_out(item: Any, rows: Tensor, each: bool) -> Tensor:
    if not each:
        return numbered(item[..., :1] if isinstance(item, Tensor) else item, rows)
    if not isinstance(item, Tensor):
        return rows.new_full((1, rows.shape[-1]), item, dtype=torch.float64)
    return flat(item.detach().double())


@torch.no_grad()
def computed(rows: Rows, settings: Settings) -> Forward:
    """Π_Ω(x) on the domain of the rows, without gradients; their γ is 1."""
    bounds = rows.bounds
    assert bounds is not None
    omega, c = unscaled(rows.omega, 1.0)
    z, path, why = rows.x / c, "", ""
    if isinstance(omega, Penalized):
        _check_penalty(omega, bounds, rows.mask)
        z = proxed(omega.penalty, z.double(), omega.lam, rows.mask).to(z.dtype)
        path = "prox, then "
        why = "the domain and the base are permutation-invariant; "
        omega, c = unscaled(omega.base, 1.0)
        z = z / c
    if not omega.declares("inverse") or settings.solver != "auto":
        found = on_domain(omega, z, rows.mask, bounds.detached(), settings)
        return replace(found, path=f"{path}{found.path}", why=f"{why}{found.why}")
    bounds = bounds.detached()
    y = _by_kernel(omega, z, rows.mask, bounds)
    where = "in PyTorch" if y is None else "by its numba kernel"
    if y is None:
        y = bounds.answer(threshold.Separable(threshold.wide(omega, z)), z)
    return Forward(y, f"{path}closed form", f"{why}clip(p(z − τ)) of {who(omega)}, {where}")


def _by_kernel(
    omega: Regularizer, z: Tensor, mask: Tensor | None, bounds: Bounded
) -> Tensor | None:
    """Π_Ω(z) between the bounds, None if there is no kernel for it."""
    kernel = kernel_of(omega, z) if bounds.fixed_total else None
    if kernel is None:
        return None
    found, limits = between(kernel, (bounds.low, bounds.high, bounds.total), z)
    if found is None:
        return None
    gamma, *theta = [numbered(t, z) for t in numbers_of(omega, 1.0)]
    on = None if mask is None else flat(mask).contiguous()
    y = found.solve(flat(z), gamma, tuple(theta), limits, on)
    return None if y is None else y.view(z.shape)


def _check_penalty(omega: Penalized, bounds: Bounded, mask: Tensor | None) -> None:
    """Refuse a penalty whose prox does not come first on this domain."""
    if not omega.composes:
        raise NotImplementedError(
            f"domain= needs a penalty that is a Lovász extension, and a permutation-invariant base;"
            f" got {who(omega)}"
        )
    if not (bounds.fixed_total and bounds.uniform(mask)):
        raise NotImplementedError(
            f"{who(omega)}: domain= must fix the sum and have the same bounds for all entries of a "
            "row where Ω has a penalty"
        )


def _product(
    omega: Regularizer, bounds: Bounded, y: Tensor, part: Tensor | None, v: Tensor
) -> tuple[Tensor, Curvature]:
    """J v without the averages of a penalty, and the curvature of Ω without it."""
    smooth = smooth_part(omega, part)
    curvature = smooth.curvature(smooth.lifted(y))
    w = bounds.jacobian(curvature, v, bounds.movable(y.detach()))
    if torch.is_grad_enabled() and y.requires_grad and not w.requires_grad:
        w = w + 0 * y
    return w, curvature


class OnDomain(Computed):
    """What :func:`computed` does. The bounds are hyperparameters after those of Ω."""

    __slots__ = ("_bounds",)

    def __init__(self, rows: Rows, settings: Settings, result: Forward | None = None) -> None:
        known = None if result is None else replace(result, solved=None)
        super().__init__(rows, settings, known)
        self._result = result
        assert rows.bounds is not None
        self._bounds = rows.bounds.detached()
        self.numbers = (*self.numbers, *(None for _ in self._bounds.tensors))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._names, *self._bounds.names)

    @property
    def per_row(self) -> frozenset[str]:
        return self._per_row | frozenset(self._bounds.names)

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        if self._result is not None:
            return super().forward(x, mask, tensors)
        values = dict(zip(self.names, tensors, strict=True))
        inside = {name: values[name] for name in self._names}
        bounds = Bounded.named(values, x)
        given = self.omega.with_tensors(inside), x[..., :1], None, None, x.ndim - 1, x.dtype, bounds
        return computed(Rows(x, 1.0, mask, *given), self._settings).y, mask

    def backward(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        """w = J v, the products with Ω's tensors, and with the bounds from q = v − H w."""
        n = len(self._names)
        omega: Regularizer = self.omega.with_tensors(dict(zip(self._names, tensors, strict=False)))
        bounds = self._bounds
        with transforms.full_precision(y.device.type):
            w, curvature = _product(omega, bounds, y, part, v)
            each: list[Tensor | None] = [None for _ in bounds.tensors]
            if True in wants[n:]:
                each = [*bounds.products(v - curvature.matvec(w), y.detach()).values()]
            average = averaging(penalty_of(omega), y, part)
            w = w if average is None else average(w)
            given = omega, self._names, tensors[:n], wants[:n], y, w, part
            return w, [*hyperparameter_product(*given), *each]

    differentiable = backward
