"""Chains of rows longer than a program's registers, in Triton: the entries that can matter.

With z = x/γ, let b be a lower bound of the threshold of P_Δ(z). Some entries of the row give one,
as more entries only raise the threshold.

Total variation: p = prox(z) has |p − z| ≤ 2λ, so the threshold of P_Δ(p) is at least t = b − 2λ.
Each set {p > s}, s ≥ t, minimises Σ_{p_i > s} (s − z_i) + λ (number of its ends). So an entry
z_i ≤ t − 2λ is in none of them, whatever its value: it splits the chain. y is the same if a run of
such entries is shortened to one.

By rank (OSCAR): the support is the K largest, and z_[K] + λ(K − 1) > τ ≥ b. So with any n ≥ K,
entries z_i ≤ b − λ(n − 1) are not in it, and the number of the others is a smaller n. If these are
one block (``one_block``), y is 1/n there.

The entries that are left are packed to the front of the row's place in the output, and their places
to memory of the program. A few are solved in registers (:mod:`.scans`), more are swept in memory
(:mod:`.sweeps`). With few, x is read twice (by rank again for each n) and y is written once.
Backward packs the support: a run of zeros is shortened to one.

Sources: Niculae & Blondel (2017), Prop. 2 and 3; Best & Chakravarti (1990).
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .rows import load_scores, of_row, quotient
from .scans import answer, labelled, products, ranked_products, scaled
from .sweeps import clear, last_of, sort, swept, swept_products

WIDE = tl.constexpr(2)
"""Blocks of a tile in a pass that only reads or packs."""
FEW = tl.constexpr(2)
"""Parts of a block: one part is solved in registers."""


@triton.jit
def largest(x_at, mask_at, part_at, d, HAS_MASK: tl.constexpr, MARK: tl.constexpr,
            W: tl.constexpr):  # fmt: skip
    """The largest entries of W parts of a row, +∞ for NaN. MARK: also writes who takes part."""
    best = tl.full((W,), -float("inf"), x_at.dtype.element_ty)
    for b in range(0, d, W):
        i = b + tl.arange(0, W)
        x = load_scores(x_at, mask_at, i, i, i < d, HAS_MASK)
        best = tl.maximum(best, tl.where(x == x, x, float("inf")))
        if MARK:
            tl.store(part_at + i, x != -float("inf"), mask=i < d)
    return best


@triton.jit
def bound(best, top, gamma):
    """A lower bound of the threshold of P_Δ((x − top)/γ): some steps of Newton's method from below,
    on some entries."""
    z = scaled(best, top, gamma, 2.0)
    tau = tl.full((), -1.0, tl.float64)
    for _ in range(4):
        on = z > tau
        tau = (tl.sum(tl.where(on, z, 0.0)) - 1.0) / tl.sum(on.to(tl.int32))
    return tau


@triton.jit
def floor_of(top, gamma, depth, dtype: tl.constexpr):
    """A number below the entries x > top − γ depth, in their dtype."""
    eps = 2.2e-16 if dtype == tl.float64 else 1.2e-7
    off = gamma * (depth * (1.0 + 1e-9) + 1e-9)
    low = (top - off) - 4.0 * eps * (tl.abs(top) + off)
    least = -1.7e308 if dtype == tl.float64 else -3.4e38
    return tl.where(low > least, low, -float("inf")).to(dtype)


@triton.jit
def above(x_at, mask_at, low, top, d, HAS_MASK: tl.constexpr, W: tl.constexpr):
    """Of the entries above ``low``: their number, and of top − x the sum, that of squares and the
    largest."""
    n = tl.full((), 0, tl.int32)
    most = tl.full((), 0.0, tl.float64)
    total, squares = most, most
    for b in range(0, d, W):
        i = b + tl.arange(0, W)
        x = load_scores(x_at, mask_at, i, i, i < d, HAS_MASK)
        off = tl.where(x > low, top - x.to(tl.float64), 0.0)
        n += tl.sum((x > low).to(tl.int32))
        total += tl.sum(off)
        squares += tl.sum(off * off)
        most = tl.maximum(most, tl.max(off))
    return n, total, squares, most


@triton.jit
def one_block(n, total, squares, most, lam):
    """Whether n entries are proven to be one block, from these sums of δ = (top − x)/γ.

    They are one iff E(k) ≤ λ k(n−k)/2 for all k, E(k) the sum of their k largest minus k times
    their mean. This follows from E(k) ≤ k mean(δ) up to k_1 = n − 2 mean(δ)/λ, from
    E(k) ≤ (n−k)(most − mean(δ)) from k_3 = 2 (most − mean(δ))/λ on, and from E(k) ≤ σ √(k(n−k))
    between k_2 and n − k_2, where λ² k_2(n−k_2)/4 = σ²."""
    mean = total / n
    variance = tl.maximum(squares / n - mean * mean, 0.0) + 1e-12 * squares / n
    k = 0.5 * n - tl.sqrt(0.25 * n * n - 4.0 * variance / (lam * lam)) + 1e-9 * n  # may be NaN
    ends = (2.0 * mean <= lam * (n - k)) & (2.0 * (most - mean) <= lam * (n - k))
    return (2.0 * most <= lam * n * (1.0 - 1e-9)) | ends


@triton.jit
def ranked_floor(x_at, mask_at, top, gamma, lam, tau, d, HAS_MASK: tl.constexpr, N: tl.constexpr,
                 W: tl.constexpr):  # fmt: skip
    """A number below the entries that can be in the support, how many are above it, and whether
    they are proven to be one block. It ends where they fit in registers."""
    n = tl.full((), 0, tl.int32) + d
    before = n + n
    low = tl.full((), -float("inf"), x_at.dtype.element_ty)
    one = n < 0
    # ends: n falls in every turn
    while (n > N) & (n < before - before // 8) & (one == 0):
        before = n
        low = floor_of(top, gamma, lam * (n - 1) - tau, x_at.dtype.element_ty)
        n, total, squares, most = above(x_at, mask_at, low, top, d, HAS_MASK, W)
        one = one_block(n.to(tl.float64), total / gamma, squares / gamma / gamma, most / gamma, lam)
    return low, n, one


@triton.jit
def pack(x_at, mask_at, low, out_at, index_at, d, HAS_MASK: tl.constexpr, APART: tl.constexpr,
         W: tl.constexpr):  # fmt: skip
    """Packs the entries above ``low``, in their order, to the front of ``out``, which is otherwise
    0, and their places to ``index``; returns their number. APART: with one entry of each run of
    participants that are not above."""
    j = tl.arange(0, W)
    count, label = tl.full((), 0, tl.int32), tl.full((), 2, tl.int32)
    for b in range(0, d, W):
        i = b + j
        x = load_scores(x_at, mask_at, i, i, i < d, HAS_MASK)
        tl.store(out_at + i, tl.zeros_like(x), mask=i < d)
        keep = x > low
        if APART:
            # 2 above, 1 not above, 0 no participant; and four times that of the participant before
            own = tl.where(keep, 2, tl.where(x != -float("inf"), 1, 0))
            known = tl.associative_scan(own, 0, labelled)
            known = labelled(label, known)
            keep = keep | ((own == 1) & ((known >> 2) == 2))
            label = last_of(known, j, W) & 3
        keep32 = keep.to(tl.int32)
        place = count + tl.cumsum(keep32, 0) - 1
        tl.debug_barrier()
        tl.store(out_at + place, x, mask=keep)
        tl.store(index_at + place, i, mask=keep)
        count += tl.sum(keep32)
    tl.debug_barrier()
    return count


@triton.jit(do_not_specialize=["rows"])
def long_forward(x_ptr, mask_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, lam_ptr,
                 lam_: tl.float64, lam_step, y_ptr, part_ptr, t_ptr, code_ptr, index_ptr, spare_ptr,
                 rows, d, x_stride, mask_stride, HAS_MASK: tl.constexpr, RANKED: tl.constexpr,
                 B: tl.constexpr):  # fmt: skip
    """Each program computes every P-th row, P the number of programs."""
    W: tl.constexpr = WIDE * B
    N: tl.constexpr = B // FEW
    memory = tl.program_id(0).to(tl.int64) * d
    t_at, code_at, index_at = t_ptr + memory, code_ptr + memory, index_ptr + memory
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        x_at, mask_at, y_at = x_ptr + row * x_stride, mask_ptr + row * mask_stride, y_ptr + row * d
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        lam = of_row(lam_ptr, lam_, row, lam_step)
        best = largest(x_at, mask_at, part_ptr + row * d, d, HAS_MASK, not RANKED, W)
        top = tl.max(best).to(tl.float64)
        spoilt = (top == float("inf")) | (gamma != gamma) | (lam != lam)
        other = tl.where(spoilt, float("nan"), 0.0).to(tl.float64)
        alike, value = 1, other
        low = tl.full((), -float("inf"), x_ptr.dtype.element_ty)
        if (spoilt == 0) & (top > -float("inf")):
            tau = bound(best, top, gamma)
            if RANKED:
                low, n, one = ranked_floor(x_at, mask_at, top, gamma, lam, tau, d, HAS_MASK, N, W)
                alike, value = one.to(tl.int32), 1.0 / n.to(tl.float64)
            else:
                low = floor_of(top, gamma, 4.0 * lam - tau, x_ptr.dtype.element_ty)
                alike = 0
        if alike > 0:  # one value above ``low``, and one elsewhere
            for b in range(0, d, W):
                i = b + tl.arange(0, W)
                x = load_scores(x_at, mask_at, i, i, i < d, HAS_MASK)
                y = tl.where(x > low, value, other)
                tl.store(y_at + i, y.to(y_ptr.dtype.element_ty), mask=i < d)
        else:
            m = pack(x_at, mask_at, low, y_at, index_at, d, HAS_MASK, not RANKED, W)
            if m <= N:
                one = tl.full((1, 1), 1.0, tl.float64)
                j = tl.arange(0, N)[None, :]
                x = tl.load(y_at + j, mask=j < m, other=-float("inf"))
                tl.debug_barrier()
                y = answer(x, one * top, m, one > 0, one * gamma, one * lam,
                           y_at + tl.zeros((1, 1), tl.int64), m, RANKED)  # fmt: skip
                clear(y_at, m, N)
                tl.store(y_at + tl.load(index_at + j, mask=j < m, other=0), y, mask=j < m)
            else:
                if RANKED:
                    sort(y_at, index_at, t_at, spare_ptr + memory, m, B)
                swept(y_at, index_at, t_at, code_at, top, gamma, lam, m, RANKED, B)
        tl.debug_barrier()


@triton.jit
def levels(y_at, d, W: tl.constexpr):
    """How many entries of a row are positive, and the least of them."""
    n = tl.full((), 0, tl.int32)
    least = tl.full((), float("inf"), y_at.dtype.element_ty)
    for b in range(0, d, W):
        i = b + tl.arange(0, W)
        y = tl.load(y_at + i, mask=i < d, other=0.0)
        n += tl.sum((y > 0).to(tl.int32))
        least = tl.minimum(least, tl.min(tl.where(y > 0, y, float("inf"))))
    return n, least


@triton.jit(do_not_specialize=["rows"])
def long_backward(y_ptr, v_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, part_ptr, g_ptr,
                  dlam_ptr, t_ptr, index_ptr, spare_ptr, rows, d, y_stride, v_stride, part_stride,
                  HAS_MASK: tl.constexpr, RANKED: tl.constexpr, HYPER: tl.constexpr,
                  B: tl.constexpr):  # fmt: skip
    """Each program computes every P-th row, P the number of programs. By rank, where the support is
    large, the entries of its least value are not packed: they are one group."""
    W: tl.constexpr = WIDE * B
    N: tl.constexpr = B // FEW
    memory = tl.program_id(0).to(tl.int64) * d
    t_at, index_at = t_ptr + memory, index_ptr + memory
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        y_at, v_at, g_at = y_ptr + row * y_stride, v_ptr + row * v_stride, g_ptr + row * d
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        low = tl.full((), 0.0, y_ptr.dtype.element_ty)
        n = tl.full((), 0, tl.int32)
        rest = tl.full((), 0.0, tl.float64)
        if RANKED:
            n, least = levels(y_at, d, W)
            low = tl.where(n > N, least, low)
        m = pack(y_at, part_ptr + row * part_stride, low, g_at, index_at, d, HAS_MASK, not RANKED,
                 W)  # fmt: skip
        large = (low > 0) & (m > 0)  # one group has w = 0
        others = tl.where(large, n - m, 0)
        if large:
            for b in range(0, d, W):
                i = b + tl.arange(0, W)
                on = tl.load(y_at + i, mask=i < d, other=0.0) == low
                rest += tl.sum(tl.load(v_at + i, mask=on, other=0.0).to(tl.float64))
        if m <= N:
            one = tl.full((1, 1), 1.0, tl.float64)
            j = tl.arange(0, N)[None, :]
            y = tl.load(g_at + j, mask=j < m, other=0.0)
            k = tl.load(index_at + j, mask=j < m, other=0)
            tl.debug_barrier()
            if RANKED:
                at = g_at + tl.zeros((1, 1), tl.int64)
                g, mean, by_u = ranked_products(y, v_at, index_at, one * gamma, at, m, others,
                                                rest)  # fmt: skip
                mean = tl.sum(mean)
            else:
                v = tl.load(v_at + k, mask=y > 0, other=0.0).to(tl.float64)
                w, by_u = products(y.to(tl.float64), v, j < m)
                g = quotient(w, gamma, 1.0 / gamma).to(g_ptr.dtype.element_ty)
                mean = rest
            by_u = tl.sum(by_u)
            clear(g_at, m, N)
            tl.store(g_at + k, g, mask=j < m)
        else:
            if RANKED:
                sort(g_at, index_at, t_at, spare_ptr + memory, m, B)
            mean, by_u = swept_products(g_at, v_at, index_at, t_at, gamma, others, rest, m, RANKED,
                                        B)  # fmt: skip
        if large:
            w = rest / others - mean
            by_u -= w * others.to(tl.float64) * (m + 0.5 * (others - 1))
            for b in range(0, d, W):
                i = b + tl.arange(0, W)
                on = tl.load(y_at + i, mask=i < d, other=0.0) == low
                g = tl.zeros((W,), tl.float64) + w
                g = quotient(g, gamma, 1.0 / gamma).to(g_ptr.dtype.element_ty)
                tl.store(g_at + i, g, mask=on)
        if HYPER:
            tl.store(dlam_ptr + row, -by_u)
        tl.debug_barrier()
