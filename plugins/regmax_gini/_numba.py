"""Sparsemax on the CPU, from its description: e(y) = y²/2."""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import mapping
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import larger, select, spread
from regmax.kernels.cpu.threshold import Description


@njit
def inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    return larger(u, 0.0), select(u > 0.0, spread(u, 1.0), 0.0)


@njit
def slope(y: Any, theta: Any) -> tuple[Any, Any]:
    return y, spread(y, 1.0)


@njit
def weight(y: Any, theta: Any) -> Any:
    return spread(y, 1.0)


forward, backward = mapping.functions(Description(inverse, slope, weight, cheap=True, widest=1024))
