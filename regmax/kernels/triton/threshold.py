"""Threshold mappings in Triton: rows as tiles of one program, or as chunks of several.

Without a penalty, Π_Ω(x) is a power of the excess over a threshold, which solves one scalar
equation per row (:mod:`.equation`; :mod:`.steep` for α > 2, where the slope at the threshold is
infinite).

A short row is a line of a tile in registers. If powers are expensive, the entries of a longer row
that can be in the support (δ below 1, or 1/a) are first packed to the front of the output row,
which serves as scratch, and the equation is solved on these. In both cases x is read once and y is
written once. Several programs pack a row of more than ``LIMIT`` entries, one solves it, and several
read it again and write y (:mod:`.long_rows`). The host reads nothing back. γ and θ come from
memory, so that new values need no compilation.
"""

# ruff: noqa: SIM102, PIE808 (what is decided at compilation needs its own if)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import entries, solve, special
from .long_rows import forward_chunks
from .rows import (
    KINDS,
    TSALLIS,
    check_device,
    distance,
    exponents,
    guard,
    limit_of,
    load_scores,
    per_row,
    shape_of,
    steps,
    survey,
)
from .steep import steep_row

PACK = {"gini": 1 << 30, "tsallis": 1024, "pnorm": 1024}
"""The shortest row of one program that packs its candidates: powers then cost more than packing."""


@triton.jit(do_not_specialize=["rows"])
def forward_rows(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, rows, d, x_stride, mask_stride,
                 gamma_step, theta_step, KIND: tl.constexpr, HAS_MASK: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr,
                 N: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows; PACKED needs ROWS = 1."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma64 = per_row(gamma_ptr, row, gamma_step, rows)
    theta64 = per_row(theta_ptr, row, theta_step, rows)
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    fine = (spoilt == 0) & (count > 0)
    a64, k64, reach = exponents(theta64, KIND)
    a, k, gamma = a64.to(x.dtype), k64.to(x.dtype), gamma64.to(x.dtype)
    delta = distance(x, top, gamma)
    flat = (tl.program_id(0) * ROWS).to(tl.int64) * d
    most = 0
    if PACKED:
        keep = (delta <= reach.to(delta.dtype)) & (delta < float("inf"))
        place = tl.cumsum(keep.to(tl.int32), 1) - 1
        most = tl.sum(keep.to(tl.int32))
        tl.store(y_ptr + flat + place, x.to(y_ptr.dtype.element_ty), mask=keep & inside)
        tl.debug_barrier()
    level = fine
    if KIND == TSALLIS:
        level = fine & (a64 <= 1)
    exact = special(k)
    c, e, total = solve(delta, y_ptr + flat, y_ptr, most, 1, top, gamma, a, k, count,
                        level.to(tl.int32), KIND, PACKED, BLOCK, 1, N)  # fmt: skip
    y = entries(delta, c, e, k, total, exact, KIND)
    y = tl.where(spoilt != 0, float("nan"), tl.where(count > 0, y, 0.0))
    if PACKED:
        tl.debug_barrier()
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)
    if KIND == TSALLIS:
        if tl.max((fine & (a64 > 1)).to(tl.int32)) > 0:
            tl.debug_barrier()
            for i in range(0, ROWS):
                # select one row of the tile
                mine = tl.arange(0, ROWS)[:, None] == i
                a_i = tl.sum(tl.where(mine & fine, a64, 0.0), 0, keep_dims=True)
                if tl.max(a_i) > 1:
                    r = (tl.program_id(0) * ROWS + i).to(tl.int64)
                    top_i = tl.sum(tl.where(mine, top, 0.0), 0, keep_dims=True).to(tl.float64)
                    gamma_i = tl.sum(tl.where(mine, gamma64, 0.0), 0, keep_dims=True)
                    steep_row(x_ptr + r * x_stride, mask_ptr + r * mask_stride, y_ptr + r * d, d,
                              top_i, gamma_i, a_i, HAS_MASK, N)  # fmt: skip


def forward(
    kind: str,
    x: Tensor,
    gamma: Tensor,
    theta: Tensor | None,
    mask: Tensor | None,
    limit: int | None = None,
    pack: int | None = None,
) -> Tensor:
    """Π_Ω of each row, for ``kind`` "gini", "tsallis" (θ = α) or "pnorm" (θ = p).

    ``limit`` and ``pack`` replace the constants of that name.
    """
    check_device(x)
    rows, d = x.shape
    y = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    wide = x.dtype == torch.float64
    limit = limit_of(kind, x, limit)
    pack = PACK[kind] if pack is None else pack
    theta = gamma if theta is None else theta
    on = x if mask is None else mask
    hyper = (gamma.contiguous(), theta.contiguous())
    strides = (x.stride(0), on.stride(0), *steps(*hyper))
    flags = {"KIND": KINDS[kind], "HAS_MASK": mask is not None}
    with guard(x):
        if d <= limit:
            packed = d >= pack
            shape = shape_of(d, wide, packed)
            forward_rows[(triton.cdiv(rows, shape["ROWS"]),)](
                x, on, *hyper, y, rows, d, *strides, **flags, **shape,
                PACKED=packed, N=128 * shape["num_warps"],
            )  # fmt: skip
            return y
        forward_chunks(x, on, hyper, y, strides, flags, limit)
        return y
