"""numba's njit, or nothing in its place: the functions are the same, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from numba import njit
except ImportError:

    def njit(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function


__all__ = ["njit"]
