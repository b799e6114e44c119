"""The kernel of Oscarmax, the prox of OSCAR, and isotonic regression, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regmax.kernels import ProxKernel
from regmax.kernels.cpu.rows import CompiledRows, result

SHORT = 128
"""Rows of float32 up to this length are computed by functions of their own, sixteen at a time."""


class _Oscarmax(CompiledRows, ProxKernel):
    """Oscarmax, and the prox for other bases."""

    short = CompiledRows("regmax_oscar._short")
    parts = (short,)

    def _for(self, x: Tensor) -> CompiledRows:
        fits = x.shape[1] <= SHORT and x.dtype == torch.float32
        return self.short if fits else self

    def run(self, which: int, x: Tensor, *arrays: Tensor | int | None) -> None:
        CompiledRows.run(self._for(x), which, x, *arrays)

    def rerun(self, which: int, job: Any, arrays: dict[int, Tensor], numbers: Any = ()) -> None:
        CompiledRows.rerun(self._for(arrays[0]), which, job, arrays, numbers)

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
        self.run(1, y, v, None, None, out, dlam, None, 1)
        return out, dlam


KERNEL = _Oscarmax("regmax_oscar._numba")
_ISOTONIC = CompiledRows("regmax_oscar._numba", names=("isotonic",))


def isotonic_rows(v: Tensor, mask: Tensor | None) -> Tensor:
    """The decreasing regression of rows; masked entries are 0."""
    z = result(v)
    _ISOTONIC.run(0, v, mask, z)
    return z
