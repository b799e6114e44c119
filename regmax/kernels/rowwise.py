"""Products and sums whose bits for a row do not depend on the other rows of the batch.

``@`` and the batched routines of BLAS choose their code by the number of rows, the alignment of
memory and the processor, and their rounding varies with that choice. Here every row gets the same
operations in the same order: products entry by entry, sums along the last dimension of contiguous
memory, and library calls for one matrix at a time. The size of such a matrix is a multiple of 8,
so that each begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2**16
"""Matrix entries processed at once: they fit in the cache of one core."""
ENTRYWISE = 32
"""Matrices of at most this size are multiplied entry by entry."""


def size(count: int, most: int) -> int:
    """``count`` rounded up to a multiple of 8, at most a quarter more for large counts, and at most
    ``most``, the entries of a row, rounded up to a multiple of 8."""
    step = 8
    # ends: the step doubles
    while count > 8 * step:
        step *= 2
    return min(-(-count // step) * step, whole(most))


def whole(count: int) -> int:
    """``count`` rounded up to a multiple of 8."""
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
    """How many matrices of this size to process at once."""
    return max(1, BLOCK // size**2) if like.device.type == "cpu" else max(1, len(like))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of each row, kept as a last dimension of size 1."""
    return (a * b).contiguous().sum(-1, keepdim=True)


def norm(v: Tensor) -> Tensor:
    """‖v‖₂ of each row, kept as a last dimension of size 1."""
    return dot(v, v).sqrt()


def times(h: Tensor, v: Tensor) -> Tensor:
    """H v for all rows at once."""
    return (h * v.unsqueeze(-2)).contiguous().sum(-1)


def matvec(h: Tensor, v: Tensor) -> Tensor:
    """H v for one matrix H (d, d), or one for each row (*batch, d, d), in chunks that fit in the
    cache."""
    shape = v.shape if h.ndim == 2 else torch.broadcast_tensors(v, h[..., 0])[0].shape
    d = shape[-1]
    flat = v.expand(shape).reshape(-1, d)
    rows = at_once(flat, max(d, 1))
    if h.ndim == 2:
        h = h.contiguous()
        if len(flat) <= rows:
            return times(h, flat).view(shape)
        products = [times(h, vectors) for vectors in flat.split(rows)]
    else:
        h = h.expand(*shape, d).reshape(-1, d, d)
        pairs = zip(h.split(rows), flat.split(rows), strict=True)
        products = [times(matrices, vectors) for matrices, vectors in pairs]
    out = products[0] if len(products) == 1 else torch.cat(products)
    return out.view(shape)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A B for each row, both (*batch, d, d)."""
    d = a.shape[-1]
    a, b = torch.broadcast_tensors(a, b)
    if a.numel() * d <= BLOCK:
        return (a.unsqueeze(-2) * b.mT.unsqueeze(-3)).contiguous().sum(-1)
    if d <= ENTRYWISE:
        return torch.stack([matvec(a, column) for column in b.unbind(-1)], -1)
    width = whole(d)
    left, right = (square(t, width).view(-1, width, width) for t in (a, b))
    found = torch.stack([x @ y for x, y in zip(left, right, strict=True)])
    return found.view(*a.shape[:-2], width, width)[..., :d, :d]
