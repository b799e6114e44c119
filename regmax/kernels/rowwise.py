"""Products and sums whose bits for a row do not depend on the rows beside it.

``@`` and the batched routines behind it choose their code by the number of rows, by where these lie
in memory and by the processor, and round accordingly. Here each row goes through the same
operations in the same order: products entry by entry, sums along the last dimension of contiguous
memory, and library calls for one matrix at a time, of a size that is a multiple of 8, so that each
begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2**16
"""Entries of matrices that are worked on at once: they stay in the cache of one core."""
ENTRYWISE = 32
"""Up to this size matrices are multiplied entry by entry."""


def size(count: int, most: int) -> int:
    """A multiple of 8: the least that holds ``count``, up to a quarter more, and not much more than
    ``most`` entries, which is what a whole row has."""
    step = 8
    while count > 8 * step:
        step *= 2
    return min(-(-count // step) * step, whole(most))


def whole(count: int) -> int:
    """The multiple of 8 that holds ``count``."""
    return -(-count // 8) * 8


def resized(v: Tensor, size: int) -> Tensor:
    """Rows cut, or padded with zeros, to ``size``."""
    more = size - v.shape[-1]
    return torch.nn.functional.pad(v, (0, more)) if more > 0 else v[..., :size].contiguous()


def square(h: Tensor, size: int) -> Tensor:
    """Matrices cut, or padded with zeros, to ``size``; contiguous."""
    more = size - h.shape[-1]
    if more > 0:
        return torch.nn.functional.pad(h, (0, more, 0, more)).contiguous()
    return h[..., :size, :size].contiguous()


def at_once(like: Tensor, size: int) -> int:
    """How many matrices of this size to work on at once."""
    return max(1, BLOCK // size**2) if like.device.type == "cpu" else max(1, len(like))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of each row, kept as a last dimension of size 1."""
    return (a * b).contiguous().sum(-1, keepdim=True)


def norm(v: Tensor) -> Tensor:
    """‖v‖₂ of each row, kept as a last dimension of size 1."""
    return dot(v, v).sqrt()


def times(h: Tensor, v: Tensor) -> Tensor:
    """H v, all at once."""
    return (h * v.unsqueeze(-2)).contiguous().sum(-1)


def matvec(h: Tensor, v: Tensor) -> Tensor:
    """H v for one matrix H (d, d), or one for each row (*batch, d, d), as many rows at a time as a
    cache holds."""
    shape = torch.broadcast_shapes(v.shape, h.shape[:-1])
    d = shape[-1]
    flat = v.expand(shape).reshape(-1, d)
    rows = at_once(flat, max(d, 1))
    if h.ndim == 2:
        h = h.contiguous()
        found = [times(h, some) for some in flat.split(rows)]
    else:
        own = h.expand(*shape, d).reshape(-1, d, d)
        pairs = zip(own.split(rows), flat.split(rows), strict=True)
        found = [times(some, part) for some, part in pairs]
    out = found[0] if len(found) == 1 else torch.cat(found)
    return out.view(shape)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A B of each row, both (*batch, d, d)."""
    d = a.shape[-1]
    a, b = torch.broadcast_tensors(a, b)
    if d <= ENTRYWISE:
        return torch.stack([matvec(a, column) for column in b.unbind(-1)], -1)
    width = whole(d)
    left, right = (square(t, width).view(-1, width, width) for t in (a, b))
    found = torch.stack([x @ y for x, y in zip(left, right, strict=True)])
    return found.view(*a.shape[:-2], width, width)[..., :d, :d]
