"""Threshold mappings in Triton: rows as tiles of one program, or as chunks of several.

Where no penalty couples the entries, Π_Ω(x) is a power of what lies above a threshold. With the
distances δ_i = (max x − x_i)/γ ≥ 0,

    y_i = v_i / Σv,    v_i = [1 − c δ_i]₊^k,

and one scalar equation per row for c (a = α − 1 for Tsallis, p − 1 for the p-norm; k = 1/a):

    gini      c = 1/T,          Σ [T − δ]₊ = 1;
    tsallis   c = a e^(−aℓ),    ℓ + log Σv = 0, through a = 0, where v_i = e^(−δ_i);
    p-norm    c = 1/s,          log s + (p−2)/p log Σv^p + log Σv = 0.

Gini is solved by Michelot's finite iteration (1986), the others by Newton's method on ℓ or log s
inside a bracket, until the last bits. α > 2, infinitely steep at its threshold, goes by the
smallest entry of the support instead, in float64 (rarely wanted, and only so is it right).

A short row is a line of a tile in registers. Where powers are dear, the entries of a longer one
that can be in the support (δ below 1, or 1/a) are first packed to the front of the output row,
which serves as scratch, and the equation is solved on those. Either way x is read once and y
written once. A row beyond ``LIMIT`` entries is packed by several programs, solved by one, and read
a second time and written by several. Nothing is read back by the host; γ and θ come from memory, so
that no value of theirs compiles anything anew.

Sources: Peters, Niculae & Martins (2019) for entmax; Gonçalves, Treviso & Martins (2025,
AdaSplash) for a safeguarded Newton iteration per row on a GPU.
"""

# ruff: noqa: RET505, SIM102, PIE808 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_rows import (
    BIG,
    GINI,
    KINDS,
    PNORM,
    TSALLIS,
    check_device,
    chunks_of,
    distance,
    divide,
    exponents,
    guard,
    limit_of,
    load_scores,
    per_row,
    shape_of,
    steps,
    survey,
)

PACK = {"gini": 1 << 30, "tsallis": 1024, "pnorm": 1024}
"""The shortest row of one program that packs its candidates: where powers cost more than that."""


@triton.jit
def log1p(x, u):
    """log(1 + x), u its rounded 1 + x: log(u) x / (u − 1) takes the rounding of u out again."""
    near = tl.abs(x) < 0.5
    off = u - 1
    ratio = x / tl.where(off == 0, 1.0, off)
    return tl.where(near, tl.where(off == 0, x, tl.log(u) * ratio), tl.log(u))


@triton.jit
def special(k):
    """k if it is 1 or 2 in all rows of the tile, else 0: then powers are products."""
    low, high = tl.min(k), tl.max(k)
    return tl.where(low == high, tl.where(low == 2, 2, tl.where(low == 1, 1, 0)), 0)


@triton.jit
def powers(delta, c, e, k, exact):
    """base = 1 − cδ + e where positive, base^(k−1) and base^k; e^(−δ) twice where k = 0.

    e corrects c by less than its last bit.
    """
    near = tl.minimum(delta, BIG)
    base = tl.fma(tl.zeros_like(delta) - c, near, tl.zeros_like(delta) + 1.0) + e
    on = (base > 0) & (delta < float("inf"))
    base = tl.where(on, base, 0.0)
    v = base
    t = tl.where(on, 1.0, 0.0).to(delta.dtype)
    if exact == 2:
        t = base
        v = base * base
    elif exact == 0:
        near = tl.where(on, near, 0.0)
        safe = tl.where(on, base, 1.0)
        x = tl.fma(tl.zeros_like(near) - c, near, tl.zeros_like(near) + e)
        v = tl.exp(tl.where(k == 0, -near, k * log1p(x, safe)))
        v = tl.where(on, v, 0.0)
        t = v / safe
    return base, t, v


