"""Compiled code for a mapping: Π_Ω and the product with its Jacobian, row by row.

A regularizer offers it with :meth:`regmax.Regularizer.kernel`; without one, or where a kernel
cannot run (numba or Triton is missing, another device), the closed form in PyTorch does the same,
slower. ``layer.explain(x)`` says which ran.
"""

from __future__ import annotations

from .base import Kernel, Lazy, asked, reference, why_none

__all__ = ["Kernel", "Lazy", "asked", "reference", "why_none"]
