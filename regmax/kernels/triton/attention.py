"""Attention by the online threshold in Triton: softmax, sparsemax and α-entmax, 1 ≤ α ≤ 2.

With a = α − 1 and z = (q kᵀ scale + mask)/γ a row of weights is

    y_j = p(z_j − τ)/S,    p(u) = [1 + a u]₊^(1/a), e^u at a = 0,    S = f(τ) = Σ p(z_j − τ) = 1.

h = f^a is the (1/a)-norm of affine functions of τ, cut at 0: convex and decreasing. So its tangents
are below it, and Newton's method from the left never passes the root. One pass over blocks of keys
finds a lower bound of τ: it replaces the sum of the blocks before by its tangent at τ, adds the
next block, and takes Newton's steps. At a = 0 the tangent of log f is log f itself, and the pass is
online softmax. A sink is an entry before the first block. Halley's steps, a pass each, end where
S = 1 up to rounding. They leave out blocks without a positive p at the lower bound. The last pass
adds up p v.

y = p/S is the exact answer for temperature γS^a, and its duality gap at γ = 1 is at most
|1 − S^(−a)|/a · max p^a. A row has τ, S and this bound in memory, and no weights.

Sources: Peters, Niculae & Martins (2019) for entmax; Milakov & Gimelshein (2018) for online
softmax; Gonçalves, Treviso & Martins (2025, AdaSplash) for blocks of attention without weights.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import uint_to_uniform_float

from .equation import log1p, numbers
from .rows import LOWEST, of_row

BOOL = tl.constexpr(1)


@triton.jit
def grown(log, a):
    """(1 − e^(−a log))/a, and log at a = 0."""
    t = a * log
    near = tl.abs(t) < 0.3
    s = tl.where(near, t, 0.0)
    series = 1.0 - s / 2 * (1.0 - s / 3 * (1.0 - s / 4 * (1.0 - s / 5 * (1.0 - s / 6))))
    safe = tl.where(near, 1.0, a)
    return tl.where(near, log * series, (1.0 - tl.exp(-tl.where(near, 0.0, t))) / safe)


@triton.jit
def further(log_f, r, d, a, OWN: tl.constexpr):
    """log f and r = −f′/f of the tangent of f^a, d ≥ 0 further on."""
    if OWN.scales:
        return log_f - d, r
    else:
        x = a * r * d
        q = 1.0 - x
        on = (q > 1e-6) & (log_f > -float("inf"))
        safe = tl.where(on, q, 1.0)
        fall = log1p(tl.where(on, -x, 0.0), safe) / tl.where(a == 0, 1.0, a)
        fall = tl.where(a == 0, -r * d, fall)
        return tl.where(on, log_f + fall, -float("inf")), tl.where(on, r / safe, 0.0)


@triton.jit
def logarithm(f):
    return tl.where(f > 0, tl.log(tl.where(f > 0, f, 1.0)), -float("inf"))


@triton.jit
def tile(ptr, index, count, step, width, N: tl.constexpr):
    """Rows of a matrix, 0 beyond its end."""
    e = tl.arange(0, N)[None, :]
    at = index[:, None]
    return tl.load(ptr + at * step + e, mask=(at < count) & (e < width), other=0.0)


@triton.jit
def scores(q, k, mask_ptr, rows, columns, queries, keys, scale, inverse, m_row, m_col, diagonal,
           CAUSAL: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """z of a block, −∞ where a key is masked. ``inverse`` is 1/γ."""
    row, col = rows[:, None], columns[None, :]
    see = (col < keys) & (row < queries)
    if CAUSAL:
        see = see & (col <= row + diagonal)
    x = product(q, tl.trans(k)) * scale
    if MASK != 0:
        at = row.to(tl.int64) * m_row + col.to(tl.int64) * m_col
        item = tl.load(mask_ptr + at, mask=see, other=0)
        if MASK == BOOL:
            see = see & (item != 0)
        else:
            x += item.to(tl.float32)
    see = see & (x != -float("inf"))
    x = x * inverse
    x = tl.where(x < LOWEST, LOWEST, x)
    return tl.where(see, x, -float("inf"))


@triton.jit
def product(a, b):
    """a b in float32. Tensor cores multiply float32 numbers as sums of two shorter ones."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def head_numbers(theta_ptr, theta, theta_step, gamma_ptr, gamma, gamma_step, head,
                 OWN: tl.constexpr):  # fmt: skip
    """n and 1/γ of a head; NaN where α is not in [1, 2]."""
    alpha = of_row(theta_ptr, theta, head, theta_step).to(tl.float64)
    if OWN.a is None:
        inside = (alpha > 1.0 - 1e-6) & (alpha < 2.000001)
        alpha = tl.where(inside, tl.minimum(tl.maximum(alpha, 1.0), 2.0), float("nan"))
    _, n = numbers(alpha, tl.float32, OWN)
    return n, (1.0 / of_row(gamma_ptr, gamma, head, gamma_step).to(tl.float64)).to(tl.float32)


