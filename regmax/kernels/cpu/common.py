"""Shared parts of CPU kernels: packing the few relevant entries of a row, and unpacking them.

Where y_i = 0 unless x_i/γ is near the largest, a kernel (i) finds the largest, (ii) packs the
entries that may be positive, (iii) solves on these alone, (iv) writes y. Backward packs
the support instead. Rows are pointers, read 16 entries at a time (:mod:`regmax.kernels.cpu.simd`);
``z`` is scratch of float64 and ``kept`` of the row's dtype, from :func:`scratch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import memory, simd
from .jit import njit
from .job import ROWS, STEP
from .simd import LANES

EPS = float(np.finfo(np.float64).eps)
WIDTH, BLANK = 3, 4
"""The positions in a job of d, and of whether its results are 0 already, so that zeros need not be
written. The arrays follow, each an address and the row stride in entries."""
_ARRAYS = 5


@njit
def take(job: Any) -> tuple[int, int]:
    """The next rows, first … last − 1; none if first = last."""
    first = memory.fetch_add(job, job[STEP])
    return min(first, job[ROWS]), min(first + job[STEP], job[ROWS])


@njit
def rows_at(job: Any, k: int, r: int, like: Any) -> Any:
    """A pointer to row r of the job's array k, of ``like``'s type."""
    return memory.pointer(job[_ARRAYS + 2 * k], r * job[_ARRAYS + 2 * k + 1], like)


@njit
def doubles_at(job: Any, k: int, r: int) -> Any:
    """A pointer to row r of the job's array k, of float64."""
    return memory.doubles(job[_ARRAYS + 2 * k] + 8 * r * job[_ARRAYS + 2 * k + 1])


@njit
def number_at(job: Any, k: int, r: int) -> float:
    """The number of row r in the job's array k, which may hold one number for all rows."""
    return memory.doubles(job[_ARRAYS + 2 * k])[r * job[_ARRAYS + 2 * k + 1]]


@njit
def given(job: Any, k: int) -> bool:
    """Whether the job has an array k."""
    return job[_ARRAYS + 2 * k] != 0


@njit
def differs(job: Any, k: int) -> bool:
    """Whether each row has its own number in the job's array k."""
    return job[_ARRAYS + 2 * k + 1] != 0


@njit
def whole_at(job: Any, k: int) -> int:
    """The integer that the job has in the place of an array k."""
    number: int = job[_ARRAYS + 2 * k]
    return number


@njit
def ints_at(job: Any, k: int, r: int) -> Any:
    """A pointer to row r of the job's array k, of int32."""
    return memory.ints(job[_ARRAYS + 2 * k] + 4 * r * job[_ARRAYS + 2 * k + 1])


@njit
def octets_at(job: Any, k: int, r: int) -> Any:
    """A pointer to row r of the job's array k, of bytes."""
    return memory.octets(job[_ARRAYS + 2 * k] + r * job[_ARRAYS + 2 * k + 1])


@njit
def participants(job: Any, r: int, mask: int, like: Any, part: Any) -> Any:
    """Row r of the scores, array 0; if there is an array ``mask``, its copy in ``part`` with −inf
    at masked entries."""
    row = rows_at(job, 0, r, like)
    if not given(job, mask):
        return row
    masked(row, octets_at(job, mask, r), job[WIDTH], part)
    return part


@njit
def set_number(job: Any, k: int, r: int, value: float) -> None:
    """Set the number of row r in the job's array k."""
    memory.doubles(job[_ARRAYS + 2 * k])[r] = value


@njit
def write(job: Any, k: int, r: int, values: Any, n: int) -> None:
    """Write the first n entries of row r in the job's array k of float64."""
    out = memory.doubles(job[_ARRAYS + 2 * k])
    start = r * job[_ARRAYS + 2 * k + 1]
    for i in range(n):
        out[start + i] = values[i]


@njit
def scratch(count: int, d: int) -> Any:
    """``count`` rows of float64 with room for d entries and a vector after them.

    Use ``memory.row(scratch, i)`` inside the loop over rows: a pointer does not keep memory alive.
    """
    return memory.empty(count, d + 2 * LANES, np.float64)


@njit
def scratch_like(count: int, d: int, like: Any) -> Any:
    """:func:`scratch` of ``like``'s type."""
    return memory.empty(count, d + 2 * LANES, like)


@njit
def fill(out: Any, d: int, value: float) -> None:
    """out[:d] = value."""
    for i in range(d):
        out[i] = value


@njit
def without_answer(bad: bool, top: float, d: int, out: Any) -> bool:
    """Whether a row has no maximiser, and then out = NaN if it is ``bad``, and 0 if its largest
    score is −∞: nobody takes part."""
    if bad:
        fill(out, d, np.nan)
    elif top == -np.inf:
        fill(out, d, 0.0)
    return bad or top == -np.inf


@njit
def masked(row: Any, mask: Any, d: int, out: Any) -> None:
    """out = row where mask, else −inf."""
    low = -np.inf
    full = d - d % LANES
    for i in range(0, full, LANES):
        on = simd.differ(simd.load(mask, i), 0)
        simd.store(out, i, simd.select(on, simd.load(row, i), low))
    for i in range(full, d):
        out[i] = row[i] if mask[i] else low


