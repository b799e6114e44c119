"""The kernel of Fusedmax, and the prox of total variation, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regmax.kernels import ProxKernel
from regmax.kernels.base import Hyper
from regmax.kernels.cpu.chain import taking_part
from regmax.kernels.cpu.rows import CompiledRows, DirectRows, result


class _Fusedmax(CompiledRows, ProxKernel):
    """Fusedmax, and the prox for other bases."""

    step = "regmax_tv._step"

    def forward(
        self, x: Tensor, gamma: Tensor, theta: tuple[Tensor, ...], mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self._mapped(x, gamma, theta[0], mask, None)

    def direct(
        self, dtype: torch.dtype, d: int, gamma: Tensor, theta: tuple[Tensor | None, ...]
    ) -> DirectRows:
        return _DirectFusedmax(self, d, gamma, theta)

    def prox(
        self, x: Tensor, gamma: Tensor, lam: Tensor, reach: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self._mapped(x, gamma, lam, mask, reach)

    def _mapped(
        self, x: Tensor, gamma: Tensor, lam: Tensor, mask: Tensor | None, reach: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y = result(x)
        gaps = gamma.new_zeros(1)
        self.run(0, x, gamma, lam, mask, y, gaps, reach)
        return y, taking_part(x, gaps, mask)

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

    def averages(
        self, y: Tensor, v: Tensor, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Tensor | None]:
        out = result(y)
        dlam = y.new_empty(len(y), dtype=torch.float64) if hyper else None
        self.run(1, y, v, None, None, mask, out, dlam, 1)
        return out, dlam


class _DirectFusedmax(DirectRows):
    """Its jobs have the gaps in front of the products, and backward who takes part."""

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        y, gaps = result(x), self.gamma.new_zeros(1)
        self.run(0, {0: x, 4: y, 5: gaps}, theta)
        return y, taking_part(x, gaps, None)

    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        arrays = {0: y, 1: v, 5: (out := result(y))}
        if mask is not None:
            arrays[4] = mask
        if each := self.slopes(y) if hyper else ():
            arrays[6] = each[0]
        self.run(1, arrays, theta)
        return out, each


def whole_rows(x: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """The prox of weight·TV at finite rows x, without a shift; masked entries are 0."""
    z, one = result(x), x.new_ones(1, dtype=torch.float64)
    KERNEL.run(0, x, one, weight, mask, z, None, None, 1)
    return z


def means(z: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The means of v over the groups of z, of all that take part; 0 elsewhere."""
    out = result(z)
    KERNEL.run(1, z, v, None, None, mask, out, None, 1, 1)
    return out


KERNEL = _Fusedmax("regmax_tv._numba")
