"""Threshold mappings in Triton: rows as tiles of one program, or as chunks of several.

Without a penalty, Π_Ω(x) is a power of the excess over a threshold, which solves one scalar
equation per row (:mod:`.equation`; :mod:`.steep` for α > 2, where the slope at the threshold is
infinite).

A short row is a line of a tile in registers. If powers are expensive, the entries of a longer row
that can be in the support (δ below 1, or 1/a) are first packed to the front of the output row,
which serves as scratch, and the equation is solved on these. In both cases x is read once and y is
written once. Several programs pack a row of more than ``LIMIT`` entries, one solves it, and several
read it again and write y (:mod:`.long_rows`). The host reads nothing back. γ and θ are arguments,
as numbers or in memory, so that new values need no compilation; but whether k is 1 or 2, and
whether a row may have α > 2, is compiled where the host knows it.

Softmax is y_i = e^(−δ_i)/Σ, without an equation.
"""

# ruff: noqa: SIM102 (what is decided at compilation needs its own if)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import entries, solve, special
from .long_rows import forward_chunks, softmax_blocks
from .losses import (
    difference,
    difference_with,
    distribution_loss,
    log_top,
    mass_of,
    of_mass,
    of_state,
    off_of,
    raised,
    sums_beside,
    sums_with,
    unscaled,
    vertex_loss,
)
from .rows import (
    ENTROPY,
    KINDS,
    TSALLIS,
    check_device,
    chunks_of,
    distance,
    divide,
    exponents,
    guard,
    limit_of,
    load_scores,
    parameter,
    per_row,
    quotient,
    shape_of,
    survey,
)
from .steep import steep_rows

PACK = {"gini": 1 << 30, "tsallis": 1024, "pnorm": 1024, "entropy": 1 << 30}
"""The shortest row of one program that packs its candidates: powers then cost more than packing."""


