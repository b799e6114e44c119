"""regmax's njit, or the identity if numba is missing: the functions then run in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from regmax.kernels.cpu.jit import njit
except ImportError:

    def njit(
        function: Callable[..., Any] | None = None, *, fastmath: Any = False, apart: bool = False
    ) -> Any:
        """The function itself."""
        return function


__all__ = ["njit"]
