"""Threshold mappings in Triton: rows as tiles of a program, or read a part at a time.

Without a penalty, y_i is a function of the distance of x_i to the row's maximum and of the root of
one equation per row (:mod:`.equation`), and a description of Ω has both (:mod:`.powers`).

A short row is a line of a tile in registers. If powers are expensive, the entries of a longer row
that can be in the support (δ below 1, or 1/a) are first packed to the front of the output row,
which serves as scratch, and the equation is solved on these. In both cases x is read once and y is
written once. A row of more than ``limit`` entries is read twice, a part at a time, and packed in
the same way (:mod:`.streamed`). The host reads nothing back. γ and θ are arguments, as numbers or
in memory, so that new values need no compilation but that of another description.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import Description, numbers
from .losses import NONE, aim_at, aim_of, loss_of, mass_of, score_of, target_of, written
from .rows import (
    check_device,
    distance,
    guard,
    limit_of,
    load_scores,
    packed,
    parameter,
    part_of,
    per_row,
    shape_of,
    survey,
)
from .streamed import streamed_rows


@triton.jit(do_not_specialize=["rows"])
def forward_rows(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                 theta: tl.float64, theta_step, y_ptr, k_ptr, loss_ptr, epsilon: tl.float64, rows,
                 d, x_stride, mask_stride, k_stride, OWN: tl.constexpr, HAS_MASK: tl.constexpr,
                 SMOOTH: tl.constexpr, AIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                 N: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows, but not those with α > 2. If N, which needs ROWS = 1, it
    packs candidates and reads N at a time. With targets ``k`` it writes losses, and their gradients
    in place of y."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    target = target_of(k_ptr, row, row < rows, AIM)
    x_at, mask_at = x_ptr + row * x_stride, mask_ptr + row * mask_stride
    x = load_scores(x_at, mask_at, column, column, inside & (target >= 0), HAS_MASK)
    top, count, spoilt = survey(x)
    gamma64 = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    theta64 = per_row(theta_ptr, theta, row, theta_step, rows)
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    n64, n = numbers(theta64, x.dtype, OWN)
    scale = gamma64.to(x.dtype)
    delta = distance(x, top, scale)
    front = y_ptr + (tl.program_id(0) * ROWS).to(tl.int64) * d
    most = 0
    if N > 0:
        keep = (delta <= OWN.reach(n64).to(delta.dtype)) & (delta < float("inf"))
        most = packed(front, x, keep)
        tl.debug_barrier()
    active = ((spoilt == 0) & (count > 0) & (n64[0] <= 1)).to(tl.int32)
    held = (delta, front, most, top, scale)
    root = OWN.root(held, n, count, active, OWN, N)
    aim = aim_at(k_ptr, row * k_stride, target, column, inside, x, AIM)
    m = mass_of(x, aim, AIM)
    score = score_of(x_at, mask_at, target, HAS_MASK, AIM)
    y, sums = written(x, delta, root, n, top, count, spoilt, aim, score, m, epsilon, OWN, SMOOTH,
                      AIM)  # fmt: skip
    if N > 0:
        tl.debug_barrier()
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)
    if AIM != NONE:
        loss = loss_of(sums, root, n64, top, gamma64, count, spoilt, target, score, m, epsilon, OWN,
                       SMOOTH, AIM)  # fmt: skip
        tl.store(loss_ptr + row, loss, mask=row < rows)


def forward(
    own: Description,
    x: Tensor,
    gamma: Tensor | float,
    theta: Tensor | float | None,
    mask: Tensor | None,
    limit: int | None = None,
    pack: int | None = None,
    target: Tensor | None = None,
    epsilon: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Π_Ω of each row, and None. With a ``target``, (R,) or (R, d): the gradients of losses, and
    these (``Kernel.loss``).

    ``limit`` and ``pack`` replace those of the description.
    """
    check_device(x)
    rows, d = x.shape
    half = x.dtype in (torch.float16, torch.bfloat16)
    dtype = x.dtype if target is None or not half else torch.float32
    y = torch.empty((rows, d), dtype=dtype, device=x.device)
    losses = None
    if target is not None:
        losses = torch.empty(rows, dtype=torch.float64, device=x.device)
    if rows == 0:
        return y, losses
    wide = x.dtype == torch.float64
    limit = limit_of(own.limit, x, limit)
    on = x if mask is None else mask
    hyper = (*parameter(gamma), *parameter(theta))
    wanted = (target, losses, epsilon)
    strides = (x.stride(0), on.stride(0), 0 if target is None else target.stride(0))
    flags = {"HAS_MASK": mask is not None, "SMOOTH": epsilon > 0, "AIM": aim_of(target)}
    packs = d >= (own.pack if pack is None else pack)
    shape = shape_of(d, wide, packs)
    if target is not None and shape["ROWS"] > 1:  # a warp has too few registers for the sums
        shape = {**shape, "num_warps": 2 * shape["num_warps"]}
    whole = d <= limit and not own.precise
    with guard(x):
        if whole:
            forward_rows[(-(-rows // shape["ROWS"]),)](
                x, on, *hyper, y, *wanted, rows, d, *strides, OWN=own, **flags, **shape,
                N=128 * shape["num_warps"] if packs else 0,
            )  # fmt: skip
        for each in (None if whole else own, own.beyond):
            if each is not None:
                warps = min(max(shape["BLOCK"] // 512, 1), 8)
                part = {"N": 64 * warps, "num_warps": warps} if each.precise else part_of(limit)
                streamed_rows[(-(-rows // shape["ROWS"]),)](
                    x, on, *hyper, y, *wanted, rows, d, *strides, OWN=each, **flags,
                    ROWS=shape["ROWS"], **part,
                )  # fmt: skip
    return y, losses
