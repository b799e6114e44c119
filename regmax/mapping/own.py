"""Π_Ω of plain scores by a kernel that an earlier call made of the value of Ω.

All that :mod:`.generated` checks is checked here too, where possible in compiled code. What needs
more than that, such as a mask or a row that is not certified, is left to it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel, asked, transforms
from ..kernels.base import Hyper
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from .forward import Settings
from .function import Eager, forward
from .generated import PLANS, per_row
from .rows import constant
from .state import state
from .traced import Fixed, Plan

F64 = torch.float64
_FLOOR = torch.finfo(F64).eps ** 2
_POINTS = 4
"""Answers at which the value of Ω is compared with the traced one."""


class Missed(Exception):
    """A row is not certified, or the value of Ω is not what was traced."""


def argmax(omega: Regularizer, x: Any, gamma: float, settings: Settings) -> Tensor | None:
    """Π_Ω(x) along the last dimension, with gradients; None where this is not known to be right."""
    call = found(omega, x, gamma, settings)
    if call is None:
        return None
    rows = x if x.dtype == F64 else x.double()
    try:
        if rows.requires_grad and call.recording:
            y: Tensor = Eager.apply(rows, None, call, call.fixed.omega, gamma)  # type: ignore[no-untyped-call]
        else:
            y = forward(call, rows, None, [gamma])[0]
    except Missed:
        return None
    finally:
        call.user = None
    return y if x.dtype == F64 else y.to(x.dtype)


def found(omega: Regularizer, x: Any, gamma: float, settings: Settings) -> Call | None:
    """What an earlier call made for rows like x."""
    if type(x) not in transforms.PLAIN or not x.is_cpu or x.layout != torch.strided:
        return None
    if not (by_value(type(omega)) and omega.exact and asked() and transforms.plain()):
        return None
    if settings.solver != "auto" or settings.trace is not None or settings.start is not None:
        return None
    if omega._modules or torch.is_autocast_enabled("cpu") or x.ndim == 0 or not x.numel():
        return None
    if omega.entries not in (None, x.shape[-1]) or not (x.is_floating_point() and gamma > 0):
        return None
    tensors: list[Tensor] = []
    key = state(omega, [], tensors), None, x.shape[-1], x.device
    plan = PLANS.get(key)
    if not (isinstance(plan, Plan) and plan.kernel.sums) or plan.traced.entry.reads:
        return None
    recording = torch.is_grad_enabled()
    if not all(_constant(t, x, recording) for t in (*tensors, *plan.traced.entry.outside)):
        return None
    return Call(plan.fixed(tensors), omega, settings, recording)


@functools.cache
def by_value(cls: type[Regularizer]) -> bool:
    """Whether Ω is its value and attributes that are not checked."""
    names = ("closed_form", "kernel")
    own = not any(getattr(cls, name) is not getattr(Regularizer, name) for name in names)
    return own and not cls.hyperparameters and not issubclass(cls, Penalized)  # type: ignore[arg-type]


def _constant(t: Tensor, x: Tensor, recording: bool) -> bool:
    """Whether a tensor of Ω is plain, has no gradient, and belongs to no row of x."""
    if type(t) not in transforms.PLAIN or not t.is_cpu or (recording and t.requires_grad):
        return False
    return (t.dtype == F64 or not t.is_floating_point()) and not per_row(t, x)


class Call(Kernel):
    """A kernel for one call; backward needs ``fixed`` alone."""

    name = "from the value"
    dtypes = (F64,)
    numbers = True

    def __init__(self, fixed: Fixed, omega: Any, settings: Settings, recording: bool) -> None:
        self.fixed, self.recording = fixed, recording
        self.user, self.tol = omega, settings.tolerance(F64)

    def forward(
        self, x: Tensor, gamma: Any, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.solved(x, gamma, min(x.shape[0], _POINTS))[0], None

    def solved(self, x: Tensor, gamma: float, count: int) -> tuple[Tensor, Tensor]:
        """y; and Ω at ``count`` answers, with the sizes of its terms."""
        fixed = self.fixed
        step = -(-x.shape[0] // count)
        count = -(-x.shape[0] // step)
        at, sums = fixed.points(count), torch.empty(count, 2, dtype=F64, device="cpu")
        scale = constant(gamma, x.device)
        y, bound = fixed.kernel.solve_laid_out(x, scale, fixed.laid_out, None, sums, at)
        if not bound.amax().item() <= self.tol:
            raise Missed
        if count > _POINTS:
            step = -(-count // _POINTS)
            at, few = torch.cat((at[:-1:step], at[-1:])), sums[::step]
        self._compare(at, sums if count <= _POINTS else few)
        return y, sums

    def _compare(self, at: Tensor, sums: Tensor) -> None:
        """Compare the value of Ω with the traced one at some answers, and in general position: at a
        vertex nothing is seen of the other entries."""
        with transforms.unhooked(), torch.set_grad_enabled(self.recording):
            own = self.user.value(at)
        if not isinstance(own, Tensor) or own.dtype != F64 or own.shape != at.shape[:1]:
            raise Missed
        if own.requires_grad:
            raise Missed  # by a tensor that is not an attribute
        expected = sums.tolist() + self.fixed.expected
        for value, (total, size) in zip(own.tolist(), expected, strict=True):
            if not abs(value - total) <= 1e-12 * (abs(value) + size):
                raise Missed

    def backward(
        self, y: Tensor, v: Tensor, gamma: Any, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper | None]:
        scale = gamma if isinstance(gamma, Tensor) else constant(gamma, y.device)
        dx, _ = self.fixed.kernel.backward_laid_out(y, v, scale, self.fixed.laid_out)
        return dx, None
