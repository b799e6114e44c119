"""Who is looking at a computation: plain PyTorch, or something that transforms it.

Plain code may look into tensors, run compiled kernels and record a hand-written backward. Under
``torch.func``, forward-mode differentiation, ``torch.compile`` and ``torch.export`` there is no
number to look at, or more than one: Functions with rules of their own
(:mod:`regmax.mapping.function`) and operators (:mod:`regmax.mapping.operator`) take over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

PLAIN = (Tensor, nn.Parameter)
"""The types of most tensors: what is of one of them is no wrapper."""
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY


def compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is recording."""
    return torch.compiler.is_compiling()


def tracing() -> bool:
    """Whether operators are recorded, or have no numbers: as above, or by ``make_fx``,
    ``torch.func.linearize`` or fake tensors."""
    return (
        compiling()
        or torch._C._get_dispatch_mode(_FAKE) is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
    )


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    # what torch.autograd.Function.apply asks as well; there is no public question
    return bool(torch._C._are_functorch_transforms_active())


def baking() -> bool:
    """Whether ``torch.jit.trace`` records, which keeps what it cannot follow as a constant."""
    return bool(torch._C._get_tracing_state() is not None)


def forward_mode() -> AbstractContextManager[object]:
    """Inside the ``jvp`` of a Function, which turns forward mode off: on again for the transforms
    around the one that asks."""
    return forward_ad._set_fwd_grad_enabled(True) if transforming() else nullcontext()


def primal(t: Any) -> Any:
    """t without the tangent that the transform at work gives it."""
    if t is None or not transforming():
        return t
    # forward_ad.unpack_dual asks for a level that Dynamo enters without its knowledge
    return torch._VF._unpack_dual(t, level=0)[0]


def living(tensors: Any) -> Any:
    """Tensors that a Function saved, out of the wrappers of transforms that have ended, as those of
    ``torch.func.vjp`` have when its result is called."""
    return tensors if transforming() else unwrap_dead_wrappers(tensors)


def batched(t: Tensor) -> bool:
    """Whether t stands for a batch, as in ``autograd.grad(..., is_grads_batched=True)``."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(t))


def stacked(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor | None:
    """``function(t)``, where that works on the last dimension; of all that t stands for at once, if
    it stands for a batch. None where it stands for a batch of batches."""
    if not batched(t):
        return function(t)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    if level != 1:
        return None
    found: Tensor = torch._add_batch_dim(function(torch._remove_batch_dim(t, 1, 0, 0)), 0, 1)
    return found


def recording() -> bool:
    """Whether autograd can record: not inside an operator of a recorded graph."""
    with torch.enable_grad():
        return bool((torch.zeros(1, requires_grad=True) + 1).requires_grad)


def wraps(t: Tensor) -> bool:
    """Whether t's type computes by itself (``__torch_dispatch__``), as DTensor, nested, masked and
    fake tensors do: it has no memory, or more, or elsewhere. Ask ``type(t) in PLAIN`` first."""
    own = type(t).__torch_dispatch__
    return own is not Tensor.__torch_dispatch__


def dual_level() -> bool:
    """Whether dual numbers are made (``forward_ad.dual_level``): one may be hidden inside Ω."""
    return forward_ad._current_level >= 0


def has_tangent(t: Tensor) -> bool:
    """Whether t is a dual number of forward-mode differentiation."""
    return not batched(t) and forward_ad.unpack_dual(t).tangent is not None


def without_graph(t: Tensor) -> Tensor:
    """t, which reverse mode does not follow; its tangent, if it has one, stays."""
    if not dual_level():
        return t.detach()
    with torch.no_grad():
        return t.clone()


def under_transform(tensors: Iterable[object]) -> bool:
    """Whether anything but plain PyTorch looks at a computation with these inputs."""
    if tracing() or transforming():
        return True
    duals = dual_level()  # there are none outside of a level
    return any(
        isinstance(t, Tensor)
        and (t.is_meta or (type(t) not in PLAIN and wraps(t)) or (duals and has_tangent(t)))
        for t in tensors
    )


def may_look(t: Tensor) -> bool:
    """Whether looking at t's numbers costs no synchronisation and breaks no transform."""
    if t.device.type != "cpu" or tracing() or transforming():
        return False
    return type(t) in PLAIN or not wraps(t)


def autocasting(device_type: str) -> bool:
    """Whether autocast is on for such a device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """No autocasting: solvers and Jacobians compute in the dtype of the rows."""
    return torch.autocast(device_type, enabled=False) if autocasting(device_type) else nullcontext()
