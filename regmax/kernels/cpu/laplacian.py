"""The Laplacian of a transport plan, Σ_i diag(s_i) − s_i s_iᵀ/Σs_i of weights s (n, m), by
elimination: :class:`regmax.domains.semidual.Laplacian` says why it is done like this."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, memory, simd
from .common import EPS, doubles_at
from .jit import njit
from .simd import LANES, larger
from .sixteen_rows import shifted

TINY = float(np.finfo(np.float64).tiny)


def potentials(job: Any, like: Any) -> None:
    """:func:`regmax.domains.semidual.potentials`: the arrays are s, t, the number of rows of a
    plan, α and v; all are float64."""
    n = common.whole_at(job, 2)
    m = job[common.WIDTH] // n
    wide = m + 2 * LANES
    space = memory.empty(n + m + 5, wide, like)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            part, square = memory.row(space, 0), memory.row(space, n)
            vectors = memory.row(space, n + m)
            given = doubles_at(job, 0, r), doubles_at(job, 1, r)
            results = doubles_at(job, 3, r), doubles_at(job, 4, r)
            _nearest(*given, n, m, wide, part, square, vectors, *results)
        begin, end = common.take(job)
    memory.keep(space)


@njit
def _nearest(
    s: Any, t: Any, n: int, m: int, wide: int, part: Any, square: Any, vectors: Any, alpha: Any,
    v: Any,
) -> None:  # fmt: skip
    extra, pivots, ends, g, sizes = (
        vectors, shifted(vectors, wide), shifted(vectors, 2 * wide), shifted(vectors, 3 * wide),
        shifted(vectors, 4 * wide),
    )  # fmt: skip
    for i in range(0, n * wide, LANES):
        simd.store(part, i, simd.spread(simd.load(part, i), 0.0))
    for i in range(n):
        for j in range(m):
            part[i * wide + j] = s[i * m + j]
    factored(part, n, m, wide, 0.0, 0.0, square, extra, pivots, ends)
    for j in range(m):
        v[j] = 0.0
    for step in range(3):  # two steps; then α alone
        for j in range(m):
            g[j], sizes[j] = 0.0, 0.0
        for i in range(n):
            size, mean, big = 0.0, 0.0, 0.0
            for j in range(m):
                w = s[i * m + j]
                if w > 0.0:
                    u = t[i * m + j] - v[j]
                    size, mean, big = size + w, mean + w * u, big + w * abs(u)
            size = max(size, TINY)
            mean, big = mean / size, big / size
            alpha[i] = mean
            for j in range(m):
                w = s[i * m + j]
                if w > 0.0:
                    u = t[i * m + j] - v[j]
                    g[j], sizes[j] = g[j] + w * (u - mean), sizes[j] + w * (abs(u) + big)
        if step == 2:
            break
        for k in range(m):
            if abs(g[k]) <= 8.0 * EPS * sizes[k]:
                g[k] = 0.0
            for j in range(k + 1, m):
                rate = square[k * wide + j]
                g[j], sizes[j] = g[j] + rate * g[k], sizes[j] + rate * sizes[k]
        substituted(square, pivots, m, wide, g)
        for k in range(m):
            v[k] += g[k]


@njit
def dot(a: Any, b: Any, m: int) -> float:
    found = simd.spread(simd.load(a, 0), 0.0)
    for j in range(0, m, LANES):
        found = found + simd.load(a, j) * simd.load(b, j)
    return simd.total(found)


@njit
def largest(a: Any, m: int) -> float:
    """max |a|."""
    found = simd.spread(simd.load(a, 0), 0.0)
    for j in range(0, m, LANES):
        v = simd.load(a, j)
        found = larger(found, larger(v, 0.0 - v))
    return simd.largest(found)


@njit
def axpy(t: float, a: Any, b: Any, m: int, out: Any) -> None:
    """out = t·a + b."""
    for j in range(0, m, LANES):
        simd.store(out, j, t * simd.load(a, j) + simd.load(b, j))


@njit
def factored(
    s: Any, n: int, m: int, wide: int, relative: float, least: float, out: Any, extra: Any,
    pivots: Any, ends: Any,
) -> None:  # fmt: skip
    """L + E of :class:`regmax.domains.semidual.Laplacian`, by elimination without a subtraction:
    row k of ``out`` gets the rates from k on."""
    none = simd.spread(simd.load(s, 0), 0.0)
    for k in range(m):
        for j in range(0, m, LANES):
            simd.store(out, k * wide + j, none)
    for i in range(n):
        row, total = shifted(s, i * wide), none
        for j in range(0, m, LANES):
            total = total + simd.load(row, j)
        size = max(simd.total(total), TINY)
        for k in range(m):
            if row[k] > 0.0:
                part = row[k] / size
                for j in range(0, m, LANES):
                    simd.store(
                        out, k * wide + j, simd.load(out, k * wide + j) + part * simd.load(row, j)
                    )
    sums = none
    for k in range(m):
        out[k * wide + k] = 0.0
        for j in range(0, m, LANES):
            sums = sums + simd.load(out, k * wide + j)
    mean = simd.total(sums) / m
    for k in range(m):
        extra[k] = relative * mean + least
    for k in range(m):
        row, joined = shifted(out, k * wide), 0.0
        for j in range(k + 1, m):
            joined += row[j]
        pivot = joined + extra[k]
        pivots[k], ends[k] = pivot, 1.0 if joined <= extra[k] else 0.0
        for i in range(k + 1, m):
            rate = row[i] / pivot if pivot > 0.0 else 0.0
            if rate > 0.0:
                below = shifted(out, i * wide)
                for j in range(k + 1, m, LANES):
                    simd.store(below, j, simd.load(below, j) + rate * simd.load(row, j))
                extra[i] += rate * extra[k]
        for j in range(k + 1, m):
            row[j] = row[j] / pivot if pivot > 0.0 else 0.0


@njit
def substituted(factors: Any, pivots: Any, m: int, wide: int, g: Any) -> None:
    """The second half of the elimination: from the last column to the first."""
    for i in range(m):
        k = m - 1 - i
        x = g[k] / pivots[k] if pivots[k] > 0.0 else 0.0
        for j in range(k + 1, m):
            x += factors[k * wide + j] * g[j]
        g[k] = x


@njit
def solved(factors: Any, pivots: Any, ends: Any, m: int, wide: int, g: Any, noise: float) -> None:
    """g becomes −(L + E)⁻¹ g, of mean 0."""
    for k in range(m):
        if ends[k] > 0.0 and abs(g[k]) <= noise:
            g[k] = 0.0
        for j in range(k + 1, m):
            g[j] += factors[k * wide + j] * g[k]
    substituted(factors, pivots, m, wide, g)
    mean = 0.0
    for k in range(m):
        mean += g[k] / m
    for k in range(m):
        g[k] = mean - g[k]
