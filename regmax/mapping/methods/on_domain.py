"""Π_Ω on a domain other than the simplex: by a threshold, after a prox, or by a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...domains import Bounded, Plans
from ...domains.root import Entries
from ...domains.transport import OfRows
from ...kernels import transforms
from ...optimality.jacobian import averaging, hyperparameter_product
from ...regularizers import threshold
from ...regularizers.arguments import few
from ...regularizers.errors import ConvergenceError, ConvergenceWarning, warn
from ...regularizers.identity import unscaled
from ...regularizers.penalty import Penalized, penalty_of, proxed, smooth_part, who
from ...regularizers.regularizer import Regularizer
from ..rows import Rows
from .base import method
from .closed_form import Computed
from .kernel import kernel_of, numbers_of
from .solver import Forward, Settings, on_domain

SUMS = 1e-8
"""The error of a sum of a plan from which on it is reported."""


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


class _OfPlans(_Separable):
    """The entries of plans (B, n, m), whose rows are those of Ω on the simplex: by its kernel if
    they add up to 1. ``each``: the tensors that belong to rows, (B, ·, 1)."""

    def __init__(self, omega: Regularizer, each: dict[str, Tensor], unit: bool) -> None:
        super().__init__(omega.with_tensors(each))
        self._each, self._unit = each, unit
        self._base, self._c = unscaled(self._omega, 1.0)

    @classmethod
    def of(cls, omega: OfRows, z: Tensor, bounds: Plans) -> _OfPlans:
        base, batch = threshold.wide(omega.base, z), z.shape[:-1]
        each = {
            name: t.expand(*batch, *t.shape[-2:]).reshape(batch.numel(), -1, 1)
            for name, t in base.per_row_tensors().items()
            if t.ndim > 1
        }
        return cls(base, each, bounds.in_simplex)

    def take(self, at: Tensor) -> _OfPlans:
        each = {name: t[at] for name, t in self._each.items()}
        return _OfPlans(self._omega, each, self._unit)

    def rows(self, z: Tensor, total: Tensor) -> Tensor:
        kernel = kernel_of(self._base, z) if self._unit else None
        if kernel is not None and z.dtype in kernel.dtypes:
            found, tensors = method(kernel, self._base, numbers_of(self._base, self._c))
            return found.forward(z, None, tensors)[0]
        z = (z - z.amax(-1, keepdim=True)) / self._c
        return threshold.entries(self._base, z, total)


@torch.no_grad()
def computed(rows: Rows, settings: Settings) -> Forward:
    """Π_Ω(x) on the domain of the rows, without gradients; their γ is 1."""
    bounds = rows.bounds
    assert bounds is not None
    if isinstance(bounds, Plans):
        return _plans(rows, bounds.detached(), settings)
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


def _plans(rows: Rows, bounds: Plans, settings: Settings) -> Forward:
    """Π_Ω(x) of plans; what does not have the sums is reported."""
    omega, z = rows.omega, rows.x
    assert isinstance(omega, OfRows)
    if settings.solver != "auto":
        raise ValueError(f'domain=Transport() has solver="auto" alone; got {settings.solver!r}')
    if not z.numel():
        return Forward(z.clone(), "empty batch", "nothing to solve")
    e = _OfPlans.of(omega, z, bounds)
    plan = bounds.solved(e, z)
    y = bounds.balanced(plan.y.reshape(z.shape))
    missed = bounds.excess(y) > SUMS * bounds.high.amax(-1)
    if bool(missed.any()):
        reason = bounds.short(plan)
        if reason is not None:
            raise ValueError(f"domain: the mask leaves no plan: {reason}")
        if settings.on_failure != "ignore":
            message = (
                f"Newton's method: {int(missed.sum())} of {missed.numel()} plans do not have the "
                f"sums of their rows and columns (plans {few(missed)}; largest error "
                f"{bounds.excess(y).max().item():.2g}). Scale the scores down, or raise gamma"
            )
            if settings.on_failure == "raise":
                raise ConvergenceError(message)
            warn(message, ConvergenceWarning)
    why = f"potentials of the columns; each row is that of {who(omega)} on the simplex"
    return Forward(y, "Newton's method", why, iterations=plan.steps.reshape(z.shape[:-1]))


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

    def __init__(self, rows: Rows, settings: Settings, result: Forward) -> None:
        super().__init__(rows, settings, replace(result, solved=None))
        self._result = result
        assert rows.bounds is not None
        self._bounds = rows.bounds.detached()
        self.numbers = (*self.numbers, *(None for _ in self._bounds.tensors))

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
