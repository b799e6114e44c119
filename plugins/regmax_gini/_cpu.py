"""The kernel of Sparsemax on the CPU."""

from __future__ import annotations

from regmax.kernels.cpu.rows import CompiledRows

KERNEL = CompiledRows("regmax_gini._numba")
