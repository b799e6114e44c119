"""What the generated kernels share: rows of a job, and e at the entries of a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from ..cpu import common, memory, simd
from ..cpu.jit import intrinsic, njit
from ..cpu.simd import LANES

EPS = common.EPS
FLOOR = EPS**2
"""Where e is evaluated instead of at 0."""
X, GAMMA, MASK, NUMBERS, VECTORS, OUT, BOUND, CODE, COUNT, KINKED = range(10)
SUMS, POINTS, EVERY = 15, 16, 17
"""Places in a forward job. Its arrays are x, γ, the mask, the inputs of e that have one number per
row and those that have one per entry, y and the bounds; then the address of e's slopes, how many
inputs have one number per entry, and whether e may have kinks. ``SUMS`` and ``POINTS`` are
where Ω at every ``EVERY``-th y is written, with the sum of the sizes of its terms, and this y with
ε² for its zeros; F is left out."""
LARGEST = 1e155
"""Scores that are larger, or not finite, are not solved."""
ABOVE = float(np.nextafter(LARGEST, np.inf))
SLOPES, PARTIALS, VARYING, PLAIN = 8, 9, 10, 11
"""Places in a backward job. Its arrays are y, γ, v, the inputs of e that have one number per row
and those that have one per entry, then the gradients of x and of both; then the addresses of e's
slopes and partial derivatives, and how many inputs there are of either kind."""


class Entry(NamedTuple):
    """e for one row: the addresses of its code, the inputs that have one number per row, the
    ``count`` that have one per entry, and work space, all with rows of ``ld`` numbers."""

    code: Any
    numbers: Any
    vectors: Any
    count: Any
    ld: Any
    own: Any
    part: Any
    out: Any


@intrinsic
def call(
    typingctx: Any, code: Any, n: Any, y: Any, numbers: Any, vectors: Any, ld: Any, out: Any
) -> Any:
    """The generated function at the address ``code``, of n entries."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
        function = ir.FunctionType(ir.VoidType(), kinds)
        builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, y, numbers, vectors, types.int64, out), emit


@njit
def positive(h: Any) -> Any:
    """e'', kept positive and finite."""
    return simd.select(h > 1e-250, simd.smaller(h, 1e250), 1e-250)


@njit
def at_points(code: int, n: int, e: Entry) -> None:
    """A generated function, in ``e.out``, of the n points ``e.own`` with the inputs ``e.part``."""
    call(code, n, e.own, e.numbers, e.part, e.ld, e.out)


@njit
def slopes(e: Entry, n: int, on: Any, y: Any) -> None:
    """The first three derivatives of e, in ``e.out``, at the entries ``on`` of y."""
    for j in range(n):
        e.own[j] = min(max(y[on[j]], FLOOR), 1.0)
    for k in range(e.count):
        for j in range(n):
            e.part[k * e.ld + j] = e.vectors[k * e.ld + on[j]]
    at_points(e.code, n, e)


@njit
def slopes_at(e: Entry, m: int, y: float, g: Any, h: Any, c: Any) -> None:
    """The first three derivatives of e at one y, of m entries; once where no input differs."""
    n = m if e.count > 0 else 1
    for i in range(n):
        e.own[i] = y
    call(e.code, n, e.own, e.numbers, e.vectors, e.ld, e.out)
    for k, found in enumerate((g, h, c)):
        at, one = k * e.ld, simd.load(e.out, k * e.ld)
        for i in range(0, m, LANES):
            v = simd.load(e.out, at + i) if n > 1 else simd.spread(one, e.out[at])
            simd.store(found, i, v)


@njit
def slopes_of(e: Entry, m: int, y: Any, g: Any, h: Any, c: Any) -> None:
    """The first three derivatives of e at the positive ones of m entries, to their places in g, h
    and c; y is 0 from m on."""
    n = 0
    for i in range(0, m, LANES):
        v = simd.load(y, i)
        on = v > 0.0
        simd.compress(e.own, n, simd.smaller(simd.larger(v, FLOOR), 1.0), on)
        for k in range(e.count):
            simd.compress(e.part, k * e.ld + n, simd.load(e.vectors, k * e.ld + i), on)
        n += simd.count(on)
    at_points(e.code, n, e)
    n = 0
    for i in range(0, m, LANES):
        on = simd.load(y, i) > 0.0
        simd.store(g, i, simd.expand(e.out, n, on))
        simd.store(h, i, simd.expand(e.out, e.ld + n, on))
        simd.store(c, i, simd.expand(e.out, 2 * e.ld + n, on))
        n += simd.count(on)


