"""Softmax of long rows of float32, from its description: e(y) = y log y − y."""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import elementary, mapping, simd
from regmax.kernels.cpu.elementary import Either
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.threshold import Description


@njit
def _inverse32(u: Any, theta: Any) -> tuple[Any, Any]:
    """e^u for u ≤ 0, subnormal numbers included."""
    y = simd.select(u >= -87.0, elementary.exp32(u), 0.0)
    tiny = (u < -87.0) & (u > -104.0)
    if simd.count(tiny) > 0:
        y = simd.select(tiny, simd.narrow(elementary.exp(simd.wide(u))), y)
    return y, y


@njit
def _inverse64(u: Any, theta: Any) -> tuple[Any, Any]:
    y = elementary.exp(u)
    return y, y


@njit
def slope(y: Any, theta: Any) -> tuple[Any, Any]:
    return elementary.log(y), 1.0 / y


@njit
def weight(y: Any, theta: Any) -> Any:
    return y


ENTROPY = Description(
    Either(_inverse32, _inverse64), slope, weight, bend=0.0, scales=True, cheap=True
)
forward, backward = mapping.functions(ENTROPY)
