"""Descriptions of the mappings whose e' is a power of y: with a = θ − 1,

    e = y^θ/(aθ),  e' = y^a/a,  p = (au)₊^(1/a),  1/e'' = y^(1−a),

or, up to a constant, e' = (y^a − 1)/a, which is log y at a = 0 (Tsallis entropies: Peters, Niculae
& Martins 2019, Lemma 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import elementary, simd
from .elementary import Either, exp, log, ratios
from .jit import njit
from .job import LEAST
from .simd import larger, select, spread
from .threshold import Description

REACH = 800.0
"""exp(−800) is 0."""


def powers(power: Any) -> tuple[Any, Any]:
    """``inverse`` and ``slope`` for a > 0, by a function x^e."""

    @njit
    def inverse(u: Any, theta: Any) -> tuple[Any, Any]:
        a = theta - 1.0
        t = larger(u * a, 1e-30)
        dy = select(t > 1e-30, power(t, 1.0 / a - 1.0), 0.0)
        return dy * t, dy

    @njit
    def slope(y: Any, theta: Any) -> tuple[Any, Any]:
        h = power(y, theta - 2.0)
        return h * y / (theta - 1.0), h

    return inverse, slope


@njit
def _weight32(y: Any, theta: Any) -> Any:
    return elementary.power(larger(y, 1.2e-38), 2.0 - theta)


@njit
def _weight64(y: Any, theta: Any) -> Any:
    return exp(log(larger(y, 2.3e-308)) * (2.0 - theta))


@njit
def _rate32(y: Any, theta: Any) -> tuple[Any, Any]:
    """With t = −a log y, 1/e'' is y e^t, and its product with ∂e'/∂θ is y (e^t − 1 − t)/a²."""
    a = theta - 1.0
    t = elementary.log32(larger(y, 1.2e-38)) * (0.0 - a)
    power, more = elementary.exps32(t)
    return y * power, y * (more - t) * (1.0 / (a * a))


@njit
def _rate64(y: Any, theta: Any) -> tuple[Any, Any]:
    """∂e'/∂θ = log² y φ'(a log y), φ(t) = (e^t − 1)/t, which holds at a = 0 too."""
    t = log(larger(y, 2.3e-308))
    w = exp(t * (2.0 - theta))
    return w, w * (t * t * ratios(t * (theta - 1.0))[1])


@njit
def one(theta: Any) -> Any:
    """e'(1) = 1/a."""
    return 1.0 / (theta - 1.0)


@njit
def _bend(theta: Any) -> Any:
    return theta - 1.0


@njit
def _is_power(theta: float) -> bool:
    return LEAST < theta - 1.0 < 1.0


POWER = Description(
    *powers(elementary.power), Either(_weight32, _weight64), Either(_rate32, _rate64), one,
    covers=_is_power, bend=_bend, rough=powers(elementary.rough_power), corrected=True,
)  # fmt: skip
"""0.05 < a < 1."""


@njit
def _half_inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    t = larger(u * 0.5, 0.0)
    return t * t, t


@njit
def _half_slope(y: Any, theta: Any) -> tuple[Any, Any]:
    s = simd.sqrt(y)
    return s * 2.0, 1.0 / s


@njit
def _half_weight(y: Any, theta: Any) -> Any:
    return simd.sqrt(y)


@njit
def _is_half(theta: float) -> bool:
    return theta == 1.5


HALF = Description(
    _half_inverse, _half_slope, _half_weight, POWER.rate, one, covers=_is_half, bend=0.5,
    widest=2048,
)  # fmt: skip
"""a = ½, by square roots."""


@njit
def _linear_inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    return larger(u, 0.0), select(u > 0.0, spread(u, 1.0), 0.0)


@njit
def _linear_slope(y: Any, theta: Any) -> tuple[Any, Any]:
    return y, spread(y, 1.0)


@njit
def _linear_weight(y: Any, theta: Any) -> Any:
    return spread(y, 1.0)


@njit
def _is_linear(theta: float) -> bool:
    return theta == 2.0


