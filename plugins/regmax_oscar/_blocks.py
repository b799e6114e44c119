"""Oscarmax on the CPU: the blocks of the isotonic regression, and a certificate of a single block.

Pool adjacent violators (Best & Chakravarti 1990): a stack of blocks, each with its sum. A new block
is pooled with the previous blocks whose value is not above its own.
"""

from __future__ import annotations

import math
from typing import Any

from regmax.kernels.cpu import common, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

LONG = 128
"""The sum of a block of more entries is computed again from its entries."""


@njit
def push(
    total: float, size: float, first: float, t: float, mu: float, count: int, blocks: Any
) -> int:
    """Push a block of value t, sum ``total`` and highest rank ``first`` on the stack of ``count``
    blocks, pooled with previous blocks whose value is not above its own. Returns the new count.

    ``blocks``: their sums, sizes and values. The value of a block is the mean of x_[k] + μk over
    its entries: mean(x) + μ·(mean rank).
    """
    sums, sizes, value = blocks
    # ends: the stack shrinks
    while count > 0 and value[count - 1] <= t:
        count -= 1
        total += sums[count]
        size += sizes[count]
        first -= sizes[count]
        t = total / size + mu * (first + 0.5 * (size - 1.0))
    sums[count], sizes[count], value[count] = total, size, t
    return count + 1


@njit
def certain(n: Any, total: float, squares: float, mu: float, least: float, most: float) -> bool:
    """Whether n entries x in [least, most] with these sums of x and x² are proven to be one block.

    E(k) ≤ μ k(n−k)/2 follows from E(k) ≤ k (most − mean) up to k_1, from E(k) ≤ σ √(k(n−k))
    between k_2 and n − k_2, and from E(k) ≤ (n−k)(mean − least) from k_3 on.
    """
    mean = total / n
    k1, k3 = n - 2.0 * (most - mean) / mu, 2.0 * (mean - least) / mu
    slack = 1e-9 * n
    if k3 + slack <= k1:
        return True
    k2 = middle_from(n, total, squares, mu)
    return k2 + slack <= k1 and k3 + slack <= n - k2


@njit
def middle_from(n: Any, total: float, squares: float, mu: float) -> float:
    """The smaller root of μ² k(n−k)/4 = σ²; NaN if there is none."""
    mean = total / n
    variance = max(squares / n - mean * mean, 0.0) + 1e-12 * squares / n
    return 0.5 * n - math.sqrt(0.25 * n * n - 4.0 * variance / (mu * mu))


@njit
def blocks_of(
    values: Any,
    ahead: int,
    middle: int,
    total: float,
    n: int,
    mu: float,
    gamma: float,
    fused: bool,
    blocks: Any,
) -> Any:
    """The blocks of the regression g; blocks[2] gets their values of y, and the number of positive
    blocks is returned. Unless ``fused``, the values of g below the largest, and that of all blocks.

    By rank: values[:ahead], ``middle`` entries in one block of sum ``total``, values[ahead:n].
    """
    sums, sizes, value = blocks
    count = 0
    for k in range(ahead):
        count = push(values[k], 1.0, k, values[k] + mu * k, mu, count, blocks)
    if middle:
        t = total / middle + mu * (ahead + 0.5 * (middle - 1))
        count = push(total, middle, ahead, t, mu, count, blocks)
    for k in range(ahead, n):
        t = values[k] + mu * (k + middle)
        count = push(values[k], 1.0, k + middle, t, mu, count, blocks)
    first = 0.0
    mean, rank = 0.0, 0.0
    acc, scale = 0.0, 1.0 / gamma if fused else 1.0
    used = 0
    for b in range(count):
        if not middle and sizes[b] > LONG:  # from the entries, in sixteen sums
            sums[b] = _sum(values, int(first), int(sizes[b]))
        size = sizes[b]
        level, place = sums[b] / size, first + 0.5 * (size - 1.0)
        if b == 0:
            mean, rank = level, place
        t = ((level - mean) + mu * (place - rank)) * scale
        if fused and t * first <= acc - 1.0 and b > 0:  # t ≤ τ of the previous blocks
            break
        value[b] = t
        first += size
        acc += t * size
        used += 1
    if not fused:
        return used
    if used == 1:
        value[0] = 1.0 / sizes[0]
        return 1
    tau = (acc - 1.0) / first
    off = -1.0  # the rounding error of sums
    for b in range(used):
        off += (value[b] - tau) * sizes[b]
    tau += off / first
    whole = 0.0
    for b in range(used):
        value[b] = max(value[b] - tau, 0.0)
        whole += value[b] * sizes[b]
    if abs(whole - 1.0) > common.EPS * math.sqrt(used):
        rest = (whole - 1.0) / first  # small values have the digits for it
        for b in range(used):
            value[b] = max(value[b] - rest, 0.0)
    return used


@njit
def _sum(values: Any, first: int, size: int) -> float:
    """Σ values over ``size`` ≥ 16 entries from ``first``, in sixteen sums."""
    full = size - size % LANES
    sums = simd.load(values, first)
    for i in range(first + LANES, first + full, LANES):
        sums = sums + simd.load(values, i)
    total = simd.total(sums)
    for i in range(first + full, first + size):
        total += values[i]
    return total


@njit
def spread(order: Any, ahead: int, middle: int, blocks: Any, used: int, out: Any) -> None:
    """Write the values of the blocks to their entries, except those of the middle."""
    _, sizes, value = blocks
    k = 0
    for b in range(used):
        t = value[b]
        end = k + int(sizes[b])
        for j in range(k, min(end, ahead)):
            out[order[j]] = t
        for j in range(max(k - middle, ahead), end - middle):
            out[order[j]] = t
        k = end