@triton.jit
def sink_score(sink_ptr, sink, sink_step, head, inverse):
    """z of the sink of a head, −∞ where it is masked."""
    x = of_row(sink_ptr, sink, head, sink_step).to(tl.float32)
    z = x * inverse
    return tl.where((x != -float("inf")) & (z < LOWEST), LOWEST, z)


@triton.jit
def factors(seed_ptr, drop, head, rows, columns):
    """What dropout multiplies the weights of a block by: 0, or 1/(1 − drop). The same in every
    pass: a function of the seed and of the places."""
    row, column = tl.broadcast(rows[:, None], columns[None, :])
    draw, _, _, _ = tl.philox(tl.load(seed_ptr), row, column, head.to(tl.int32), 0)
    share = number(drop)
    return tl.where(uint_to_uniform_float(draw) >= share, 1.0 / (1.0 - share), 0.0)


@triton.jit
def band_of(table_ptr, band, queries, keys, diagonal, BM: tl.constexpr, PACKED: tl.constexpr):
    """The first row of a band and the end of its sequence, the same of the keys, and the
    diagonal."""
    if PACKED:
        at = table_ptr + band * 5
        first, end, first_key = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        return first, end, first_key, tl.load(at + 3), diagonal + tl.load(at + 4)
    else:
        return band * BM, queries, band * 0, keys, diagonal


@triton.jit
def number(value):
    return (tl.full((), 0.0, tl.float64) + value).to(tl.float32)


