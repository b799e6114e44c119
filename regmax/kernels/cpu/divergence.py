"""Bregman divergences D(t, y) = e(t) − e(y) − e'(y)(t − y), of which the losses of Ω = Σ e(y_i) are
sums (:mod:`regmax.kernels.cpu.loss_rows`), where e is a power: with a = θ − 1 and
log_a(y) = (y^a − 1)/a, log y at a = 0,

    e'(y) = log_a(y),  e(y) = y (log_a(y) − 1)/(a + 1),  D(0, y) = y^(a+1)/(a + 1),
    D(t, y) = (y^a (y − t) + t (log_a t − log_a y)) / (a + 1).

No term is negative, and the forms for a = 0, ½ and 1 do not cancel. All are functions of vectors of
float32 or float64, and of θ, a number; their results are float64.
"""

from __future__ import annotations

import math
from typing import Any

from . import elementary, simd
from .elementary import Either
from .jit import njit

TINY = 2.3e-308


@njit
def slope(t: Any, theta: float) -> Any:
    """e'(t) = log_a(t) of t > 0."""
    a = theta - 1.0
    if a == 1.0:
        return simd.wide(t) - 1.0
    if a == 0.5:
        return (simd.wide(simd.sqrt(t)) - 1.0) * 2.0
    log = elementary.log(simd.larger(simd.wide(t), TINY))
    if a == 0.0:
        return log
    if abs(a) > 0.01:
        return (elementary.exp(log * a) - 1.0) * (1.0 / a)
    return log * elementary.ratios(log * a)[0]


@njit
def mean(t: Any, log: Any, theta: float) -> Any:
    """(e(t) − e(0))/t from e'(t); some number at t = 0."""
    return (log - 1.0) * (1.0 / theta)


@njit
def _relative_entropy32(t: Any, y: Any) -> Any:
    """t log(t/y) + y − t, to a few roundings."""
    # with r = (t − y)/(t + y), artanh r = log(t/y)/2: r (t − y) + 2t (artanh r − r)
    r = (t - y) / (t + y)
    w = r * r
    p = w * (1 / 13) + 1 / 11
    p = p * w + 1 / 9
    p = p * w + 1 / 7
    p = p * w + 1 / 5
    p = p * w + 1 / 3
    rest = p * w * r * 2.0
    far = w > 0.1
    if simd.count(far) > 0:
        rest = simd.select(far, elementary.log32(simd.larger(t / y, 1.2e-38)) - r * 2.0, rest)
    return r * (t - y) + t * rest


@njit
def _relative_entropy64(t: Any, y: Any) -> Any:
    return t * elementary.log(simd.larger(t / simd.larger(y, TINY), TINY)) + (y - t)


_relative_entropy = Either(_relative_entropy32, _relative_entropy64)


@njit
def apart(t: Any, y: Any, log: Any, theta: float) -> Any:
    """D(t, y) of y > 0, from e'(t)."""
    a = theta - 1.0
    if a == 1.0:
        off = y - t
        return simd.wide(off * off) * 0.5
    if a == 0.5:
        # (√y − √t)² (√y + 2√t) · 2/3
        s, q = simd.sqrt(y), simd.sqrt(t)
        off = (y - t) / simd.larger(s + q, 1e-37)
        return simd.wide(off * off * (s + q * 2.0)) * (2 / 3)
    if a == 0.0:
        return simd.wide(_relative_entropy(t, y))
    u, v = simd.wide(y), simd.wide(t)
    own = slope(u, theta)
    return ((own * a + 1.0) * (u - v) + v * (log - own)) * (1.0 / theta)


@njit
def alone(y: Any, theta: float) -> Any:
    """D(0, y)."""
    v = simd.wide(y)
    if theta == 1.0:
        return v
    if theta == 1.5:
        return simd.wide(y * simd.sqrt(y)) * (2 / 3)
    if theta == 2.0:
        return v * v * 0.5
    power = elementary.exp(elementary.log(simd.larger(v, TINY)) * theta)
    return simd.select(v > 0.0, power * (1.0 / theta), 0.0)


@njit
def vertex(rest: float, log_y: float, theta: float) -> float:
    """D(1, y) of numbers, from 1 − y and log y."""
    # (1 − y^a (1 + a (1 − y))) / (a (a + 1))
    a = theta - 1.0
    if a == 1.0:
        return 0.5 * rest * rest
    if a == 0.0:
        return -log_y - rest
    return -math.expm1(a * log_y + math.log1p(a * rest)) / (a * theta)


@njit
def terms(y: Any, theta: float, norm: bool, given: bool) -> tuple[Any, Any]:
    """e(y) and ∂e/∂θ, up to a multiple of y, of float64; for a norm y^θ and its derivative in θ.
    ``given``: whether θ is a hyperparameter."""
    if theta == 2.0 and not given:
        return y * y * 0.5, y
    a, log = theta - 1.0, elementary.log(simd.larger(y, TINY))
    if norm:
        power = y * elementary.exp(log * a)
        return power, power * log
    ratio, rate = elementary.ratios(log * a)
    e = y * ratio * log * (1.0 / theta)
    return e, (y * rate * (log * log) - e) * (1.0 / theta)


@njit
def simple(theta: float) -> bool:
    """Whether ``apart`` does without e'(t), and ``alone`` takes less time than to pack y."""
    return theta == 1.0 or theta == 1.5 or theta == 2.0


@njit
def outer(s: float, t: float, theta: float, norm: bool) -> tuple[float, float]:
    """Ω, up to a constant, and its derivative in θ, from the sums of :func:`terms`."""
    if not norm:
        return s, t
    square = s ** (2.0 / theta)
    return 0.5 * square, square * (t / s - math.log(s) / theta) / theta
