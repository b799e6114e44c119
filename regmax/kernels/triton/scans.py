"""The groups of a chain in Triton: their values and splits, by scans.

For

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]

a group of value t is split at {z > t}, which solves a problem of two labels e whose messages

    m_i = clip(m_{i−1}, −down, up) + t − x_i

are compositions of clips, an associative operation. So one scan decides every group of the row:
e_i = [m_i < 0] where m_i is outside [−down, up] or a group ends, else e_{i+1}. Values are computed
again from the data, as

    t_G = mean(x_G) + (pull before − pull after)/|G|,   pull = down, −up, 0 by the jump's sign.

A row is processed block by block. Registers carry values from block to block; the row's state is in
memory. Sweeps to the left read backwards and scan forwards.

Source: Chambolle & Darbon (2009) for the splitting.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

NOT = tl.constexpr(0)
END = tl.constexpr(1)
DOWN = tl.constexpr(2)
UP = tl.constexpr(3)


@triton.jit
def least(a, b):
    return tl.minimum(a, b)


@triton.jit
def greatest(a, b):
    return tl.maximum(a, b)


@triton.jit
def joined(f, s, n, p, g, t, m, q):
    """Scan operator: partial sums of a group, its participants and its pull; f flags a start."""
    return (
        f | g,
        tl.where(g != 0, t, s + t),
        tl.where(g != 0, m, n + m),
        tl.where(g != 0, q, p),
    )


@triton.jit
def summed(f, s, n, g, t, m):
    """``joined`` without a pull."""
    return f | g, tl.where(g != 0, t, s + t), tl.where(g != 0, m, n + m)


@triton.jit
def clipped(c, low, high, b, least_, most):
    """x → clip(x + c, low, high), then x → clip(x + b, least, most)."""
    return (
        c + b,
        tl.minimum(tl.maximum(low + b, least_), most),
        tl.minimum(tl.maximum(high + b, least_), most),
    )


@triton.jit
def pull(code, down, up):
    return tl.where(code == DOWN, down, tl.where(code == UP, -up, 0.0))


@triton.jit
def last_of(x, j, B: tl.constexpr):
    """The last entry of a block."""
    return tl.sum(tl.where(j == B - 1, x, tl.zeros_like(x)))


@triton.jit
def group_values(x_at, t_at, code_at, d, down, up, B: tl.constexpr):
    """t_G at the end of each group, then at all its entries."""
    j = tl.arange(0, B)
    total = tl.full((), 0.0, tl.float64)
    count, before = total, total
    for b in range(0, d, B):
        i = b + j
        inside = i < d
        x = tl.load(x_at + i, mask=inside, other=-float("inf"))
        code = tl.load(code_at + i, mask=inside, other=0)
        previous = tl.load(code_at + i - 1, mask=inside & (i > 0), other=END)
        start = (inside & (previous != NOT)).to(tl.int32)
        on = x > -float("inf")
        f, s, n, p = tl.associative_scan(
            (
                start,
                tl.where(on, x, 0.0),
                tl.where(on, 1.0, 0.0).to(tl.float64),
                pull(previous, down, up),
            ),
            0,
            joined,
        )
        s = tl.where(f == 0, s + total, s)
        n = tl.where(f == 0, n + count, n)
        p = tl.where(f == 0, before, p)
        t = (s + (p - pull(code, down, up))) / tl.maximum(n, 1.0)
        # pulls first: a group of one entry between a higher and a lower one is x_i exactly
        tl.store(t_at + i, t, mask=inside & (code != NOT))
        total, count, before = last_of(s, j, B), last_of(n, j, B), last_of(p, j, B)
    tl.debug_barrier()
    following = d - 1
    for b in range(0, d, B):
        i = d - 1 - b - j
        inside = i >= 0
        code = tl.load(code_at + i, mask=inside, other=0)
        end = tl.associative_scan(tl.where(inside & (code != NOT), i, d), 0, least)
        end = tl.minimum(end, following)
        t = tl.load(t_at + end, mask=inside, other=0.0)
        tl.store(t_at + i, t, mask=inside & (code == NOT))
        following = tl.min(end)
    tl.debug_barrier()


@triton.jit
def split(x_at, t_at, m_at, code_at, d, down, up, slack, B: tl.constexpr):
    """Marks new ends where a group's solution crosses its value; returns their number."""
    j = tl.arange(0, B)
    message = tl.full((), 0.0, tl.float64)
    for b in range(0, d, B):
        i = b + j
        inside = i < d
        x = tl.load(x_at + i, mask=inside, other=-float("inf"))
        t = tl.load(t_at + i, mask=inside, other=0.0)
        code = tl.load(code_at + i, mask=inside, other=0)
        previous = tl.load(code_at + i - 1, mask=inside & (i > 0), other=END)
        on = x > -float("inf")
        start = inside & (previous != NOT)
        c = tl.where(on, t - tl.where(on, x, 0.0), 0.0)
        c = c - tl.where(start, pull(previous, down, up), 0.0) + pull(code, down, up)
        # a masked entry passes the message on unchanged
        low = tl.where(start, c, tl.where(on, c - down, -float("inf")))
        high = tl.where(start, c, tl.where(on, c + up, float("inf")))
        c, low, high = tl.associative_scan((c, low, high), 0, clipped)
        m = tl.minimum(tl.maximum(message + c, low), high)
        tl.store(m_at + i, m, mask=inside)
        message = last_of(m, j, B)
    tl.debug_barrier()
    following = d - 1
    cuts = 0
    for b in range(0, d, B):
        i = d - 1 - b - j
        inside = i >= 0
        m = tl.load(m_at + i, mask=inside, other=0.0)
        code = tl.load(code_at + i, mask=inside, other=END)
        # the nearest entry to the right whose label is known
        right = inside & (i < d - 1)
        m_right = tl.load(m_at + i + 1, mask=right, other=0.0)
        known = right & (tl.load(code_at + i + 1, mask=right, other=END) != NOT)
        known = known | (right & ((m_right > up + slack) | (m_right < -down - slack)))
        source = tl.associative_scan(tl.where(known, i + 1, d), 0, least)
        source = tl.minimum(source, following)
        beyond = tl.load(m_at + source, mask=inside, other=0.0) < 0
        above = (m < -down - slack) | ((m <= up + slack) & beyond)
        cut = inside & (code == NOT) & (above != beyond)
        following = tl.min(source)
        cuts += tl.sum(cut.to(tl.int32))
        # a cut is at an entry whose label is known: the blocks to the left, which read the first
        # entry of this one, find the same source with or without the cut
        tl.debug_barrier()
        tl.store(code_at + i, tl.where(above, DOWN, UP).to(tl.int8), mask=cut)
    tl.debug_barrier()
    return cuts


@triton.jit
def join(t_at, code_at, d, B: tl.constexpr):
    """Removes ends whose jump has the wrong sign by rounding; returns their number."""
    j = tl.arange(0, B)
    wrong = 0
    for b in range(0, d, B):
        i = b + j
        inside = i < d - 1
        jump = tl.load(t_at + i, mask=inside, other=0.0)
        jump = jump - tl.load(t_at + i + 1, mask=inside, other=0.0)
        code = tl.load(code_at + i, mask=inside, other=0)
        off = ((code == DOWN) & (jump < 0)) | ((code == UP) & (jump > 0))
        tl.store(code_at + i, tl.zeros_like(code), mask=off)
        wrong += tl.sum(off.to(tl.int32))
    tl.debug_barrier()
    return wrong
