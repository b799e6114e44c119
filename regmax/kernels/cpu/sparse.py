"""Products of attention with weights of which few are not 0: rows of weights (R, S), and vectors
(H, S, E) of the keys of each head. R/H consecutive rows share a head."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import CompiledRows

_SUMS = CompiledRows("regmax.kernels.cpu.sparse_sums")
_DOTS = CompiledRows("regmax.kernels.cpu.sparse_dots", names=("forward",))
_LANES = 16


class Columns:
    """Where weights (R, S) are not 0: their columns (R, k) of int32, and how many each row has."""

    def __init__(self, index: Tensor, counts: Tensor) -> None:
        self.index, self.counts = index, counts

    def of(self, t: Tensor) -> Tensor:
        """t (…, S) at the columns, (…, k); any of its numbers beyond a row's columns."""
        inside = torch.arange(self.index.shape[1], dtype=torch.int32, device="cpu") < self.counts
        return t.gather(-1, (self.index * inside).view(*t.shape[:-1], -1).long())

    def dots(self, a: Tensor, vectors: Tensor, fill: float) -> Tensor:
        """⟨a_r, vectors[columns]⟩, (R, k), for rows a (R, E); ``fill`` beyond a row's columns."""
        out = a.new_full(self.index.shape, fill)
        heads, keys, _ = vectors.shape
        given = (self.index, self.counts, vectors, out, len(a) // heads, keys)
        _DOTS.run(0, a, *given)
        return out

    def add_gradients(
        self, slope: Tensor, y: Tensor, q: Tensor, g: Tensor, k: Tensor, dk: Tensor, dv: Tensor
    ) -> Tensor:
        """Add to dk and dv, and return dq (R, E), for the gradients ``slope`` (R, k) of the scores
        q kᵀ and ``g`` of the averages, with weights y (R, k)."""
        dq, heads = torch.empty_like(q), len(k)
        keys, values = (t.view(heads, -1) for t in (dk, dv))
        given = (slope, y, self.index, self.counts, q, g, k.view(heads, -1), dq)
        _SUMS.run(1, keys, values, *given, len(q) // heads, q.shape[1], g.shape[1])
        return dq


def averages(y: Tensor, vectors: Tensor, share: int) -> tuple[Tensor, Columns] | None:
    """y · vectors, (R, E), and where y (R, S) is not 0; None where more than one entry in ``share``
    is not 0, or in a row more than twice as many."""
    (rows, d), (heads, keys, width) = y.shape, vectors.shape
    room = 2 * d // share
    columns = torch.empty(rows, room + 2 * _LANES, dtype=torch.int32, device="cpu")
    counts = torch.empty(rows, 1, dtype=torch.int32, device="cpu")
    out = y.new_empty(rows, width)
    _SUMS.run(0, y, columns, counts, vectors, out, room, rows // heads, keys, width)
    most = int(counts.max())
    if most > room or int(counts.sum()) * share > y.numel():
        return None
    return out, Columns(columns[:, :most].clone(), counts)