@njit
def piece(row: Any, i: int, d: int, fill: float) -> Any:
    """row[i : i + 16], with ``fill`` from d on."""
    return simd.load(row, i) if i + LANES <= d else simd.load_part(row, i, simd.first(d - i), fill)


@njit
def store_piece(out: Any, i: int, d: int, v: Any) -> None:
    """out[i : i + 16] = v, up to d."""
    if i + LANES <= d:
        simd.store(out, i, v)
    else:
        simd.store_part(out, i, simd.first(d - i), v)


@njit
def scan(row: Any, d: int) -> Any:
    """Sixteen of the entries, the largest among them, padded with −inf; and whether any entry is
    NaN or +inf."""
    full = d - d % LANES
    v = simd.load_part(row, full, simd.first(d - full), -np.inf)
    best = simd.larger(v, -np.inf)
    bad = simd.not_below(v, np.inf)
    for i in range(0, full, LANES):
        v = simd.load(row, i)
        best = simd.larger(v, best)
        bad = bad | simd.not_below(v, np.inf)
    return best, simd.count(bad) > 0


@njit
def floor(row: Any, top: float, depth: float) -> float:
    """A finite number at or below every entry of the row that lies above top − depth."""
    slack = 4.0 * simd.resolution(row) * (abs(top) + depth)
    return max(top - depth - slack, -simd.greatest(row))


@njit
def keep(row: Any, d: int, low: float, kept: Any) -> int:
    """kept[:n] = the n entries x_i ≥ low, in order."""
    full, n = d - d % LANES, 0
    for i in range(0, full, LANES):
        v = simd.load(row, i)
        on = v >= low
        simd.compress(kept, n, v, on)
        n += simd.count(on)
    if full < d:
        v = simd.load_part(row, full, simd.first(d - full), -np.inf)
        on = v >= low
        simd.compress(kept, n, v, on)
        n += simd.count(on)
    return n


@njit
def pack(row: Any, d: int, low: float, top: float, scale: float, kept: Any, z: Any) -> int:
    """z[:n] = (x_i − top)·scale for the n entries with x_i ≥ low, in order; padded with −inf to a
    whole number of vectors."""
    n = keep(row, d, low, kept)
    simd.store(kept, n, simd.spread(simd.load(kept, 0), -np.inf))
    for i in range(0, n, LANES):
        simd.store(z, i, (simd.wide(simd.load(kept, i)) - top) * scale)
    return n


@njit
def place(row: Any, d: int, low: float, kept: Any, out: Any, blank: bool) -> None:
    """out_i = kept_1, kept_2, … where x_i ≥ low, else 0: the inverse of ``keep``."""
    full, n = d - d % LANES, 0
    for i in range(0, full, LANES):
        on = simd.load(row, i) >= low
        size = simd.count(on)
        if not blank or size > 0:
            simd.store(out, i, simd.expand(kept, n, on))
            n += size
    if full < d:
        rest = simd.first(d - full)
        on = simd.load_part(row, full, rest, -np.inf) >= low
        simd.store_part(out, full, rest, simd.expand(kept, n, on))


@njit
def keep_support(y: Any, v: Any, d: int, kept_y: Any, kept_v: Any, blank: bool) -> int:
    """kept_y[:n], kept_v[:n] = y_i, v_i where y_i > 0, in order."""
    full, n = d - d % LANES, 0
    for i in range(0, full, LANES):
        a = simd.load(y, i)
        on = a > 0.0
        size = simd.count(on)
        if not blank or size > 0:
            simd.compress(kept_y, n, a, on)
            simd.compress(kept_v, n, simd.load(v, i), on)
            n += size
    if full < d:
        rest = simd.first(d - full)
        a, b = simd.load_part(y, full, rest, 0.0), simd.load_part(v, full, rest, 0.0)
        on = a > 0.0
        simd.compress(kept_y, n, a, on)
        simd.compress(kept_v, n, b, on)
        n += simd.count(on)
    return n


@njit
def place_support(y: Any, d: int, kept: Any, out: Any, blank: bool) -> None:
    """out_i = kept_1, kept_2, … where y_i > 0, else 0: the inverse of ``keep_support``."""
    full, n = d - d % LANES, 0
    for i in range(0, full, LANES):
        on = simd.load(y, i) > 0.0
        size = simd.count(on)
        if not blank or size > 0:
            simd.store(out, i, simd.expand(kept, n, on))
            n += size
    if full < d:
        rest = simd.first(d - full)
        on = simd.load_part(y, full, rest, 0.0) > 0.0
        simd.store_part(out, full, rest, simd.expand(kept, n, on))


@njit
def added(total: Any, lost: Any, v: Any) -> Any:
    """total + v lane by lane, and the compensation for rounding (Kahan): the error does not grow
    with the number of terms."""
    term = v - lost
    following = total + term
    return following, (following - total) - term
