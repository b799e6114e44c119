"""The kernel of sq-pnorm-max on the CPU."""

from __future__ import annotations

from regmax.kernels.cpu.rows import CompiledRows

KERNEL = CompiledRows("regmax_pnorm._numba")
