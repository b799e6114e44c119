"""The equations of threshold mappings in Triton: sums over a row, their root, its entries.

With the distances δ_i = (max x − x_i)/γ ≥ 0,

    y_i = v_i / Σv,    v_i = [1 − c δ_i]₊^k,

and one scalar equation per row for c (a = α − 1 for Tsallis, p − 1 for the p-norm; k = 1/a):

    gini      c = 1/T,          Σ [T − δ]₊ = 1;
    tsallis   c = a e^(−aℓ),    ℓ + log Σv = 0, through a = 0, where v_i = e^(−δ_i);
    p-norm    c = 1/s,          log s + (p−2)/p log Σv^p + log Σv = 0.

Gini is solved by Michelot's finite iteration (1986), the others by Newton's method on ℓ or log s
inside a bracket, up to rounding. The sums are over a tile in registers, or over the packed
candidates of a row in memory: one block, or the front of each of its chunks.

Sources: Peters, Niculae & Martins (2019) for entmax; Gonçalves, Treviso & Martins (2025,
AdaSplash) for a safeguarded Newton iteration per row on a GPU.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .rows import BIG, GINI, PNORM, TSALLIS, distance, divide, quotient


@triton.jit
def log1p(x, u):
    """log(1 + x) from u, the rounded 1 + x: log(u) x / (u − 1) corrects the rounding of u."""
    near = tl.abs(x) < 0.5
    off = u - 1
    ratio = x / tl.where(off == 0, 1.0, off)
    return tl.where(near, tl.where(off == 0, x, tl.log(u) * ratio), tl.log(u))


@triton.jit
def special(k, EXACT: tl.constexpr):
    """k if it is 1 or 2 in all rows of the tile, else 0: then powers are products. EXACT: the
    answer where the host knows it, else −1."""
    if EXACT >= 0:
        return tl.full((), EXACT, tl.int32)
    else:
        k = k + tl.zeros((1, 1), k.dtype)  # may be a scalar
        low, high = tl.min(k), tl.max(k)
        return tl.where(low == high, tl.where(low == 2, 2, tl.where(low == 1, 1, 0)), 0)


@triton.jit
def powers(delta, c, e, k, exact):
    """base = 1 − cδ + e where positive, base^(k−1) and base^k; e^(−δ) twice if k = 0.

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


# the kinds of sums or minima over a row's distances that the equations need
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
def solve(delta, ptr, counts_ptr, most, chunks, top, gamma, a, k, exact, count, active,
          KIND: tl.constexpr, PACKED: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
          N: tl.constexpr):  # fmt: skip
    """c, e and Σv of each row (T, e, Σy for gini). Only ``active`` rows are iterated."""
    zero = tl.zeros_like(k)
    if KIND == GINI:
        # from above, so that supports only shrink: T ← (1 + Σ_S δ)/|S| until T no longer falls
        t = zero + 1.0
        # ends: t falls only if the support has shrunk, as equal supports have equal sums
        while tl.max(active) > 0:
            n, total, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, zero, zero,
                                zero, LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
            following = divide(1.0 + total, tl.maximum(n, 1.0))
            falls = (following < t) & (active > 0)
            t = tl.where(falls, following, t)
            active = falls.to(tl.int32)
        n, _, total = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, zero, zero,
                            zero, LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
        # the rounding error, less than the last bit of T
        e = (1.0 - total) / tl.maximum(n, 1.0)
        _, _, total = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, t, e, zero, zero,
                            LINEAR, PACKED, CHUNK, CH, N)  # fmt: skip
        return t, e, total
    else:
        eps = 2.220446049250313e-16 if k.dtype == tl.float64 else 1.1920928955078125e-07
        low = -tl.log(tl.maximum(count, 1).to(k.dtype))
        if KIND == PNORM:
            low = low * (2.0 - 2.0 / (a + 1.0))
        low = low - 8.0 * eps * (1.0 - low)
        high = zero
        t = zero
        width = high - low
        turns = 0
        # ends: turns < 200; each halves the width, so that the bracket is two neighbours before
        while (tl.max(active) > 0) & (turns < 200):
            c = slope_of_base(t, a, KIND)
            st, sv, sw = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, c, zero, k, exact,
                               POWER, PACKED, CHUNK, CH, N)  # fmt: skip
            f, slope, _ = equation(t, a, k, st, sv, sw, KIND)
            low = tl.where((active > 0) & (f <= 0), t, low)
            high = tl.where((active > 0) & (f >= 0), t, high)
            step = -f / slope
            trial = t + step
            # inside the bracket, and at most half as long as the last step
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
        # a last step of less than the last bit of c
        e = tl.where((by_e > 0) & (tl.abs(f) < 0.01), -f / tl.where(by_e > 0, by_e, 1.0), 0.0)
        e = tl.minimum(tl.maximum(e, -16 * eps), 16 * eps)
        _, sv, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, c, e, k, exact,
                         POWER, PACKED, CHUNK, CH, N)  # fmt: skip
        return c, e, sv


@triton.jit
def entries(delta, c, e, k, total, exact, KIND: tl.constexpr):
    """y of a tile."""
    if KIND == GINI:
        y = tl.where(delta < c, tl.maximum((c - delta) + e, 0.0), 0.0)
        n = tl.minimum(tl.maximum(1.0 / c, 1.0), 1e6)
        # no division where the sum is 1 up to rounding: 1/d stays 1/d
        close = tl.abs(total - 1.0) <= (2e-16 if y.dtype == tl.float64 else 1.2e-7) * tl.sqrt(n)
        total = tl.where(close, 1.0, total)
    else:
        _, _, y = powers(delta, c, e, k, exact)
    total = tl.where(total > 0, total, 1.0)
    return quotient(y, total, divide(tl.zeros_like(total) + 1.0, total))
