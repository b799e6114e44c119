"""Tensors without plain memory: wrappers, layouts without strides, freed memory.

Kernels read a tensor's memory by its strides, and solvers read its numbers. :func:`dense` converts
a user's tensor to one that allows both, or raises an error that names the tensor and says what to
pass instead. A DTensor is replaced by all of its entries. Before a kernel runs, only the type of a
tensor is tested.
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
    """The kind of a tensor that is not plain strided memory, for messages; None for a plain one."""
    if t.is_nested:
        return "nested tensor"
    if type(t) not in PLAIN and wraps(t):
        return type(t).__name__
    if t.layout is not torch.strided:
        return f"tensor of layout {t.layout}"
    return "tensor whose memory was freed" if _unallocated(t) else None


def _unallocated(t: Tensor) -> bool:
    """Whether the memory was freed, as sharded training does between uses."""
    if t.is_meta or transforms.tracing() or transforms.transforming() or not t.numel():
        return False
    return t.untyped_storage().nbytes() == 0


def dense(name: str, t: T, beside: Tensor | None = None) -> T:
    """``t`` as kernels and solvers take it, or a TypeError; messages use ``name``.

    ``beside``: the scores, if ``t`` is another argument; None if ``t`` is the scores. A DTensor is
    then refused, as its local part is not the whole. An object that is not a tensor is returned as
    it is.
    """
    if not isinstance(t, Tensor):
        return t
    if type(t) not in PLAIN and wraps(t):
        if type(t).__name__ == "AsyncCollectiveTensor":
            return cast(T, t.clone())  # waits for the transfer
        if is_dtensor(t) and beside is not None and not transforms.transforming():
            part = _of_these(t, beside)
            return cast(T, _gathered(name, t) if part is None else part)
        if transforms.tracing() and not is_dtensor(t):
            return t  # a tracer's tensor: no kernel runs on it
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
        return f"it has no numbers outside of its mode: with {name}.fake_mode"
    if t.layout is not torch.strided:
        return f"take {name}.to_dense()"
    if type(t) in PLAIN:
        return "it is sharded: use it inside the forward of its module, or unshard() that first"
    return "take the torch.Tensor inside"


def allocated(t: Tensor) -> Tensor:
    """``t``, or an error if it has no memory for a kernel to read."""
    if t.data_ptr() or not t.numel():
        return t
    if t._is_zerotensor():
        return t.clone()
    raise without_memory(t)


def without_memory(t: Tensor) -> RuntimeError:
    """The error for a kernel that got a tensor without memory."""
    return RuntimeError(
        f"a kernel got a tensor without memory of its own: {type(t).__name__} of shape "
        f"{tuple(t.shape)}. It wraps other tensors, or its memory was freed before its last use"
    )


def is_dtensor(t: object) -> bool:
    """Whether t is a ``torch.distributed.tensor.DTensor``."""
    distributed = sys.modules.get("torch.distributed.tensor")  # not loaded: no DTensor exists
    return distributed is not None and isinstance(t, distributed.DTensor)


def splits(x: Any, dim: int) -> bool:
    """Whether x is a DTensor that is sharded along ``dim``, or a nested tensor."""
    if isinstance(x, Tensor) and x.is_nested:
        return True
    return is_dtensor(x) and any(p.is_shard(dim % max(x.ndim, 1)) for p in x.placements)


def _of_these(t: Any, x: Tensor) -> Tensor | None:
    """The part of a sharded DTensor on this device, where x is a part too: the whole of t does not
    broadcast to x, and the part does. So one number per head follows heads that are sharded."""
    mesh = t.device_mesh
    sharded = [p.is_shard() or mesh.size(i) == 1 for i, p in enumerate(t.placements)]
    if mesh.size() == 1 or not all(sharded) or _broadcasts(t.shape, x.shape):
        return None
    part: Tensor = t.to_local()
    return part if _broadcasts(part.shape, x.shape) else None


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, m) for n, m in pairs)


def _gathered(name: str, t: Any) -> Tensor:
    """All entries of a DTensor whose scores are a plain tensor."""
    if t.requires_grad and torch.is_grad_enabled() and t.device_mesh.size() > 1:
        raise TypeError(
            f"{name} is a DTensor that requires grad, on {t.device_mesh.size()} devices, and the "
            "scores are a plain tensor: regmax cannot know whether to sum its gradient over the "
            f"devices. Take {name}.full_tensor(grad_placements=...), or use it inside the forward "
            "of the module that fully_shard was given"
        )
    whole: Tensor = t.full_tensor()
    return whole
