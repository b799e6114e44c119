"""Bregman divergences D(t, y) = e(t) − e(y) − e'(y)(t − y), of which the losses of Ω = Σ e(y_i) are
sums (:mod:`regmax.kernels.cpu.loss_rows`).

Those of powers, with a = θ − 1 and log_a(y) = (y^a − 1)/a, log y at a = 0, have

    e'(y) = log_a(y),  e(y) = y (log_a(y) − 1)/(a + 1),  D(0, y) = y^(a+1)/(a + 1),
    D(t, y) = (y^a (y − t) + t (log_a t − log_a y)) / (a + 1).

No term is negative, and the forms for a = 0, ½ and 1 do not cancel. Any other e has

    D(t, y) = (t − y)² ∫ (1 − u) e''(y + u (t − y)) du,    0 ≤ u ≤ 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import elementary, simd
from .elementary import Either
from .jit import njit
from .threshold import Description

TINY = 2.3e-308


@dataclass(frozen=True)
class Divergence:
    """What a loss takes from e: functions of vectors of float32 or float64, and of θ, a number.
    Their results are float64."""

    slope: Any
    """(y, θ) → e'(y) of y > 0. It may have a constant more, c; then e has c y more."""
    mean: Any
    """(t, e'(t), θ) → (e(t) − e(0))/t; some number at t = 0."""
    apart: Any
    """(t, y, e'(t), θ) → D(t, y) of y > 0."""
    alone: Any
    """(y, θ) → D(0, y)."""
    vertex: Any
    """(1 − y, log y, θ), numbers → D(1, y)."""
    terms: Any
    """(y of float64, θ, whether Ω is a norm, whether θ is a hyperparameter) → e(y) and ∂e/∂θ, up to
    a multiple of y; or y^θ and its derivative in θ, for the norm."""
    simple: Any
    """θ → whether ``apart`` does without e'(t), and ``alone`` takes less time than to pack y."""


@njit
def _log_a(t: Any, theta: float) -> Any:
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
def _mean(t: Any, log: Any, theta: float) -> Any:
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
def _apart(t: Any, y: Any, log: Any, theta: float) -> Any:
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
    own = _log_a(u, theta)
    return ((own * a + 1.0) * (u - v) + v * (log - own)) * (1.0 / theta)


@njit
def _alone(y: Any, theta: float) -> Any:
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
def _vertex(rest: float, log_y: float, theta: float) -> float:
    # (1 − y^a (1 + a (1 − y))) / (a (a + 1))
    a = theta - 1.0
    if a == 1.0:
        return 0.5 * rest * rest
    if a == 0.0:
        return -log_y - rest
    return -math.expm1(a * log_y + math.log1p(a * rest)) / (a * theta)


@njit
def _terms(y: Any, theta: float, norm: bool, given: bool) -> tuple[Any, Any]:
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
def _simple(theta: float) -> bool:
    return theta == 1.0 or theta == 1.5 or theta == 2.0


@njit
def outer(s: float, t: float, theta: float, norm: bool) -> tuple[float, float]:
    """Ω, up to a constant, and its derivative in θ, from the sums of ``Divergence.terms``."""
    if not norm:
        return s, t
    square = s ** (2.0 / theta)
    return 0.5 * square, square * (t / s - math.log(s) / theta) / theta


POWERS = Divergence(_log_a, _mean, _apart, _alone, _vertex, _terms, _simple)


def integrated(own: Description) -> Divergence:
    """From e' and e'' of a description, by Gauss–Legendre quadrature with 8 points: for an e'' that
    is smooth on [0, 1], 0 included."""
    both, zero = own.slope, own.zero
    points, weights = np.polynomial.legendre.leggauss(8)
    places = tuple(0.5 + 0.5 * float(u) for u in points)
    shares = tuple(0.5 * float(w) * (1.0 - u) for w, u in zip(weights, places, strict=True))

    @njit
    def slope(y: Any, theta: float) -> Any:
        return both(simd.wide(y), simd.spread(simd.wide(y), theta))[0]

    @njit
    def apart(t: Any, y: Any, log: Any, theta: float) -> Any:
        start, each = simd.wide(y), simd.spread(simd.wide(y), theta)
        change = simd.wide(t) - start
        total = simd.spread(start, 0.0)
        for k in range(len(places)):
            total = total + both(start + change * places[k], each)[1] * shares[k]
        return change * change * total

    @njit
    def alone(y: Any, theta: float) -> Any:
        return apart(simd.spread(y, 0.0), y, y, theta)

    @njit
    def mean(t: Any, log: Any, theta: float) -> Any:
        v = simd.wide(t)
        return apart(v, simd.spread(v, 0.0), v, theta) / simd.larger(v, TINY) + zero(theta)

    @njit
    def vertex(rest: float, log_y: float, theta: float) -> float:
        none = simd.to_float(simd.lanes()) * 0.0
        one, total = none + 1.0, none
        for k in range(len(places)):
            at = one - (1.0 - places[k]) * rest
            total = total + both(at, none + theta)[1] * shares[k]
        return rest * rest * simd.largest(total)

    @njit
    def terms(y: Any, theta: float, norm: bool, given: bool) -> tuple[Any, Any]:
        return y * mean(y, y, theta), simd.spread(y, 0.0)

    return Divergence(slope, mean, apart, alone, vertex, terms, own.covers)
