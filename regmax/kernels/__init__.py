"""Computations on the rows of a tensor, compiled (``cpu/``, ``triton/``) and in PyTorch.

Every chapter may import this one; it imports no other chapter.

A kernel computes Π_Ω and the product with its Jacobian, row by row. A regularizer offers one with
:meth:`regmax.Regularizer.kernel`. Where there is none, or it cannot run (numba or Triton is
missing, another device), PyTorch operations compute the closed form, more slowly. For a separable Ω
without a closed form, ``from_value/`` makes a kernel from its value, on the CPU also with a
quadratic form. ``layer.explain(x)`` says which method runs. The simplex, scalar roots and products
of rows are plain PyTorch.
"""

from __future__ import annotations

from . import process as process  # a fork waits for what is imported
from .base import (
    Arrangement,
    AttentionKernel,
    Direct,
    Kernel,
    Lazy,
    ProxKernel,
    asked,
    reference,
    why_none,
)

__all__ = [
    "Arrangement",
    "AttentionKernel",
    "Direct",
    "Kernel",
    "Lazy",
    "ProxKernel",
    "asked",
    "reference",
    "why_none",
]
