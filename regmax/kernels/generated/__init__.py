"""Kernels that are made of the value of Ω: its operations, their source, and the rows of Π_Ω.

Ω(y) = Σ_i e(y_i) + ½ yᵀHy. ``tape`` records the value; ``entry`` and ``maps`` read e and H from it;
``source`` writes the derivatives of e as source, which ``compiled`` compiles; ``separable`` (H = 0)
and ``coupled`` solve, certify and differentiate rows with it.
"""

from __future__ import annotations

from .entry import Entrywise, entrywise
from .kernel import GeneratedKernel
from .tape import Tape, Unknown

__all__ = ["Entrywise", "GeneratedKernel", "Tape", "Unknown", "entrywise"]
