"""max_Ω(x) = ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x), and its derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..domains import Projected
from ..kernels import simplex, transforms
from ..regularizers.arguments import first
from ..regularizers.autodiff import alias
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import value_of, who
from ..regularizers.regularizer import Regularizer, frozen, like, per_row
from .methods.solver import Forward
from .rows import Rows

F64 = torch.float64


def smooth_max(rows: Rows, y: Tensor, result: Forward, gap: float | Tensor | None = None) -> Tensor:
    """max_Ω(x) = ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x), (*batch); its gradient in x is y.

    ``gap``: a bound on how far ⟨y, x⟩ − γΩ(y) is below the maximum; ``conjugate`` is checked
    against it.
    """
    omega, gamma = rows.omega, rows.gamma
    transformed = transforms.under_transform((rows.x, y)) or transforms.dual_level()
    with transforms.full_precision(rows.x.device.type):
        with torch.no_grad():
            best: Any = None
            if rows.bounds is None:
                best = omega.conjugate_at(rows.x, y, gamma, rows.mask)
            known = best is not None
            if known:
                like(best, y[..., 0], f"{who(omega)}.conjugate")
            else:  # at the exact zeros of y, where Ω is finite there
                best = objective(omega, rows.x, gamma, y, rows.mask, at=y)
            finite = torch.isfinite(best)
        value, checks = best, known and gap is not None
        if transformed or checks or not (transforms.may_look(best) and bool(finite.all())):
            value = objective(omega, rows.x, gamma, y, rows.mask)
        if checks and gap is not None:
            _check_conjugate(omega, best, value.detach(), rows, gap)
        best = torch.where(finite, best, value.detach())
        if isinstance(rows.bounds, Projected):  # y has its derivatives, and may be negative
            transformed = True
            value = objective(omega, rows.x, gamma, y, rows.mask, at=rows.bounds.lifted(y))
        if transformed:  # y has its derivatives, in the bounds too
            value = value + (best - value).detach()
        else:
            # on a kink the derivatives of Ω are those of its Lagrangian
            own = omega if result.tied is None else result.tied[0].augmented.lagrangian()
            value = envelope(best, rows.x, rows.gamma, own, y, rows.mask)
    shift = rows.shift.squeeze(-1)
    if rows.bounds is not None:
        value = value if transformed else value + bounded(rows, y)
        total = rows.bounds.total
        shift = shift if total is None else shift * total.squeeze(-1)
    return rows.restore_rows(value + shift)


def bounded(rows: Rows, y: Tensor) -> Tensor:
    """0, with the derivatives of max_Ω in the bounds: γτ for k, γ(r − τ) for those that hold."""
    bounds = rows.bounds
    assert bounds is not None
    assert not isinstance(bounds, Projected)
    zero = torch.zeros_like(y[..., 0])
    learns = [name for name, t in bounds.tensors.items() if t.requires_grad]
    if not (learns and torch.is_grad_enabled()):
        return zero
    if rows.problem.structured:
        raise NotImplementedError(
            "max_Ω and losses have no derivatives in the bounds of a domain where Ω has a penalty"
        )
    each = bounds.detached().products(rows.problem.at(y).slope, y.detach())
    one = zero.new_ones(())
    for name in learns:  # the slope is the derivative, as y is that in x
        given = rows.gamma * each[name], rows.omega, None, (), bounds.tensors[name], one
        zero = zero + _Envelope.apply(torch.zeros_like(zero), *given)  # type: ignore[no-untyped-call]
    return zero


def _check_conjugate(
    omega: Regularizer, best: Tensor, value: Tensor, rows: Rows, gap: float | Tensor
) -> None:
    """Refuse a max_Ω that is not ⟨y, x⟩ − γΩ(y)."""
    name = f"{who(omega)}.conjugate"
    if transforms.may_look(best):
        tol = 1e-6 if value.dtype == F64 else 1e-3
        size = 1 + value.abs() + rows.x.abs().amax(-1)
        wrong = torch.isfinite(value) & ~((best - value).abs() <= tol * size + gap)
        if bool(wrong.any()):
            at = first(wrong)
            raise RegularizerError(
                f"{name} is {best[at].item():.6g} at row {at}, where ⟨y, x⟩ − γΩ(y) is "
                f"{value[at].item():.6g}, both less the largest score"
            )


def objective(
    omega: Regularizer,
    x: Tensor,
    gamma: float | Tensor,
    y: Tensor,
    mask: Tensor | None,
    at: Tensor | None = None,
) -> Tensor:
    """⟨y, x⟩ − γΩ(y), one number per row, with Ω evaluated ``at`` y lifted off 0 unless given."""
    linear = simplex.row_dot(y, x).squeeze(-1)
    at = simplex.inward(y) if at is None else at
    value: Tensor = linear - per_row(gamma) * value_of(omega, at, mask)
    return value


def envelope(
    value: Tensor,
    x: Tensor,
    gamma: float | Tensor,
    omega: Regularizer,
    y: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """max_Ω(x), whose value is known, with the derivatives of ⟨y, x⟩ − γΩ(y) for fixed y (Danskin).

    To differentiate through y as well would add J·0, with whatever rounding leaves of that 0.
    """
    if not torch.is_grad_enabled():
        return value
    tensors = omega.tensors(fixed=True)
    given = gamma if isinstance(gamma, Tensor) else x.new_full((), gamma)
    out: Tensor = _Envelope.apply(  # type: ignore[no-untyped-call]
        value, y, frozen(omega), mask, tuple(tensors), x, given, *tensors.values()
    )
    return out


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor,
        y: Tensor,
        omega: Regularizer,
        mask: Tensor | None,
        names: tuple[str, ...],
        *arguments: Tensor,
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, y, ctx.omega, mask, ctx.names, *arguments = inputs
        ctx.save_for_backward(y, mask, *arguments)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, mask, *arguments = ctx.saved_tensors
        wants_x, *wanted = ctx.needs_input_grad[5:]
        keep = torch.is_grad_enabled()
        x, *numbers = arguments
        found: list[Any] = [None for _ in numbers]
        free = [i for i, wants in enumerate(wanted) if wants]
        if free:
            with torch.enable_grad(), transforms.full_precision(y.device.type):
                for i in free:
                    numbers[i] = alias(numbers[i])
                gamma, *tensors = numbers
                omega = ctx.omega.with_tensors(dict(zip(ctx.names, tensors, strict=True)))
                total = objective(omega, x, gamma, y, mask)
                chosen = [numbers[i] for i in free]
                grads = torch.autograd.grad(total, chosen, v, create_graph=keep, allow_unused=True)
            for i, t in zip(free, grads, strict=True):
                found[i] = t
        return None, None, None, None, None, y * v.unsqueeze(-1) if wants_x else None, *found
