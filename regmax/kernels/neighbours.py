"""Groups of neighbours in rows, in plain PyTorch: their ids, ends, sums and means.

Every operation is elementwise over the rows, so that a row's result does not depend on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def participants_first(mask: Tensor) -> Tensor:
    """Indices that move the participants of each row to the front, in their order."""
    return (~mask).to(torch.uint8).argsort(dim=-1, stable=True)


def ids_of(ordered: Tensor, order: Tensor | None = None) -> Tensor:
    """Ids of the runs of equal values, moved back from ``order`` if there is one."""
    ids = pad((ordered[..., 1:] != ordered[..., :-1]).cumsum(-1), (1, 0))
    return ids if order is None else torch.zeros_like(ids).scatter(-1, order, ids)


def averages(v: Tensor, ids: Tensor, on: Tensor) -> Tensor:
    """The mean of v, 0 where not ``on``, over the entries ``on`` of each group."""
    zeros = torch.zeros_like(v)
    total, size = zeros.scatter_add(-1, ids, v), zeros.scatter_add(-1, ids, on.to(v.dtype))
    return (total / size.clamp_min(1)).gather(-1, ids)


# -- solvers by halves, on (R, d) ------------------------------------------------------------------


def flat(v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """v, without its graph, and the mask of its shape as (R, d); an error for others."""
    if v.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"v must be float32 or float64; got {v.dtype}")
    if v.dim() == 0:
        raise ValueError("v must have at least one dimension; got a 0-d tensor")
    shape = (v.shape[:-1].numel(), v.shape[-1])
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool (True = takes part); got {mask.dtype}")
        if mask.shape != v.shape:
            raise ValueError(
                f"mask must have the shape of v, {tuple(v.shape)}; got {tuple(mask.shape)}"
            )
        mask = mask.to(v.device).reshape(shape)
    return v.detach().reshape(shape), mask


def packed(x: Tensor, used: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """The entries ``used`` first, in float64, then ``fill`` up to a power of two; and the order."""
    order = participants_first(used)
    full = torch.where(used, x, fill).double().gather(1, order)
    return pad(full, (0, (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]), value=fill), order


def unpacked(z: Tensor, order: Tensor, used: Tensor, bad: Tensor, v: Tensor) -> Tensor:
    """Results like v: at the places of ``used`` entries, NaN in rows ``bad``, and 0 elsewhere."""
    z = torch.where(bad, torch.nan, z[:, : order.shape[1]])
    z = torch.zeros_like(z).scatter(1, order, z)
    return torch.where(used, z, 0).to(v.dtype).reshape(v.shape)


def positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], device=x.device)


def bounds(end: Tensor) -> tuple[Tensor, Tensor]:
    """First and last position of each entry's group; ``end`` marks the last entries."""
    at = positions(end)
    first = pad(torch.where(end[..., :-1], at[1:], 0), (1, 0)).cummax(-1).values
    last = torch.where(end, at, end.shape[-1] - 1).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def scan(x: Tensor, first: Tensor | None = None) -> Tensor:
    """Σ x_j, first_i ≤ j ≤ i, by halves: the left half's last sum goes to all of the right one."""
    x = x.clone()
    h = 1
    # ends: h doubles
    while h < x.shape[-1]:
        half = x.view(*x.shape[:-1], -1, 2, h)
        left = half[..., 0, -1:]
        if first is not None:
            mid = positions(x).view(-1, 2, h)[:, 1, :1]
            left = torch.where(first.view(half.shape)[..., 1, :] < mid, left, 0)
        half[..., 1, :] += left
        h *= 2
    return x


def means(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The mean of each entry's group, relative to the group's last entry, without cancellation."""
    ref = x.gather(1, last)
    return ref + scan(x - ref, first).gather(1, last) / (last - first + 1)
