"""The few positive entries of long rows, packed side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import CompiledRows

ROOM = 512
"""The first allocation, in entries of a row; rows with more entries are packed again."""


_ROWS = CompiledRows("regmax.kernels.cpu.packing", names=("forward",))


def packed(y: Tensor, x: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """For rows (R, d): the y_i > 0 and their x_i, in order, (R, k) in float64, padded with zeros.
    k ≥ 1 is the size of the largest support; None if k > ``most``."""
    count, room = y.new_zeros(len(y), dtype=torch.float64), min(most, ROOM)
    # ends: the second round has room for every row
    while True:
        ys, xs = (y.new_zeros(len(y), room, dtype=torch.float64) for _ in range(2))
        _ROWS.run(0, y, x, ys, xs, count, y.new_full((1,), room, dtype=torch.float64))
        k = max(1, int(count.max())) if len(y) else 1
        if k > most:
            return None
        if k <= room:
            return ys[:, :k], xs[:, :k]
        room = k
