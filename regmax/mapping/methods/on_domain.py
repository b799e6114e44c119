"""Π_Ω on a domain other than the simplex: by a threshold, after a prox, or by a solver."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...domains import Bounded, Domain, Plans, Projected, Simplex
from ...domains.semidual import Plan
from ...domains.sets import region_of
from ...domains.transport import OfRows
from ...kernels import Kernel, transforms, wrappers
from ...kernels.clipped import add, clip
from ...optimality.jacobian import averaging, hyperparameter_product
from ...regularizers import threshold
from ...regularizers.arguments import few
from ...regularizers.curvature import Curvature
from ...regularizers.errors import ConvergenceError, ConvergenceWarning, warn
from ...regularizers.identity import by_value, unscaled
from ...regularizers.penalty import Penalized, proxed, smooth_part, who
from ...regularizers.regularizer import Regularizer
from ..rows import Rows, flat, numbered
from . import from_value
from .base import Method, Missed, Theta, method, wide
from .closed_form import Computed
from .kernel import kernel_of, numbers_of
from .solver import Forward, Settings, by_solver

SUMS = 1e-8
"""The error of a sum of a plan, relative to its largest entry, from which on it is reported."""


class Between(Method):
    """By the kernel of an Ω between bounds, for scores as the user gives them. ``limits``: l, u and
    k for their rows, without gradients; numbers where the method has ``direct``."""

    __slots__ = ("_bounds", "_limits")

    def __init__(self, method: Method, limits: tuple[Any, Any, Any], rows: Tensor) -> None:
        kernel, self._bounds = between(method.kernel, limits, rows)
        direct = method.direct and kernel.within(method.direct, self._bounds)
        super().__init__(kernel, method.omega, method.numbers, method.checks, direct)
        self._limits = limits

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        if self.direct is not None and mask is None:
            y = self.direct.forward(flat(x), wide(tensors))[0]
        else:
            gamma, *theta = [numbered(t, x) for t in self.filled(tensors)]
            on = None if mask is None else flat(wrappers.allocated(mask)).contiguous()
            y = self.kernel.solve(flat(x), gamma, tuple(theta), self._bounds, on)
        if y is None:
            raise Missed
        return y if y.shape == x.shape else y.view(x.shape), None

    def backward(
        self,
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        tensors: Sequence[Tensor],
        wants: Sequence[bool],
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        if self.direct is not None:
            return super().backward(y, part, v, tensors, wants)
        gamma, *theta = [numbered(t, y) for t in self.filled(tensors)]
        v, low_high = flat(wrappers.allocated(v)), self._bounds[:2]
        given = gamma, tuple(theta), low_high, True in wants[int(self.numbers[0] is None) :]
        gx, found = self.kernel.product(flat(y), v, *given)
        each = zip(found or (), self.numbers[1:], strict=False)
        return gx.view(y.shape), [t.view(*y.shape[:-1], 1) for t, own in each if own is None]

    def product(self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor) -> Tensor:
        bounds = region_of(self._limits, y.detach(), y.detach() > 0, False)
        return _product(omega, bounds, y, part, v)[0]


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


class _OfPlans(threshold.Separable):
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
            name: t.expand(*batch, *t.shape[-2:]).reshape(batch.numel(), *t.shape[-2:])
            for name, t in base.per_row_tensors(True).items()
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
        return threshold.entries(self._base, z, total, self._base.steep)


@torch.no_grad()
def computed(rows: Rows, settings: Settings) -> Forward:
    """Π_Ω(x) on the domain of the rows, without gradients; their γ is 1."""
    bounds = rows.bounds
    assert bounds is not None
    if isinstance(bounds, Plans):
        if settings.solver != "auto":
            raise ValueError(f'domain=Transport() has solver="auto" alone; got {settings.solver!r}')
        if not isinstance(rows.omega, OfRows):
            raise NotImplementedError("plans are computed from Ω's inverse, not from its value")
        return _plans(rows.omega, rows.x, bounds.detached(), settings)
    omega, c = unscaled(rows.omega, 1.0)
    z, path, why = rows.x / c, "", ""
    if isinstance(omega, Penalized):
        _check_penalty(omega, bounds, rows.mask)
        z = proxed(omega.penalty, z.double(), omega.lam, rows.mask).to(z.dtype)
        path = "prox, then "
        why = "the domain and the base are permutation-invariant; "
        omega, c = unscaled(omega.base, 1.0)
        z = z / c
    bounds = bounds.detached()
    if isinstance(bounds, Bounded) and settings.solver == "auto":
        own = _by_value(replace(rows, omega=omega, x=z.double(), bounds=bounds), settings)
        if own is not None:
            found, path = own[0].to(z.dtype), f"{path}kernel from the value"
            if own[1]:
                return Forward(found, path, f"{why}clip(p(z − τ)) of {who(omega)}")
            settings, path = replace(settings, start=found), f"{path}, then "
    solved = not omega.declares("inverse") or settings.solver != "auto"
    if isinstance(bounds, Projected) or solved:
        result = by_solver(omega, z, rows.mask, settings, bounds=bounds)
        return replace(result, path=f"{path}{result.path}", why=f"{why}{result.why}")
    y = _by_kernel(omega, z, rows.mask, bounds)
    where = "in PyTorch" if y is None else "by its numba kernel"
    if y is None:
        y = bounds.answer(threshold.Separable(threshold.wide(omega, z)), z)
    return Forward(y, f"{path}closed form", f"{why}clip(p(z − τ)) of {who(omega)}, {where}")


def _by_kernel(
    omega: Regularizer, z: Tensor, mask: Tensor | None, bounds: Bounded
) -> Tensor | None:
    """Π_Ω(z) between the bounds, None if there is no kernel for it. With Σy ≤ k it computes the
    rows in which clip(p(z)) adds up to more."""
    if bounds.total is None:
        return None
    kernel = kernel_of(omega, z)
    if kernel is None or kernel.between(False) is None:
        return None
    gamma, *theta = [numbered(t, z) for t in numbers_of(omega, 1.0)]
    total = bounds.total
    rows, limits = flat(z), (bounds.low, bounds.high, total)
    on = None if mask is None else flat(mask).contiguous()
    if not bounds.at_most:
        found, given = between(kernel, limits, z)
        y = found.solve(rows, gamma, tuple(theta), given, on)
        return None if y is None else y.view(z.shape)
    e, wide = threshold.Separable(threshold.wide(omega, z)), bounds.to(torch.float64)
    less = flat(clip(e.inverse(z.double()), wide.low, wide.high))
    beyond = add(less) / flat(total.double()) - 1
    if bool((beyond.abs() <= 1e-6).any()):
        return None  # τ is next to 0, and has digits that the kernel, which shifts scores, has not
    over = (beyond > 0).squeeze(-1)
    if bounds.uniform(mask):
        limits = bounds.low.amax(-1, True), bounds.high.amax(-1, True), total
    low, high, total = (flat(t)[over] for t in limits)
    found, given = between(kernel, (low, high, total), rows[over])
    gamma, *theta = [t if len(t) == 1 else t[over] for t in (gamma, *theta)]
    y = found.solve(rows[over], gamma, tuple(theta), given, None if on is None else on[over])
    if y is None:
        return None
    less[over] = y.double()
    return less.view(z.shape).to(z.dtype)


def _by_value(rows: Rows, settings: Settings) -> tuple[Tensor, bool] | None:
    """Π_Ω(x) between the bounds by the kernel of e, for Ω = Σ e(y_i) by its value, and whether each
    row is certified; None where there is none. Their γ is 1."""
    bounds, omega, x = rows.bounds, rows.omega, rows.x
    if not by_value(type(omega)) or not x.is_cpu or not isinstance(bounds, Bounded):  # type: ignore[arg-type]
        return None
    most = bounds.high if bounds.total is None else bounds.high.minimum(bounds.total)
    if (omega.declares("inverse") and not bounds.fixed_total) or bool((most > 1).any()):
        return None
    made = from_value.of_rows(replace(rows, gamma=1.0, bounds=None), settings)
    if made is None:
        return None
    found = made[0].made
    at = found.fixed(list(omega.tensors(fixed=True).values())).laid_out
    if at.template is None or not at.template.alike:
        return None
    with contextlib.suppress(Missed):
        z = at.moved(flat(x), numbered(1.0, x), not bounds.fixed_total).view(x.shape)
        y, bound = _answer(found.kernel, at, z, bounds, rows.mask)
        made[0].compare(rows, y)
        return y, bool((bound <= settings.tolerance(y.dtype)).all())
    return None


def _answer(
    own: Any, at: Any, x: Tensor, bounds: Bounded, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Π_Ω(x) by the template of e, and a bound on the distance of each row to it."""
    low, high, total = bounds.low, bounds.high, bounds.total
    if not bounds.fixed_total:
        less, bound = own.boxed(at, x, low, high, mask)
        if total is None:
            return less, bound
        # τ = 0 where clip(p(z)) adds up to at most k, of which ``less`` may be on the other side
        beyond = (add(less) - total).squeeze(-1)
        doubt, over = (x.shape[-1] ** 0.5 * bound - beyond.abs()).clamp_min(0), beyond > 0
        if bool(over.any()):
            given = x[over], Bounded(low[over], high[over], total[over])
            less[over], bound[over] = _answer(own, at, *given, mask if mask is None else mask[over])
        return less, bound + doubt
    # relative to the largest score, large scores keep their digits
    x = x - (x if mask is None else x.masked_fill(~mask, -torch.inf)).amax(-1, keepdim=True)
    kernel, given = between(at.template, (low, high, total), x)
    scale, theta = numbered(at.template.scale, x), at.template.theta
    on = None if mask is None else flat(mask).contiguous()
    if (y := kernel.solve(flat(x), scale, theta, given, on)) is None:
        raise Missed
    return y.view(x.shape), own.between_bound(at, x, y.view(x.shape), low, high, total, mask)


