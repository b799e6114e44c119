"""Transport plans of a threshold mapping, from its description.

argmax ⟨Y, Z⟩ − Σ e(Y_ij) over {Y ≥ 0, Y1 = a, Yᵀ1 = b} has the rows Π_Ω(z_i + v) on the simplex of
total a_i, where v minimises φ(v) = Σ_i max_Ω(z_i + v) − ⟨b, v⟩ (Blondel, Seguy & Rolet 2018). The
method is that of :mod:`regmax.domains.semidual`, which says why each step is taken, for one plan
after the other: a plan does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import common, memory, simd
from .clipped import bounds_at, sums_of, values_of
from .common import EPS, doubles_at
from .jit import njit
from .laplacian import TINY, axpy, dot, factored, largest, solved
from .root import root_of
from .simd import LANES, larger, select
from .sixteen_rows import shifted
from .threshold import Description

STEPS, HALVINGS, COARSER = 60, 50, 60
"""Newton's steps, trials for the length of one, and times that scores are divided by 4."""


def functions(*descriptions: Description, theta: float | bool) -> Callable[..., None]:
    """``forward(job, like)`` of the descriptions that
    :func:`regmax.kernels.cpu.mapping.functions` takes.

    The arrays are z, −∞ where an entry is 0, θ …, a, b, the number of rows of a plan, y, v, the
    error of a sum of a column relative to the largest b, and how many steps were taken; all are
    float64. The error is NaN where no description covers θ.
    """
    given, number = theta is True, 0.0 if theta is True else float(theta)
    able = [e for e in descriptions if e.solve is None and e.root is None and not e.norm]
    at = 1 + given

    @njit
    def of_none(job: Any, r: int, theta: float, room: Any) -> None:
        common.set_number(job, at + 5, r, np.nan)

    plan = of_none
    for own in reversed(able):
        plan = _plan(own, at, plan)

    def forward(job: Any, like: Any) -> None:
        n = common.whole_at(job, at + 2)
        m = job[common.WIDTH] // n
        wide = m + 2 * LANES
        rows, square = memory.empty(2 * n + 12, wide, like), memory.empty(m + 1, wide, like)
        each = memory.empty(1, 4 * n, like)
        room = memory.row(rows, 0), memory.row(square, 0), memory.row(each, 0)
        begin, end = common.take(job)
        while begin < end:
            for r in range(begin, end):
                plan(job, r, common.number_at(job, 1, r) if given else number, room)
            begin, end = common.take(job)
        memory.keep((rows, square, each))

    return forward


def of(forward: Any) -> Callable[..., None]:
    """:func:`functions` of those of a mapping on the simplex."""
    descriptions, theta = forward.made_of
    return functions(*descriptions, theta=theta)


