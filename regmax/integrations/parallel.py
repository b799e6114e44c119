"""Ω in Hugging Face models whose heads lie on several processes (``tp_plan``)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kernels.wrappers import is_dtensor
from ..nn.learnable import Learnable
from ..nn.omega import Omega


def of_heads(omega: Omega, module: Any, query: Tensor) -> Omega:
    """Ω with the numbers of the heads in ``query`` (N, H, L, E), which may be some of the model's.

    Each process has all parameters of Ω, and uses them for its own heads: their gradients are added
    over the processes.
    """
    own = query.shape[1]
    heads = getattr(getattr(module, "config", None), "num_attention_heads", own)
    if isinstance(omega, str) or own == heads:
        return omega
    parts = (p for p in module.parameters() if is_dtensor(p))
    sharded = (p.device_mesh for p in parts if any(s.is_shard() for s in p.placements))
    mesh: Any = next(sharded, None)
    if mesh is None:
        return omega
    from torch.distributed.tensor import DTensor, Partial, Replicate

    present = omega() if isinstance(omega, Learnable) else omega
    per_row = present.per_row_tensors()
    found = {}
    for name, t in present.tensors(fixed=True).items():
        if is_dtensor(t):
            continue
        whole = DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)
        part = whole.to_local(grad_placements=[Partial()] * mesh.ndim)
        if name in per_row and t.ndim > 2 and t.shape[-3] == heads == own * mesh.size():
            part = part.narrow(-3, own * mesh.get_local_rank(), own)
        found[name] = part
    return present.with_tensors(found) if found else present