def _plans(omega: OfRows, z: Tensor, bounds: Plans, settings: Settings) -> Forward:
    """Π_Ω(z) of plans; what does not have the sums is reported."""
    if not z.numel():
        return Forward(z.clone(), "empty batch", "nothing to solve")
    plan = _plans_by_kernel(omega.base, z, bounds)
    where = "in PyTorch" if plan is None else "by its numba kernel"
    plan = plan or bounds.solved(_OfPlans.of(omega, z, bounds), z)
    y = bounds.balanced(plan.y.reshape(z.shape))
    # the sums of a balanced plan are right, wherever Newton's method stopped
    off = bounds.excess(y) / bounds.high.amax(-1)
    off = torch.maximum(off, plan.error.view(off.shape))
    missed = ~(off <= SUMS)  # or NaN
    if bool(missed.any()):
        reason = bounds.short(plan)
        if reason is not None:
            raise ValueError(f"domain: the mask leaves no plan: {reason}")
        if settings.on_failure != "ignore":
            message = (
                f"Newton's method: {int(missed.sum())} of {missed.numel()} plans do not have the "
                f"sums of their rows and columns (plans {few(missed)}; largest relative error "
                f"{off.max().item():.2g}). Scale the scores down, or raise gamma"
            )
            if settings.on_failure == "raise":
                raise ConvergenceError(message)
            warn(message, ConvergenceWarning)
    why = f"potentials of the columns; rows are those of {who(omega.base)} on the simplex, {where}"
    return Forward(y, "Newton's method", why, iterations=plan.steps.reshape(z.shape[:-1]))


