"""Tensors that are not what they seem: wrappers, layouts without strides, memory given back.

Kernels read a tensor's memory by its strides, and solvers look at its numbers. :func:`dense` makes
of a user's tensor one that allows both, or refuses it by name: a DTensor gives all of its entries,
and what defines no such thing says what to call instead. On the way of the kernels nothing of this
is asked but a tensor's type.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from . import transforms
from .transforms import PLAIN, wraps

T = TypeVar("T")


def kind(t: Tensor) -> str | None:
    """What t is, where it has no numbers of its own at strides; None: it has."""
    if t.is_nested:
        return "nested tensor"
    if type(t) not in PLAIN and wraps(t):
        return type(t).__name__
    if t.layout is not torch.strided:
        return f"tensor of layout {t.layout}"
    return "tensor whose memory was given back" if _unallocated(t) else None


def _unallocated(t: Tensor) -> bool:
    """Whether the memory was given back, as sharded training does between uses."""
    if t.is_meta or transforms.tracing() or transforms.transforming() or not t.numel():
        return False
    return t.untyped_storage().nbytes() == 0


def dense(name: str, t: T, beside: Tensor | None = None) -> T:
    """``t`` as kernels and solvers take it, or a TypeError; ``name`` is what messages call it.

    ``beside``: the scores that it goes with; without them it is the scores itself, of which a
    DTensor is no part that could be taken for the whole. What is no tensor passes through.
    """
    if not isinstance(t, Tensor):
        return t
    if type(t) not in PLAIN and wraps(t):
        if type(t).__name__ == "AsyncCollectiveTensor":
            return cast(T, t.clone())  # waits for what is on its way
        if is_dtensor(t) and beside is not None and not transforms.transforming():
            return cast(T, _gathered(name, t))
        if transforms.tracing() and not is_dtensor(t):
            return t  # a tracer's, which no kernel sees
    what = kind(t)
    if what is not None:
        raise TypeError(
            f"{name} must be a dense tensor that holds its own numbers; got a {what}: "
            f"{_remedy(name, t)}"
        )
    if beside is not None and t.is_meta and not beside.is_meta:
        raise TypeError(
            f"{name} must be on a device with memory, as the scores are; got device meta beside "
            f"{beside.device}"
        )
    return t


def _remedy(name: str, t: Tensor) -> str:
    if t.is_nested:
        return (
            f"pad it, torch.nested.to_padded_tensor({name}, padding), where a padding of -inf "
            f"takes no part, or take its parts one by one, {name}.unbind()"
        )
    if is_dtensor(t):
        return f"take {name}.full_tensor(), or {name}.to_local() for what lies on this device"
    if type(t).__name__ == "MaskedTensor":
        return f"take {name}.get_data(), and {name}.get_mask() as mask"
    if type(t).__name__ == "FakeTensor":
        return f"it has numbers for its own mode alone: with {name}.fake_mode"
    if t.layout is not torch.strided:
        return f"take {name}.to_dense()"
    if type(t) in PLAIN:
        return "it is sharded: use it inside the forward of its module, or unshard() that first"
    return "take the torch.Tensor inside"


def allocated(t: Tensor) -> Tensor:
    """``t``, refused where a kernel would find no memory."""
    if t.data_ptr() or not t.numel():
        return t
    if t._is_zerotensor():
        return t.clone()
    raise without_memory(t)


def without_memory(t: Tensor) -> RuntimeError:
    """What is raised where a kernel meets such a tensor."""
    return RuntimeError(
        f"a kernel met a tensor without memory of its own: {type(t).__name__} of shape "
        f"{tuple(t.shape)}. It wraps others, or its memory was given back before its last use"
    )


def is_dtensor(t: object) -> bool:
    """Whether t is a ``torch.distributed.tensor.DTensor``."""
    distributed = sys.modules.get("torch.distributed.tensor")  # where it is not loaded, none is
    return distributed is not None and isinstance(t, distributed.DTensor)


def _gathered(name: str, t: Any) -> Tensor:
    """All entries of a DTensor, beside scores that are none."""
    if t.requires_grad and torch.is_grad_enabled() and t.device_mesh.size() > 1:
        raise TypeError(
            f"{name} is a DTensor that learns, on {t.device_mesh.size()} devices, beside scores "
            "that are none: whether its gradient is the sum over the devices is not said. Take "
            f"{name}.full_tensor(grad_placements=...), or use it inside the forward of the module "
            "that fully_shard was given"
        )
    whole: Tensor = t.full_tensor()
    return whole
