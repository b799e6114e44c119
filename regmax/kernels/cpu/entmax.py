"""α-entmax on the CPU: e' = y^a/a, a = α − 1."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from . import elementary, mapping, simd, steep
from .elementary import Either, exp, log
from .jit import njit
from .powers import EXP, HALF, INVERSE, LINEAR, POWER, PRECISE, one, powers
from .simd import larger, smaller
from .threshold import Description


@njit
def _weight64(y: Any, alpha: Any) -> Any:
    t = log(larger(y, 2.3e-308)) * (2.0 - alpha)
    return exp(smaller(t, math.log(1e300)))


@njit
def _weight32(y: Any, alpha: Any) -> Any:
    w = _weight64(simd.wide(y), simd.wide(alpha))
    return simd.narrow(smaller(w, float(np.finfo(np.float32).max) / 1024.0))


@njit
def _rate64(y: Any, alpha: Any) -> tuple[Any, Any]:
    """∂e'/∂α of y^a/a: J may be as large as y^(2−α), which a constant would be multiplied by."""
    a = alpha - 1.0
    return _weight64(y, alpha), y * (log(larger(y, 2.3e-308)) - 1.0 / a) / a


@njit
def _rate32(y: Any, alpha: Any) -> tuple[Any, Any]:
    rate = _rate64(simd.wide(y), simd.wide(alpha))[1]
    return _weight32(y, alpha), simd.narrow(rate)


@njit
def _is_steep(alpha: float) -> bool:
    return 2.0 < alpha < np.inf


STEEP = Description(
    *powers(elementary.power), Either(_weight32, _weight64), Either(_rate32, _rate64), one,
    covers=_is_steep, solve=steep.solve, widest=0,
)  # fmt: skip

forward_half, backward_half = mapping.functions(HALF, theta=True)
forward_power, backward_power = mapping.functions(POWER, theta=True)
forward_linear, backward_linear = mapping.functions(LINEAR, theta=True)
forward_inverse, backward_inverse = mapping.functions(INVERSE, theta=True)
forward, backward = mapping.functions(
    HALF, POWER, replace(LINEAR, widest=0), EXP, PRECISE, STEEP, theta=True
)
