"""Fusedmax in Triton: groups of neighbours split by scans of composed clips, then P_Δ."""

from __future__ import annotations

from regmax.kernels.triton.chain import ChainKernel

KERNEL = ChainKernel(ranked=False)
