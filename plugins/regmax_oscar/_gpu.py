"""Oscarmax in Triton: sorted, isotonic regression by the scans of fusedmax, then P_Δ."""

from __future__ import annotations

from regmax.kernels.triton.chain import ChainKernel

KERNEL = ChainKernel(ranked=True)
