"""Chains in Triton: fused neighbours (total variation) and isotonic regression, then P_Δ.

Both are the proximal operator of one penalty on neighbours,

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]:

total variation has down = up = λ, the decreasing regression down = 0, up = ∞. Rounds of splitting
(:mod:`.scans`) start from one group and end when no group splits: about the logarithm of the number
of groups. The Jacobian of P_Δ(z) takes the mean of each group of the support, minus the mean of the
support.

All arithmetic is float64. One program computes a row, in parallel within the row, by sweeps over
blocks. Registers carry values from block to block, and the row's state (25 bytes an entry) is in
memory that a program reuses for each of its rows. So a row may have any length, and no step waits
for the host.

Sources: Best & Chakravarti (1990) for isotonic regression; Niculae & Blondel (2017), Prop. 2 and 3,
for the maps and their Jacobians.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import entries, solve
from .rows import GINI, check_device, distance, guard, load_scores, of_row, parameter, power_of_2
from .scans import END, NOT, greatest, group_values, join, last_of, least, split, summed

BLOCK = 2048
"""Entries of a row that a program processes at once."""
STATE = 1 << 24
"""Entries of state of all programs together; more only if rows are very long."""


@triton.jit(do_not_specialize=["rows"])
def chain_forward(x_ptr, mask_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, lam_ptr,
                  lam_: tl.float64, lam_step, order_ptr, y_ptr, part_ptr, state_ptr, code_ptr, rows,
                  d, x_stride, mask_stride, HAS_MASK: tl.constexpr, SORTED: tl.constexpr,
                  B: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Each program computes every P-th row, P the number of programs. SORTED: isotonic regression
    of x + λ rank, x in descending order, and y in the original order by ``order``. Else total
    variation; also writes the mask of participants."""
    j = tl.arange(0, B)
    x_at = state_ptr + tl.program_id(0).to(tl.int64) * d * 3
    t_at = x_at + d
    m_at = t_at + d
    code_at = code_ptr + tl.program_id(0).to(tl.int64) * d
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        scores, mask = x_ptr + row * x_stride, mask_ptr + row * mask_stride
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        lam = of_row(lam_ptr, lam_, row, lam_step)
        zero = tl.full((), 0.0, tl.float64)
        top = zero - float("inf")
        count, good = 0, 0
        for b in range(0, d, B):
            i = b + j
            x = load_scores(scores, mask, i, i, i < d, HAS_MASK).to(tl.float64)
            on = x != -float("inf")
            finite = on & (x < float("inf"))
            count += tl.sum(on.to(tl.int32))
            good += tl.sum(finite.to(tl.int32))
            top = tl.maximum(top, tl.max(tl.where(finite, x, -float("inf"))))
            if not SORTED:
                tl.store(part_ptr + row * d + i, on, mask=i < d)
        spoilt = (good != count) | (gamma != gamma) | (lam != lam)
        fine = (spoilt == 0) & (count > 0)
        # a row with a NaN or +inf is computed as a row of zeros
        top = tl.where(top == -float("inf"), 0.0, top)
        gamma = tl.where(fine, gamma, 1.0)
        lam = tl.where(fine, lam, 0.0)
        # lower entries do not affect the others, and would absorb them in sums
        floor = -2.0 * (1.0 + lam * (d if SORTED else 2))
        total = zero
        for b in range(0, d, B):
            i = b + j
            x = load_scores(scores, mask, i, i, i < d, HAS_MASK).to(tl.float64)
            on = fine & (x != -float("inf")) & (x < float("inf"))
            x = tl.maximum((tl.where(on, x, top) - top) / gamma, floor)
            if SORTED:
                x = x + lam * i.to(tl.float64)
            total += tl.sum(tl.where(on, x, 0.0))
            tl.store(x_at + i, tl.where(on, x, -float("inf")), mask=i < d)
            # without a penalty each entry is a group
            inner = i + (lam == 0).to(tl.int32) * d < d - 1
            tl.store(code_at + i, tl.where(inner, NOT, END).to(tl.int8), mask=i < d)
        tl.debug_barrier()
        mean = total / tl.maximum(count, 1)
        size = zero
        for b in range(0, d, B):
            i = b + j
            x = tl.load(x_at + i, mask=i < d, other=-float("inf"))
            on = x > -float("inf")
            size += tl.sum(tl.where(on, tl.abs(tl.where(on, x, 0.0) - mean), 0.0))
        if SORTED:
            down, up = zero, zero + float("inf")
            slack = 3.6e-15 * size
        else:
            down = tl.minimum(lam, 2.0 * size)  # large enough to fuse all entries
            up = down
            slack = 3.6e-15 * (size + down)
        cuts = fine.to(tl.int32)
        while cuts > 0:
            group_values(x_at, t_at, code_at, d, down, up, B)
            cuts = split(x_at, t_at, m_at, code_at, d, down, up, slack, B)
        wrong = fine.to(tl.int32)
        while wrong > 0:
            wrong = join(t_at, code_at, d, B)
            if wrong > 0:
                group_values(x_at, t_at, code_at, d, down, up, B)
        # P_Δ(t) of the participants
        high = zero - float("inf")
        for b in range(0, d, B):
            i = b + j
            x = tl.load(x_at + i, mask=i < d, other=-float("inf"))
            t = tl.load(t_at + i, mask=i < d, other=0.0)
            t = tl.where(x > -float("inf"), t, -float("inf"))
            high = tl.maximum(high, tl.max(t))
            tl.store(x_at + i, t, mask=i < d)
        tl.debug_barrier()
        one = tl.full((1, 1), 1.0, tl.float64)
        high2 = one * tl.where(high == -float("inf"), 0.0, high)
        active = tl.full((1, 1), 1, tl.int32) * fine.to(tl.int32)
        c, e, sum_y = solve(one, x_at, code_at, d, 1, high2, one, one, one, 1, active, active, GINI,
                            True, 1, 1, N)  # fmt: skip
        column = tl.arange(0, N)[None, :]
        for b in range(0, d, N):
            i = b + column
            t = tl.load(x_at + i, mask=i < d, other=-float("inf"))
            y = entries(distance(t, high2, one), c, e, one, sum_y, 1, GINI)
            y = tl.where(spoilt, float("nan"), tl.where(fine, y, 0.0))
            place = i
            if SORTED:
                place = tl.load(order_ptr + row * d + i, mask=i < d, other=0)
            tl.store(y_ptr + row * d + place, y.to(y_ptr.dtype.element_ty), mask=i < d)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def chain_backward(y_ptr, v_ptr, gamma_ptr, gamma_: tl.float64, gamma_step, part_ptr, order_ptr,
                   g_ptr, dlam_ptr, state_ptr, code_ptr, rows, d, y_stride, v_stride, part_stride,
                   SORTED: tl.constexpr, HYPER: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """w = Jv: the means of v over the groups of the support, minus its mean over the support.

    The derivative in λ is −⟨w, u⟩, u ∈ ∂R(y). SORTED: u is minus the rank, y in descending order.
    Else ⟨w, u⟩ is Σ sign(y_i − y_p)(w_i − w_p), p the participant before i.
    """
    j = tl.arange(0, B)
    s_at = state_ptr + tl.program_id(0).to(tl.int64) * d * 3
    n_at = s_at + d
    w_at = n_at + d
    code_at = code_ptr + tl.program_id(0).to(tl.int64) * d
    for row32 in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + row32
        y_at, v_at = y_ptr + row * y_stride, v_ptr + row * v_stride
        part_at, order_at = part_ptr + row * part_stride, order_ptr + row * d
        gamma = of_row(gamma_ptr, gamma_, row, gamma_step)
        zero = tl.full((), 0.0, tl.float64)
        sum_v, size, total, count = zero, zero, zero, zero
        last = -1
        for b in range(0, d, B):
            i = b + j
            inside = i < d
            y = tl.load(y_at + i, mask=inside, other=0.0).to(tl.float64)
            p = i - 1
            on = inside
            if not SORTED:
                on = inside & (tl.load(part_at + i, mask=inside, other=0) != 0)
                left = inside & (i > 0)
                left = left & (tl.load(part_at + i - 1, mask=left, other=0) != 0)
                p = tl.associative_scan(tl.where(left, i - 1, -1), 0, greatest)
                p = tl.maximum(p, last)
                last = tl.maximum(last, tl.max(tl.where(on, i, -1)))
            before = tl.load(y_at + p, mask=inside & (p >= 0), other=-1.0).to(tl.float64)
            start = on & (before != y)
            support = on & (y > 0)
            place = i
            if SORTED:
                place = tl.load(order_at + i, mask=inside, other=0).to(tl.int32)
            v = tl.load(v_at + place, mask=support, other=0.0).to(tl.float64)
            v = tl.where(support, v, 0.0)
            f, s, n = tl.associative_scan(
                (start.to(tl.int32), v, tl.where(support, 1.0, 0.0).to(tl.float64)), 0, summed
            )
            s = tl.where(f == 0, s + total, s)
            n = tl.where(f == 0, n + count, n)
            tl.store(s_at + i, s, mask=inside)
            tl.store(n_at + i, n, mask=inside)
            tl.store(code_at + i, start.to(tl.int8), mask=inside)
            total, count = last_of(s, j, B), last_of(n, j, B)
            sum_v += tl.sum(v)
            size += tl.sum(support.to(tl.int32))
        tl.debug_barrier()
        mean = sum_v / tl.maximum(size, 1.0)
        following = d
        by_u = zero
        for b in range(0, d, B):
            i = d - 1 - b - j
            inside = i >= 0
            right = inside & (i < d - 1)
            begins = right & (tl.load(code_at + i + 1, mask=right, other=0) != 0)
            end = tl.associative_scan(tl.where(begins, i + 1, d), 0, least)
            end = tl.minimum(end, following)
            following = tl.min(end)
            y = tl.load(y_at + i, mask=inside, other=0.0).to(tl.float64)
            s = tl.load(s_at + end - 1, mask=inside, other=0.0)
            n = tl.load(n_at + end - 1, mask=inside, other=1.0)
            support = inside & (y > 0)
            w = tl.where(support, s / tl.maximum(n, 1.0) - mean, 0.0)
            place = i
            if SORTED:
                place = tl.load(order_at + i, mask=inside, other=0).to(tl.int32)
                by_u -= tl.sum(w * i.to(tl.float64))  # up to a constant: Σw = 0
            g = w / gamma
            tl.store(g_ptr + row * d + place, tl.where(support, g, 0.0).to(g_ptr.dtype.element_ty),
                     mask=inside)  # fmt: skip
            if HYPER:
                tl.store(w_at + i, w, mask=inside)
        if HYPER:
            tl.debug_barrier()
            if not SORTED:
                last = -1
                for b in range(0, d, B):
                    i = b + j
                    inside = i < d
                    y = tl.load(y_at + i, mask=inside, other=0.0).to(tl.float64)
                    on = inside & (tl.load(part_at + i, mask=inside, other=0) != 0)
                    left = inside & (i > 0)
                    left = left & (tl.load(part_at + i - 1, mask=left, other=0) != 0)
                    p = tl.associative_scan(tl.where(left, i - 1, -1), 0, greatest)
                    p = tl.maximum(p, last)
                    last = tl.maximum(last, tl.max(tl.where(on, i, -1)))
                    both = on & (p >= 0)
                    before = tl.load(y_at + p, mask=both, other=0.0).to(tl.float64)
                    w = tl.load(w_at + i, mask=both, other=0.0)
                    w = w - tl.load(w_at + p, mask=both, other=0.0)
                    w = tl.where(y > before, w, tl.where(y < before, -w, 0.0))
                    by_u += tl.sum(tl.where(both, w, 0.0))
            tl.store(dlam_ptr + row, tl.where(size > 0, -by_u, 0.0))
        tl.debug_barrier()


def _launch(x: Tensor, block: int | None) -> tuple[int, int, int, Tensor, Tensor]:
    """The numbers of programs, block entries and warps, and the state memory."""
    rows, d = x.shape
    block = min(BLOCK if block is None else block, max(32, power_of_2(d)))
    programs = min(rows, max(STATE // d, 128))
    state = x.new_empty((programs, 3, d), dtype=torch.float64)
    return (
        programs,
        block,
        min(max(block // 128, 1), 16),
        state,
        x.new_empty((programs, d), dtype=torch.int8),
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
    which also returns the mask of participants)."""
    check_device(x)
    rows, d = x.shape
    y = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    part = None if ranked else torch.empty((rows, d), dtype=torch.bool, device=x.device)
    if rows == 0:
        return y, part
    order = x
    if ranked:
        if mask is not None:
            x, mask = torch.where(mask, x, -torch.inf), None
        x, order = x.sort(-1, descending=True)
    on = x if mask is None else mask
    with guard(x):
        programs, block, warps, state, code = _launch(x, block)
        chain_forward[(programs,)](
            x, on, *parameter(gamma), *parameter(lam), order, y, y if part is None else part, state,
            code, rows, d, x.stride(0), on.stride(0), HAS_MASK=mask is not None, SORTED=ranked,
            B=block, N=block, num_warps=warps,
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
    order = y
    if ranked:
        y, order = y.sort(-1, descending=True)
        part = y
    elif part is None:
        part = torch.ones_like(y, dtype=torch.bool)
    with guard(y):
        programs, block, warps, state, code = _launch(y, block)
        chain_backward[(programs,)](
            y, v, *parameter(gamma), part, order, g, dlam, state, code, rows, d, y.stride(0),
            v.stride(0), part.stride(0), SORTED=ranked, HYPER=hyper, B=block, num_warps=warps,
        )  # fmt: skip
    return g, dlam if hyper else None
