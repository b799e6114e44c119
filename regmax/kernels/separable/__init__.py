"""A kernel from the value of a separable Ω: its graph, its source, and the rows solved with it."""

from __future__ import annotations

from .entry import Entrywise, entrywise
from .kernel import SeparableKernel
from .tape import Unknown

__all__ = ["Entrywise", "SeparableKernel", "Unknown", "entrywise"]
