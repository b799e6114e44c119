"""Compiled functions of :mod:`regmax.kernels.cpu.sparse`: the products of attention with weights of
which few are not 0.

The vectors of key head h are rows h·S, …, h·S + S − 1 of a matrix; ``each`` consecutive rows of
weights share a key head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import common, memory, simd
from .jit import njit
from .simd import LANES


@njit
def average(weights: Any, columns: Any, n: int, vectors: Any, width: int, out: Any) -> None:
    """out = Σ_p weights_p · vectors[columns_p]."""
    full = width - width % (4 * LANES)
    for e in range(0, full, 4 * LANES):
        a = b = c = d = simd.load_part(out, e, simd.first(0), 0.0)
        for p in range(n):
            at, w = columns[p] * width + e, weights[p]
            a = a + simd.load(vectors, at) * w
            b = b + simd.load(vectors, at + LANES) * w
            c = c + simd.load(vectors, at + 2 * LANES) * w
            d = d + simd.load(vectors, at + 3 * LANES) * w
        simd.store(out, e, a)
        simd.store(out, e + LANES, b)
        simd.store(out, e + 2 * LANES, c)
        simd.store(out, e + 3 * LANES, d)
    for e in range(full, width, LANES):
        on = simd.first(width - e)
        a = simd.load_part(out, e, simd.first(0), 0.0)
        for p in range(n):
            a = a + simd.load_part(vectors, columns[p] * width + e, on, 0.0) * weights[p]
        simd.store_part(out, e, on, a)


@njit
def add(weights: Any, columns: Any, n: int, vector: Any, width: int, out: Any) -> None:
    """out[columns_p] += weights_p · vector."""
    full = width - width % LANES
    for p in range(n):
        at, w = columns[p] * width, weights[p]
        for e in range(0, full, LANES):
            simd.store(out, at + e, simd.load(out, at + e) + simd.load(vector, e) * w)
        if full < width:
            on = simd.first(width - full)
            last = simd.load_part(vector, full, on, 0.0) * w
            last = last + simd.load_part(out, at + full, on, 0.0)
            simd.store_part(out, at + full, on, last)


@njit
def support(y: Any, d: int, columns: Any, kept: Any, room: int) -> int:
    """The number n of entries that are not 0, NaN included; the first ones and their columns, up to
    ``room`` and a vector more."""
    full, n = d - d % LANES, 0
    for i in range(0, full, LANES):
        v = simd.load(y, i)
        on = (v > 0.0) | simd.not_below(v, np.inf)
        size = simd.count(on)
        if size > 0:
            if n <= room:
                simd.compress(kept, n, v, on)
                simd.compress(columns, n, simd.add_int(simd.lanes(), i), on)
            n += size
    for i in range(full, d):
        if not y[i] <= 0.0:
            if n <= room:
                kept[n] = y[i]
                columns[n] = i
            n += 1
    return n


def forward(job: Any, like: Any) -> None:
    """Of weights y (array 0): the columns where they are not 0 (1), how many these are (2), and
    their averages (4) of the vectors (3), unless they are more than ``room`` (5)."""
    d, room = job[common.WIDTH], common.whole_at(job, 5)
    each, keys, width = common.whole_at(job, 6), common.whole_at(job, 7), common.whole_at(job, 8)
    scratch = common.scratch_like(1, d, like)
    first, last = common.take(job)
    while first < last:
        for r in range(first, last):
            kept, columns = memory.row(scratch, 0), common.ints_at(job, 1, r)
            n = support(common.rows_at(job, 0, r, like), d, columns, kept, room)
            common.ints_at(job, 2, r)[0] = n
            if n <= room:
                vectors = memory.pointer(common.whole_at(job, 3), r // each * keys * width, like)
                average(kept, columns, n, vectors, width, common.rows_at(job, 4, r, like))
        first, last = common.take(job)


def backward(job: Any, like: Any) -> None:
    """For each key head: the gradients of its keys (array 0), its values (1) and its queries (9)
    for those of the scores (2), with weights (3), columns (4), their numbers (5), queries (6),
    gradients of the averages (7), and keys (8)."""
    each, width, depth = (
        common.whole_at(job, 10),
        common.whole_at(job, 11),
        common.whole_at(job, 12),
    )
    first, last = common.take(job)
    while first < last:
        for h in range(first, last):
            dk, dv = common.rows_at(job, 0, h, like), common.rows_at(job, 1, h, like)
            keys = common.rows_at(job, 8, h, like)
            for r in range(h * each, (h + 1) * each):
                columns, n = common.ints_at(job, 4, r), common.ints_at(job, 5, r)[0]
                slope, y = common.rows_at(job, 2, r, like), common.rows_at(job, 3, r, like)
                average(slope, columns, n, keys, width, common.rows_at(job, 9, r, like))
                add(slope, columns, n, common.rows_at(job, 6, r, like), width, dk)
                add(y, columns, n, common.rows_at(job, 7, r, like), depth, dv)
        first, last = common.take(job)