@triton.jit
def candidates(ptr, counts_ptr, s0, w0, count, chunks, top, gamma,
               CHUNK: tl.constexpr, CH: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """δ of packed candidates: places w0.. of the chunks s0.., CH of them."""
    j = tl.arange(0, N)[None, :]
    if CH == 1:
        w = w0 + j
        x = tl.load(ptr + w, mask=w < count, other=-float("inf"))
    else:
        s = s0 + j // (N // CH)
        w = w0 + j % (N // CH)
        held = tl.load(counts_ptr + s, mask=s < chunks, other=0)
        x = tl.load(ptr + s.to(tl.int64) * CHUNK + w, mask=w < held, other=-float("inf"))
    return distance(x.to(top.dtype), top, gamma)


# what the equations need of a row's distances: sums, or minima
LINEAR = tl.constexpr(0)
POWER = tl.constexpr(1)
NEXT = tl.constexpr(2)
EXCESS = tl.constexpr(3)
STEEP = tl.constexpr(4)


@triton.jit
def tile_stats(delta, q0, q1, q2, q3, STAT: tl.constexpr):
    """Three numbers per row of the tile."""
    if STAT == LINEAR:  # q0 = T: how many δ are below T, and their sum
        on = delta < q0
        u = tl.where(on, 1.0, 0.0).to(delta.dtype)
        v = tl.where(on, delta, 0.0)
        w = tl.where(on, (q0 - delta) + q1, 0.0)
    elif STAT == POWER:  # c, e, k, exact: Σ base^(k−1), Σ base^k, Σ base^(k+1)
        base, u, v = powers(delta, q0, q1, q2, q3)
        w = v * base
    elif STAT == NEXT:  # q0 < q1 ≤ q2: the least δ in [q1, q2), and in (q0, q1)
        between = (delta > q0) & (delta < q2)
        u = tl.where(between & (delta >= q1), delta, float("inf"))
        v = tl.where(between & (delta < q1), delta, float("inf"))
        w = v
    else:
        # q0 = δ_k, the largest in the support, q1 = a, q2 = log t^a:
        # y = (a (δ_k − δ) + t^a)^(1/a); Σ y, Σ (t/y)^(a−1), and how many
        gap = q0 - delta
        log_gap = tl.where(gap > 0, tl.log(tl.where(gap > 0, gap, 1.0) * q1), -float("inf"))
        on = gap >= 0
        if STAT == EXCESS:
            log_y = log_gap / q1
            w = tl.where(on, 1.0, 0.0).to(delta.dtype)
        else:
            log_y = log_sum(log_gap, q2) / q1
            w = tl.where(on, tl.exp((q1 - 1.0) * (q2 / q1 - log_y)), 0.0)
        u = tl.where(on, tl.exp(log_y), 0.0)
        v = w
    if STAT == NEXT:
        return tl.min(u, 1, keep_dims=True), tl.min(v, 1, keep_dims=True), q0
    else:
        a = tl.sum(u, 1, keep_dims=True)
        b = tl.sum(v, 1, keep_dims=True)
        return a, b, tl.sum(w, 1, keep_dims=True)


@triton.jit
def log_sum(a, b):
    """log(e^a + e^b), b finite."""
    high = tl.maximum(a, b)
    return high + tl.log(1.0 + tl.exp(tl.minimum(a, b) - high))


@triton.jit
def stats(delta, ptr, counts_ptr, most, chunks, top, gamma, q0, q1, q2, q3,
          STAT: tl.constexpr, PACKED: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
          N: tl.constexpr):  # fmt: skip
    """``tile_stats`` of the tile in registers, or of all packed candidates (at most ``most`` in a
    chunk)."""
    if not PACKED:
        return tile_stats(delta, q0, q1, q2, q3, STAT)
    else:
        start = float("inf") if STAT == NEXT else 0.0
        a = tl.zeros_like(q0) + start
        b = tl.zeros_like(q0) + start
        c = tl.zeros_like(q0) + start
        for s0 in range(0, chunks, CH):
            for w0 in range(0, most, N // CH):
                tile = candidates(ptr, counts_ptr, s0, w0, most, chunks, top, gamma, CHUNK, CH, N)
                da, db, dc = tile_stats(tile, q0, q1, q2, q3, STAT)
                if STAT == NEXT:
                    a = tl.minimum(a, da)
                    b = tl.minimum(b, db)
                else:
                    a += da
                    b += db
                    c += dc
        return a, b, c


@triton.jit
def equation(t, a, k, sums_t, sums_v, sums_w, KIND: tl.constexpr):
    """f and f' of a row's equation at t = ℓ or log s, and ∂f/∂e."""
    if KIND == TSALLIS:
        f = t + tl.log(sums_v)
        slope = sums_t / sums_v
        by_e = k * slope
    else:
        p = a + 1.0
        f = t + (p - 2.0) / p * tl.log(sums_w) + tl.log(sums_v)
        by_e = k * ((p - 2.0) * sums_v / sums_w + sums_t / sums_v)
        slope = 1.0 + k * ((p - 2.0) * (sums_v - sums_w) / sums_w + (sums_t - sums_v) / sums_v)
    return f, slope, by_e


@triton.jit
def slope_of_base(t, a, KIND: tl.constexpr):
    """c at ℓ or log s."""
    if KIND == TSALLIS:
        return a * tl.exp(-a * t)
    else:
        return tl.exp(-t)


@triton.jit
def solve(delta, ptr, counts_ptr, most, chunks, top, gamma, a, k, count, active,
          KIND: tl.constexpr, PACKED: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
          N: tl.constexpr):  # fmt: skip
    """c, e and Σv of each row (T, e, Σy for gini). ``active`` rows only; the others are frozen."""
    zero = tl.zeros_like(k)
    if KIND == GINI:
        # from above, supports only shrink: T ← (1 + Σ_S δ)/|S| until it no longer falls
        t = zero + 1.0
        while tl.max(active) > 0:
            n, total, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, zero, zero,
                                zero, LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
            following = divide(1.0 + total, tl.maximum(n, 1.0))
            falls = (following < t) & (active > 0)
            t = tl.where(falls, following, t)
            active = falls.to(tl.int32)
        n, _, total = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, zero, zero,
                            zero, LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
        # what rounding left, by less than the last bit of T
        e = (1.0 - total) / tl.maximum(n, 1.0)
        _, _, total = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, e, zero, zero,
                            LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
        return t, e, total
    else:
        eps = 2.220446049250313e-16 if k.dtype == tl.float64 else 1.1920928955078125e-07
        exact = special(k)
        low = -tl.log(tl.maximum(count, 1).to(k.dtype))
        if KIND == PNORM:
            low = low * (2.0 - 2.0 / (a + 1.0))
        low = low - 8.0 * eps * (1.0 - low)
        high = zero
        t = zero
        width = high - low
        turns = 0
        while (tl.max(active) > 0) & (turns < 200):
            c = slope_of_base(t, a, KIND)
            st, sv, sw = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, c, zero, k, exact,
                               POWER, PACKED, CHUNK, CH, N)  # fmt: skip
            f, slope, _ = equation(t, a, k, st, sv, sw, KIND)
            low = tl.where((active > 0) & (f <= 0), t, low)
            high = tl.where((active > 0) & (f >= 0), t, high)
            step = -f / slope
            trial = t + step
            # inside the bracket, and not creeping: the last step must have shrunk by half
            safe = (trial >= low) & (trial <= high) & (tl.abs(step) <= width / 2)
            following = tl.where(safe, trial, low + (high - low) / 2)
            width = tl.where(safe, tl.abs(step), (high - low) / 2)
            going = (active > 0) & (tl.abs(f) > 4 * eps)
            moves = going & (tl.abs(following - t) > eps * tl.abs(t))
            t = tl.where(going, following, t)
            active = moves.to(tl.int32)
            turns += 1
        c = slope_of_base(t, a, KIND)
        st, sv, sw = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, c, zero, k, exact,
                           POWER, PACKED, CHUNK, CH, N)  # fmt: skip
        f, _, by_e = equation(t, a, k, st, sv, sw, KIND)
        # the last step, by less than the last bit of c; smaller than any error it could make
        e = tl.where((by_e > 0) & (tl.abs(f) < 0.01), -f / tl.where(by_e > 0, by_e, 1.0), 0.0)
        e = tl.minimum(tl.maximum(e, -16 * eps), 16 * eps)
        _, sv, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, c, e, k, exact,
                         POWER, PACKED, CHUNK, CH, N)  # fmt: skip
        return c, e, sv


