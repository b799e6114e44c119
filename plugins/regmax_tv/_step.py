"""The prox of total variation as a step of threshold mappings; see :mod:`._numba`."""

from __future__ import annotations

from typing import Any

import numpy as np

from regmax.kernels.cpu import common, memory, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.prox import Prox
from regmax.kernels.cpu.simd import LANES

from ._passes import keep, pack, pack_where
from ._rows import groups_of, levels


@njit
def room(d: int, like: Any) -> Any:
    """Scratch for rows of d entries."""
    wide, own = common.scratch(3, d), common.scratch_like(1, d, like)
    whole = memory.empty(3, d + 2 * LANES, np.int32)
    signs, knots = memory.empty(2, d + 2 * LANES, np.int8), common.scratch(3, 2 * d)
    return wide, own, whole, signs, knots, common.scratch(1, LANES)


@njit
def work(arrays: Any) -> Any:
    """Pointers: the places of packed entries among those that take part, and in the row; the groups
    (their starts, means and sides) and what finding them needs; a row and a vector."""
    wide, own, whole, signs, knots, spares = arrays
    index, place, start = memory.row(whole, 0), memory.row(whole, 1), memory.row(whole, 2)
    mean, sides = memory.row(wide, 2), memory.row(signs, 1)
    space = (
        memory.row(knots, 0), memory.row(knots, 1), memory.row(knots, 2),
        memory.row(wide, 0), memory.row(wide, 1), memory.row(signs, 0),
    )  # fmt: skip
    return index, place, (start, mean, sides), space, memory.row(own, 0), memory.row(spares, 0)


@njit
def kept_of(
    row: Any, d: int, top: float, depth: float, w: float, scratch: Any, kept: Any
) -> tuple[int, float, int, float]:
    """``keep`` of :class:`regmax.kernels.cpu.prox.Prox`: the threshold moves by up to 2w, and so
    do entries."""
    index, place, _, _, others, _ = scratch
    low, lanes, members = common.floor(row, top, depth + 4.0 * w), simd.lanes(), d
    n, gap = keep(row, d, low, lanes, kept, index)
    if gap:
        members = pack(row, d, -np.inf, lanes, others, place)
        keep(others, members, low, lanes, kept, index)
    return n, low, members, 2.0 * w


@njit
def values(
    kept: Any, n: int, top: float, w: float, scale: float, members: int, scratch: Any
) -> float:
    """``values`` of :class:`regmax.kernels.cpu.prox.Prox`."""
    index, _, groups, space, _, spare = scratch
    start, mean, _ = groups
    count = groups_of(kept, top, index, False, n, members, w, space, groups)
    highest: float = levels(groups, count, w, scale, w * scale <= 16.0, spare)
    for g in range(count):
        t = mean[g]
        for j in range(start[g], start[g + 1]):
            kept[j] = t
    return highest


@njit
def averages(y: Any, v: Any, d: int, on: Any, given: bool, scratch: Any, ys: Any, vs: Any) -> int:
    """``averages`` of :class:`regmax.kernels.cpu.prox.Prox`. v is less its first entry there: a
    large constant in v then causes no rounding error."""
    index, place, groups, _, members, _ = scratch
    lanes, m = simd.lanes(), d
    if given:
        m = pack_where(y, on, d, lanes, members, place)
        n = pack(members, m, 0.0, lanes, ys, index)
    else:
        n = pack(y, d, 0.0, lanes, ys, index)
    groups[0][0] = m  # for ``across``
    if n == 0:
        return 0
    i = index[0]
    ref = np.float64(v[place[i] if given else i])
    sums, begin = 0.0, 0
    for j in range(1, n):
        if index[j] != index[j - 1] + 1 or ys[j] != ys[j - 1]:
            t = sums / (j - begin)
            for k in range(begin, j):
                vs[k] = t
            sums = 0.0
            begin = j
        i = index[j]
        sums += np.float64(v[place[i] if given else i]) - ref
    t = sums / (n - begin)
    for k in range(begin, n):
        vs[k] = t
    return n


@njit
def across(y: Any, w: Any, n: int, scratch: Any) -> float:
    """⟨w, u⟩ = Σ (w_{i+1} − w_i) sign(y_{i+1} − y_i), both 0 between the packed entries."""
    index, _, groups, _, _, _ = scratch
    d, total = groups[0][0], 0.0
    for j in range(n):
        here = np.float64(w[j])
        if index[j] > 0:
            if j > 0 and index[j - 1] == index[j] - 1:
                step = here - np.float64(w[j - 1])
                if y[j] > y[j - 1]:
                    total += step
                elif y[j] < y[j - 1]:
                    total -= step
            else:
                total += here
        if index[j] < d - 1 and (j == n - 1 or index[j + 1] != index[j] + 1):
            total += here
    return total


PROX = Prox(room, work, kept_of, values, averages, across)