def _plans_by_kernel(base: Regularizer, z: Tensor, bounds: Plans) -> Plan | None:
    """The plans of Ω for each row, None if there is no kernel for all of them."""
    base, c = unscaled(base, 1.0)
    kernel = kernel_of(base, z)
    found = None if kernel is None else kernel.plans()
    if found is None or isinstance(c, Tensor):
        return None
    theta = []
    for t in numbers_of(base, 1.0)[1:]:
        if isinstance(t, Tensor) and t.ndim > 1:
            if t.shape[-2] != 1:
                return None  # numbers of the rows of a plan
            t = t.squeeze(-2)
        theta.append(numbered(t, z))
    plans, a, b = bounds.given(z / c)
    y, v, error, steps = found.solve(plans, tuple(theta), a, b)
    return None if bool(error.isnan().any()) else Plan(y, v * c, error, steps.long())


def _check_penalty(omega: Penalized, bounds: Bounded | Projected, mask: Tensor | None) -> None:
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
    omega: Regularizer, bounds: Bounded | Plans, y: Tensor, part: Tensor | None, v: Tensor
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

    __slots__ = ("_bounds", "_inside")

    def __init__(self, rows: Rows, settings: Settings, result: Forward | None = None) -> None:
        known = None if result is None else replace(result, solved=None)
        super().__init__(rows, settings, known)
        self._result = result
        assert rows.bounds is not None
        self._bounds = rows.bounds.detached()
        self.numbers = (*self.numbers, *(None for _ in self._bounds.tensors))
        self._inside, self.names = self.names, (*self.names, *self._bounds.names)
        self._per_row |= frozenset(self._bounds.names)

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        if self._result is not None:
            return super().forward(x, mask, tensors)
        values = dict(zip(self.names, tensors, strict=True))
        each = zip(self._bounds.tensors, self._bounds.names, strict=True)
        bounds = Bounded.named(values, x) or self._bounds.with_tensors(
            {name: values[key] for name, key in each}
        )
        given = self.at(tensors), x[..., :1], None, None, x.ndim - 1, x.dtype, bounds
        return computed(Rows(x, 1.0, mask, *given), self._settings).y, mask

    def at(self, theta: Sequence[Any]) -> Regularizer:
        found: Regularizer = self.omega.with_tensors(dict(zip(self._inside, theta, strict=False)))
        return found

    def products(
        self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor, theta: Theta
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Those with the bounds from q = v − H w."""
        (_, tensors, wants), n, bounds = theta, len(self._inside), self._bounds
        assert not isinstance(bounds, Projected)
        w, curvature = _product(omega, bounds, y, part, v)
        each: list[Tensor | None] = [None for _ in bounds.tensors]
        if True in wants[n:]:
            each = [*bounds.products(v - curvature.matvec(w), y.detach()).values()]
        average = averaging(omega, y, part)
        w = w if average is None else average(w)
        given = omega, self._inside, tensors[:n], wants[:n], y, w, part
        return w, [*hyperparameter_product(*given), *each]