@triton.jit
def solve_steep(delta, ptr, counts_ptr, most, chunks, top, gamma, a, active,
                PACKED: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
                N: tl.constexpr):  # fmt: skip
    """α > 2, all in float64: δ_k, log t^a and Σy, t the smallest entry, at the distance δ_k.

    A distance θ is in the support iff Σ [a (θ − δ)]₊^(1/a) < 1; the largest such is found among
    the distances by bisection, then t by Newton's method on Σ y − 1, convex and increasing.
    """
    zero = tl.zeros_like(a)
    low = zero
    high = 1.0 / a
    looking = active
    while tl.max(looking) > 0:
        middle = low + (high - low) / 2
        above, below, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, middle,
                                high, zero, NEXT, PACKED, CHUNK, CH, N)  # fmt: skip
        some = above < float("inf")
        at = tl.where(some, above, middle)
        total, _, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, at, a, zero, zero,
                            EXCESS, PACKED, CHUNK, CH, N)  # fmt: skip
        fits = some & (total < 1)
        on = looking > 0
        low = tl.where(on & fits, at, low)
        high = tl.where(on & (fits == 0), at, high)
        looking = (on & (some | (below < float("inf")))).to(tl.int32)
    total, n, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, zero, zero,
                        EXCESS, PACKED, CHUNK, CH, N)  # fmt: skip
    n = tl.maximum(n, 1.0)
    least = tl.maximum((1.0 - total) / n, 1e-300)
    t = tl.maximum(1.0 / n, least)
    turns = 0
    while (tl.max(active) > 0) & (turns < 200):
        log_power = a * tl.log(t)
        total, rate, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, log_power,
                               zero, STEEP, PACKED, CHUNK, CH, N)  # fmt: skip
        f = total - 1.0
        following = tl.maximum(t - f / tl.maximum(rate, 1e-300), least)
        moves = (active > 0) & (tl.abs(f) > 4e-16) & (tl.abs(following - t) > 2e-16 * t)
        t = tl.where(moves, following, t)
        active = moves.to(tl.int32)
        turns += 1
    log_power = a * tl.log(t)
    total, _, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, log_power, zero,
                        STEEP, PACKED, CHUNK, CH, N)  # fmt: skip
    return low, log_power, total


