"""A chain in registers, in Triton: its groups, P_Δ and the product with the Jacobian, by scans.

For

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]

a group of value t is split at {z > t}, which solves a problem of two labels e whose messages

    m_i = clip(m_{i−1}, −down, up) + t − x_i

are compositions of clips, an associative operation. So one scan decides every group of the row:
e_i = [m_i < 0] where m_i is outside [−down, up] or a group ends, else e_{i+1}. Values are computed
again from the data, as

    t_G = mean(x_G) + (pull before − pull after)/|G|,   pull = down, −up, 0 by the jump's sign.

The Jacobian of P_Δ(z) takes the mean of each group of the support, minus the mean of the support.

A tile is (rows, columns); the code of an entry is that of the border after it.

Sources: Chambolle & Darbon (2009) for the splitting; Niculae & Blondel (2017), Prop. 2 and 3, for
the maps and their Jacobians.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import shares
from .powers import linear_inverse, michelot
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
def rank_of(x, ptr, sizes, most):
    """How many of ``sizes`` numbers in memory, the largest first, are larger than x: less than
    ``most``."""
    rank = tl.zeros(x.shape, tl.int32)
    step = 1
    while step < most:  # ends: step doubles
        step = step * 2
    while step > 1:  # ends: step halves
        step = step // 2
        at = rank + (step - 1)
        other = tl.load(ptr + at, mask=at < sizes, other=-float("inf"))
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


@triton.jit
def projected(x, on, i, fine, d, down, up, slack, free):
    """P_Δ of the chain's prox of a tile; rows that are not ``fine`` are not iterated. ``free``:
    without a penalty each entry is a group."""
    code = tl.where((i >= d - 1) | free, END, NOT)
    t = x
    active = fine.to(tl.int32)
    while tl.max(active) > 0:  # ends: every turn makes one more border an end
        t, before = group_values(x, on, code, down, up)
        cut = tl.where(active > 0, split(x, on, t, before, code, down, up, slack), 0)
        code = code + cut
        active = tl.max(cut, 1, keep_dims=True)
    active = fine.to(tl.int32)
    # until no jump has the wrong sign by rounding
    while tl.max(active) > 0:  # ends: every turn removes an end
        t, _ = group_values(x, on, code, down, up)
        jump = t - following(tl.where(code != NOT, t, float("nan")))
        wrong = ((code == DOWN) & (jump < 0)) | ((code == UP) & (jump > 0))
        code = tl.where(wrong, NOT, code)
        active = tl.where(active > 0, tl.max(wrong.to(tl.int32), 1, keep_dims=True), 0)
    t = tl.where(on, t, -float("inf"))
    high = tl.max(t, 1, keep_dims=True)
    delta = tl.where(on, high - t, float("inf"))
    c, e, total = michelot((delta,), (high, high), 1, fine.to(tl.int32), None, 0)
    return shares(linear_inverse(delta, c, e, None)[0], total)


@triton.jit
def answer(x, top, count, fine, gamma, lam, at, d, RANKED: tl.constexpr):
    """y of a tile; 0 where a row is not ``fine``. By rank, ``at`` is memory for the d entries of a
    row: it holds x in order, then y in this order."""
    BLOCK: tl.constexpr = x.shape[1]
    column = tl.arange(0, BLOCK)[None, :]
    i = column + tl.zeros(x.shape, tl.int32)
    on = x != -float("inf")
    ordered = x
    if RANKED:
        ordered = tl.sort(tl.where(x < float("inf"), x, -float("inf")), descending=True)
    # a row with a NaN or +inf is computed as a row without participants
    gamma = tl.where(fine, gamma, 1.0)
    lam = tl.where(fine, lam, 0.0)
    part = fine & (ordered != -float("inf"))
    z = scaled(ordered, top, gamma, limits(lam, d, RANKED))
    if RANKED:
        z = z + lam * i.to(tl.float64)
    z = tl.where(part, z, 0.0)
    mean = tl.sum(z, 1, keep_dims=True) / tl.maximum(count, 1)
    size = tl.sum(tl.where(part, tl.abs(z - mean), 0.0), 1, keep_dims=True)
    zero = tl.zeros_like(lam)
    down = zero if RANKED else tl.minimum(lam, 2.0 * size)  # large enough to fuse all entries
    up = zero + float("inf") if RANKED else down
    slack = 3.6e-15 * (size + down)
    y = projected(z, part, i, fine, d, down, up, slack, lam == 0)
    y = y.to(at.dtype.element_ty)
    if RANKED:
        inside = column < d
        tl.store(at + column, ordered, mask=inside)
        tl.debug_barrier()
        rank = rank_of(x, at, d, BLOCK)
        tl.debug_barrier()
        tl.store(at + column, y, mask=inside)
        tl.debug_barrier()
        y = tl.load(at + rank, mask=inside, other=0.0)
        tl.debug_barrier()
    return tl.where(fine & on, y, 0.0)


@triton.jit
def products(y, v, on):
    """w = Jv, and ⟨w, u⟩ of each row, u ∈ ∂R(y): Σ sign(y_i − y_p)(w_i − w_p), p the participant
    before i. The derivative in λ is −⟨w, u⟩."""
    after = following(tl.where(on, y, float("nan")))
    support = on & (y > 0)
    v = tl.where(support, v, 0.0)
    size = tl.sum(support.to(tl.int32), 1, keep_dims=True)
    mean = tl.sum(v, 1, keep_dims=True) / tl.maximum(size, 1)
    code = tl.where(on & (y != after), END, NOT)
    zero = tl.zeros_like(mean)
    w, _ = group_values(v, support, code, zero, zero)
    w = tl.where(support, w - mean, 0.0)
    jump = following(tl.where(code != NOT, w, float("nan"))) - w
    jump = tl.where(after > y, jump, tl.where(after < y, -jump, 0.0))
    return w, tl.sum(tl.where(code != NOT, jump, 0.0), 1, keep_dims=True)


@triton.jit
def by_rank(r, s, n, q, t, m):
    """Scan operator: sums over the entries of one rank, ranks ascending."""
    same = r == q
    return q, tl.where(same, s + t, t), tl.where(same, n + m, m)


@triton.jit
def ranked_products(y, v_at, gamma, at, d):
    """Jv/γ and ⟨w, u⟩, where the groups are the entries of one value, and u is minus the mean rank.
    ``at`` is memory for the d entries of a row: it holds y in order, then the means in this
    order."""
    BLOCK: tl.constexpr = y.shape[1]
    column = tl.arange(0, BLOCK)[None, :]
    i = column + tl.zeros(y.shape, tl.int32)
    inside = column < d
    support = y > 0
    tl.store(at + column, tl.sort(y, descending=True), mask=inside)
    tl.debug_barrier()
    rank = rank_of(y, at, d, BLOCK)
    tl.debug_barrier()
    size = tl.sum(support.to(tl.int32), 1, keep_dims=True)
    order = tl.sort(tl.where(inside, rank, BLOCK) * BLOCK + i)
    v = tl.load(v_at + order % BLOCK, mask=i < size, other=0.0).to(tl.float64)
    key, s, n = tl.associative_scan(
        (order // BLOCK, v, tl.zeros_like(i) + 1), 1, by_rank, reverse=True
    )  # fmt: skip
    w = s / n - tl.sum(v, 1, keep_dims=True) / tl.maximum(size, 1)
    by_u = tl.where((key == i) & (i < size), w * (n * (i + 0.5 * (n - 1))), 0.0)
    g = quotient(w, gamma, 1.0 / gamma).to(at.dtype.element_ty)
    tl.store(at + column, g, mask=inside)
    tl.debug_barrier()
    g = tl.load(at + rank, mask=support, other=0.0)
    tl.debug_barrier()
    return g, -tl.sum(by_u, 1, keep_dims=True)
