"""Chains in Triton: fused neighbours (total variation) and isotonic regression, then P_Δ.

Both are the proximal operator of one penalty on neighbours,

    z = argmin ½‖z − x‖² + Σ_k [ down (z_k − z_{k+1})₊ + up (z_{k+1} − z_k)₊ ]:

total variation has down = up = λ, the decreasing regression down = 0, up = ∞. Rounds of splitting
(:mod:`.scans`) start from one group and end when no group splits: about the logarithm of the number
of groups. All arithmetic is float64.

A row of at most ``LIMIT`` entries is in the registers of one program, which reads x and writes y
once. Longer rows are PyTorch's: the prox of the penalty, then sparsemax.

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

from ..base import Hyper, Kernel, Number, Numbers
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
                   RANKED: tl.constexpr, HYPER: tl.constexpr, ROWS: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0)
    v_at, g_at = v_ptr + row * v_stride, g_ptr + row * d
    gamma = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    if RANKED:
        y = tl.where(y > 0, y, 0.0)
        g, by_u = ranked_products(y, v_at, gamma, g_at, tl.where(row < rows, d, 0))
    else:
        on = inside
        if HAS_MASK:
            at = part_ptr + row * part_stride + column
            on = inside & (tl.load(at, mask=inside, other=0) != 0)
        v = tl.load(v_at + column, mask=on & (y > 0), other=0.0).to(tl.float64)
        w, by_u = products(y.to(tl.float64), v, on)
        g = tl.where(y > 0, quotient(w, gamma, 1.0 / gamma), 0.0).to(g_ptr.dtype.element_ty)
    tl.store(g_at + column, g, mask=inside)
    if HYPER:
        tl.store(dlam_ptr + row, -by_u, mask=row < rows)


@functools.lru_cache(maxsize=1024)
def shape(d: int) -> dict[str, int]:
    """Rows and columns of a program's tile, and its warps: a function of d, so that a row's result
    does not depend on its batch."""
    block = max(16, power_of_2(d))
    return {"ROWS": max(1, 256 // block), "BLOCK": block, "num_warps": max(1, block // 256)}


class ChainKernel(Kernel):
    """P_Δ of a prox on neighbours: by position (total variation) or, ``ranked``, by rank (OSCAR).

    Computes in float64 for every dtype. The caller rounds to half precision, so that rounding does
    not merge groups. ``longest``, for tests and tuning: the longest row that it takes.
    """

    name = "triton"
    numbers = True
    dtypes = (torch.float32, torch.float64)

    def __init__(self, ranked: bool, longest: int = LIMIT) -> None:
        self.ranked, self.longest = ranked, longest

    def forward(
        self, x: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        check_device(x)
        rows, d = x.shape
        y = torch.empty((rows, d), dtype=x.dtype, device=x.device)
        part = None if self.ranked else torch.empty_like(y, dtype=torch.bool)
        if rows == 0:
            return y, part
        on, tile = x if mask is None else mask, shape(d)
        with guard(x):
            chain_forward[(-(-rows // tile["ROWS"]),)](
                x, on, *parameter(gamma), *parameter(theta[0]), y, y if part is None else part,
                rows, d, x.stride(0), on.stride(0), HAS_MASK=mask is not None, RANKED=self.ranked,
                **tile,
            )  # fmt: skip
        return y, part

    def backward(
        self, y: Tensor, v: Tensor, gamma: Number, theta: Numbers, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper | None]:
        check_device(y)
        rows, d = y.shape
        g = torch.empty((rows, d), dtype=y.dtype, device=y.device)
        dlam = y.new_empty(rows if hyper else 1, dtype=torch.float64)
        on, tile = y if mask is None else mask, shape(d)
        if rows:
            with guard(y):
                chain_backward[(-(-rows // tile["ROWS"]),)](
                    y, v, *parameter(gamma), on, g, dlam, rows, d, y.stride(0), v.stride(0),
                    on.stride(0), HAS_MASK=mask is not None, RANKED=self.ranked, HYPER=hyper,
                    **tile,
                )  # fmt: skip
        return g, (dlam,) if hyper else None