@triton.jit
def entries(delta, c, e, k, total, exact, KIND: tl.constexpr):
    """y of a tile."""
    if KIND == GINI:
        y = tl.where(delta < c, tl.maximum((c - delta) + e, 0.0), 0.0)
        n = tl.minimum(tl.maximum(1.0 / c, 1.0), 1e6)
        # within its own rounding 1/d stays 1/d
        close = tl.abs(total - 1.0) <= (2e-16 if y.dtype == tl.float64 else 1.2e-7) * tl.sqrt(n)
        total = tl.where(close, 1.0, total)
    else:
        _, _, y = powers(delta, c, e, k, exact)
    return divide(y, tl.zeros_like(y) + tl.where(total > 0, total, 1.0))


@triton.jit
def steep_entries(delta, a, last, log_power, total):
    """y of a tile where α > 2, in float64."""
    gap = last - delta
    log_gap = tl.where(gap > 0, tl.log(tl.where(gap > 0, gap, 1.0) * a), -float("inf"))
    return tl.where(gap >= 0, tl.exp(log_sum(log_gap, log_power) / a) / total, 0.0)


@triton.jit
def steep_row(x_ptr, mask_ptr, y_ptr, d, top, gamma, a, HAS_MASK: tl.constexpr,
              N: tl.constexpr):  # fmt: skip
    """One whole row where α > 2, from memory, N entries at a time; all but x and y is float64."""
    column = tl.arange(0, N)[None, :]
    held = 0
    for w0 in range(0, d, N):
        at = w0 + column
        x = load_scores(x_ptr, mask_ptr, at, at, at < d, HAS_MASK)
        keep = distance(x.to(tl.float64), top, gamma) * a <= 1.001
        place = held + tl.cumsum(keep.to(tl.int32), 1) - 1
        tl.store(y_ptr + place, x.to(y_ptr.dtype.element_ty), mask=keep)
        held += tl.sum(keep.to(tl.int32))
    tl.debug_barrier()
    active = tl.full((1, 1), 1, tl.int32)
    none = tl.zeros_like(a)
    last, log_power, total = solve_steep(none, y_ptr, y_ptr, held, 1, top, gamma, a, active, True,
                                         1, 1, N)  # fmt: skip
    tl.debug_barrier()
    for w0 in range(0, d, N):
        at = w0 + column
        x = load_scores(x_ptr, mask_ptr, at, at, at < d, HAS_MASK)
        y = steep_entries(distance(x.to(tl.float64), top, gamma), a, last, log_power, total)
        if x.dtype != tl.float64:
            y = y.to(tl.float32)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < d)


