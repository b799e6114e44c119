"""Who is looking at a computation: plain PyTorch, or something that transforms it.

Plain code may look into tensors, run compiled kernels and record a hand-written backward. Under
``torch.func``, forward-mode differentiation, ``torch.compile`` and ``torch.export`` there is no
number to look at, or more than one; :mod:`regmax.opaque` and :func:`regmax.adjoint.restate` then
take over.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad


def compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is recording."""
    return torch.compiler.is_compiling()


def tracing() -> bool:
    """Whether operators are recorded, or have no numbers: as above, or by ``make_fx``,
    ``torch.func.linearize`` or fake tensors."""
    keys = torch._C._TorchDispatchModeKey
    return compiling() or any(
        torch._C._get_dispatch_mode(key) is not None for key in (keys.FAKE, keys.PROXY)
    )


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    # what torch.autograd.Function.apply asks as well; there is no public question
    return bool(torch._C._are_functorch_transforms_active())


def baking() -> bool:
    """Whether ``torch.jit.trace`` records, which keeps what it cannot follow as a constant."""
    return bool(torch._C._get_tracing_state() is not None)


def nesting() -> int:
    """How many transforms of ``torch.func`` are active, one inside the other."""
    return int(torch._C._functorch.maybe_current_level() or 0)


def has_tangent(t: Tensor) -> bool:
    """Whether t is a dual number of forward-mode differentiation."""
    return forward_ad.unpack_dual(t).tangent is not None


def watched(tensors: Iterable[object]) -> bool:
    """Whether anything but plain PyTorch looks at a computation with these inputs."""
    return (
        tracing()
        or transforming()
        or any(isinstance(t, Tensor) and (has_tangent(t) or t.is_meta) for t in tensors)
    )


def may_look(t: Tensor) -> bool:
    """Whether looking at t's numbers costs no synchronisation and breaks no transform."""
    return t.device.type == "cpu" and not tracing() and not transforming()


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """No autocasting: solvers and Jacobians compute in the dtype of the rows."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
