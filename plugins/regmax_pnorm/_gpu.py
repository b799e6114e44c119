"""sq-pnorm-max in Triton: Newton's method on log(max(x/γ) − t), t the threshold."""

from __future__ import annotations

from regmax.kernels.triton import norms
from regmax.kernels.triton.mappings import ThresholdKernel

KERNEL = ThresholdKernel(*norms.NORMS, attention=False)
