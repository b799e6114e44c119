"""The kernel of α-entmax on the CPU. α = 1.5 has compiled functions of its own, as it needs the
least code and is the most common."""

from __future__ import annotations

from torch import Tensor

from regmax.kernels.base import Hyper
from regmax.kernels.cpu.losses import CompiledLosses
from regmax.kernels.cpu.rows import CompiledRows

_HALF = CompiledRows("regmax_tsallis._half")


class _Entmax(CompiledLosses):
    """``CompiledLosses`` for any α."""

    parts = (_HALF,)

    def rows(self, theta: Hyper) -> CompiledRows:
        return _HALF if _is_half(theta[0]) else self


def _is_half(alpha: Tensor) -> bool:
    return alpha.numel() == 1 and alpha.item() == 1.5


KERNEL = _Entmax("regmax_tsallis._numba", "tsallis")
