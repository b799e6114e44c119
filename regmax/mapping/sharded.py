"""Π_Ω of a DTensor: each device maps its own rows.

Rows are independent. Where the scores are not sharded along ``dim``, each device maps its rows with
its part of γ, of the tensors of Ω and of the mask. Plain tensors beside a DTensor count as
replicated, as in PyTorch's ``implicit_replication``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels.wrappers import dense
from ..regularizers.regularizer import Regularizer


def mapping(
    local: Callable[..., Tensor], omega: Regularizer, x: Any, gamma: Any, dim: int, mask: Any
) -> Tensor:
    """``local(omega, x, gamma, dim, mask)`` of each device's rows, put together again."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = x.device_mesh
    kept: list[Any] = [p if type(p) in (Replicate, Shard) else Replicate() for p in x.placements]
    if isinstance(dim, int) and any(p.is_shard(dim % max(x.ndim, 1)) for p in kept):
        raise NotImplementedError(
            f"x is sharded along dim={dim}, which is mapped: {tuple(x.placements)}; shard another "
            "dimension, x.redistribute(placements=...), or take x.full_tensor()"
        )
    x = x.redistribute(placements=kept)

    def part(name: str, t: Any, per_row: bool = True) -> Any:
        """The part of t that belongs to the rows of this device."""
        if not isinstance(t, Tensor):
            return t
        own: Any = t
        if not isinstance(t, DTensor):
            own = DTensor.from_local(dense(name, t, x), mesh, run_check=False)
        if own.device_mesh != mesh:
            raise TypeError(
                f"{name} must lie on the mesh of x, {mesh}; got a DTensor on {own.device_mesh}"
            )
        wanted, gradient = [], []
        for p in kept:
            i = p.dim - (x.ndim - t.ndim) if p.is_shard() and per_row else -1
            if i >= 0 and t.shape[i] not in (1, x.shape[p.dim]):
                raise ValueError(
                    f"{name} must broadcast to x: {name} has shape {tuple(t.shape)}, x "
                    f"{tuple(x.shape)}"
                )
            wanted.append(Shard(i) if i >= 0 and t.shape[i] > 1 else Replicate())
            gradient.append(Partial() if p.is_shard() and wanted[-1].is_replicate() else wanted[-1])
        return own.redistribute(placements=wanted).to_local(grad_placements=gradient)

    rows = x.to_local(grad_placements=kept)
    declared = omega.per_row_tensors()
    inside = {name: part(name, t, name in declared) for name, t in omega.tensors(True).items()}
    y = local(omega.with_tensors(inside), rows, part("gamma", gamma), dim, part("mask", mask))
    whole: Tensor = DTensor.from_local(
        y.contiguous(),
        mesh,
        kept,
        run_check=False,
        shape=x.shape,
        stride=torch.empty(x.shape, device="meta").stride(),
    )
    return whole
