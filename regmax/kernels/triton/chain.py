"""Chains in Triton: fused neighbours (total variation) and isotonic regression, then P_Δ.

Both are the proximal operator of one penalty on neighbours,

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]:

total variation has down = up = λ, the decreasing regression down = 0, up = ∞. Rounds of splitting
(:mod:`.scans`) start from one group and end when no group splits: about the logarithm of the number
of groups. All arithmetic is float64.

A row of at most ``LIMIT`` entries is in the registers of one program, which reads x and writes y
once. Of a longer row the entries that can matter are packed first (:mod:`.long_chain`).

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

from .long_chain import long_backward, long_forward
from .rows import (
    check_device,
    guard,
    load_scores,
    parameter,
    per_row,
    power_of_2,
    quotient,
    survey,
)
from .scans import answer, products, ranked_products

LIMIT = 2048
"""The longest row in the registers of a program."""
SWEEP = 1024
"""The entries of a block of a longer row."""
STATE = 1 << 23
"""Entries of the rows for which the memory of all programs has room, at most 17 bytes each."""
PROGRAMS = 128
"""The least number of programs for long rows: that memory grows with rows beyond STATE/PROGRAMS."""


@triton.jit(do_not_specialize=["rows"])
def chain_forward(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, lam_ptr,
                  lam: tl.float64, lam_step, y_ptr, part_ptr, rows, d, x_stride, mask_stride,
                  HAS_MASK: tl.constexpr, RANKED: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    lam = per_row(lam_ptr, lam, row, lam_step, rows)
    spoilt = (spoilt != 0) | (gamma != gamma) | (lam != lam)
    fine = (spoilt == 0) & (count > 0)
    if not RANKED:
        tl.store(part_ptr + row * d + column, x != -float("inf"), mask=inside)
    sizes = tl.where(row < rows, d, 0)
    y = answer(x, top, count, fine, gamma, lam, y_ptr + row * d, sizes, RANKED)
    y = tl.where(spoilt, float("nan"), y)
    tl.store(y_ptr + row * d + column, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def chain_backward(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, part_ptr, g_ptr,
                   dlam_ptr, rows, d, y_stride, v_stride, part_stride, HAS_MASK: tl.constexpr,
                   HYPER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0).to(tl.float64)
    on = inside
    if HAS_MASK:
        on = inside & (tl.load(part_ptr + row * part_stride + column, mask=inside, other=0) != 0)
    v = tl.load(v_ptr + row * v_stride + column, mask=on & (y > 0), other=0.0).to(tl.float64)
    w, by_u = products(y, v, on)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    g = tl.where(y > 0, quotient(w, gamma, 1.0 / gamma), 0.0)
    tl.store(g_ptr + row * d + column, g.to(g_ptr.dtype.element_ty), mask=inside)
    if HYPER:
        tl.store(dlam_ptr + row, -by_u, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def ranked_backward(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, g_ptr, dlam_ptr, rows,
                    d, y_stride, v_stride, HYPER: tl.constexpr, ROWS: tl.constexpr,
                    BLOCK: tl.constexpr):  # fmt: skip
    """As ``chain_backward``, by rank."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0)
    y = tl.where(y > 0, y, 0.0)
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    g_at = g_ptr + row * d
    v_at, sizes = v_ptr + row * v_stride, tl.where(row < rows, d, 0)
    g, _, by_u = ranked_products(y, v_at, None, gamma, g_at, sizes, 0, 0.0)
    tl.store(g_at + column, g, mask=inside)
    if HYPER:
        tl.store(dlam_ptr + row, -by_u, mask=row < rows)


@functools.lru_cache(maxsize=1024)
def shape(d: int) -> dict[str, int]:
    """Rows and columns of a program's tile, and its warps: a function of d, so that a row's result
    does not depend on its batch."""
    block = max(16, power_of_2(d))
    return {"ROWS": max(1, 256 // block), "BLOCK": block, "num_warps": max(1, block // 256)}


def _state(
    x: Tensor, ranked: bool, block: int | None
) -> tuple[int, tuple[Tensor, ...], dict[str, int]]:
    """The number of programs for long rows, their memory (values, places, and to sort these), and
    the shape of a block."""
    rows, d = x.shape
    programs = min(rows, max(STATE // d, PROGRAMS))
    t = x.new_empty((programs, d), dtype=torch.float64)
    index = t.new_empty(t.shape, dtype=torch.int32)
    spare = torch.empty_like(index) if ranked else index
    size = block or SWEEP
    return programs, (t, index, spare), {"B": size, "num_warps": max(1, size // 128)}


def forward(
    x: Tensor,
    gamma: Tensor | float,
    lam: Tensor | float,
    mask: Tensor | None,
    ranked: bool,
    block: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """P_Δ of the chain's prox at x/γ, by rank (``ranked``: OSCAR) or by position (total variation,
    which also returns the mask of participants). ``block`` replaces ``LIMIT`` and ``SWEEP``."""
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
        programs, (t, *places), tile = _state(x, ranked, block)
        code = t.new_empty(t.shape, dtype=torch.int8)
        on = x if mask is None else mask
        long_forward[(programs,)](
            x, on, *hyper, y, y if part is None else part, t, code, *places, rows, d, x.stride(0),
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
            programs, memory, tile = _state(y, ranked, block)
            long_backward[(programs,)](
                y, v, *parameter(gamma), on, g, dlam, *memory, rows, d, y.stride(0), v.stride(0),
                on.stride(0), RANKED=ranked, **flags, **tile,
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
