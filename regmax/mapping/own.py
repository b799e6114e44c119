"""Π_Ω of plain scores by a kernel that an earlier call made of the value of Ω.

All that :mod:`.generated` checks is checked here too, where possible in compiled code. What needs
more than that, such as a mask or a row that is not certified, is left to it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import asked, simplex, transforms
from ..kernels.base import Direct, Hyper
from ..regularizers.arguments import DTYPES
from ..regularizers.identity import state
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from . import function
from .forward import Settings
from .generated import PLANS, per_row
from .generated import argmax as argmax_of
from .method import Method
from .rows import constant, prepare
from .traced import Fixed, Plan, terms

F64 = torch.float64
_POINTS = 4
"""Answers at which the value of Ω is compared with the traced one."""


class Missed(Exception):
    """A row is not certified, or the value of Ω is not what was traced."""


def argmax(omega: Regularizer, x: Any, gamma: float, settings: Settings) -> Tensor | None:
    """Π_Ω(x) along the last dimension, with gradients; None where this is not known to be right."""
    call = found(omega, x, gamma, settings)
    if call is None:
        return None
    call.value, call.tol = omega.value, settings.tolerance(F64)
    wide = x if x.dtype == F64 else x.double()
    try:
        y = function.argmax(Method(None, call.fixed.omega, (gamma,), direct=call), wide)
    except Missed:
        return None
    finally:
        del call.value  # Ω lives no longer than its caller wants
    return y if x.dtype == F64 else y.to(x.dtype)


def found(
    omega: Regularizer, x: Any, gamma: float, settings: Settings, make: bool = False
) -> Call | None:
    """What an earlier call made for rows like x; ``make``: or is made now."""
    if type(x) not in transforms.PLAIN or not x.is_cpu or x.layout != torch.strided:
        return None
    if not by_value(type(omega)):  # type: ignore[arg-type]
        return None
    if not (omega.exact and asked() and transforms.plain()):
        return None
    if settings.solver != "auto" or settings.trace is not None or settings.start is not None:
        return None
    if omega._modules or torch.is_autocast_enabled("cpu") or x.ndim == 0 or not x.numel():
        return None
    if omega.entries not in (None, x.shape[-1]) or x.dtype not in DTYPES or not gamma > 0:
        return None
    tensors: list[Tensor] = []
    key = state(omega, [], tensors), None, x.shape[-1], x.device
    recording = torch.is_grad_enabled()
    if not all(_constant(t, x, recording) for t in tensors):
        return None
    plan = PLANS.get(key)
    if make and plan is None:
        with torch.no_grad():
            argmax_of(prepare(omega, x, gamma, -1, None, wide=True), settings)
        plan = PLANS.get(key)
    if not isinstance(plan, Plan) or plan.traced.entry.reads:
        return None
    if not all(_constant(t, x, recording) for t in plan.traced.entry.outside):
        return None
    return Call(plan.fixed(tensors), gamma)


@functools.lru_cache(maxsize=1024)
def by_value(cls: Any) -> bool:
    """Whether Ω is its value and attributes that are not checked."""
    names = ("closed_form", "kernel")
    own = not any(getattr(cls, name) is not getattr(Regularizer, name) for name in names)
    return own and not cls.hyperparameters and not issubclass(cls, Penalized)


def _constant(t: Tensor, x: Tensor, recording: bool) -> bool:
    """Whether a tensor of Ω is plain, has no gradient, and belongs to no row of x."""
    if type(t) not in transforms.PLAIN or not t.is_cpu or (recording and t.requires_grad):
        return False
    return (t.dtype == F64 or not t.is_floating_point()) and not per_row(t, x)


class Call(Direct):
    """A kernel at fixed numbers of γ and the tensors of Ω."""

    value: Any
    tol: float

    def __init__(self, fixed: Fixed, gamma: float) -> None:
        self.fixed, self.gamma = fixed, constant(gamma, fixed.point.device)

    def solved(self, value: Any, x: Tensor, tol: float, count: int) -> tuple[Tensor, list[float]]:
        """y, certified; and the pairs (Ω, the size of its terms) at ``count`` answers or fewer,
        evenly spaced. The ``value`` of Ω is compared with the traced one."""
        fixed, rows = self.fixed, x.shape[0]
        kernel, step = fixed.kernel, -(-rows // count)
        count = -(-rows // step)
        points = fixed.points(count)
        if kernel.sums:
            y, found = kernel.solve_laid_out(x, self.gamma, fixed.laid_out, None, points, count)
        else:
            y, found = kernel.solve_laid_out(x, self.gamma, fixed.laid_out)
            points[:-1] = simplex.inward(y[::step])
            each = terms(fixed.entry, points[:-1], fixed.inputs)
            pairs = torch.stack([each.sum(-1), each.abs().sum(-1)], 1)
            found = [*found, *pairs.flatten().tolist()]
        if not max(found[:rows]) <= tol:
            raise Missed
        sums = found[rows:]
        if count > _POINTS:
            step = -(-count // _POINTS)
            points = torch.cat((points[:-1:step], points[-1:]))
            some = [number for k in range(0, count, step) for number in sums[2 * k : 2 * k + 2]]
        self._compare(value, points, (sums if count <= _POINTS else some) + fixed.expected)
        return y, sums

    def _compare(self, value: Any, at: Tensor, sums: list[float]) -> None:
        """Compare the value of Ω with the traced one near some answers and in general position: at
        a vertex nothing is seen of the other entries."""
        with transforms.unhooked():
            own = value(at)
        if not isinstance(own, Tensor) or own.dtype != F64 or own.shape != at.shape[:1]:
            raise Missed
        if own.requires_grad:
            raise Missed  # by a tensor that is not an attribute
        for got, total, size in zip(own.tolist(), sums[::2], sums[1::2], strict=True):
            if not abs(got - total) <= 1e-12 * (abs(got) + size):
                raise Missed

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        return self.solved(self.value, x, self.tol, min(x.shape[0], _POINTS))[0], None

    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        fixed = self.fixed
        dx: Tensor = fixed.kernel.backward_laid_out(y, v, self.gamma, fixed.laid_out)[0]
        return dx, ()
