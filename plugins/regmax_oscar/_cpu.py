"""The kernel of Oscarmax, and the prox of OSCAR, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regmax.kernels import ProxKernel
from regmax.kernels.cpu.rows import CompiledRows, result


class _Oscarmax(CompiledRows, ProxKernel):
    """Oscarmax, and the prox for other bases."""

    def prox(
        self, x: Tensor, gamma: Tensor, lam: Tensor, reach: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        s = result(x)
        self.run(0, x, gamma, lam, mask, s, reach)
        return s, None

    def averages(
        self, y: Tensor, v: Tensor, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Tensor | None]:
        out = result(y)
        dlam = y.new_empty(len(y), dtype=torch.float64) if hyper else None
        self.run(1, y, v, None, None, out, dlam, 1)
        return out, dlam


KERNEL = _Oscarmax("regmax_oscar._numba")