LINEAR = Description(
    _linear_inverse, _linear_slope, _linear_weight, POWER.rate, one, covers=_is_linear, cheap=True,
    widest=1024,
)  # fmt: skip
"""a = 1: the projection on the simplex."""


@njit
def _precise_inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    a = theta - 1.0
    t = u * a
    inside = (t > -1.0) & (u > -1e300)
    t = select(inside, t, 0.0)
    power = select((a > 0.0) | (a < 0.0), elementary.log1p(t) / a, u)
    v = select(inside, exp(power), 0.0)
    return v, v / (t + 1.0)


@njit
def _precise_slope(y: Any, theta: Any) -> tuple[Any, Any]:
    a, t = theta - 1.0, log(y)
    return t * ratios(t * a)[0], exp(t * (a - 1.0))


@njit
def _precise_weight32(y: Any, theta: Any) -> Any:
    return simd.narrow(_weight64(simd.wide(y), simd.wide(theta)))


@njit
def _precise_rate32(y: Any, theta: Any) -> tuple[Any, Any]:
    w, rate = _rate64(simd.wide(y), simd.wide(theta))
    return simd.narrow(w), simd.narrow(rate)


@njit
def _zero_at_one(theta: Any) -> Any:
    return spread(theta, 0.0)


@njit
def _precise_zero(theta: float) -> float:
    a = theta - 1.0
    if a < 0.0:
        return -np.inf
    return -min(1.0 / a, REACH) if a > 0.0 else -REACH


@njit
def _is_precise(theta: float) -> bool:
    return -1.0 <= theta - 1.0 <= LEAST


PRECISE = Description(
    _precise_inverse, _precise_slope, Either(_precise_weight32, _weight64),
    Either(_precise_rate32, _rate64), _zero_at_one, _precise_zero, _is_precise, bend=0.0,
    precise=True, widest=0,
)  # fmt: skip
"""−1 ≤ a ≤ 0.05, with a limit at a = 0: by log1p, in float64."""


@njit
def _inverse_inverse(u: Any, theta: Any) -> tuple[Any, Any]:
    a = theta - 1.0
    t = u * a + 1.0
    rest = select(t > 0.0, 1.0 / t, 0.0)
    v = select(a > -1.0, rest * rest, rest)
    return v, v * rest


@njit
def _inverse_slope(y: Any, theta: Any) -> tuple[Any, Any]:
    a, rest = theta - 1.0, 1.0 / y
    power = select(a > -1.0, simd.sqrt(rest), rest)
    return (power - 1.0) / a, power * rest


@njit
def _inverse_weight(y: Any, theta: Any) -> Any:
    return select(theta > 0.0, simd.sqrt(y), y) * y


@njit
def _is_inverse(theta: float) -> bool:
    return theta == 0.5 or theta == 0.0


INVERSE = Description(
    _inverse_inverse, _inverse_slope, _inverse_weight, PRECISE.rate, _zero_at_one,
    _precise_zero, _is_inverse, bend=0.0, precise=True, widest=0,
)  # fmt: skip
"""a = −½ and −1, by divisions."""


@njit
def _exp32(u: Any, theta: Any) -> tuple[Any, Any]:
    """e^u for u ≤ 0, subnormal numbers included."""
    y = select(u >= -87.0, elementary.exp32(u), 0.0)
    tiny = (u < -87.0) & (u > -104.0)
    if simd.count(tiny) > 0:
        y = select(tiny, simd.narrow(exp(simd.wide(u))), y)
    return y, y


@njit
def _exp64(u: Any, theta: Any) -> tuple[Any, Any]:
    y = exp(u)
    return y, y


@njit
def _exp_slope(y: Any, theta: Any) -> tuple[Any, Any]:
    return elementary.any_log(y), 1.0 / y


@njit
def _exp_weight(y: Any, theta: Any) -> Any:
    return y


@njit
def _is_exp(theta: float) -> bool:
    return theta == 1.0


EXP = Description(
    Either(_exp32, _exp64), _exp_slope, _exp_weight, PRECISE.rate, _zero_at_one,
    _precise_zero, _is_exp, bend=0.0, cheap=True, scales=True, widest=0,
)  # fmt: skip
"""a = 0: softmax."""
