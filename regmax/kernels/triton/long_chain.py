"""Chains of rows longer than a program's registers, in Triton: sweeps over blocks of a row.

The mathematics is that of :mod:`.scans`. Every sweep reads forwards, and registers carry values
from block to block. A row's state is nine bytes an entry, in memory that a program reuses for each
of its rows: the code of the border after an entry, and at the first entry of a group its value. A
label that is known decides those before it, as far as the last one known; where the two differ, it
marks the border after that one.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import entries, solve
from .rows import GINI, load_scores, of_row
from .scans import DOWN, END, NOT, UP, clipped, limits, next_known, pull, rank_of, scaled


@triton.jit
def greatest(a, b):
    return tl.maximum(a, b)


@triton.jit
def spanned(f, n, s, g, m, t):
    """Scan operator: the first entry of a group (−1: to the left), its participants, their sum."""
    start = g >= 0
    return tl.where(start, g, f), tl.where(start, m, n + m), tl.where(start, t, s + t)


@triton.jit
def last_of(x, j, B: tl.constexpr):
    """The last entry of a block."""
    return tl.sum(tl.where(j == B - 1, x, tl.zeros_like(x)))


@triton.jit
def load_chain(x_at, mask_at, i, d, top, gamma, lam, depth, HAS_MASK: tl.constexpr,
               RANKED: tl.constexpr):  # fmt: skip
    """The chain's entries, 0 where masked, and which take part."""
    x = load_scores(x_at, mask_at, i, i, i < d, HAS_MASK)
    on = x != -float("inf")
    z = scaled(x, top, gamma, depth)
    if RANKED:
        z = z + lam * i.to(tl.float64)
    return tl.where(on, z, 0.0), on


@triton.jit
def load_codes(code_at, i, j, d, previous):
    """The codes after and before each entry of a block, ``previous`` before its first."""
    code = tl.load(code_at + i, mask=i < d, other=END).to(tl.int32)
    before = tl.load(code_at + i - 1, mask=(i < d) & (j > 0), other=END).to(tl.int32)
    return code, tl.where(j == 0, previous, before)


