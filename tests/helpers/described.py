"""Ω(y) = Σ y²/2 + y³/6 by its description, for tests of the template of CPU kernels."""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import mapping, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.threshold import Description


@njit
def inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    t = simd.larger(u, 0.0)
    root = simd.sqrt(t * 2.0 + 1.0)
    return t * 2.0 / (root + 1.0), simd.select(u > 0.0, 1.0 / root, 0.0)


@njit
def slope(y: Any, theta: Any) -> tuple[Any, Any]:
    return y + y * y * 0.5, y + 1.0


@njit
def weight(y: Any, theta: Any) -> Any:
    return 1.0 / (y + 1.0)


@njit
def one(theta: Any) -> Any:
    return simd.spread(theta, 1.5)


DESCRIPTION = Description(inverse, slope, weight, one=one)
forward, backward = mapping.functions(DESCRIPTION, theta=0.0)
