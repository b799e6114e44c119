"""Π_Ω of jagged nested tensors, which hold sequences of different lengths.

Along a dimension of equal sizes, the rows of all sequences are mapped as one tensor. Along the
lengths, sequences are padded, and the padding takes no part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..regularizers import arguments
from ..regularizers.regularizer import Regularizer


def is_jagged(x: Any) -> bool:
    """Whether x is a nested tensor of layout torch.jagged."""
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def ragged_of(x: Tensor) -> int:
    """The dimension of the lengths."""
    return next((i for i, n in enumerate(x.shape) if not isinstance(n, int)), 0)


def mapping(
    local: Callable[..., Tensor], omega: Regularizer, x: Any, gamma: Any, dim: Any, mask: Any
) -> Tensor:
    """``local(omega, x, gamma, dim, mask)`` of each sequence, jagged as x."""
    x, dim = arguments.scores(x, dim)
    if dim == 0:
        raise ValueError("dim must not be 0 where x is nested: along it lie the sequences")
    ragged = ragged_of(x)
    along = {"mask": mask, "gamma": gamma, **omega.per_row_tensors()}
    for name, t in along.items():
        if isinstance(t, Tensor) and not (name == "mask" and is_jagged(t) and t.shape == x.shape):
            _check(name, t, x, ragged - x.ndim)
    values, on = x.values(), mask.values() if is_jagged(mask) else mask
    if dim != ragged:
        y = local(omega, values, gamma, dim - x.ndim, on)
    elif values.numel():
        y = _padded(local, omega, x, gamma, on, ragged)
    else:
        y = values.clone()
    offsets, lengths = x.offsets(), x.lengths()
    made: Tensor = torch.nested.nested_tensor_from_jagged(y, offsets, lengths, ragged)
    return made


def _check(name: str, t: Tensor, x: Tensor, ragged: int) -> None:
    """Refuse a tensor that does not broadcast to the scores of each sequence."""
    if t.is_nested or t.ndim >= x.ndim or (t.ndim >= -ragged and t.shape[ragged] != 1):
        got = "a nested tensor" if t.is_nested else f"shape {tuple(t.shape)}"
        raise ValueError(
            f"{name} must broadcast to the scores of each sequence, with size 1 along their "
            f"lengths, where x is nested; got {got} beside x of shape {tuple(x.shape)}"
        )


def _padded(
    local: Callable[..., Tensor], omega: Regularizer, x: Any, gamma: Any, on: Any, ragged: int
) -> Tensor:
    """Π_Ω along the lengths, as the values of x."""
    first, lengths = x.offsets()[:-1], x.lengths()
    lengths = x.offsets().diff() if lengths is None else lengths
    at = torch.arange(int(lengths.max()), device=first.device)
    inside = at < lengths.unsqueeze(1)
    index = torch.where(inside, first.unsqueeze(1) + at, 0)

    def padded(values: Tensor) -> Tensor:
        return values.movedim(ragged - 1, 0)[index].movedim(1, ragged)

    take = inside.view(inside.shape + (1,) * (x.ndim - 2)).movedim(1, ragged)
    if isinstance(on, Tensor):
        take = take & (on if on.ndim < x.ndim - 1 or on.shape[ragged - 1] == 1 else padded(on))
    y = local(omega, padded(x.values()), gamma, ragged - x.ndim, take)
    rows = torch.zeros_like(x.values().movedim(ragged - 1, 0), dtype=y.dtype)
    rows = rows.index_copy(0, index[inside], y.movedim(ragged, 1)[inside])
    return rows.movedim(0, ragged - 1)
