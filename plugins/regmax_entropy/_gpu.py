"""Softmax in Triton, with a mask and γ in one launch; by PyTorch's operators without Triton."""

from __future__ import annotations

from regmax.kernels import Kernel, softmax

KERNEL: Kernel
try:
    from regmax.kernels.triton import powers
    from regmax.kernels.triton.mappings import ThresholdKernel
except ModuleNotFoundError:
    KERNEL = softmax.PLAIN
else:
    KERNEL = ThresholdKernel(powers.EXP)
