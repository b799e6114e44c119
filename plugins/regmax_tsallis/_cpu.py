"""The kernel of α-entmax on the CPU."""

from __future__ import annotations

from regmax.kernels.cpu.rows import CompiledRows

KERNEL = CompiledRows("regmax_tsallis._numba")
