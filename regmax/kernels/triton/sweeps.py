"""A packed chain in memory, in Triton: a sort, and sweeps over its blocks.

The mathematics is that of :mod:`.scans`. Every sweep reads forwards, and registers carry values
from block to block. A row's state is nine bytes an entry: the code of the border after an entry,
and at the first entry of a group its value. A label that is known decides those before it, as far
as the last one known; where the two differ, it marks the border after that one.

The m entries of a row are at the front of its place in the output, and their places in ``index``.
The results go to these.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import shares
from .powers import linear_inverse, michelot
from .rows import quotient
from .scans import DOWN, END, NOT, UP, clipped, limits, next_known, pull, rank_of, scaled


@triton.jit
def greatest(a, b):
    return tl.maximum(a, b)


@triton.jit
def spanned(f, s, g, t):
    """Scan operator: the first entry of a group (−1: to the left), and its sum."""
    start = g >= 0
    return tl.where(start, g, f), tl.where(start, t, s + t)


@triton.jit
def last_of(x, j, B: tl.constexpr):
    """The last entry of a block."""
    return tl.sum(tl.where(j == B - 1, x, tl.zeros_like(x)))


@triton.jit
def merge(x_at, index_at, to_at, index_to, m, run, B: tl.constexpr):
    """Merges each two of the sorted runs of ``run`` pairs (x, index)."""
    for b in range(0, m, B):
        i = b + tl.arange(0, B)
        x = tl.load(x_at + i, mask=i < m, other=0.0)
        k = tl.load(index_at + i, mask=i < m, other=0)
        own = i & (run - 1)
        right = (i & run) != 0
        other = tl.where(right, i - own - run, i - own + run)  # where the other run starts
        size = tl.where(i < m, tl.minimum(tl.maximum(m - other, 0), run), 0)
        place = tl.minimum(i - own, other) + own + rank_of(x, x_at + other, size, run + 1, right)
        tl.store(to_at + place, x.to(to_at.dtype.element_ty), mask=i < m)
        tl.store(index_to + place, k, mask=i < m)
    tl.debug_barrier()


@triton.jit
def sort(x_at, index_at, t_at, spare_at, m, B: tl.constexpr):
    """Sorts m pairs (x, index) in memory from the largest x; of equal ones the first stays first.
    ``t`` and ``spare`` are memory of the same length."""
    run = tl.full((), 1, tl.int32)
    while run < m:  # ends: run grows fourfold
        merge(x_at, index_at, t_at, spare_at, m, run, B)
        merge(t_at, spare_at, x_at, index_at, m, run * 2, B)
        run = run * 4


@triton.jit
def clear(x_at, m, B: tl.constexpr):
    """The front of a row, 0 before packed entries go to their places."""
    tl.debug_barrier()
    for b in range(0, m, B):
        i = b + tl.arange(0, B)
        tl.store(x_at + i, tl.zeros((B,), x_at.dtype.element_ty), mask=i < m)
    tl.debug_barrier()


@triton.jit
def load_chain(x_at, i, m, top, gamma, lam, depth, RANKED: tl.constexpr):
    """The chain's entries."""
    z = scaled(tl.load(x_at + i, mask=i < m, other=0.0), top, gamma, depth)
    if RANKED:
        z = z + lam * i.to(tl.float64)
    return tl.where(i < m, z, 0.0)


@triton.jit
def load_codes(code_at, i, j, m, previous):
    """The codes after and before each entry of a block, ``previous`` before its first."""
    code = tl.load(code_at + i, mask=i < m, other=END).to(tl.int32)
    before = tl.load(code_at + i - 1, mask=(i < m) & (j > 0), other=END).to(tl.int32)
    return code, tl.where(j == 0, previous, before)


@triton.jit
def store_values(x_at, t_at, code_at, m, top, gamma, lam, depth, down, up, RANKED: tl.constexpr,
                 B: tl.constexpr):  # fmt: skip
    """t_G at the first entry of each group."""
    j = tl.arange(0, B)
    previous, first = tl.full((), END, tl.int32), -1
    total = tl.full((), 0.0, tl.float64)
    for b in range(0, m, B):
        i = b + j
        x = load_chain(x_at, i, m, top, gamma, lam, depth, RANKED)
        code, before = load_codes(code_at, i, j, m, previous)
        f, s = tl.associative_scan((tl.where(before != NOT, i, -1), x), 0, spanned)
        f, s = spanned(first, total, f, s)
        end = (i < m) & (code != NOT)
        before = tl.load(code_at + f - 1, mask=end & (f > 0), other=END).to(tl.int32)
        # pulls first: a group of one entry between a higher and a lower one is x_i exactly
        t = (s + (pull(before, down, up) - pull(code, down, up))) / (i - f + 1)
        tl.store(t_at + f, t, mask=end)
        previous, first, total = last_of(code, j, B), last_of(f, j, B), last_of(s, j, B)
    tl.debug_barrier()


