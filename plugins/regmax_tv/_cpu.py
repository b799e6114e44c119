"""The kernel of Fusedmax on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regmax.kernels.cpu.rows import CompiledRows, result


class _Fusedmax(CompiledRows):
    """``CompiledRows`` whose ``forward`` returns the mask and whose ``backward`` uses it."""

    def forward(
        self, x: Tensor, gamma: Tensor, theta: tuple[Tensor, ...], mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y = result(x)
        gaps = gamma.new_zeros(1)
        self.run(0, x, gamma, *theta, mask, y, gaps)
        if not gaps.item():
            return y, None
        part = x != -torch.inf
        return y, part if mask is None else part & mask

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: tuple[Tensor, ...],
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        out = result(y)
        dlam = gamma.new_empty(len(y)) if hyper else None
        self.run(1, y, v, gamma, *theta, mask, out, dlam)
        return out, None if dlam is None else (dlam,)


KERNEL = _Fusedmax("regmax_tv._numba")
