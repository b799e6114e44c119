"""Chains in Triton: fused neighbours (total variation) and isotonic regression, then P_Δ.

Both are the proximal operator of one penalty on neighbours,

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]:

total variation has down = up = λ, the decreasing regression down = 0, up = ∞. Rounds of splitting
(:mod:`.scans`) start from one group and end when no group splits: about the logarithm of the number
of groups. The Jacobian of P_Δ(z) takes the mean of each group of the support, minus the mean of the
support. All arithmetic is float64.

A row of at most ``LIMIT`` entries is in the registers of one program, which reads x and writes y
once. Longer rows are swept block by block (:mod:`.long_chain`).

By rank, a row is sorted without its order: y_i is the value at the rank of x_i, found by bisection.
Backward sorts y, and the pairs of a rank and an index, where ties stand together. The row's place
in the output holds what bisection reads.

Sources: Best & Chakravarti (1990) for isotonic regression; Niculae & Blondel (2017), Prop. 2 and 3,
for the maps and their Jacobians.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import entries, solve
from .long_chain import long_backward, long_forward
from .rows import (
    GINI,
    check_device,
    guard,
    load_scores,
    parameter,
    per_row,
    power_of_2,
    quotient,
    survey,
)
from .scans import (
    DOWN,
    END,
    NOT,
    UP,
    following,
    group_values,
    limits,
    rank_of,
    scaled,
    split,
)

LIMIT = 2048
"""The longest row in the registers of a program, and the entries of a block of a longer row."""
STATE = 1 << 24
"""Entries of state of all programs together; more only if rows are very long."""


@triton.jit
def projected(x, on, i, fine, d, down, up, slack, free):
    """P_Δ of the chain's prox of a tile; rows that are not ``fine`` are not iterated. ``free``:
    without a penalty each entry is a group."""
    code = tl.where((i >= d - 1) | free, END, NOT)
    t = x
    active = fine.to(tl.int32)
    while tl.max(active) > 0:
        t, before = group_values(x, on, code, down, up)
        cut = tl.where(active > 0, split(x, on, t, before, code, down, up, slack), 0)
        code = code + cut
        active = tl.max(cut, 1, keep_dims=True)
    active = fine.to(tl.int32)
    while tl.max(active) > 0:  # until no jump has the wrong sign by rounding
        t, _ = group_values(x, on, code, down, up)
        jump = t - following(tl.where(code != NOT, t, float("nan")))
        wrong = ((code == DOWN) & (jump < 0)) | ((code == UP) & (jump > 0))
        code = tl.where(wrong, NOT, code)
        active = tl.where(active > 0, tl.max(wrong.to(tl.int32), 1, keep_dims=True), 0)
    t = tl.where(on, t, -float("inf"))
    high = tl.max(t, 1, keep_dims=True)
    delta = tl.where(on, high - t, float("inf"))
    one = tl.zeros_like(high) + 1.0
    c, e, total = solve(delta, None, None, 0, 1, high, one, one, one, 1, 0, fine.to(tl.int32), GINI,
                        False, 1, 1, 1)  # fmt: skip
    return entries(delta, c, e, one, total, 1, GINI)


@triton.jit(do_not_specialize=["rows"])
def chain_forward(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, lam_ptr,
                  lam: tl.float64, lam_step, y_ptr, part_ptr, rows, d, x_stride, mask_stride,
                  HAS_MASK: tl.constexpr, RANKED: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    i = column + tl.zeros((ROWS, BLOCK), tl.int32)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    lam = per_row(lam_ptr, lam, row, lam_step, rows)
    spoilt = (spoilt != 0) | (gamma != gamma) | (lam != lam)
    fine = (spoilt == 0) & (count > 0)
    on = x != -float("inf")
    ordered = x
    if RANKED:
        ordered = tl.sort(tl.where(x < float("inf"), x, -float("inf")), descending=True)
    else:
        tl.store(part_ptr + row * d + column, on, mask=inside)
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
    y_at = y_ptr + row * d
    y = y.to(y_ptr.dtype.element_ty)
    if RANKED:  # y's memory holds x in order, then y in this order
        tl.store(y_at + column, ordered, mask=inside)
        tl.debug_barrier()
        rank = rank_of(x, y_at, d, inside)
        tl.debug_barrier()
        tl.store(y_at + column, y, mask=inside)
        tl.debug_barrier()
        y = tl.load(y_at + rank, mask=inside, other=0.0)
        tl.debug_barrier()
    y = tl.where(spoilt, float("nan"), tl.where(fine & on, y, 0.0))
    tl.store(y_at + column, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def chain_backward(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, part_ptr, g_ptr,
                   dlam_ptr, rows, d, y_stride, v_stride, part_stride, HAS_MASK: tl.constexpr,
                   HYPER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """w = Jv: the means of v over the groups of the support, minus its mean over the support.

    The derivative in λ is −⟨w, u⟩, u ∈ ∂R(y): ⟨w, u⟩ = Σ sign(y_i − y_p)(w_i − w_p), p the
    participant before i.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0).to(tl.float64)
    on = inside
    if HAS_MASK:
        on = inside & (tl.load(part_ptr + row * part_stride + column, mask=inside, other=0) != 0)
    after = following(tl.where(on, y, float("nan")))
    support = on & (y > 0)
    v = tl.load(v_ptr + row * v_stride + column, mask=support, other=0.0).to(tl.float64)
    v = tl.where(support, v, 0.0)
    size = tl.sum(support.to(tl.int32), 1, keep_dims=True)
    mean = tl.sum(v, 1, keep_dims=True) / tl.maximum(size, 1)
    code = tl.where(on & (y != after), END, NOT)
    zero = tl.zeros_like(mean)
    w, _ = group_values(v, support, code, zero, zero)
    w = tl.where(y > 0, w - mean, 0.0)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    g = tl.where(support, quotient(w, gamma, 1.0 / gamma), 0.0)
    tl.store(g_ptr + row * d + column, g.to(g_ptr.dtype.element_ty), mask=inside)
    if HYPER:
        jump = following(tl.where(code != NOT, w, float("nan"))) - w
        jump = tl.where(after > y, jump, tl.where(after < y, -jump, 0.0))
        by_u = tl.sum(tl.where(code != NOT, jump, 0.0), 1, keep_dims=True)
        tl.store(dlam_ptr + row, -by_u, mask=row < rows)