@njit
def taken(job: Any, r: int, d: int, place: Any, z: Any, like: Any) -> int:
    """z of the participants of row r and their places; none where a score is not solved."""
    row = common.rows_at(job, X, r, like)
    scale = 1.0 / common.number_at(job, GAMMA, r)
    masked = common.given(job, MASK)
    on = common.octets_at(job, MASK, r)
    m, top = 0, -np.inf
    if not masked:
        best = common.piece(row, 0, d, -LARGEST)
        bad = simd.not_below(best, ABOVE)
        for i in range(0, d, LANES):
            v = common.piece(row, i, d, -LARGEST)
            bad = bad | simd.not_below(v, ABOVE) | simd.not_below(v * -1.0, ABOVE)
            best = simd.larger(v, best)
        if simd.count(bad) > 0:
            return 0
        top = simd.largest(best)
        for i in range(0, d, LANES):
            simd.store(z, i, (common.piece(row, i, d, 0.0) - top) * scale)
        for i in range(d):
            place[i] = i
        return d
    for i in range(d):
        if on[i] != 0:
            place[m] = i
            z[m] = row[i]
            if not abs(z[m]) <= LARGEST:
                return 0
            top = max(top, z[m])
            m += 1
    for i in range(m):
        z[i] = (z[i] - top) * scale
    return m


@njit
def vectors_of(job: Any, k: int, r: int, count: int, ld: int, place: Any, m: int, out: Any) -> None:
    """The inputs of e that have a number for each entry, for the entries ``place`` of row r."""
    d = job[common.WIDTH]
    given = common.rows_at(job, k, r, memory.doubles(d))
    for v in range(count):
        for i in range(m):  # without choice LLVM copies vectors
            out[v * ld + i] = given[v * d + (i if m == d else place[i])]


@njit
def spread(job: Any, r: int, m: int, place: Any, found: Any, bound: float, like: Any) -> None:
    """Write y and the bound of row r, +inf for NaN; ``found`` is y at ``place``."""
    y, d = common.rows_at(job, OUT, r, like), job[common.WIDTH]
    sums = simd.spread(simd.load(found, 0), 0.0)
    for i in range(0, m, LANES):
        sums = sums + simd.select(simd.first(m - i), simd.load(found, i), 0.0)
    total = simd.total(sums)
    if m == d:
        for i in range(0, m, LANES):
            common.store_piece(y, i, d, simd.load(found, i) / total)
    else:
        common.fill(y, d, 0.0)
        for i in range(m):
            y[place[i]] = found[i] / total
    common.set_number(job, BOUND, r, bound if bound < np.inf else np.inf)


@njit
def summed(job: Any, r: int, e: Entry, form: int, like: Any) -> None:
    """Write the sums and the point of row r; H is the job's array ``form``."""
    if not common.given(job, SUMS) or r % job[5 + 2 * EVERY] != 0:
        return
    d, k = job[common.WIDTH], r // job[5 + 2 * EVERY]
    y, at = common.rows_at(job, OUT, r, like), common.rows_at(job, POINTS, k, like)
    for i in range(d):
        at[i] = e.own[i] = max(y[i], FLOOR)
    given = common.rows_at(job, VECTORS, r, memory.doubles(d))
    for v in range(e.count):
        for i in range(d):
            e.part[v * e.ld + i] = given[v * d + i]
    at_points(e.code, -d, e)
    h = common.rows_at(job, form, 0, memory.doubles(d))
    if form > 0:
        for i in range(d):
            slope = 0.0
            for j in range(d):
                slope += h[i * d + j] * e.own[j]
            e.out[i] += 0.5 * e.own[i] * slope
    total(e.out, d, common.rows_at(job, SUMS, k, memory.doubles(d)))


