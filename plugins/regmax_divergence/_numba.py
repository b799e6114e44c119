"""Fermi–Dirac on the CPU: e' = log y − log(1 − y), p = σ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import elementary, mapping, simd
from regmax.kernels.cpu.common import EPS
from regmax.kernels.cpu.elementary import Either
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES, larger, select, smaller
from regmax.kernels.cpu.threshold import Description

REACH = 745.0
"""σ(−745) is 0."""


def _sigmoid(exp: Any) -> tuple[Any, Any]:
    """σ with its derivative, and 1 − σ."""

    @njit
    def sigmoid(u: Any, theta: Any) -> tuple[Any, Any]:
        t = exp(smaller(u, 0.0 - u))
        rest = 1.0 / (t + 1.0)
        tail = t * rest
        y = select(u > 0.0, rest, select(u > -REACH, tail, 0.0))
        return y, select(y > 0.0, tail * rest, 0.0)

    @njit
    def rest(u: Any, theta: Any) -> Any:
        return sigmoid(0.0 - u, theta)[0]

    return sigmoid, rest


_sigmoid32, _rest32 = _sigmoid(elementary.exp32)
_sigmoid64, _rest64 = _sigmoid(elementary.exp)


def _slope(least: float) -> Any:
    @njit
    def slope(y: Any, theta: Any) -> tuple[Any, Any]:
        """e' and e''; next to 1 e' is as large as σ can tell."""
        rest = larger(1.0 - y, least)
        return select(y < 1.0, elementary.any_log(y / rest), REACH), 1.0 / (y * rest)

    return slope


@njit
def _weight(y: Any, theta: Any) -> Any:
    return y * (1.0 - y)


@njit
def _one(theta: Any) -> Any:
    return simd.spread(theta, REACH)


@njit
def _zero(theta: float) -> float:
    return -REACH


@njit
def _others(z: Any, n: int, t: float) -> tuple[float, float]:
    """Σ σ(z_i − t) and Σ σ'."""
    none = simd.spread(simd.load(z, 0), 0.0)
    sums, slopes = none, none
    for i in range(0, n, LANES):
        v, dv = _sigmoid64(simd.load(z, i) - t, none)
        sums, slopes = sums + v, slopes + dv
    return simd.total(sums), simd.total(slopes)


@njit
def _solve(z: Any, n: int, theta: float, y: Any, scratch: Any) -> None:
    """Σ σ(z_i − τ) over the entries but the largest, of z = 0, is 1 − σ(−τ) = σ(τ), which has
    digits where the largest y is next to 1."""
    k, second, count = 0, -np.inf, 0
    for i in range(n):
        if z[i] > z[k]:
            k = i
    top = z[k]
    z[k] = -np.inf
    for i in range(n):
        second = max(second, z[i])
        count += int(z[i] > -np.inf)
    low, high = max((second - top) * 0.5, -REACH), math.log(max(count, 1) + 1.0)
    t = low
    for _ in range(200):
        total, slope = _others(z, n, t + top)
        if not total > 0.0:
            break
        off = -math.log1p(math.exp(-t)) - math.log(total)
        if off < 0.0:
            low = t
        else:
            high = t
        step = off / (1.0 - 1.0 / (1.0 + math.exp(-t)) + slope / total)
        if not abs(step) > 2.0 * EPS * (abs(t) + 1.0) or not high > low:
            break
        t = t - step
        if not low <= t <= high:
            t = 0.5 * (low + high)
    z[k] = top
    none, like = simd.spread(simd.load(z, 0), 0.0), simd.load(y, 0)
    total = _others(z, n, t + top)[0]
    for i in range(0, n, LANES):
        v = _sigmoid64(simd.load(z, i) - (t + top), none)[0]
        simd.store(y, i, simd.like(like, v * (1.0 / total)))


forward, backward = mapping.functions(
    Description(
        Either(_sigmoid32, _sigmoid64),
        Either(_slope(2.0**-25), _slope(2.0**-54)),
        _weight, one=_one, zero=_zero, bend=0.0, solve=_solve, widest=0,
        rest=Either(_rest32, _rest64),
    ),
    theta=0.0,
)  # fmt: skip
