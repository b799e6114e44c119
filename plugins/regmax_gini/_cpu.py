"""The kernel of Sparsemax on the CPU."""

from __future__ import annotations

from regmax.kernels.cpu.losses import CompiledLosses

KERNEL = CompiledLosses("regmax_gini._numba", theta=2.0)