@triton.jit
def store_cuts(x_at, t_at, code_at, m, top, gamma, lam, depth, down, up, slack,
               RANKED: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Marks new ends where a group's solution crosses its value; returns their number."""
    j = tl.arange(0, B)
    previous, first, cuts = tl.full((), END, tl.int32), -1, 0
    message = tl.full((), 0.0, tl.float64)
    nothing = message + float("nan")
    known = nothing
    for b in range(0, m, B):
        i = b + j
        x = load_chain(x_at, i, m, top, gamma, lam, depth, RANKED)
        code, before = load_codes(code_at, i, j, m, previous)
        start = before != NOT
        f = tl.maximum(tl.associative_scan(tl.where(start, i, -1), 0, greatest), first)
        t = tl.load(t_at + f, mask=i < m, other=0.0)
        c = (t - x) - tl.where(start, pull(before, down, up), 0.0) + pull(code, down, up)
        low = tl.where(start, c, c - down)
        high = tl.where(start, c, c + up)
        c, low, high = tl.associative_scan((c, low, high), 0, clipped)
        own = tl.minimum(tl.maximum(message + c, low), high)
        sure = (i < m) & ((code != NOT) | (own > up + slack) | (own < -down - slack))
        # an entry, its label, and whether its group ends, in one number
        mark = 4 * i + tl.where(own < 0, 2, 0) + tl.where(code != NOT, 1, 0)
        mark = tl.where(sure, mark.to(tl.float64), float("nan"))
        mark, last = tl.associative_scan((mark, tl.zeros_like(mark) + nothing), 0, next_known)
        mark, last = next_known(known, nothing, mark, last)
        open_ = sure & (last == last)
        last = tl.where(open_, last, 0.0).to(tl.int32)
        higher = (last & 2) != 0
        cut = open_ & ((last & 1) == 0) & (higher != (own < 0))
        tl.debug_barrier()
        tl.store(code_at + (last >> 2), tl.where(higher, DOWN, UP).to(tl.int8), mask=cut)
        cuts += tl.sum(cut.to(tl.int32))
        previous, first = last_of(code, j, B), last_of(f, j, B)
        message, known = last_of(own, j, B), last_of(mark, j, B)
    tl.debug_barrier()
    return cuts


@triton.jit
def join(t_at, code_at, m, B: tl.constexpr):
    """Removes ends whose jump has the wrong sign by rounding; returns their number."""
    j = tl.arange(0, B)
    previous, first, wrong = tl.full((), END, tl.int32), -1, 0
    for b in range(0, m, B):
        i = b + j
        code, before = load_codes(code_at, i, j, m, previous)
        f = tl.maximum(tl.associative_scan(tl.where(before != NOT, i, -1), 0, greatest), first)
        end = (i < m) & ((code == DOWN) | (code == UP))
        jump = tl.load(t_at + f, mask=end, other=0.0) - tl.load(t_at + i + 1, mask=end, other=0.0)
        off = ((code == DOWN) & (jump < 0)) | ((code == UP) & (jump > 0))
        tl.debug_barrier()
        tl.store(code_at + i, tl.zeros_like(code).to(tl.int8), mask=end & off)
        wrong += tl.sum((end & off).to(tl.int32))
        previous, first = last_of(code, j, B), last_of(f, j, B)
    tl.debug_barrier()
    return wrong


@triton.jit
def swept(x_at, index_at, t_at, code_at, top, gamma, lam, m, RANKED: tl.constexpr,
          B: tl.constexpr):  # fmt: skip
    """Replaces the m packed entries of a row, by rank from the largest, by y."""
    j = tl.arange(0, B)
    mean = tl.full((), 0.0, tl.float64)
    size, depth = mean, limits(lam, m, RANKED)
    for b in range(0, m, B):
        i = b + j
        mean += tl.sum(load_chain(x_at, i, m, top, gamma, lam, depth, RANKED))
        # without a penalty each entry is a group
        inner = i < tl.where(lam > 0, m - 1, 0)
        tl.store(code_at + i, tl.where(inner, NOT, END).to(tl.int8), mask=i < m)
    tl.debug_barrier()
    mean = mean / m
    for b in range(0, m, B):
        i = b + j
        x = load_chain(x_at, i, m, top, gamma, lam, depth, RANKED)
        size += tl.sum(tl.where(i < m, tl.abs(x - mean), 0.0))
    down = lam * 0.0 if RANKED else tl.minimum(lam, 2.0 * size)  # large enough to fuse all entries
    up = lam * 0.0 + float("inf") if RANKED else down
    slack = 3.6e-15 * (size + down)
    cuts = tl.full((), 1, tl.int32)
    while cuts > 0:  # ends: every turn makes one more border an end
        store_values(x_at, t_at, code_at, m, top, gamma, lam, depth, down, up, RANKED, B)
        cuts = store_cuts(x_at, t_at, code_at, m, top, gamma, lam, depth, down, up, slack, RANKED,
                          B)  # fmt: skip
    wrong = tl.full((), 1, tl.int32)
    while wrong > 0:  # ends: every turn removes an end
        wrong = join(t_at, code_at, m, B)
        store_values(x_at, t_at, code_at, m, top, gamma, lam, depth, down, up, RANKED, B)
    # a group's value at all its entries
    previous, first = tl.full((), END, tl.int32), -1
    high = mean - float("inf")
    for b in range(0, m, B):
        i = b + j
        code, before = load_codes(code_at, i, j, m, previous)
        start = before != NOT
        if RANKED:  # equal entries stay equal
            x = tl.load(x_at + i, mask=i < m, other=0.0)
            start = start & (x != tl.load(x_at + i - 1, mask=(i > 0) & (i < m), other=float("inf")))
        f = tl.maximum(tl.associative_scan(tl.where(start, i, -1), 0, greatest), first)
        t = tl.load(t_at + f, mask=i < m, other=-float("inf"))
        tl.store(t_at + i, t, mask=i < m)
        high = tl.maximum(high, tl.max(t))
        previous, first = last_of(code, j, B), last_of(f, j, B)
    tl.debug_barrier()
    one = tl.full((1, 1), 1.0, tl.float64)
    active = tl.full((1, 1), 1, tl.int32)
    held = (one, t_at, code_at, m, 1, one * high, one)
    c, e, total = michelot(held, (one, one), 1, active, None, 1, 1, B)
    clear(x_at, m, B)
    for b in range(0, m, B):
        i = b + j[None, :]
        t = tl.load(t_at + i, mask=i < m, other=-float("inf"))
        y = shares(linear_inverse(high - t, c, e, None)[0], total)
        k = tl.load(index_at + i, mask=i < m, other=0)
        tl.store(x_at + k, y.to(x_at.dtype.element_ty), mask=i < m)


@triton.jit
def swept_products(y_at, v_at, index_at, t_at, gamma, others, rest, m, RANKED: tl.constexpr,
                   B: tl.constexpr):  # fmt: skip
    """As ``ranked_products``, or ``products``, of m packed entries, by rank from the largest: Jv/γ
    goes to their places. Returns the mean and ⟨w, u⟩."""
    j = tl.arange(0, B)
    first, size = -1, others
    total = tl.full((), 0.0, tl.float64)
    by_u, whole = total, rest
    for b in range(0, m, B):
        i = b + j
        y = tl.load(y_at + i, mask=i < m, other=0.0)
        k = tl.load(index_at + i, mask=i < m, other=0)
        v = tl.load(v_at + k, mask=y > 0, other=0.0).to(tl.float64)
        start = y != tl.load(y_at + i - 1, mask=(i > 0) & (i < m), other=-1.0)
        f, s = tl.associative_scan((tl.where(start, i, -1), v), 0, spanned)
        f, s = spanned(first, total, f, s)
        end = (i < m) & (y != tl.load(y_at + i + 1, mask=i < m - 1, other=-1.0))
        tl.store(t_at + f, s / (i - f + 1), mask=end)
        whole += tl.sum(v)
        size += tl.sum((y > 0).to(tl.int32))
        first, total = last_of(f, j, B), last_of(s, j, B)
    tl.debug_barrier()
    mean = whole / tl.maximum(size, 1)
    first = -1
    for b in range(0, m, B):
        i = b + j
        y = tl.load(y_at + i, mask=i < m, other=0.0)
        start = y != tl.load(y_at + i - 1, mask=(i > 0) & (i < m), other=-1.0)
        f = tl.maximum(tl.associative_scan(tl.where(start, i, -1), 0, greatest), first)
        first = last_of(f, j, B)
        t = tl.where(y > 0, tl.load(t_at + f, mask=i < m, other=0.0), mean)
        w = t - mean
        if RANKED:
            by_u -= tl.sum(w * i.to(tl.float64))
        else:  # the jump from a group to the next
            after = tl.load(y_at + i + 1, mask=i < m - 1, other=0.0)
            jump = tl.load(t_at + i + 1, mask=i < m - 1, other=0.0) - mean
            jump = tl.where(after > 0, jump, 0.0) - w
            jump = tl.where(after > y, jump, tl.where(after < y, -jump, 0.0))
            by_u += tl.sum(tl.where(i < m - 1, jump, 0.0))
        tl.store(t_at + i, t, mask=i < m)
    clear(y_at, m, B)
    for b in range(0, m, B):
        i = b + j
        w = tl.load(t_at + i, mask=i < m, other=0.0) - mean
        g = quotient(w, gamma, 1.0 / gamma)
        k = tl.load(index_at + i, mask=i < m, other=0)
        tl.store(y_at + k, g.to(y_at.dtype.element_ty), mask=i < m)
    return mean, by_u