@triton.jit(do_not_specialize=["queries", "keys", "diagonal", "steps", "bands", "stacks"])
def attention_forward(q_ptr, k_ptr, v_ptr, mask_ptr, table_ptr, bands, stacks,
                      theta_ptr, theta: tl.float64, theta_step, gamma_ptr, gamma: tl.float64,
                      gamma_step, sink_ptr, sink: tl.float64, sink_step, seed_ptr,
                      drop: tl.float64, scale: tl.float64, out_ptr, mean_ptr, top_ptr,
                      t_ptr, sum_ptr, gap_ptr, active_ptr,
                      tol: tl.float64, limit: tl.float64, heads, group, queries, keys, width,
                      depth, diagonal, steps,
                      q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, m_b, m_h, m_row, m_col,
                      OWN: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
                      PACKED: tl.constexpr, SINK: tl.constexpr, DROP: tl.constexpr,
                      GRAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                      BE: tl.constexpr, BV: tl.constexpr):  # fmt: skip
    """A block of queries of one head: its averages, and per row τ, S and the bound of the gap. τ is
    the largest score and the rest t, so that a large score costs no digits.

    GRAD: also the means Σ p^(1−a) v / Σ p^(1−a), which backward needs. A row is NaN if it has a NaN
    or +∞, or if its bound is above ``limit``.
    """
    band = tl.program_id(0) % bands
    head = (tl.program_id(0) // bands).to(tl.int64)
    b, h = head // heads, head % heads
    n, inverse = head_numbers(theta_ptr, theta, theta_step, gamma_ptr, gamma, gamma_step, head,
                              OWN)  # fmt: skip
    a = n[0]
    scale32, tolerance = number(scale), number(tol)
    first, last_row, first_key, last_key, diagonal = band_of(table_ptr, band, queries, keys,
                                                             diagonal, BM, PACKED)  # fmt: skip
    rows = first + tl.arange(0, BM)
    ev = tl.arange(0, BV)[None, :]
    q_ptr += b * q_b + h * q_h
    k_ptr += b * k_b + (h // group) * k_h
    v_ptr += b * v_b + (h // group) * v_h
    mask_ptr += b * m_b + h * m_h
    active_ptr += (head * bands + band) * stacks
    end = last_key
    if CAUSAL:
        end = tl.maximum(tl.minimum(end, first + BM + diagonal), first_key)
    blocks = tl.cdiv(end - first_key, BN)
    q = tile(q_ptr, rows, last_row, q_row, width, BE)
    none = -float("inf")
    top = tl.full((BM,), none, tl.float32)  # τ is top + t
    t = tl.zeros((BM,), tl.float32)
    log_f = tl.full((BM,), none, tl.float32)
    r = tl.zeros((BM,), tl.float32)
    spoilt = tl.zeros((BM,), tl.int32)
    if OWN.a is None:
        spoilt += (a != a).to(tl.int32)
    if SINK:
        z_sink = sink_score(sink_ptr, sink, sink_step, head, inverse)
        spoilt = tl.where(z_sink < float("inf"), spoilt, 1)
        z_sink = tl.where(z_sink < float("inf"), z_sink, none)
        top = tl.maximum(top, z_sink)
        log_f = tl.where(top == none, none, 0.0)
        r = tl.where(top == none, 0.0, 1.0)
    for i in range(blocks):
        col = first_key + (blocks - 1 - i) * BN + tl.arange(0, BN)
        k = tile(k_ptr, col, last_key, k_row, width, BE)
        z = scores(q, k, mask_ptr, rows, col, last_row, last_key, scale32, inverse, m_row,
                   m_col, diagonal, CAUSAL, MASK)  # fmt: skip
        fine = z < float("inf")  # neither is NaN
        spoilt = tl.maximum(spoilt, 1 - tl.min(fine.to(tl.int32), 1))
        z = tl.where(fine, z, none)
        new = tl.maximum(top, tl.max(z, 1))
        rise = tl.where(top == none, 0.0, new - top)
        log_f, r = further(log_f, r, tl.maximum(rise - t, 0.0), a, OWN)
        t = tl.maximum(t - rise, 0.0)
        top = new
        z = z - tl.where(top == none, 0.0, top)[:, None]
        for last in tl.static_range(1 if OWN.scales else 2):
            p, s, _, _ = OWN.p(z - t[:, None], n)
            before = tl.exp(log_f)
            f = before + tl.sum(p, 1)
            slope = (r * before + tl.sum(s, 1)) / tl.where(f > 0, f, 1.0)
            log_new = logarithm(f)
            up = (log_new > 0) & (slope > 0)
            d = tl.where(up, grown(tl.where(up, log_new, 0.0), a) / tl.where(up, slope, 1.0), 0.0)
            if OWN.scales or last == 1:
                log_f, r = further(log_new, slope, d, a, OWN)
            else:
                log_f, r = further(log_f, r, d, a, OWN)
            t += d
    top = tl.where(top == none, 0.0, top)
    wrong = tl.max(spoilt)
    if not OWN.scales:
        step = 0
        moving = tl.full((), 1, tl.int32)
        # ends: step < steps; a row that still moves has a gap above the limit, and is NaN
        while (moving > 0) & (step < steps):
            f = tl.zeros((BM,), tl.float32)
            d1 = tl.zeros((BM,), tl.float32)
            d2 = tl.zeros((BM,), tl.float32)
            if SINK:
                of_sink = OWN.p(z_sink - top - t, n)
                f, d1, d2 = of_sink[0], of_sink[1], of_sink[2]
            for i in range(blocks):
                seen = 1
                if step > 0:
                    seen = tl.load(active_ptr + i).to(tl.int32)
                if seen != 0:
                    col = first_key + i * BN + tl.arange(0, BN)
                    k = tile(k_ptr, col, last_key, k_row, width, BE)
                    z = scores(q, k, mask_ptr, rows, col, last_row, last_key, scale32, inverse,
                               m_row, m_col, diagonal, CAUSAL, MASK)  # fmt: skip
                    p, s, bend, _ = OWN.p(z - top[:, None] - t[:, None], n)
                    f += tl.sum(p, 1)
                    d1 += tl.sum(s, 1)
                    if not OWN.linear:
                        d2 += tl.sum(bend, 1)
                    if step == 0:
                        some = (tl.max(tl.max(p, 1), 0) > 0) | (wrong > 0)
                        tl.store(active_ptr + i, some.to(tl.int8))
            tl.debug_barrier()
            log_f = logarithm(f)
            off = (log_f > none) & (log_f < float("inf")) & (spoilt == 0) & (d1 > 0)
            log_f = tl.where(off, log_f, 0.0)
            d1 = tl.where(off, d1, 1.0)
            d = grown(log_f, a)
            if not OWN.linear:
                by = d * (1.0 - a) / 2 * (f * d2 / (d1 * d1) - 1.0)
                by = tl.minimum(tl.maximum(by, -0.5), 0.5)
                d = d / (1.0 - tl.where(off, by, 0.0))
            d = tl.where(off, d * f / d1, 0.0)
            t += d
            # S may stay off by many roundings of t, if the support is large
            far = (tl.abs(log_f) > tolerance) & (tl.abs(d) > 2.4e-7 * t)
            moving = tl.max(far.to(tl.int32))
            step += 1
    total = tl.zeros((BM,), tl.float32)
    largest = tl.zeros((BM,), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    if SINK:
        of_sink = OWN.p(z_sink - top - t, n)
        total, weight = of_sink[0], of_sink[1]
        largest = tl.where(total > 0, of_sink[3], 0.0)
    out = tl.zeros((BM, BV), tl.float32)
    if GRAD and not OWN.scales:
        mean = tl.zeros((BM, BV), tl.float32)
    for i in range(blocks):
        seen = 1
        if not OWN.scales and steps > 0:
            seen = tl.load(active_ptr + i).to(tl.int32)
        if seen != 0:
            col = first_key + i * BN + tl.arange(0, BN)
            k = tile(k_ptr, col, last_key, k_row, width, BE)
            z = scores(q, k, mask_ptr, rows, col, last_row, last_key, scale32, inverse, m_row,
                       m_col, diagonal, CAUSAL, MASK)  # fmt: skip
            p, s, _, base = OWN.p(z - top[:, None] - t[:, None], n)
            some = (tl.max(tl.max(p, 1), 0) > 0) | (wrong > 0)
            if some:
                v = tile(v_ptr, col, last_key, v_row, depth, BV)
                total += tl.sum(p, 1)
                weight += tl.sum(s, 1)
                largest = tl.maximum(largest, tl.max(tl.where(p > 0, base, 0.0), 1))
                if DROP:
                    kept = factors(seed_ptr, drop, head, rows, col)
                    p, s = p * kept, s * kept
                out += product(p.to(v.dtype), v)
                if GRAD and not OWN.scales:
                    mean += product(s.to(v.dtype), v)
            tl.store(active_ptr + i, some.to(tl.int8))
    alive = (total > 0) & (spoilt == 0)
    safe = tl.where(alive, total, 1.0)
    gap = tl.zeros((BM,), tl.float32)
    if not OWN.scales:
        gap = tl.where(alive, tl.abs(grown(tl.log(safe), a)) * largest, 0.0)
    spoilt = (spoilt != 0) | ((gap <= number(limit)) == 0)
    alone = tl.where(spoilt, float("nan"), 0.0)  # also of rows without keys
    inside = rows < last_row
    at = head * queries + rows
    tl.store(top_ptr + at, top, mask=inside)
    tl.store(t_ptr + at, t, mask=inside)
    tl.store(sum_ptr + at, tl.where(alive, total, 0.0) + alone, mask=inside)
    tl.store(gap_ptr + at, gap + alone, mask=inside)
    place = at[:, None] * depth + ev
    inside = inside[:, None] & (ev < depth)
    out = tl.where(alive[:, None], out / safe[:, None], 0.0) + alone[:, None]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)
    if GRAD and not OWN.scales:
        mean = mean / tl.where(alive & (weight > 0), weight, 1.0)[:, None]
        tl.store(mean_ptr + place, tl.where(alive[:, None], mean, 0.0), mask=inside)


@triton.jit(do_not_specialize=["queries", "keys"])
def attention_factors(seed_ptr, drop: tl.float64, out_ptr, queries, keys, BM: tl.constexpr,
                      BN: tl.constexpr):  # fmt: skip
    """What dropout multiplies a block of weights by."""
    bands, stacks = tl.cdiv(queries, BM), tl.cdiv(keys, BN)
    head = (tl.program_id(0) // (bands * stacks)).to(tl.int64)
    block = tl.program_id(0) % (bands * stacks)
    rows = block // stacks * BM + tl.arange(0, BM)
    col = block % stacks * BN + tl.arange(0, BN)
    inside = (rows < queries)[:, None] & (col < keys)[None, :]
    place = (head * queries + rows)[:, None] * keys + col[None, :]
    tl.store(out_ptr + place, factors(seed_ptr, drop, head, rows, col), mask=inside)
