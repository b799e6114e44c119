"""α-entmax in Triton: Newton's method on the logarithm of a row's largest entry, through α = 1."""

from __future__ import annotations

from regmax.kernels.triton import powers
from regmax.kernels.triton.mappings import ThresholdKernel

KERNEL = ThresholdKernel(*powers.TSALLIS)
