"""Π_Ω on a domain other than the simplex: by a threshold, after a prox, or by a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...domains import Bounded
from ...domains.root import Entries
from ...kernels import transforms
from ...optimality.jacobian import averaging, hyperparameter_product
from ...regularizers import threshold
from ...regularizers.identity import unscaled
from ...regularizers.penalty import Penalized, penalty_of, proxed, smooth_part, who
from ...regularizers.regularizer import Regularizer
from ..rows import Rows
from .closed_form import Computed
from .solver import Forward, Settings, on_domain


class _Separable(Entries):
    """One entry of a separable Ω with ``inverse``."""

    def __init__(self, omega: Regularizer) -> None:
        self._omega, self.steep = omega, omega.steep

    def slope(self, y: Tensor) -> Tensor:
        return self._omega.grad(y)

    def inverse(self, u: Tensor) -> Tensor:
        return self._omega.inverse(u)

    def second(self, y: Tensor) -> Tensor:
        return self._omega.curvature(y).matvec(torch.ones_like(y))


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
    y = bounds.detached().answer(_Separable(threshold.wide(omega, z)), z)
    return Forward(y, f"{path}closed form", f"{why}clip(p(z − τ)) of {who(omega)}, in PyTorch")


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
        smooth, bounds = smooth_part(omega, part), self._bounds
        with transforms.full_precision(y.device.type):
            curvature = smooth.curvature(smooth.lifted(y))
            w = bounds.jacobian(curvature, v, bounds.movable(y.detach()))
            if torch.is_grad_enabled() and y.requires_grad and not w.requires_grad:
                w = w + 0 * y
            each: list[Tensor | None] = [None for _ in bounds.tensors]
            if True in wants[n:]:
                each = [*bounds.products(v - curvature.matvec(w), y.detach()).values()]
            average = averaging(penalty_of(omega), y, part)
            w = w if average is None else average(w)
            given = omega, self._names, tensors[:n], wants[:n], y, w, part
            return w, [*hyperparameter_product(*given), *each]

    differentiable = backward
