"""The groups of a chain in Triton: their values and splits, by scans of a tile in registers.

For

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]

a group of value t is split at {z > t}, which solves a problem of two labels e whose messages

    m_i = clip(m_{i−1}, −down, up) + t − x_i

are compositions of clips, an associative operation. So one scan decides every group of the row:
e_i = [m_i < 0] where m_i is outside [−down, up] or a group ends, else e_{i+1}. Values are computed
again from the data, as

    t_G = mean(x_G) + (pull before − pull after)/|G|,   pull = down, −up, 0 by the jump's sign.

A tile is (rows, columns); the code of an entry is that of the border after it.

Source: Chambolle & Darbon (2009) for the splitting.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .rows import quotient

NOT = tl.constexpr(0)
END = tl.constexpr(1)
DOWN = tl.constexpr(2)
UP = tl.constexpr(3)


@triton.jit
def summed(a, s, b, t):
    """Scan operator: the sum and the number of participants of an entry's group so far.

    Bits of a number: 0–1 the code of the last entry, 2–3 that before its group (0: to the left),
    4–6 four more than that before the entry (0: to the left), 7–31 participants.
    """
    before = a & 3
    inside, start = (b & 12) != 0, before != NOT
    own = tl.where(start, before << 2, a & -116) + (b & -128)
    own = tl.where(inside, b & -116, own)
    entry = tl.where((b & 64) != 0, b & 112, 64 | (before << 4))
    return own | entry | (b & 3), tl.where(inside | start, t, s + t)


@triton.jit
def known(a, b):
    """Scan operator: the nearest number that is not NaN."""
    return tl.where(b == b, b, a)


@triton.jit
def next_known(a, following, b, next):
    """Scan operator: ``known``, and the same for the entry before."""
    return tl.where(b == b, b, a), tl.where(next == next, next, a)


@triton.jit
def labelled(a, b):
    """Scan operator: the nearest label that is not 0, and four times that of the entry before."""
    own, following = b & 3, b >> 2
    own = tl.where(own != 0, own, a & 3)
    return own | (tl.where(following != 0, following, a & 3) << 2)


@triton.jit
def clipped(c, low, high, b, least, most):
    """Scan operator: x → clip(x + c, low, high), then x → clip(x + b, least, most)."""
    return (
        c + b,
        tl.minimum(tl.maximum(low + b, least), most),
        tl.minimum(tl.maximum(high + b, least), most),
    )


@triton.jit
def limits(lam, d, RANKED: tl.constexpr):
    """How far below the maximum an entry still affects others. Lower ones would absorb them in
    sums. An entry may rise by λd in the regression, and by 2λ in total variation, where the
    maximum may fall by 2λ; P_Δ is 0 at 1 below the maximum. The rest is for rounding."""
    return tl.minimum(1.01 * (1.0 + lam * (d if RANKED else 4)), 1e290)


@triton.jit
def scaled(x, top, gamma, depth):
    """(x − top)/γ, at least −``depth``."""
    off = top.to(tl.float64) - x.to(tl.float64)
    delta = quotient(off, gamma, 1.0 / gamma)
    return tl.where(off > 0, -tl.where(delta < depth, delta, depth), 0.0)


@triton.jit
def rank_of(x, ptr, d, inside):
    """How many of d numbers in memory, the largest first, are larger than x; 0 where not
    ``inside``."""
    rank = tl.zeros(x.shape, tl.int32)
    step = 1
    while step < d:
        step = step * 2
    while step > 1:
        step = step // 2
        at = rank + (step - 1)
        other = tl.load(ptr + at, mask=inside & (at < d), other=-float("inf"))
        rank += tl.where(other > x, step, 0)
    return rank


@triton.jit
def pull(code, down, up):
    return tl.where(code == DOWN, down, tl.where(code == UP, -up, 0.0))


@triton.jit
def following(x):
    """The nearest number after each entry that is not NaN; NaN where there is none."""
    nothing = tl.zeros_like(x) + float("nan")
    return tl.associative_scan((x, nothing), 1, next_known, reverse=True)[1]


@triton.jit
def group_values(x, on, code, down, up):
    """t_G at all entries of each group, and the code before each entry (0 at the first, and
    otherwise four more). x is 0 where not ``on``."""
    a, s = tl.associative_scan((code + tl.where(on, 128, 0), x), 1, summed)
    # pulls first: a group of one entry between a higher and a lower one is x_i exactly
    t = s + (pull((a >> 2) & 3, down, up) - pull(code, down, up))
    t = tl.where(code != NOT, t / tl.maximum(a >> 7, 1), float("nan"))
    return tl.associative_scan(t, 1, known, reverse=True), (a >> 4) & 7


@triton.jit
def split(x, on, t, before, code, down, up, slack):
    """The codes of new ends, where a group's solution crosses its value; elsewhere 0."""
    start = before != 4 + NOT
    c = tl.where(on, t - x, 0.0) - pull(before & 3, down, up) + pull(code, down, up)
    # a masked entry passes the message on unchanged
    low = tl.where(start, c, tl.where(on, c - down, -float("inf")))
    high = tl.where(start, c, tl.where(on, c + up, float("inf")))
    _, m, _ = tl.associative_scan((c, low, high), 1, clipped)
    sure = (code != NOT) | (m > up + slack) | (m < -down - slack)
    label = tl.where(sure, tl.where(m < 0, DOWN, UP), 0)
    label = tl.associative_scan(label, 1, labelled, reverse=True)
    above = label & 3
    return tl.where((code == NOT) & (above != (label >> 2)), above, 0)