def _rows(own: Description) -> Any:
    """The slopes at the ends of each row, the rows Π_Ω(z_i + v) with the sums of their columns, and
    the weights."""
    pick, inverse, slope, weight = bounds_at(False), own.inverse, own.slope, own.weight
    entry, sums = sums_of(inverse, pick)
    root, values, scales = root_of(sums, slope), values_of(entry, pick, True), own.scales

    @njit
    def ends(z: Any, a: Any, n: int, m: int, wide: int, theta: Any, taus: Any) -> None:
        """For each row −∞ in the place of τ, and e' of a, of a over the entries that take part, and
        of the bound 4a, which no entry reaches."""
        before, size = -1, -1.0
        for i in range(n):
            count = 0
            for j in range(0, m, LANES):
                count += simd.count(simd.load(z, i * wide + j) > -np.inf)
            at, last = 4 * i, 4 * (i - 1)
            taus[at] = -np.inf
            if count == before and a[i] == size:
                for k in range(1, 4):
                    taus[at + k] = taus[last + k]
                continue
            before, size = count, a[i]
            for k in range(1, 4):
                y = size if k == 1 else (size / count if k == 2 else 4.0 * size)
                taus[at + k] = simd.largest(slope(simd.spread(theta, y), theta)[0])

    @njit
    def total(row: Any, m: int) -> float:
        found = simd.spread(simd.load(row, 0), 0.0)
        for j in range(0, m, LANES):
            found = found + simd.load(row, j)
        return simd.total(found)

    @njit(apart=True)
    def look(
        z: Any, v: Any, a: Any, b: Any, n: int, m: int, wide: int, theta: Any, u: Any, taus: Any,
        y: Any, g: Any,
    ) -> float:  # fmt: skip
        """y, g = Yᵀ1 − b, and ‖g‖."""
        none = simd.spread(theta, 0.0)
        for j in range(0, m, LANES):
            simd.store(g, j, 0.0 - simd.load(b, j))
        for i in range(n):
            row, out, high = shifted(z, i * wide), shifted(y, i * wide), none - np.inf
            for j in range(0, m, LANES):
                w = simd.load(row, j) + simd.load(v, j)
                simd.store(u, j, w)
                high = larger(high, w)
            top = simd.largest(high)
            if scales:
                for j in range(0, m, LANES):
                    simd.store(out, j, inverse(simd.load(u, j) - top, theta)[0])
            else:
                low, most, t = top - taus[4 * i + 1], top - taus[4 * i + 2], taus[4 * i]
                gap = 1e-15 * (abs(low) + abs(top) + 1.0)
                low, most = low - gap, most + gap
                if not low < t < most:
                    t = low
                bounds = none, none + 4.0 * a[i], none - np.inf, none + taus[4 * i + 3]
                t, step, _low, _off = root(
                    u, m, theta, a[i], a[i], bounds, low, most, t, 1e-11, 2.0 * EPS
                )
                taus[4 * i] = t
                values(u, m, theta, t, step, bounds, out)
            scale = a[i] / total(out, m)
            for j in range(0, m, LANES):
                w = simd.load(out, j) * scale
                simd.store(out, j, w)
                simd.store(g, j, simd.load(g, j) + w)
        return float(np.sqrt(dot(g, g, m)))

    @njit
    def weights(y: Any, n: int, m: int, wide: int, theta: Any) -> float:
        """y becomes 1/e''(y), 0 where y is 0; the largest of them."""
        most = simd.spread(theta, 0.0)
        for i in range(0, n * wide, wide):
            for j in range(0, m, LANES):
                w = simd.load(y, i + j)
                on = w > 0.0
                w = select(on, weight(select(on, w, 1.0), theta), 0.0)
                simd.store(y, i + j, w)
                most = larger(most, w)
        return simd.largest(most)

    return ends, look, weights


