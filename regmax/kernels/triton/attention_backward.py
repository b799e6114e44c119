"""The gradients of attention by the online threshold in Triton.

With w = Jg the gradient of a row of z, s = y^(1−a) and g_j = ⟨∂out, v_j⟩,

    w = s (g − δ),    δ = Σ s g / Σ s = ⟨∂out, mean⟩,

as J = diag(s) − ssᵀ/Σs. Blocks without a positive weight are left out. One kernel adds up over the
keys: ∂q, w itself for a mask that learns, and per row the derivatives −⟨w, ∂∇Ω(y)/∂α⟩ and
−⟨w, z⟩/γ. The other adds up over the queries: ∂k and ∂v. A row that is NaN has w = 0.

Sources: Peters, Niculae & Martins (2019), Prop. 2; Correia, Niculae & Martins (2019), Prop. 1.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .attention import (
    band_of,
    factors,
    head_numbers,
    number,
    product,
    scores,
    sink_score,
    tile,
)


@triton.jit
def differences(u, total, g, delta, n, OWN: tl.constexpr):
    """y and w of a block, u = z − τ."""
    p, s, _, _ = OWN.p(u, n)
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    y = p / tl.where(total == 0, 1.0, total)[:, None]
    if not OWN.linear:  # 1/e'' is a power of y
        s = s * tl.exp((n[0] - 1.0) * tl.log(safe))[:, None]
    w = s * (g - delta[:, None])
    return y, tl.where(alive[:, None] & (p > 0), w, 0.0)


@triton.jit(do_not_specialize=["queries", "keys", "diagonal", "bands", "stacks"])
def attention_queries(q_ptr, k_ptr, v_ptr, mask_ptr, table_ptr, bands, stacks, theta_ptr,
                      theta: tl.float64, theta_step, gamma_ptr, gamma: tl.float64, gamma_step,
                      sink_ptr, sink: tl.float64, sink_step, seed_ptr, drop: tl.float64,
                      scale: tl.float64, g_ptr, top_ptr, t_ptr, sum_ptr, delta_ptr, active_ptr,
                      dq_ptr, dmask_ptr, dsink_ptr, dtheta_ptr, dgamma_ptr, heads, group, queries,
                      keys, width, depth, diagonal, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h,
                      v_row, m_b, m_h, m_row, m_col, OWN: tl.constexpr, CAUSAL: tl.constexpr,
                      MASK: tl.constexpr, PACKED: tl.constexpr, SINK: tl.constexpr,
                      DROP: tl.constexpr, BY_MASK: tl.constexpr, BY_SINK: tl.constexpr,
                      BY_THETA: tl.constexpr, BY_GAMMA: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
                      BV: tl.constexpr):  # fmt: skip
    """∂q of a block of queries; if asked, w/γ and per row the derivatives of the sink, α and γ."""
    band = tl.program_id(0) % bands
    head = (tl.program_id(0) // bands).to(tl.int64)
    b, h = head // heads, head % heads
    n, inverse = head_numbers(theta_ptr, theta, theta_step, gamma_ptr, gamma, gamma_step, head,
                              OWN)  # fmt: skip
    scale32 = number(scale)
    first, last_row, first_key, last_key, diagonal = band_of(table_ptr, band, queries, keys,
                                                             diagonal, BM, PACKED)  # fmt: skip
    rows = first + tl.arange(0, BM)
    e = tl.arange(0, BE)[None, :]
    q_ptr += b * q_b + h * q_h
    k_ptr += b * k_b + (h // group) * k_h
    v_ptr += b * v_b + (h // group) * v_h
    mask_ptr += b * m_b + h * m_h
    active_ptr += (head * bands + band) * stacks
    inside = rows < last_row
    at = head * queries + rows
    q = tile(q_ptr, rows, last_row, q_row, width, BE)
    g_out = tile(g_ptr + head * queries * depth, rows, last_row, depth, depth, BV)
    top = tl.load(top_ptr + at, mask=inside, other=0.0)
    t = tl.load(t_ptr + at, mask=inside, other=0.0)
    total = tl.load(sum_ptr + at, mask=inside, other=0.0)
    delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
    end = last_key
    if CAUSAL:
        end = tl.maximum(tl.minimum(end, first + BM + diagonal), first_key)
    dq = tl.zeros((BM, BE), tl.float32)
    by_theta = tl.zeros((BM,), tl.float32)
    by_gamma = tl.zeros((BM,), tl.float32)
    if SINK:
        u_sink = sink_score(sink_ptr, sink, sink_step, head, inverse) - top[:, None] - t[:, None]
        y_sink, w_sink = differences(u_sink, total, tl.zeros_like(u_sink), delta, n, OWN)
        if BY_SINK:
            tl.store(dsink_ptr + at, tl.sum(w_sink * inverse, 1), mask=inside)
        if BY_THETA:
            log_sink = tl.log(tl.where(y_sink > 0, y_sink, 1.0))
            by_theta -= tl.sum(w_sink * OWN.rate(log_sink, n[0]), 1)
        if BY_GAMMA:
            by_gamma -= tl.sum(tl.where(w_sink != 0, w_sink * u_sink, 0.0), 1)
    for i in range(tl.cdiv(end - first_key, BN)):
        if tl.load(active_ptr + i) != 0:
            col = first_key + i * BN + tl.arange(0, BN)
            k = tile(k_ptr, col, last_key, k_row, width, BE)
            z = scores(q, k, mask_ptr, rows, col, last_row, last_key, scale32, inverse, m_row,
                       m_col, diagonal, CAUSAL, MASK)  # fmt: skip
            g = product(g_out, tl.trans(tile(v_ptr, col, last_key, v_row, depth, BV)))
            if DROP:
                g = g * factors(seed_ptr, drop, head, rows, col)
            u = z - top[:, None] - t[:, None]
            y, w = differences(u, total, g, delta, n, OWN)
            dq += product(w.to(k.dtype), k)
            if BY_MASK:
                place = at[:, None] * keys + col[None, :]
                tl.store(dmask_ptr + place, w * inverse,
                         mask=inside[:, None] & (col[None, :] < keys))  # fmt: skip
            if BY_THETA:
                log_y = tl.log(tl.where(y > 0, y, 1.0))
                by_theta -= tl.sum(w * OWN.rate(log_y, n[0]), 1)
            if BY_GAMMA:
                by_gamma -= tl.sum(tl.where(w != 0, w * u, 0.0), 1)
    dq = (dq * (scale32 * inverse)).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + at[:, None] * width + e, dq, mask=inside[:, None] & (e < width))
    if BY_THETA:
        tl.store(dtheta_ptr + at, by_theta, mask=inside)
    if BY_GAMMA:
        tl.store(dgamma_ptr + at, by_gamma * inverse, mask=inside)


@triton.jit(do_not_specialize=["queries", "keys", "diagonal", "bands", "stacks", "tiles"])
def attention_keys(q_ptr, k_ptr, v_ptr, mask_ptr, table_ptr, bands, stacks, theta_ptr,
                   theta: tl.float64, theta_step, gamma_ptr, gamma: tl.float64, gamma_step,
                   sink_ptr, sink: tl.float64, sink_step, seed_ptr, drop: tl.float64,
                   scale: tl.float64, g_ptr, top_ptr, t_ptr, sum_ptr, delta_ptr, active_ptr,
                   dk_ptr, dv_ptr, tiles, heads, group, queries, keys, width, depth, diagonal, q_b,
                   q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, m_b, m_h, m_row, m_col,
                   OWN: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
                   PACKED: tl.constexpr, SINK: tl.constexpr, DROP: tl.constexpr, BM: tl.constexpr,
                   BN: tl.constexpr, BE: tl.constexpr, BV: tl.constexpr):  # fmt: skip
    """∂k and ∂v of a block of keys, of one key head: sums over the query heads of its group.
    ``tiles``: how many blocks a key head has."""
    one_tile = tl.program_id(0) % tiles
    shared = (tl.program_id(0) // tiles).to(tl.int64)
    b, hk = shared // (heads // group), shared % (heads // group)
    scale32 = number(scale)
    stack, first_key, last_key = one_tile, one_tile * 0, keys
    first_row, last_row, first_band = one_tile * 0, queries, one_tile * 0
    if PACKED:
        place = table_ptr + one_tile * 6
        stack, first_key, last_key = tl.load(place), tl.load(place + 1), tl.load(place + 2)
        first_row, last_row = tl.load(place + 3), tl.load(place + 4)
        first_band = tl.load(place + 5)
    shift = diagonal + first_key - first_row
    col = first_key + stack * BN + tl.arange(0, BN)
    e, ev = tl.arange(0, BE)[None, :], tl.arange(0, BV)[None, :]
    k_ptr += b * k_b + hk * k_h
    v_ptr += b * v_b + hk * v_h
    k = tile(k_ptr, col, last_key, k_row, width, BE)
    v = tile(v_ptr, col, last_key, v_row, depth, BV)
    first = 0
    if CAUSAL:
        first = tl.maximum(stack * BN - diagonal, 0) // BM
    dk = tl.zeros((BN, BE), tl.float32)
    dv = tl.zeros((BN, BV), tl.float32)
    for one in range(group):
        h = hk * group + one
        head = b * heads + h
        n, inverse = head_numbers(theta_ptr, theta, theta_step, gamma_ptr, gamma, gamma_step, head,
                                  OWN)  # fmt: skip
        seen_ptr = active_ptr + (head * bands + first_band) * stacks + stack
        for band in range(first, tl.cdiv(last_row - first_row, BM)):
            if tl.load(seen_ptr + band * stacks) != 0:
                rows = first_row + band * BM + tl.arange(0, BM)
                inside = rows < last_row
                at = head * queries + rows
                if DROP:
                    kept = factors(seed_ptr, drop, head, rows, col)
                q = tile(q_ptr + b * q_b + h * q_h, rows, last_row, q_row, width, BE)
                z = scores(q, k, mask_ptr + b * m_b + h * m_h, rows, col, last_row, last_key,
                           scale32, inverse, m_row, m_col, shift, CAUSAL, MASK)  # fmt: skip
                g_out = tile(g_ptr + head * queries * depth, rows, last_row, depth, depth, BV)
                g = product(g_out, tl.trans(v))
                if DROP:
                    g = g * kept
                top = tl.load(top_ptr + at, mask=inside, other=0.0)
                t = tl.load(t_ptr + at, mask=inside, other=0.0)
                u = z - top[:, None] - t[:, None]
                total = tl.load(sum_ptr + at, mask=inside, other=0.0)
                delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
                y, w = differences(u, total, g, delta, n, OWN)
                if DROP:
                    y = y * kept
                dv += product(tl.trans(y).to(g_out.dtype), g_out)
                dk += product(tl.trans(w * inverse).to(q.dtype), q)
    inside = col[:, None] < last_key
    at = shared * keys + col[:, None]
    tl.store(dk_ptr + at * width + e, (dk * scale32).to(dk_ptr.dtype.element_ty),
             mask=inside & (e < width))  # fmt: skip
    tl.store(dv_ptr + at * depth + ev, dv.to(dv_ptr.dtype.element_ty),
             mask=inside & (ev < depth))  # fmt: skip
