r"""Oscarmax, the prox of OSCAR and their derivatives, and isotonic regression, by numba.

    y = P_Δ(g/γ),  g the decreasing regression of x_[k] + μk,  μ = γλ,  k = 0, 1, … by rank
    J v = P v − mean(v_S) on the support S of y,  P the averages over its groups

(Niculae & Blondel 2017, Prop. 3; Best & Chakravarti 1990 for the regression). Sorting a row is
slow, and three facts often avoid it. Let F(k) be the sum of x_[j] + μj over j < k: the blocks of g
lie between vertices of the least concave majorant of F.

1. The support is the K largest, where (F(k) − γ)/k is largest and equal to the threshold τ of P_Δ.
   So x_[K−1] + μ(K−1) > τ, and τ is at least the threshold of P_Δ(x/γ). This leaves n candidates,
   and K ≤ n raises the bound again.
2. n entries of consecutive ranks are one block iff E(k) ≤ μ k(n−k)/2 for all k, E(k) the sum of
   their k largest minus k times their mean. Bounds on E need no order (`certain`); a sufficient
   condition is  max − min ≤ μ n/2.
3. Otherwise the few entries far above and far below the others are sorted, and the rest is one
   block if `certain` proves it. If not, or if there are few candidates, all of them are sorted.

The prox for another base with y_i = 0 where g_i is γρ or more below the largest: the same with
τ ≥ max x − γρ. Entries that are cut are −∞ in the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, projection, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.prox import HIGHEST
from regmax.kernels.cpu.simd import LANES

from ._blocks import blocks_of, certain, middle_from, push, spread
from ._order import FEW, by_comparison, sort
from ._passes import count_above, levels, moments, pack, parts, scan, smallest, split, write

CLOSE = 1.0 - 1e-9  # a margin for rounding in the certificate of one block


@njit
def _room(d: int, like: Any) -> Any:
    """Scratch for rows of d entries."""
    wide, own = common.scratch(4, d), common.scratch_like(3, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    keys, places = memory.empty(2, d, np.uint64), memory.empty(2, d, np.int32)
    return wide, own, whole, keys, places, memory.empty(1, 256 * 8, np.int64)


@njit
def _work(arrays: Any) -> Any:
    """Pointers: some entries and their places; others; all by rank; the blocks; what sorting
    needs."""
    wide, own, whole, keys, places, counts = arrays
    above = memory.row(own, 0), memory.row(whole, 0)
    below = memory.row(own, 1), memory.row(whole, 1)
    sorting = (
        memory.row(keys, 0), memory.row(keys, 1), memory.row(places, 0), memory.row(places, 1),
        memory.row(counts, 0),
    )  # fmt: skip
    return above, below, (memory.row(wide, 0), memory.row(whole, 2)), _blocks(wide), sorting


@njit
def _blocks(wide: Any) -> Any:
    """The sums, sizes and values of blocks."""
    return memory.row(wide, 1), memory.row(wide, 2), memory.row(wide, 3)


@njit
def _forward_row(
    row: Any, d: int, seen: Any, numbers: Any, work: Any, out: Any, blank: bool
) -> None:
    """out = oscarmax of the finite scores of a row, or where ρ ≥ 0 the prox of those that matter.
    ``seen``: sixteen of them, with the largest, the smallest, and how many they are; ``numbers``:
    γ, μ and ρ."""
    (best, least, n), (gamma, mu, reach) = seen, numbers
    above, below, (values, order), blocks, sorting = work
    (kept, index), lanes = above, simd.lanes()
    top = np.float64(simd.largest(best))
    low = -simd.greatest(row)
    fused = reach < 0.0
    other = 0.0 if fused else -np.inf
    bound = projection.bound((simd.wide(best) - top) / gamma) if fused else -reach
    depth = -gamma * bound if bound > -np.inf else np.inf
    one = top - least <= 0.5 * mu * n * CLOSE
    before = 2 * n
    # ends: n decreases by an eighth
    while not one and n > 8 and 8 * n < 7 * before:
        higher = common.floor(row, top, depth + mu * (n - 1))
        before = n
        if higher > low:
            low = higher
            n, some = count_above(row, d, low)
            if n > LANES:
                least = smallest(some)
                one = top - least <= 0.5 * mu * n * CLOSE
    if one:
        write(row, d, (low, top), 1.0 / n if fused else 0.0, other, out, blank)
        return
    if n > FEW:
        total, squares = moments(row, d, low, top)
        if certain(n, total, squares, mu, least - top, 0.0):
            write(row, d, (low, top), 1.0 / n if fused else 0.0, other, out, blank)
            return
        width = 0.45 * mu * (n - middle_from(n, total, squares, mu))
        if width > 0.0:  # no NaN
            # the bounds as numbers of the row's dtype
            kept[0], kept[1] = top + total / n - width, top + total / n + width
            lower, high = max(np.float64(kept[0]), low), min(np.float64(kept[1]), top)
            bounds = low, lower, high
            a, b, total, squares = parts(row, d, bounds, top, lanes, above, below)
            middle = n - a - b
            if (
                max(a, b) <= FEW
                and middle > 0
                and certain(middle, total, squares, mu, lower - top, high - top)
            ):
                by_comparison(kept, index, a, top, values, order, 0)
                by_comparison(below[0], below[1], b, top, values, order, a)
                used = blocks_of(values, a, middle, total, a + b, mu, gamma, fused, blocks)
                level, k = 0.0, 0.0
                for i in range(used):
                    k += blocks[1][i]
                    if k > a:
                        level = blocks[2][i]
                        break
                write(row, d, (lower, high), level, other, out, blank)
                spread(order, a, middle, blocks, used, out)
                return
    pack(row, d, low, lanes, kept, index)
    sort(kept, index, n, top, values, order, sorting)
    used = blocks_of(values, n, 0, 0.0, n, mu, gamma, fused, blocks)
    if not blank:
        common.fill(out, d, other)
    spread(order, n, 0, blocks, used, out)


def forward(job: Any, like: Any) -> None:
    d, prox = job[common.WIDTH], common.given(job, 5)
    blank = job[common.BLANK] != 0 and not prox
    arrays = _room(d, like)
    work, copy = _work(arrays), memory.row(arrays[1], 2)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            row = common.participants(job, r, 3, like, copy)
            out = common.rows_at(job, 4, r, like)
            best, bad, least, m = scan(row, d)
            gamma, lam = common.number_at(job, 1, r), common.number_at(job, 2, r)
            reach = common.number_at(job, 5, r) if prox else -1.0
            if m == 0 and prox:
                common.fill(out, d, np.nan if bad or not gamma > 0.0 else -np.inf)
            elif bad or m == 0 or (lam == 0.0 and not prox):
                (kept, _), _, (values, _), blocks, _ = work
                projection.forward(
                    row, d, gamma, values, blocks[0], kept, out, job[common.BLANK] != 0
                )
            elif gamma > 0.0 and lam >= 0.0:
                numbers = gamma, min(gamma * lam, HIGHEST), reach
                _forward_row(row, d, (best, least, m), numbers, work, out, blank)
            else:
                common.fill(out, d, np.nan)
        begin, end = common.take(job)
    memory.keep(arrays)


@njit
def _backward_row(job: Any, like: Any, r: int, work: Any) -> None:
    """Jv/γ of row r, or for the prox P v of a v with ⟨v, 1⟩ = 0; and the derivative in λ if it is
    asked for."""
    d, blank, prox = job[common.WIDTH], job[common.BLANK] != 0, common.given(job, 7)
    y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
    out, hyper = common.rows_at(job, 4, r, like), common.given(job, 5)
    gamma = 1.0 if prox else common.number_at(job, 2, r)
    (kept, index), (_, start), (values, order), (mean, _, _), sorting = work
    most, least, n = levels(y, d)
    if not most > least:  # one group, none, or NaN: Jv = 0
        if not blank:
            common.fill(out, d, 0.0)
        if hyper:
            common.set_number(job, 5, r, 0.0)
        return
    # a large support: only entries above its lowest value are sorted, as many may be equal to it
    low = least if n > 2 * LANES else 0.0
    n, size, total = split(y, v, d, low, simd.lanes(), kept, index)
    sort(kept, index, n, 0.0, values, order, sorting)
    count = 0
    sums, whole = 0.0, total
    start[0] = 0
    for k in range(n):
        if k > 0 and values[k] != values[k - 1]:
            mean[count] = sums / (k - start[count])
            count += 1
            start[count] = k
            sums = 0.0
        t = np.float64(v[order[k]])
        sums += t
        whole += t
    mean[count] = sums / (n - start[count])
    count += 1
    start[count] = n
    several = count
    if size:
        mean[count] = total / size
        count += 1
        start[count] = n + size
    for _ in range(0 if prox else 2):  # the second pass removes the rounding error of the first
        average = whole / (n + size)
        whole = 0.0
        for b in range(count):
            mean[b] -= average
            whole += mean[b] * (start[b + 1] - start[b])
    if size:
        write(y, d, (low, low), mean[count - 1] / gamma, 0.0, out, blank)
    elif not blank:
        common.fill(out, d, 0.0)
    for b in range(several):
        w = mean[b] / gamma
        for k in range(start[b], start[b + 1]):
            out[order[k]] = w
    if not hyper:
        return
    # u is −rank up to a constant, averaged over ties
    across = 0.0
    for b in range(count):
        w = mean[b] * (start[b + 1] - start[b])
        across -= w * 0.5 * (start[b] + start[b + 1] - (n + size))
    common.set_number(job, 5, r, -across)


def backward(job: Any, like: Any) -> None:
    arrays = _room(job[common.WIDTH], like)
    work = _work(arrays)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            _backward_row(job, like, r, work)
        begin, end = common.take(job)
    memory.keep(arrays)


def isotonic(job: Any, like: Any) -> None:
    """The decreasing regression of a row. The arrays are v, the mask and z; masked entries are 0,
    and others NaN where one is not finite."""
    d, masked = job[common.WIDTH], common.given(job, 1)
    wide, whole = common.scratch(4, d), memory.empty(1, d, np.int32)
    begin, end = common.take(job)
    while begin < end:
        for r in range(begin, end):
            row, out = common.rows_at(job, 0, r, like), common.rows_at(job, 2, r, like)
            on, place = common.octets_at(job, 1, r), memory.row(whole, 0)
            x, blocks = memory.row(wide, 0), _blocks(wide)
            n, finite, count = 0, True, 0
            for i in range(d):
                out[i] = 0.0
                if not masked or on[i] != 0:
                    x[n], place[n] = np.float64(row[i]), i
                    finite = finite and abs(x[n]) < np.inf
                    n += 1
            for k in range(n):
                count = push(x[k], 1.0, k, x[k], 0.0, count, blocks)
            (_, sizes, value), some, first, count = blocks, count, 0, 0
            for b in range(some):  # from the entries; what rounding puts out of order is pooled
                size = sizes[b]
                t = _mean(x, first, int(size))
                count = push(t * size, size, first, t, 0.0, count, blocks)
                first += int(size)
            first = 0
            for b in range(count):
                t = value[b] + 0.0 if finite else np.nan
                for k in range(first, first + int(sizes[b])):
                    out[place[k]] = t
                first += int(sizes[b])
        begin, end = common.take(job)
    memory.keep((wide, whole))


@njit
def _mean(x: Any, first: int, size: int) -> float:
    """The mean of ``size`` entries = r + Σ (x_i − r)/size, r the first."""
    total, lost = 0.0, 0.0
    for k in range(first, first + size):
        total, lost = common.added(total, lost, x[k] - x[first])
    mean: float = x[first] + total / size
    return mean