@triton.jit
def by_rank(r, s, n, q, t, m):
    """Scan operator: sums over the entries of one rank, ranks ascending."""
    same = r == q
    return q, tl.where(same, s + t, t), tl.where(same, n + m, m)


@triton.jit(do_not_specialize=["rows"])
def ranked_backward(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, g_ptr, dlam_ptr, rows,
                    d, y_stride, v_stride, HYPER: tl.constexpr, ROWS: tl.constexpr,
                    BLOCK: tl.constexpr):  # fmt: skip
    """The same where the groups are the entries of one value, and u is minus the mean rank."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    i = column + tl.zeros((ROWS, BLOCK), tl.int32)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0)
    y = tl.where(y > 0, y, 0.0)
    support = y > 0
    g_at = g_ptr + row * d  # holds y in order, then the means in this order
    tl.store(g_at + column, tl.sort(y, descending=True), mask=inside)
    tl.debug_barrier()
    rank = rank_of(y, g_at, d, inside)
    tl.debug_barrier()
    size = tl.sum(support.to(tl.int32), 1, keep_dims=True)
    order = tl.sort(tl.where(inside, rank, BLOCK) * BLOCK + i)
    v = tl.load(v_ptr + row * v_stride + order % BLOCK, mask=i < size, other=0.0).to(tl.float64)
    key, s, n = tl.associative_scan(
        (order // BLOCK, v, tl.zeros_like(i) + 1), 1, by_rank, reverse=True
    )  # fmt: skip
    w = s / n - tl.sum(v, 1, keep_dims=True) / tl.maximum(size, 1)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    g = quotient(w, gamma, 1.0 / gamma).to(g_ptr.dtype.element_ty)
    tl.store(g_at + column, g, mask=inside)
    tl.debug_barrier()
    g = tl.load(g_at + rank, mask=support, other=0.0)
    tl.debug_barrier()
    tl.store(g_at + column, g, mask=inside)
    if HYPER:
        by_u = tl.where((key == i) & (i < size), w * (n * (i + 0.5 * (n - 1))), 0.0)
        tl.store(dlam_ptr + row, tl.sum(by_u, 1, keep_dims=True), mask=row < rows)


@functools.lru_cache(maxsize=1024)
def shape(d: int) -> dict[str, int]:
    """Rows and columns of a program's tile, and its warps: a function of d, so that a row's result
    does not depend on its batch."""
    block = max(16, power_of_2(d))
    return {"ROWS": max(1, 256 // block), "BLOCK": block, "num_warps": max(1, block // 256)}


def _state(x: Tensor, block: int | None) -> tuple[int, Tensor, Tensor, dict[str, int]]:
    """The number of programs for long rows, their memory, and the shape of a block."""
    rows, d = x.shape
    programs = min(rows, max(STATE // d, 128))
    t = x.new_empty((programs, d), dtype=torch.float64)
    size = LIMIT if block is None else block
    return (
        programs,
        t,
        t.new_empty((programs, d), dtype=torch.int8),
        {"B": size, "num_warps": max(1, size // 256)},
    )


def forward(
    x: Tensor,
    gamma: Tensor | float,
    lam: Tensor | float,
    mask: Tensor | None,
    ranked: bool,
    block: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """P_Δ of the chain's prox at x/γ, by rank (``ranked``: OSCAR) or by position (total variation,
    which also returns the mask of participants). ``block`` replaces ``LIMIT``."""
    check_device(x)
    rows, d = x.shape
    y = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    part = None if ranked else torch.empty((rows, d), dtype=torch.bool, device=x.device)
    if rows == 0:
        return y, part
    hyper = (*parameter(gamma), *parameter(lam))
    with guard(x):
        if d <= (block or LIMIT):
            on = x if mask is None else mask
            tile = shape(d)
            chain_forward[(-(-rows // tile["ROWS"]),)](
                x, on, *hyper, y, y if part is None else part, rows, d, x.stride(0), on.stride(0),
                HAS_MASK=mask is not None, RANKED=ranked, **tile,
            )  # fmt: skip
            return y, part
        ordered = x
        if ranked:
            if mask is not None:
                x, mask = torch.where(mask, x, -torch.inf), None
            ordered = x.sort(-1, descending=True)[0]
        on = x if mask is None else mask
        programs, t, code, tile = _state(x, block)
        long_forward[(programs,)](
            x, on, *hyper, ordered, y, y if part is None else part, t, code, rows, d, x.stride(0),
            on.stride(0), HAS_MASK=mask is not None, RANKED=ranked, **tile,
        )  # fmt: skip
    return y, part


def backward(
    y: Tensor,
    v: Tensor,
    gamma: Tensor | float,
    part: Tensor | None,
    ranked: bool,
    hyper: bool,
    block: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Jv/γ and, if ``hyper``, the gradient of λ per row; ``part``: the mask of participants (None:
    all)."""
    check_device(y)
    rows, d = y.shape
    g = torch.empty((rows, d), dtype=y.dtype, device=y.device)
    dlam = y.new_empty(rows if hyper else 1, dtype=torch.float64)
    if rows == 0:
        return g, dlam if hyper else None
    tile = shape(d)
    grid = (-(-rows // tile["ROWS"]),)
    if ranked:
        part = None
    on = y if part is None else part
    flags = {"HAS_MASK": part is not None, "HYPER": hyper}
    with guard(y):
        if d > (block or LIMIT):
            order = y
            if ranked:
                y, order = y.sort(-1, descending=True)
            programs, t, code, tile = _state(y, block)
            long_backward[(programs,)](
                y, v, *parameter(gamma), on, order, g, dlam, t, code, rows, d, y.stride(0),
                v.stride(0), on.stride(0), RANKED=ranked, **flags, **tile,
            )  # fmt: skip
        elif ranked:
            ranked_backward[grid](
                y, v, *parameter(gamma), g, dlam, rows, d, y.stride(0), v.stride(0), HYPER=hyper,
                **tile,
            )  # fmt: skip
        else:
            chain_backward[grid](
                y, v, *parameter(gamma), on, g, dlam, rows, d, y.stride(0), v.stride(0),
                on.stride(0), **flags, **tile,
            )  # fmt: skip
    return g, dlam if hyper else None
