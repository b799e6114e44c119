"""∇²Ω on a support, its Cholesky factor, and the matrix of Proposition 1 (Niculae & Blondel 2017)
by it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..cpu.jit import njit
from .rows import FLOOR, call

_FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(fastmath=_FAST)
def _dot(a: Any, i: int, b: Any, j: int, n: int) -> float:
    total = 0.0
    for k in range(n):
        total += a[i + k] * b[j + k]
    return total


@njit
def factor(a: Any, n: int, ld: int) -> bool:
    """The Cholesky factor of a in its lower triangle; False where a is not positive definite."""
    for j in range(n):
        at = j * ld
        pivot = a[at + j] - _dot(a, at, a, at, j)
        if not pivot > 1e-13 * a[at + j]:
            return False
        root = math.sqrt(pivot)
        a[at + j] = root
        for i in range(j + 1, n):
            a[i * ld + j] = (a[i * ld + j] - _dot(a, i * ld, a, at, j)) / root
    return True


@njit(fastmath=_FAST)
def solved(a: Any, n: int, ld: int, v: Any) -> None:
    """v ← (LLᵀ)⁻¹ v."""
    for i in range(n):
        v[i] = (v[i] - _dot(a, i * ld, v, 0, i)) / a[i * ld + i]
    for i in range(n - 1, -1, -1):
        v[i] /= a[i * ld + i]
        scale = v[i]
        for k in range(i):
            v[k] -= a[i * ld + k] * scale


@njit
def inverse_trace(a: Any, n: int, ld: int, own: Any) -> float:
    """tr (LLᵀ)⁻¹ = ‖L⁻¹‖², column by column of L⁻¹."""
    total = 0.0
    for j in range(n):
        own[j] = 1.0 / a[j * ld + j]
        total += own[j] * own[j]
        for i in range(j + 1, n):
            own[i] = -_dot(a, i * ld + j, own, j, i - j) / a[i * ld + i]
            total += own[i] * own[i]
    return total


@njit
def hessian(n: int, on: Any, h: Any, form: Any, ld: int, a: Any) -> None:
    """∇²Ω on the entries ``on``, plus a multiple of 11ᵀ, which changes nothing on Δ and makes a
    matrix that is positive definite along Δ positive definite. It is as small as the softest
    entries, whose digits it would hide; along Δ one of them at most may be flat."""
    least, second = np.inf, np.inf
    for j in range(n):
        bent = form[on[j] * ld + on[j]] + h[on[j]]
        if bent < least:
            least, second = bent, least
        elif bent < second:
            second = bent
    shift = max(least, 1e-3 * second if second < np.inf else 0.0)
    for j in range(n):
        i = on[j]
        for k in range(j + 1):
            a[j * ld + k] = form[i * ld + on[k]] + shift
        a[j * ld + j] += h[i]


@njit
def tangent_product(n: int, a: Any, ld: int, v: Any, ones: Any) -> None:
    """v ← J v by the factor a."""
    for j in range(n):
        ones[j] = 1.0
    solved(a, n, ld, v)
    solved(a, n, ld, ones)
    total, weight = 0.0, 0.0
    for j in range(n):
        total += v[j]
        weight += ones[j]
    for j in range(n):
        v[j] -= ones[j] * (total / weight)


class Rest(NamedTuple):
    """F for one row: the addresses of ∇F and of a column of ∇²F, 0 where F = 0, its inputs, where
    the participants are among the d entries, and work space."""

    gradient: Any
    column: Any
    numbers: Any
    place: Any
    d: Any
    full: Any
    out: Any
    work: Any


@njit
def placed(rest: Rest, m: int, y: Any) -> None:
    """y among all entries; F is evaluated at FLOOR instead of at 0."""
    for i in range(rest.d):
        rest.full[i] = 0.0
    for i in range(m):
        rest.full[rest.place[i]] = max(y[i], FLOOR)


@njit
def bend_at(rest: Rest, n: int, on: Any, m: int, y: Any, form: Any, bend: Any, ld: int) -> None:
    """H + ∇²F(y) on the entries ``on``."""
    if rest.column == 0:
        return
    placed(rest, m, y)
    for j in range(n):
        at = on[j] * ld
        call(rest.column, rest.place[on[j]], rest.full, rest.numbers, rest.work, 1, rest.out)
        for k in range(n):
            bend[at + on[k]] = form[at + on[k]] + rest.out[rest.place[on[k]]]
