"""Softmax in Triton, with a mask and γ in one launch; by PyTorch's operators without Triton."""

from __future__ import annotations

from regmax.kernels import Kernel

KERNEL: Kernel
try:
    from regmax.kernels.triton.mappings import ThresholdKernel

    KERNEL = ThresholdKernel("entropy")
except ModuleNotFoundError:
    from ._softmax import KERNEL
