"""Computations on the rows of a tensor, compiled (``cpu/``, ``triton/``) and in PyTorch.

Everything may import this chapter; it imports nothing of regmax.

A regularizer offers a kernel, Π_Ω and the product with its Jacobian row by row, with
:meth:`regmax.Regularizer.kernel`; without one, or where it cannot run (numba or Triton is missing,
another device), the closed form in PyTorch does the same, slower. ``layer.explain(x)`` says which
ran. The simplex, scalar roots and products of rows are plain PyTorch.
"""

from __future__ import annotations

from .base import Kernel, Lazy, asked, reference, why_none

__all__ = ["Kernel", "Lazy", "asked", "reference", "why_none"]