# --------------------------------------------------------------------------- forward, one program


@triton.jit(do_not_specialize=["rows"])
def forward_rows(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, rows, d, x_stride, mask_stride,
                 gamma_step, theta_step, KIND: tl.constexpr, HAS_MASK: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr,
                 N: tl.constexpr):  # fmt: skip
    """Each program ROWS rows; PACKED needs ROWS = 1."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma64 = per_row(gamma_ptr, row, gamma_step, rows)
    theta64 = per_row(theta_ptr, row, theta_step, rows)
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    fine = (spoilt == 0) & (count > 0)
    a64, k64, reach = exponents(theta64, KIND)
    a, k, gamma = a64.to(x.dtype), k64.to(x.dtype), gamma64.to(x.dtype)
    delta = distance(x, top, gamma)
    flat = (tl.program_id(0) * ROWS).to(tl.int64) * d
    most = 0
    if PACKED:
        keep = (delta <= reach.to(delta.dtype)) & (delta < float("inf"))
        place = tl.cumsum(keep.to(tl.int32), 1) - 1
        most = tl.sum(keep.to(tl.int32))
        tl.store(y_ptr + flat + place, x.to(y_ptr.dtype.element_ty), mask=keep & inside)
        tl.debug_barrier()
    level = fine
    if KIND == TSALLIS:
        level = fine & (a64 <= 1)
    exact = special(k)
    c, e, total = solve(delta, y_ptr + flat, y_ptr, most, 1, top, gamma, a, k, count,
                        level.to(tl.int32), KIND, PACKED, BLOCK, 1, N)  # fmt: skip
    y = entries(delta, c, e, k, total, exact, KIND)
    y = tl.where(spoilt != 0, float("nan"), tl.where(count > 0, y, 0.0))
    if PACKED:
        tl.debug_barrier()
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)
    if KIND == TSALLIS:
        if tl.max((fine & (a64 > 1)).to(tl.int32)) > 0:
            tl.debug_barrier()
            for i in range(0, ROWS):
                # what was per row is per row again: one line of the tile
                mine = tl.arange(0, ROWS)[:, None] == i
                a_i = tl.sum(tl.where(mine & fine, a64, 0.0), 0, keep_dims=True)
                if tl.max(a_i) > 1:
                    r = (tl.program_id(0) * ROWS + i).to(tl.int64)
                    top_i = tl.sum(tl.where(mine, top, 0.0), 0, keep_dims=True).to(tl.float64)
                    gamma_i = tl.sum(tl.where(mine, gamma64, 0.0), 0, keep_dims=True)
                    steep_row(x_ptr + r * x_stride, mask_ptr + r * mask_stride, y_ptr + r * d, d,
                              top_i, gamma_i, a_i, HAS_MASK, N)  # fmt: skip


# --------------------------------------------------------------------- forward, several programs


@triton.jit
def pack_chunks(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, tops_ptr, counts_ptr, held_ptr, d,
                chunks, x_stride, mask_stride, gamma_step, theta_step, KIND: tl.constexpr,
                HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program a chunk: the candidates, by the chunk's own maximum, to the front of the
    chunk's part of y; its maximum, its participants (−1: spoilt) and how many it holds."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma = tl.load(gamma_ptr + row * gamma_step)
    theta = tl.load(theta_ptr + row * theta_step)
    _, _, reach = exponents(theta, KIND)
    # a maximum of 0 stands for none: then nothing is kept
    keep = inside & (distance(x, top, gamma.to(x.dtype)) <= reach.to(x.dtype)) & (x < float("inf"))
    keep = keep & (x != -float("inf"))
    place = tl.cumsum(keep.to(tl.int32), 1) - 1
    tl.store(y_ptr + row * d + chunk * CHUNK + place, x.to(y_ptr.dtype.element_ty), mask=keep)
    at = row * chunks + chunk
    held = tl.sum(keep.to(tl.int32))
    tl.store(tops_ptr + at, tl.where(held > 0, tl.max(top), -float("inf")))
    tl.store(counts_ptr + at, tl.where(tl.max(spoilt) > 0, -1, tl.max(count)))
    tl.store(held_ptr + at, held)


@triton.jit
def solve_chunks(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, tops_ptr, counts_ptr, held_ptr,
                 out_ptr, d, chunks, x_stride, mask_stride, gamma_step, theta_step,
                 KIND: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
                 N: tl.constexpr, MAX: tl.constexpr):  # fmt: skip
    """Program row: the equation on the packed candidates; seven numbers for the row's writers:
    state (0: empty, 1: as follows, 2: α > 2 and written already, NaN: spoilt), max, γ, c, e, k and
    Σv. The stride of ``out`` is eight."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, MAX)[None, :]
    has = s < chunks
    at = row * chunks + s
    top = tl.max(tl.load(tops_ptr + at, mask=has, other=-float("inf")), 1, keep_dims=True)
    counts = tl.load(counts_ptr + at, mask=has, other=0)
    count = tl.sum(tl.maximum(counts, 0), 1, keep_dims=True)
    spoilt = tl.min(counts, 1, keep_dims=True) < 0
    most = tl.max(tl.load(held_ptr + at, mask=has, other=0))
    one = tl.full((1, 1), 1.0, tl.float64)
    gamma64 = tl.load(gamma_ptr + row * gamma_step) * one
    theta64 = tl.load(theta_ptr + row * theta_step) * one
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    a64, k64, _ = exponents(theta64, KIND)
    a, k, gamma = a64.to(top.dtype), k64.to(top.dtype), gamma64.to(top.dtype)
    fine = (spoilt == 0) & (count > 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    level = fine
    if KIND == TSALLIS:
        level = fine & (a64 <= 1)
    unused = tl.zeros((1, 1), top.dtype)
    c, e, total = solve(unused, y_ptr + row * d, held_ptr + row * chunks, most, chunks, top, gamma,
                        a, k, count, level.to(tl.int32), KIND, True, CHUNK, CH, N)  # fmt: skip
    state = tl.where(spoilt, float("nan"), tl.where(fine, 1.0, 0.0)).to(tl.float64)
    if KIND == TSALLIS:
        if tl.max((fine & (a64 > 1)).to(tl.int32)) > 0:
            state = state + 1.0
            tl.debug_barrier()
            steep_row(x_ptr + row * x_stride, mask_ptr + row * mask_stride, y_ptr + row * d, d,
                      top.to(tl.float64), gamma64, a64, HAS_MASK, N // 4)  # fmt: skip
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    tl.store(out, state)
    tl.store(out + 1, top.to(tl.float64))
    tl.store(out + 2, gamma64)
    tl.store(out + 3, c.to(tl.float64))
    tl.store(out + 4, e.to(tl.float64))
    tl.store(out + 5, k.to(tl.float64))
    tl.store(out + 6, total.to(tl.float64))


@triton.jit
def write_chunks(x_ptr, mask_ptr, y_ptr, out_ptr, d, chunks, x_stride, mask_stride,
                 KIND: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program a chunk: y from x and the row's numbers."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    state, top, gamma = tl.load(out), tl.load(out + 1), tl.load(out + 2)
    c, e, k, total = tl.load(out + 3), tl.load(out + 4), tl.load(out + 5), tl.load(out + 6)
    delta = distance(x, top.to(x.dtype), gamma.to(x.dtype))
    k = k.to(x.dtype)
    y = entries(delta, c.to(x.dtype), e.to(x.dtype), k, total.to(x.dtype), special(k), KIND)
    y = tl.where(state != state, float("nan"), tl.where(state > 0, y, 0.0))
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside & (state != 2))


def forward(
    kind: str,
    x: Tensor,
    gamma: Tensor,
    theta: Tensor | None,
    mask: Tensor | None,
    limit: int | None = None,
    pack: int | None = None,
) -> Tensor:
    """Π_Ω of each row, for ``kind`` "gini", "tsallis" (θ = α) or "pnorm" (θ = p).

    ``limit`` and ``pack`` replace the constants of that name.
    """
    check_device(x)
    rows, d = x.shape
    y = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    wide = x.dtype == torch.float64
    limit = limit_of(kind, x, limit)
    pack = PACK[kind] if pack is None else pack
    theta = gamma if theta is None else theta
    on = x if mask is None else mask
    hyper = (gamma.contiguous(), theta.contiguous())
    strides = (x.stride(0), on.stride(0), *steps(*hyper))
    flags = {"KIND": KINDS[kind], "HAS_MASK": mask is not None}
    with guard(x):
        if d <= limit:
            packed = d >= pack
            shape = shape_of(d, wide, packed)
            forward_rows[(triton.cdiv(rows, shape["ROWS"]),)](
                x, on, *hyper, y, rows, d, *strides, **flags, **shape,
                PACKED=packed, N=128 * shape["num_warps"],
            )  # fmt: skip
            return y
        chunk, chunks = chunks_of(d, limit)
        warps = shape_of(chunk, wide)["num_warps"]
        tops = x.new_empty((rows, chunks), dtype=torch.float64 if wide else torch.float32)
        counts, held = x.new_empty((2, rows, chunks), dtype=torch.int32)
        out = x.new_empty((rows, 8), dtype=torch.float64)
        pack_chunks[(rows * chunks,)](
            x, on, *hyper, y, tops, counts, held, d, chunks, *strides, **flags, CHUNK=chunk,
            num_warps=warps,
        )  # fmt: skip
        solve_chunks[(rows,)](
            x, on, *hyper, y, tops, counts, held, out, d, chunks, *strides, **flags, CHUNK=chunk,
            CH=16, N=2048 if wide else 4096, MAX=max(triton.next_power_of_2(chunks), 16),
            num_warps=8,
        )  # fmt: skip
        write_chunks[(rows * chunks,)](
            x, on, y, out, d, chunks, *strides[:2], **flags, CHUNK=chunk, num_warps=warps
        )  # fmt: skip
        return y