def _plan(own: Description, at: int, others: Any) -> Any:
    covers, factor = own.covers, own.factor
    ends_of, look, weights = _rows(own)

    @njit(apart=True)
    def newton(
        z: Any, v: Any, a: Any, b: Any, n: int, m: int, wide: int, theta: Any, size: float,
        taus: Any, y: Any, vectors: Any, square: Any,
    ) -> tuple[float, int]:  # fmt: skip
        """v becomes the potentials, from its value. The error of a column, and how many steps."""
        u, d, tried, g = (
            vectors, shifted(vectors, wide), shifted(vectors, 2 * wide), shifted(vectors, 3 * wide)
        )  # fmt: skip
        extra, pivots, ends = (
            shifted(vectors, 4 * wide), shifted(vectors, 5 * wide), shifted(vectors, 6 * wide)
        )  # fmt: skip
        scale, reach, steps = largest(b, m), 4.0 + 8.0 * size, STEPS
        tol = 16.0 * EPS * (1.0 + size / 8.0) * scale
        norm = look(z, v, a, b, n, m, wide, theta, u, taus, y, g)
        fell, last = 0.0, 0.0
        for k in range(STEPS):
            off = largest(g, m)
            floor = off <= 4.0 * tol and fell > 0.7
            if off <= tol or floor or (off <= 1e-8 * scale and min(fell, last) > 0.9):
                steps = k
                break
            most, far = weights(y, n, m, wide, theta), norm / scale
            least, relative = 1e-2 * far * far * most + TINY, 1e-2 * min(far, 1.0) + 8.0 * EPS
            factored(y, n, m, wide, relative, least, square, extra, pivots, ends)
            axpy(0.0, g, g, m, d)
            solved(square, pivots, ends, m, wide, d, tol)
            long = largest(d, m)
            if long > reach:
                axpy(reach / long - 1.0, d, d, m, d)
                reach *= 2.0
            double = min(fell, last) > 0.15 and max(fell, last) < 0.35
            t, low, high = 2.0 if double else 1.0, 0.0, np.inf
            first, up, before, taken, at_t = dot(g, d, m), 0.0, norm, 0.0, 0.0
            down = first
            for trial in range(HALVINGS):
                axpy(t, d, v, m, tried)
                norm = look(z, tried, a, b, n, m, wide, theta, u, taus, y, g)
                along, at_t = dot(g, d, m), t
                if norm <= 0.5 * before or largest(g, m) <= tol:
                    taken = t
                    break
                if along <= 0.0:
                    taken = t
                    if high == np.inf or along >= 0.5 * first:
                        break
                    low, down = t, along
                else:
                    high, up = t, along
                between = 0.5
                if trial % 2 == 0:
                    between = min(max(down / (down - up), 0.1), 0.9)
                t = low + between * (high - low)
            axpy(taken, d, v, m, v)
            if at_t != taken:
                norm = look(z, v, a, b, n, m, wide, theta, u, taus, y, g)
            last, fell = fell, norm / before
        return largest(g, m) / scale, steps

    @njit
    def laid_out(scores: Any, n: int, m: int, wide: int, scale: float, z: Any, v: Any) -> float:
        """z = scale · scores, and v where no entry of z + v is above 0; the largest |z|."""
        size = 0.0
        for j in range(m):
            v[j] = np.inf
        for i in range(n):
            for j in range(m):
                w = scores[i * m + j] * scale
                z[i * wide + j] = w
                if w > -np.inf:
                    size, v[j] = max(size, abs(w)), min(v[j], -w)
        return size

    @njit
    def plan(job: Any, r: int, number: float, room: Any) -> None:
        if not covers(number):
            others(job, r, number, room)
            return
        n = common.whole_at(job, at + 2)
        m = job[common.WIDTH] // n
        wide, (z, square, taus) = m + 2 * LANES, room
        y, vectors = shifted(z, n * wide), shifted(z, 2 * n * wide)
        v, b, old = (
            shifted(vectors, 7 * wide), shifted(vectors, 8 * wide), shifted(vectors, 9 * wide)
        )  # fmt: skip
        scores, a, columns = (
            doubles_at(job, 0, r), doubles_at(job, at, r), doubles_at(job, at + 1, r)
        )  # fmt: skip
        theta = simd.spread(simd.load_part(scores, 0, simd.first(0), 0.0), number)
        for i in range(0, (2 * n + 10) * wide, LANES):
            simd.store(z, i, theta * 0.0)
        for i in range(0, n * wide, LANES):
            simd.store(z, i, theta * 0.0 - np.inf)
        for j in range(m):
            b[j] = columns[j]
        by = factor(number)
        size = laid_out(scores, n, m, wide, by, z, v)
        ends_of(z, a, n, m, wide, theta, taus)
        given = a, b, n, m, wide, theta
        error, steps = newton(z, v, *given, size, taus, y, vectors, square)
        if not error <= 256.0 * EPS * (1.0 + size / 8.0) and 0.25 < size < np.inf:
            # again, from 4v of the scores z/4
            axpy(0.0, v, v, m, old)
            size = laid_out(scores, n, m, wide, by, z, v)
            for level in range(COARSER, -1, -1):
                part = 4.0 ** (-level)
                if size * part > 0.0625 or level == 0:
                    if size * part <= 0.25:
                        laid_out(scores, n, m, wide, by * part, z, v)
                    else:
                        laid_out(scores, n, m, wide, by * part, z, vectors)
                        axpy(3.0, v, v, m, v)
                    found, more = newton(z, v, *given, size * part, taus, y, vectors, square)
                    steps += more
            if found <= error or not error >= 0.0:
                error = found
            else:
                look(z, old, *given, vectors, taus, y, shifted(vectors, 3 * wide))
                axpy(0.0, old, old, m, v)
        out, potentials = doubles_at(job, at + 3, r), doubles_at(job, at + 4, r)
        for j in range(m):
            potentials[j] = v[j] / by
            for i in range(n):
                out[i * m + j] = y[i * wide + j]
        common.set_number(job, at + 5, r, error)
        common.set_number(job, at + 6, r, steps)

    return plan