@triton.jit
def store_values(x_at, mask_at, t_at, code_at, d, top, gamma, lam, depth, down, up,
                 HAS_MASK: tl.constexpr, RANKED: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """t_G at the first entry of each group."""
    j = tl.arange(0, B)
    previous, first, count = tl.full((), END, tl.int32), -1, 0
    total = tl.full((), 0.0, tl.float64)
    for b in range(0, d, B):
        i = b + j
        x, on = load_chain(x_at, mask_at, i, d, top, gamma, lam, depth, HAS_MASK, RANKED)
        code, before = load_codes(code_at, i, j, d, previous)
        f, n, s = tl.associative_scan(
            (tl.where(before != NOT, i, -1), on.to(tl.int32), x), 0, spanned
        )
        f, n, s = spanned(first, count, total, f, n, s)
        end = (i < d) & (code != NOT)
        before = tl.load(code_at + f - 1, mask=end & (f > 0), other=END).to(tl.int32)
        # pulls first: a group of one entry between a higher and a lower one is x_i exactly
        t = (s + (pull(before, down, up) - pull(code, down, up))) / tl.maximum(n, 1)
        tl.store(t_at + f, t, mask=end)
        previous, first = last_of(code, j, B), last_of(f, j, B)
        count, total = last_of(n, j, B), last_of(s, j, B)
    tl.debug_barrier()


@triton.jit
def store_cuts(x_at, mask_at, t_at, code_at, d, top, gamma, lam, depth, down, up, slack,
               HAS_MASK: tl.constexpr, RANKED: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Marks new ends where a group's solution crosses its value; returns their number."""
    j = tl.arange(0, B)
    previous, first, cuts = tl.full((), END, tl.int32), -1, 0
    message = tl.full((), 0.0, tl.float64)
    nothing = message + float("nan")
    known = nothing
    for b in range(0, d, B):
        i = b + j
        x, on = load_chain(x_at, mask_at, i, d, top, gamma, lam, depth, HAS_MASK, RANKED)
        code, before = load_codes(code_at, i, j, d, previous)
        start = before != NOT
        f = tl.maximum(tl.associative_scan(tl.where(start, i, -1), 0, greatest), first)
        t = tl.load(t_at + f, mask=i < d, other=0.0)
        c = tl.where(on, t - x, 0.0)
        c = c - tl.where(start, pull(before, down, up), 0.0) + pull(code, down, up)
        # a masked entry passes the message on unchanged
        low = tl.where(start, c, tl.where(on, c - down, -float("inf")))
        high = tl.where(start, c, tl.where(on, c + up, float("inf")))
        c, low, high = tl.associative_scan((c, low, high), 0, clipped)
        m = tl.minimum(tl.maximum(message + c, low), high)
        sure = (i < d) & ((code != NOT) | (m > up + slack) | (m < -down - slack))
        # an entry, its label, and whether its group ends, in one number
        mark = 4 * i + tl.where(m < 0, 2, 0) + tl.where(code != NOT, 1, 0)
        mark = tl.where(sure, mark.to(tl.float64), float("nan"))
        mark, last = tl.associative_scan((mark, tl.zeros_like(mark) + nothing), 0, next_known)
        mark, last = next_known(known, nothing, mark, last)
        open_ = sure & (last == last)
        last = tl.where(open_, last, 0.0).to(tl.int32)
        above = (last & 2) != 0
        cut = open_ & ((last & 1) == 0) & (above != (m < 0))
        tl.debug_barrier()
        tl.store(code_at + (last >> 2), tl.where(above, DOWN, UP).to(tl.int8), mask=cut)
        cuts += tl.sum(cut.to(tl.int32))
        previous, first = last_of(code, j, B), last_of(f, j, B)
        message, known = last_of(m, j, B), last_of(mark, j, B)
    tl.debug_barrier()
    return cuts


@triton.jit
def join(t_at, code_at, d, B: tl.constexpr):
    """Removes ends whose jump has the wrong sign by rounding; returns their number."""
    j = tl.arange(0, B)
    previous, first, wrong = tl.full((), END, tl.int32), -1, 0
    for b in range(0, d, B):
        i = b + j
        code, before = load_codes(code_at, i, j, d, previous)
        f = tl.maximum(tl.associative_scan(tl.where(before != NOT, i, -1), 0, greatest), first)
        end = (i < d) & ((code == DOWN) | (code == UP))
        jump = tl.load(t_at + f, mask=end, other=0.0) - tl.load(t_at + i + 1, mask=end, other=0.0)
        off = ((code == DOWN) & (jump < 0)) | ((code == UP) & (jump > 0))
        tl.debug_barrier()
        tl.store(code_at + i, tl.zeros_like(code).to(tl.int8), mask=end & off)
        wrong += tl.sum((end & off).to(tl.int32))
        previous, first = last_of(code, j, B), last_of(f, j, B)
    tl.debug_barrier()
    return wrong


@triton.jit(do_not_specialize=["rows"])
def long_forward(x_ptr, mask_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, lam_ptr,
                 lam_: tl.float64, lam_step, ordered_ptr, y_ptr, part_ptr, t_ptr, code_ptr, rows, d,
                 x_stride, mask_stride, HAS_MASK: tl.constexpr, RANKED: tl.constexpr,
                 B: tl.constexpr):  # fmt: skip
    """Each program computes every P-th row, P the number of programs. ``ordered``: x from the
    largest, if RANKED."""
    j = tl.arange(0, B)
    t_at = t_ptr + tl.program_id(0).to(tl.int64) * d
    code_at = code_ptr + tl.program_id(0).to(tl.int64) * d
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        scores, mask = x_ptr + row * x_stride, mask_ptr + row * mask_stride
        x_at = ordered_ptr + row * d if RANKED else scores
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        lam = of_row(lam_ptr, lam_, row, lam_step)
        zero = tl.full((), 0.0, tl.float64)
        top = zero - float("inf")
        count, good = 0, 0
        for b in range(0, d, B):
            i = b + j
            x = load_scores(scores, mask, i, i, i < d, HAS_MASK)
            on = x != -float("inf")
            finite = on & (x < float("inf"))
            count += tl.sum(on.to(tl.int32))
            good += tl.sum(finite.to(tl.int32))
            top = tl.maximum(top, tl.max(tl.where(finite, x, -float("inf"))).to(tl.float64))
            if not RANKED:
                tl.store(part_ptr + row * d + i, on, mask=i < d)
        spoilt = (good != count) | (gamma != gamma) | (lam != lam)
        fine = (spoilt == 0) & (count > 0)
        gamma = tl.where(fine, gamma, 1.0)
        lam = tl.where(fine, lam, 0.0)
        top = tl.where(fine, top, 0.0)
        depth, mean, size = limits(lam, d, RANKED), zero, zero
        d_now = tl.where(fine, d, 0)  # other rows are not computed
        for b in range(0, d_now, B):
            i = b + j
            x, _ = load_chain(x_at, mask, i, d, top, gamma, lam, depth, HAS_MASK, RANKED)
            mean += tl.sum(x)
            # without a penalty each entry is a group
            inner = i < tl.where(lam > 0, d - 1, 0)
            tl.store(code_at + i, tl.where(inner, NOT, END).to(tl.int8), mask=i < d)
        tl.debug_barrier()
        mean = mean / tl.maximum(count, 1)
        for b in range(0, d_now, B):
            i = b + j
            x, on = load_chain(x_at, mask, i, d, top, gamma, lam, depth, HAS_MASK, RANKED)
            size += tl.sum(tl.where(on, tl.abs(x - mean), 0.0))
        down = zero if RANKED else tl.minimum(lam, 2.0 * size)  # large enough to fuse all entries
        up = zero + float("inf") if RANKED else down
        slack = 3.6e-15 * (size + down)
        cuts = fine.to(tl.int32)
        while cuts > 0:
            store_values(x_at, mask, t_at, code_at, d, top, gamma, lam, depth, down, up, HAS_MASK,
                         RANKED, B)  # fmt: skip
            cuts = store_cuts(x_at, mask, t_at, code_at, d, top, gamma, lam, depth, down, up, slack,
                              HAS_MASK, RANKED, B)  # fmt: skip
        wrong = fine.to(tl.int32)
        while wrong > 0:
            wrong = join(t_at, code_at, d, B)
            store_values(x_at, mask, t_at, code_at, d, top, gamma, lam, depth, down, up, HAS_MASK,
                         RANKED, B)  # fmt: skip
        # a group's value at all its entries, and −∞ where masked
        previous, first = tl.full((), END, tl.int32), -1
        for b in range(0, d_now, B):
            i = b + j
            code, before = load_codes(code_at, i, j, d, previous)
            f = tl.maximum(tl.associative_scan(tl.where(before != NOT, i, -1), 0, greatest), first)
            t = tl.load(t_at + f, mask=i < d, other=0.0)
            tl.store(t_at + i, t, mask=i < d)
            previous, first = last_of(code, j, B), last_of(f, j, B)
        tl.debug_barrier()
        high = zero - float("inf")
        for b in range(0, d_now, B):
            i = b + j
            x = load_scores(x_at, mask, i, i, i < d, HAS_MASK)
            t = tl.load(t_at + i, mask=i < d, other=-float("inf"))
            t = tl.where(x != -float("inf"), t, -float("inf"))
            tl.store(t_at + i, t, mask=i < d)
            high = tl.maximum(high, tl.max(t))
        tl.debug_barrier()
        one = tl.full((1, 1), 1.0, tl.float64)
        high = tl.where(fine, high, 0.0)
        active = tl.full((1, 1), 1, tl.int32) * fine.to(tl.int32)
        c, e, sum_y = solve(one, t_at, code_at, d_now, 1, one * high, one, one, one, 1, active,
                            active, GINI, True, 1, 1, B)  # fmt: skip
        column = tl.arange(0, B)[None, :]
        for b in range(0, d, B):
            i = b + column
            place = i
            x = load_scores(scores, mask, i, i, i < d, HAS_MASK)
            on = (i < d) & fine & (x != -float("inf"))
            if RANKED:
                place = rank_of(x, x_at, d, on)
            t = tl.load(t_at + place, mask=on, other=-float("inf"))
            y = entries(tl.where(on, high - t, float("inf")), c, e, one, sum_y, 1, GINI)
            y = tl.where(spoilt, float("nan"), tl.where(on, y, 0.0))
            tl.store(y_ptr + row * d + i, y.to(y_ptr.dtype.element_ty), mask=i < d)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def long_backward(y_ptr, v_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, part_ptr, order_ptr,
                  g_ptr, dlam_ptr, t_ptr, code_ptr, rows, d, y_stride, v_stride, part_stride,
                  HAS_MASK: tl.constexpr, RANKED: tl.constexpr, HYPER: tl.constexpr,
                  B: tl.constexpr):  # fmt: skip
    """As ``chain_backward`` and ``ranked_backward``. RANKED: y from the largest, by ``order``."""
    j = tl.arange(0, B)
    t_at = t_ptr + tl.program_id(0).to(tl.int64) * d
    code_at = code_ptr + tl.program_id(0).to(tl.int64) * d
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        y_at, v_at, g_at = y_ptr + row * y_stride, v_ptr + row * v_stride, g_ptr + row * d
        part_at, order_at = part_ptr + row * part_stride, order_ptr + row * d
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        zero = tl.full((), 0.0, tl.float64)
        nothing = zero + float("nan")
        # where a group starts
        last = nothing
        for b in range(0, d, B):
            i = b + j
            y = tl.load(y_at + i, mask=i < d, other=0.0).to(tl.float64)
            on = i < d
            if HAS_MASK:
                on = on & (tl.load(part_at + i, mask=i < d, other=0) != 0)
            own = tl.where(on, y, float("nan"))
            own, before = tl.associative_scan((own, tl.zeros_like(y) + nothing), 0, next_known)
            own, before = next_known(last, nothing, own, before)
            tl.store(code_at + i, (on & (before != y)).to(tl.int8), mask=i < d)
            last = last_of(own, j, B)
        tl.debug_barrier()
        # the sum over a group, and over the support
        first, count, size = -1, 0, 0
        total, sum_v = zero, zero
        for b in range(0, d, B):
            i = b + j
            support = tl.load(y_at + i, mask=i < d, other=0.0) > 0
            place = i
            if RANKED:
                place = tl.load(order_at + i, mask=i < d, other=0)
            v = tl.load(v_at + place, mask=support, other=0.0).to(tl.float64)
            v = tl.where(support, v, 0.0)
            start = tl.load(code_at + i, mask=i < d, other=0) != 0
            f, n, s = tl.associative_scan(
                (tl.where(start, i, -1), support.to(tl.int32), v), 0, spanned
            )
            f, n, s = spanned(first, count, total, f, n, s)
            end = (f >= 0) & (i < d) & (tl.load(code_at + i + 1, mask=i < d - 1, other=1) != 0)
            tl.store(t_at + f, s / tl.maximum(n, 1), mask=end)
            sum_v += tl.sum(v)
            size += tl.sum(support.to(tl.int32))
            first, count, total = last_of(f, j, B), last_of(n, j, B), last_of(s, j, B)
        tl.debug_barrier()
        mean = sum_v / tl.maximum(size, 1)
        first, by_u = -1, zero
        for b in range(0, d, B):
            i = b + j
            support = tl.load(y_at + i, mask=i < d, other=0.0) > 0
            start = tl.load(code_at + i, mask=i < d, other=0) != 0
            f = tl.maximum(tl.associative_scan(tl.where(start, i, -1), 0, greatest), first)
            first = last_of(f, j, B)
            w = tl.load(t_at + f, mask=(f >= 0) & (i < d), other=0.0) - mean
            place = i
            if RANKED:
                place = tl.load(order_at + i, mask=i < d, other=0)
            g = tl.where(support, w / gamma, 0.0)
            tl.store(g_at + place, g.to(g_ptr.dtype.element_ty), mask=i < d)
            if HYPER and RANKED:
                by_u -= tl.sum(tl.where(support, w * i.to(tl.float64), 0.0))
            if HYPER and not RANKED:
                # the jump from a group to the next
                end = (f >= 0) & (i < d - 1)
                end = end & (tl.load(code_at + i + 1, mask=end, other=0) != 0)
                y = tl.load(y_at + f, mask=end, other=0.0)
                after = tl.load(y_at + i + 1, mask=end, other=0.0)
                jump = tl.load(t_at + i + 1, mask=end, other=0.0) - mean
                jump = tl.where(after > 0, jump, 0.0) - tl.where(y > 0, w, 0.0)
                by_u += tl.sum(tl.where(after > y, jump, tl.where(after < y, -jump, 0.0)))
        if HYPER:
            tl.store(dlam_ptr + row, tl.where(size > 0, -by_u, 0.0))
        tl.debug_barrier()