@triton.jit(do_not_specialize=["rows"])
def forward_rows(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                 theta: tl.float64, theta_step, y_ptr, k_ptr, loss_ptr, epsilon: tl.float64, rows,
                 d, x_stride, mask_stride, k_stride, KIND: tl.constexpr, EXACT: tl.constexpr,
                 HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, DENSE: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr,
                 N: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows, but not those with α > 2; PACKED needs ROWS = 1. With
    targets ``k``, which are distributions if DENSE, it writes losses, and their gradients in place
    of y."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    seen = inside
    if k_ptr is not None:
        if not DENSE:
            target = tl.load(k_ptr + row, mask=row < rows, other=-1)
            seen = inside & (target >= 0)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, seen,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma64 = per_row(gamma_ptr, gamma, row, gamma_step, rows)
    theta64 = per_row(theta_ptr, theta, row, theta_step, rows)
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    fine = (spoilt == 0) & (count > 0)
    a64, k64, reach = exponents(theta64, KIND)
    a, k, scale = a64.to(x.dtype), k64.to(x.dtype), gamma64.to(x.dtype)
    delta = distance(x, top, scale)
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
    if KIND == ENTROPY:
        y = tl.exp(-delta)
        total = tl.maximum(tl.sum(y, 1, keep_dims=True), 1.0)
        y = quotient(y, total, divide(tl.zeros_like(total) + 1.0, total))
        c, e, exact = total, total, 0
    else:
        exact = special(k, EXACT)
        c, e, total = solve(delta, y_ptr + flat, y_ptr, most, 1, top, scale, a, k, exact, count,
                            level.to(tl.int32), KIND, PACKED, BLOCK, 1, N)  # fmt: skip
        y = entries(delta, c, e, k, total, exact, KIND)
    if k_ptr is None:
        y = tl.where(spoilt != 0, float("nan"), tl.where(count > 0, y, 0.0))
    elif DENSE:
        t = tl.load(k_ptr + row * k_stride + column, mask=inside, other=0.0).to(x.dtype)
        m = mass_of(x, t)
        w = raised(y, delta, c, e, k, exact, KIND)
        s, h, q = sums_with(w, x, t, m, top, a, exact, KIND)
        c, e, total = c.to(tl.float64), e.to(tl.float64), total.to(tl.float64)
        s = unscaled(s, a64, total, KIND)
        log_y = log_top(c, e, k64, total, KIND)
        loss = distribution_loss(s, h, q, m, log_y, gamma64, a64, KIND)
        loss = of_mass(loss, gamma64, m, count, spoilt)
        tl.store(loss_ptr + row, loss, mask=row < rows)
        y = difference_with(y, t, m, fine)
    else:
        own = column == target
        w = raised(y, delta, c, e, k, exact, KIND)
        r, s, t = sums_beside(y, w, x, top, own, SMOOTH)
        score = load_scores(x_ptr, mask_ptr, row * x_stride + target, row * mask_stride + target,
                            (row < rows) & (target >= 0), HAS_MASK)  # fmt: skip
        off = off_of(top, score)
        c, e, total = c.to(tl.float64), e.to(tl.float64), total.to(tl.float64)
        loss = vertex_loss(r, s, off / gamma64, c, e, a64, k64, total, KIND)
        loss = of_state(loss, t, off, gamma64, target, count, spoilt, score, epsilon, SMOOTH)
        tl.store(loss_ptr + row, loss, mask=row < rows)
        fine = fine & (score > -float("inf"))
        y = difference(y, delta, own, count, fine, epsilon, SMOOTH)
    if PACKED:
        tl.debug_barrier()
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@functools.lru_cache(maxsize=1024)
def _exact(kind: str, theta: float | None) -> int:
    """k where it is 1 or 2, 0 for another number, −1 where the host does not know it."""
    if theta is None:
        return -1
    return {2.0: 1, 1.5: 2}.get(theta, 0)


def forward(
    kind: str,
    x: Tensor,
    gamma: Tensor | float,
    theta: Tensor | float | None,
    mask: Tensor | None,
    limit: int | None = None,
    pack: int | None = None,
    target: Tensor | None = None,
    epsilon: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Π_Ω of each row, for ``kind`` "gini", "tsallis" (θ = α), "pnorm" (θ = p) or "entropy", and
    None. With a ``target``, (R,) or (R, d): the gradients of losses, and these (``Kernel.loss``).

    ``limit`` and ``pack`` replace the constants of that name.
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
    limit = limit_of(kind, x, limit)
    pack = PACK[kind] if pack is None else pack
    on = x if mask is None else mask
    number = None if isinstance(theta, Tensor) else theta
    hyper = (*parameter(gamma), *parameter(theta))
    wanted = (target, losses, epsilon)
    dense = target is not None and target.is_floating_point()
    strides = (x.stride(0), on.stride(0), 0 if target is None else target.stride(0))
    flags = {
        "KIND": KINDS[kind],
        "EXACT": _exact(kind, number),
        "HAS_MASK": mask is not None,
        "SMOOTH": epsilon > 0,
        "DENSE": dense,
    }
    reading = {key: flags[key] for key in ("HAS_MASK", "SMOOTH", "DENSE")}
    steep = kind == "tsallis" and (number is None or number > 2)  # may a row have α > 2
    packed = d >= pack
    shape = shape_of(d, wide, packed)
    if target is not None and shape["ROWS"] > 1:  # a warp has too few registers for the sums
        shape = {**shape, "num_warps": 2 * shape["num_warps"]}
    with guard(x):
        if steep and number is not None:
            pass
        elif d <= limit:
            forward_rows[(-(-rows // shape["ROWS"]),)](
                x, on, *hyper, y, *wanted, rows, d, *strides, **flags, **shape,
                PACKED=packed, N=128 * shape["num_warps"],
            )  # fmt: skip
        elif kind == "entropy":
            softmax_blocks[(rows,)](
                x, on, *hyper[:3], y, *wanted, d, *strides, **reading,
                BLOCK=chunks_of(d, limit)[0], num_warps=16,
            )  # fmt: skip
        else:
            forward_chunks(x, on, hyper, y, wanted, strides, flags, limit)
        if steep:
            block = shape["ROWS"]
            warps = min(max(shape["BLOCK"] // 512, 1), 8)
            steep_rows[(-(-rows // block),)](
                x, on, *hyper, y, *wanted, rows, d, *strides, **reading, ROWS=block,
                N=64 * warps, num_warps=warps,
            )  # fmt: skip
    return y, losses
