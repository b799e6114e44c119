"""The kernel of Fermi–Dirac on the CPU: on the simplex, and between bounds."""

from __future__ import annotations

from regmax.kernels.cpu.between import Between, between
from regmax.kernels.cpu.rows import CompiledRows


class _Entries(CompiledRows):
    def between(self, each: bool) -> Between:
        return between(self, each)


KERNEL = _Entries("regmax_divergence._numba")
