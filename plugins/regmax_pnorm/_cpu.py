"""The kernel of sq-pnorm-max on the CPU."""

from __future__ import annotations

from regmax.kernels.cpu.losses import CompiledLosses

KERNEL = CompiledLosses("regmax_pnorm._numba", "pnorm")
