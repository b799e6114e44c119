"""Queries of PyTorch's state: is a computation plain, transformed or traced?

Plain code may read the numbers of tensors, run compiled kernels and record a hand-written backward.
Under ``torch.func``, forward-mode differentiation, ``torch.compile`` and ``torch.export`` a tensor
has no numbers, or a batch of them. Functions with rules for transforms
(:mod:`regmax.mapping.function`) and operators (:mod:`regmax.mapping.operator`) are used there.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

PLAIN = (Tensor, nn.Parameter)
"""The types of plain tensors: a tensor of such a type is not a wrapper."""
T = TypeVar("T")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY


def compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is recording."""
    return torch.compiler.is_compiling()


def tracing() -> bool:
    """Whether operators are recorded or tensors have no numbers: in :func:`compiling`, ``make_fx``,
    ``torch.func.linearize`` or with fake tensors."""
    return (
        compiling()
        or torch._C._get_dispatch_mode(_FAKE) is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
    )


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    # torch.autograd.Function.apply calls this too; there is no public function
    return bool(torch._C._are_functorch_transforms_active())


def baking() -> bool:
    """Whether ``torch.jit.trace`` records. It stores values that it cannot trace as constants."""
    return bool(torch._C._get_tracing_state() is not None)


def plain() -> bool:
    """Whether neither a transform, a tracer, a compiler nor forward mode is active."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_dispatch_mode(_FAKE) is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def forward_mode() -> AbstractContextManager[object]:
    """Switches forward mode on again inside the ``jvp`` of a Function, for the outer transforms;
    the Function switched it off."""
    return forward_ad._set_fwd_grad_enabled(True) if transforming() else nullcontext()


def primal(t: Any) -> Any:
    """t without the tangent of the active transform."""
    if t is None or not transforming():
        return t
    # forward_ad.unpack_dual requires a level, and does not know of the one that Dynamo enters
    return torch._VF._unpack_dual(t, level=0)[0]


def living(tensors: Any) -> Any:
    """The saved tensors of a Function without the wrappers of ended transforms. ``torch.func.vjp``
    has ended when its result is called."""
    return tensors if transforming() else unwrap_dead_wrappers(tensors)


_HOOKS = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def unhooked() -> AbstractContextManager[object]:
    """Keeps hooks for saved tensors, such as those of ``torch.utils.checkpoint``, off the graphs
    that live no longer than the block. Checkpoints count what is saved, and a first call makes more
    graphs than a later one."""
    if _HOOKS is None:  # older versions of PyTorch: there may be some where they are not disabled
        some = bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]
    else:
        some = _HOOKS(False) is not None
    if not some:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def batched(t: Tensor) -> bool:
    """Whether t is a batched tensor of ``autograd.grad(..., is_grads_batched=True)``."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(t))


def number(t: float | Tensor, like: Tensor) -> Tensor:
    """A hyperparameter as a tensor in float64; a number in a graph as a sum of numbers of float32,
    to which the exporter for ONNX rounds."""
    if isinstance(t, Tensor):
        return t.double()
    head = ctypes.c_float(t).value if tracing() else t
    if head == 0 != t:  # below float32
        return number(t * 2.0**120, like) * 2.0**-120
    if head == t or not math.isfinite(head):
        return like.new_full((), t, dtype=torch.float64)
    return like.new_full((), head, dtype=torch.float64) + number(t - head, like)


def stacked(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor | None:
    """``function(t)`` for a function of the last dimension. A batched t is unwrapped, so that one
    call computes the whole batch; None for a batch of batches."""
    if not batched(t):
        return function(t)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    if level != 1:
        return None
    result: Tensor = torch._add_batch_dim(function(torch._remove_batch_dim(t, 1, 0, 0)), 0, 1)
    return result


def recording() -> bool:
    """Whether autograd can record. It cannot inside an operator of a recorded graph."""
    with torch.enable_grad():
        return bool((torch.zeros(1, requires_grad=True, device="cpu") + 1).requires_grad)


def wraps(t: Tensor) -> bool:
    """Whether t's type overrides ``__torch_dispatch__``, as DTensor, nested, masked and fake
    tensors do. Such a tensor has no memory, or not one block of it. Test ``type(t) in PLAIN``
    first: it is faster."""
    dispatch = type(t).__torch_dispatch__
    return dispatch is not Tensor.__torch_dispatch__


def dual_level() -> bool:
    """Whether a ``forward_ad.dual_level`` is active: Ω may then hold a dual number."""
    return forward_ad._current_level >= 0


def has_tangent(t: Tensor) -> bool:
    """Whether t is a dual number of forward-mode differentiation."""
    return not batched(t) and forward_ad.unpack_dual(t).tangent is not None


def without_graph(t: Tensor) -> Tensor:
    """t detached from reverse mode; its tangent, if it has one, stays."""
    if not dual_level():
        return t.detach()
    with torch.no_grad():
        return t.clone()


def under_transform(tensors: Iterable[object]) -> bool:
    """Whether a computation with these inputs is traced, transformed or not on plain tensors."""
    if tracing() or transforming():
        return True
    duals = dual_level()  # dual numbers exist only inside a level
    return any(
        isinstance(t, Tensor)
        and (t.is_meta or (type(t) not in PLAIN and wraps(t)) or (duals and has_tangent(t)))
        for t in tensors
    )


def waits(t: Tensor) -> bool:
    """Whether to read a number of t waits for its device: a synchronisation."""
    return t.device.type != "cpu"


def may_look(t: Tensor) -> bool:
    """Whether t's numbers can be read without a synchronisation and without breaking a
    transform."""
    if waits(t) or tracing() or transforming():
        return False
    return type(t) in PLAIN or not wraps(t)


def autocasting(device_type: str) -> bool:
    """Whether autocast is on for this device type."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def widens_softmax(device_type: str) -> bool:
    """Whether autocast computes ``torch.softmax`` of half precision in float32, and returns that:
    on every device but the CPU."""
    return device_type != "cpu" and autocasting(device_type)


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Switches autocast off: solvers and Jacobians compute in the dtype of the rows."""
    return torch.autocast(device_type, enabled=False) if autocasting(device_type) else nullcontext()


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """A call in a thread of its own. PyTorch keeps for each thread which operators, tracers,
    transforms and modes are active, so there are none."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, function, *arguments).result()


def outside_inference(function: Callable[..., T]) -> Callable[..., T]:
    """Replace inference mode by no_grad inside ``function``: the gradient of Ω needs autograd."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(
                *(_ordinary(a) for a in args), **{k: _ordinary(a) for k, a in kwargs.items()}
            )

    wrapper: Any = call  # Dynamo counts recompilations by code object: a new one per function
    wrapper.__code__ = wrapper.__code__.replace(co_name=function.__name__)
    return call


def _ordinary(item: Any) -> Any:
    return item.clone() if isinstance(item, Tensor) and item.is_inference() else item
