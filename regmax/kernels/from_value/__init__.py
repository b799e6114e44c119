"""Kernels that are made of the value of Ω: its operations, their source, and the rows of Π_Ω.

Ω(y) = Σ_i e(y_i) + ½ yᵀHy + F(y). ``tape`` records the value; ``reader`` and ``maps`` read these
parts, an ``entry``, from it. ``source`` writes the derivatives of e as source by ``operations``,
``loops`` those of F, and ``compiled`` compiles both. Where all entries have one e, the template of
threshold mappings computes rows (``template``), by a table of (e')⁻¹ (``implicit``) unless e' is a
power; a linear term moves the scores (``parts``), and ``between`` certifies rows between bounds.
``separable`` (Ω = Σ e) and ``coupled`` solve, certify and differentiate other rows (``kernel``).
For a GPU ``triton_source`` translates the source of e, and ``triton_rows`` does the same for
Ω = Σ e (``triton_kernel``).
"""

from __future__ import annotations

from .entry import Entrywise
from .reader import entrywise
from .tape import Tape, Unknown

__all__ = ["Entrywise", "Tape", "Unknown", "entrywise"]