@njit
def total(terms: Any, d: int, found: Any) -> None:
    """The sum of the terms, and that of their sizes."""
    sums, lost, size = 0.0, 0.0, 0.0
    for i in range(d):
        size += abs(terms[i])
        term = terms[i] - lost  # what rounding lost of the sum
        after = sums + term
        lost = (after - sums) - term
        sums = after
    found[0], found[1] = sums, size


def sums(job: Any, like: Any) -> None:
    """Ω and the sum of the sizes of its terms at rows of y; its arrays are y, the numbers of e, y
    in float64 with ε² for its zeros, and these pairs, then the address of e."""
    d = job[common.WIDTH]
    wide = common.scratch(1, d)
    first, last = common.take(job)
    while first < last:  # ends: every turn takes rows that were not taken
        for r in range(first, last):
            y, terms = common.rows_at(job, 0, r, like), memory.row(wide, 0)
            at = common.rows_at(job, 2, r, terms)
            for i in range(0, d, LANES):
                v = simd.larger(simd.wide(common.piece(y, i, d, 0.0)), FLOOR)
                common.store_piece(at, i, d, v)
            numbers = common.rows_at(job, 1, r, terms)
            call(common.whole_at(job, 4), -d, at, numbers, at, d, terms)
            total(terms, d, common.rows_at(job, 3, r, terms))
        first, last = common.take(job)
    memory.keep((wide,))


@njit
def entry(job: Any, r: int, code: int, count: int, places: int, ld: int, wide: Any) -> Entry:
    """e for row r; ``places`` is where the job has its inputs."""
    numbers = common.rows_at(job, places, r, memory.doubles(ld))
    vectors, own = memory.row(wide, 0), memory.row(wide, 1)
    return Entry(code, numbers, vectors, count, ld, own, memory.row(wide, 2), memory.row(wide, 3))


@njit
def support(job: Any, r: int, e: Entry, place: Any, vs: Any, h: Any, like: Any) -> int:
    """How many y_i are positive, which are at ``place``; v and e'' there."""
    y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 2, r, like)
    d, n = job[common.WIDTH], 0
    for i in range(0, d, LANES):
        at = common.piece(y, i, d, 0.0)
        on = at > 0.0
        if simd.count(on) == 0:
            continue
        simd.compress(e.own, n, simd.larger(at, 1e-154), on)
        simd.compress(vs, n, common.piece(v, i, d, 0.0), on)
        for k in range(i, min(i + LANES, d)):
            place[n] = k
            n += 1 if y[k] > 0.0 else 0
    vectors_of(job, 4, r, e.count, e.ld, place, n, e.part)
    at_points(e.code, n, e)
    for i in range(0, n, LANES):
        simd.store(h, i, positive(simd.load(e.out, e.ld + i)))
    return n


@njit
def finish(job: Any, r: int, n: int, w: Any, place: Any, e: Entry, like: Any) -> None:
    """Write J v/γ and −⟨J v, ∂e'/∂p⟩ of row r, where w = J v at ``place``."""
    d, plain, ld = job[common.WIDTH], job[5 + 2 * PLAIN], e.ld
    dx, scale = common.rows_at(job, 5, r, like), 1.0 / common.number_at(job, 1, r)
    if n == d:
        for i in range(0, d, LANES):
            common.store_piece(dx, i, d, simd.load(w, i) * scale)
    else:
        common.fill(dx, d, 0.0)
        for j in range(n):
            dx[place[j]] = w[j] * scale
    if job[5 + 2 * PARTIALS] == 0:
        return
    dnumbers = common.rows_at(job, 6, r, memory.doubles(d))
    dvectors = common.rows_at(job, 7, r, memory.doubles(d))
    for k in range(e.count * d):
        dvectors[k] = 0.0
    at_points(job[5 + 2 * PARTIALS], n, e)
    for k in range(plain):
        total = 0.0
        for j in range(n):
            total += w[j] * e.out[k * ld + j]
        dnumbers[k] = -total
    for k in range(e.count):
        for j in range(n):
            dvectors[k * d + place[j]] = -w[j] * e.out[(plain + k) * ld + j]
