"""Sparsemax in Triton: Michelot's iteration on the entries within γ of a row's maximum."""

from __future__ import annotations

from regmax.kernels.triton import powers
from regmax.kernels.triton.mappings import ThresholdKernel

KERNEL = ThresholdKernel(powers.LINEAR)
