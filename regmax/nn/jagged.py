"""Attention of sequences of different lengths, as jagged nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..mapping.jagged import is_jagged, ragged_of


def attended(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Any
) -> Tensor:
    """``attend`` of each sequence, jagged as q. No entry is padded."""
    tensors = {"q": q, "k": k, "v": v}
    for name, t in tensors.items():
        if not is_jagged(t):
            kind = "nested, strided" if isinstance(t, Tensor) and t.is_nested else "not nested"
            raise TypeError(
                "q, k and v must all be nested tensors of layout torch.jagged if one of them is "
                f"nested; {name} is {kind}"
            )
        if ragged_of(t) != t.ndim - 2 or len(t) != len(q):
            raise ValueError(
                "nested q, k and v must have the shape (N, ..., L, E) with the same N, lengths in "
                f"dimension -2; {name} has {tuple(t.shape)}"
            )
    if mask is not None:
        raise ValueError("attn_mask must be None for nested q, k and v: no key is padded")
    rows = zip(q.unbind(), k.unbind(), v.unbind(), strict=True)
    found = [attend(*row).movedim(-2, 0) for row in rows]
    lengths = torch.tensor([0, *map(len, found)], device=q.device)
    own: Any = q  # the result has q's offsets, and so q's shape, unless q has holes
    offsets = own.offsets() if own.lengths() is None else lengths.cumsum(0)
    made: Tensor = torch.nested.nested_tensor_from_jagged(torch.cat(found), offsets)
    return made if q.ndim == 3 else made.transpose(1, 2)
