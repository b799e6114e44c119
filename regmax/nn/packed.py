"""Attention of packed sequences: one after the other along the length, no entry padded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..kernels.base import Offsets
from ..mapping.jagged import is_jagged, ragged_of


def each(
    attend: Callable[..., Tensor],
    offsets: Offsets,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None = None,
) -> Tensor:
    """``attend`` of each sequence, with its own of ``factors`` (…, L, S)."""
    queries, keys = ([j - i for i, j in pairwise(each)] for each in offsets)
    parts = zip(q.split(queries, -2), k.split(keys, -2), v.split(keys, -2), strict=True)
    places = zip(*map(pairwise, offsets), strict=True)
    own = (None if factors is None else factors[..., i:j, m:n] for (i, j), (m, n) in places)
    return torch.cat([attend(*part, one) for part, one in zip(parts, own, strict=True)], -2)


def offsets(cu_seq_q: Any, cu_seq_k: Any, queries: int, keys: int) -> Offsets | None:
    """The numbers of both, None without ``cu_seq_q``."""
    if cu_seq_q is None:
        if cu_seq_k is not None:
            raise ValueError("cu_seq_q must be given where cu_seq_k is; got None")
        return None
    found = _numbers("cu_seq_q", cu_seq_q, "q", queries)
    if cu_seq_k is None and keys == queries:
        return found, found
    if cu_seq_k is None:
        raise ValueError(
            "cu_seq_k must be given where k is not as long as q; got None for lengths "
            f"{queries} and {keys}"
        )
    of_keys = _numbers("cu_seq_k", cu_seq_k, "k", keys)
    if len(of_keys) != len(found):
        raise ValueError(
            "cu_seq_q and cu_seq_k must have the same number of sequences; got "
            f"{len(found) - 1} and {len(of_keys) - 1}"
        )
    return found, of_keys


def _numbers(name: str, item: Any, of: str, length: int) -> tuple[int, ...]:
    if not isinstance(item, Tensor) or item.dtype not in (torch.int32, torch.int64):
        kind = item.dtype if isinstance(item, Tensor) else type(item).__name__
        raise TypeError(f"{name} must be an int32 or int64 tensor; got {kind}")
    if item.ndim != 1 or len(item) < 2:
        raise ValueError(
            f"{name} must have shape (N + 1,) for N >= 1 sequences; got {tuple(item.shape)}"
        )
    found = tuple(item.tolist())
    falls = next(((i, j) for i, j in pairwise(found) if j < i), None)
    if found[0] != 0:
        raise ValueError(f"{name} must start at 0; got {found[0]}")
    if falls:
        raise ValueError(f"{name} must not decrease; got {falls[1]} after {falls[0]}")
    if found[-1] != length:
        raise ValueError(f"{name} must end at the length of {of}, {length}; got {found[-1]}")
    return found


def rows_of(
    q: Tensor, k: Tensor, v: Tensor, *given: Tensor | None
) -> tuple[tuple[Tensor, Tensor], ...]:
    """The packed rows of jagged nested q, k and v, and where their sequences begin. ``given``
    offsets are an error."""
    if any(item is not None for item in given):
        raise ValueError(
            "cu_seq_q and cu_seq_k must be None for nested q, k and v, which hold them"
        )
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
    return tuple(map(_unpacked, (q, k, v)))


def nested(rows: Tensor, offsets: Tensor) -> Tensor:
    """Packed rows (…, L, E) as a jagged nested tensor (N, …, L, E)."""
    return torch.nested.nested_tensor_from_jagged(rows, offsets, jagged_dim=rows.ndim - 1)


def _unpacked(t: Any) -> tuple[Tensor, Tensor]:
    """Packed rows, and where sequences begin."""
    if t.lengths() is None:
        return t.values(), t.offsets()
    rows = t.unbind()  # between the sequences are holes
    lengths = [row.shape[-2] for row in rows]
    return torch.cat(rows, -2), torch.tensor([0, *lengths], device=t.device).cumsum(0)
