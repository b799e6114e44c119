"""Threshold mappings of long rows in Triton: Π_Ω(x) by chunks of a row.

y_i is 0 where δ_i is beyond the reach of the support (1, or 1/a; :mod:`.equation`). A chunk's
maximum is at most the row's, so entries within reach of the row's maximum are within reach of the
chunk's. The first launch packs
the candidates of each chunk to the front of its part of the output, which serves as scratch. The
second solves the equation of each row on its candidates. The third reads x again and writes y,
chunk by chunk. The host reads nothing back.
"""

# ruff: noqa: SIM102 (what is decided at compilation needs its own if)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import entries, solve, special
from .rows import TSALLIS, chunks_of, distance, exponents, load_scores, shape_of, survey
from .steep import steep_row


@triton.jit
def pack_chunks(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, tops_ptr, counts_ptr, held_ptr, d,
                chunks, x_stride, mask_stride, gamma_step, theta_step, KIND: tl.constexpr,
                HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program packs the candidates of a chunk, by the chunk's maximum, to the front of its
    part of y, and writes the chunk's maximum, its number of participants (−1: a NaN or +inf) and
    its number of candidates."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    top, count, spoilt = survey(x)
    gamma = tl.load(gamma_ptr + row * gamma_step)
    theta = tl.load(theta_ptr + row * theta_step)
    _, _, reach = exponents(theta, KIND)
    # without participants the maximum is 0, and no entry is kept
    keep = inside & (distance(x, top, gamma.to(x.dtype)) <= reach.to(x.dtype)) & (x < float("inf"))
    keep = keep & (x != -float("inf"))
    place = tl.cumsum(keep.to(tl.int32), 1) - 1
    tl.store(y_ptr + row * d + chunk * CHUNK + place, x.to(y_ptr.dtype.element_ty), mask=keep)
    at = row * chunks + chunk
    held = tl.sum(keep.to(tl.int32))
    tl.store(tops_ptr + at, tl.where(held > 0, tl.max(top), -float("inf")))
    tl.store(counts_ptr + at, tl.where(tl.max(spoilt) > 0, -1, tl.max(count)))
    tl.store(held_ptr + at, held)


@triton.jit
def solve_chunks(x_ptr, mask_ptr, gamma_ptr, theta_ptr, y_ptr, tops_ptr, counts_ptr, held_ptr,
                 out_ptr, d, chunks, x_stride, mask_stride, gamma_step, theta_step,
                 KIND: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
                 N: tl.constexpr, MAX: tl.constexpr):  # fmt: skip
    """Each program solves the equation of a row on its candidates and writes seven numbers for
    ``write_chunks``: state (0: no participants, 1: solved, 2: α > 2 and y written already, NaN: a
    NaN or +inf score), max, γ, c, e, k and Σv. The stride of ``out`` is eight."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, MAX)[None, :]
    has = s < chunks
    at = row * chunks + s
    top = tl.max(tl.load(tops_ptr + at, mask=has, other=-float("inf")), 1, keep_dims=True)
    counts = tl.load(counts_ptr + at, mask=has, other=0)
    count = tl.sum(tl.maximum(counts, 0), 1, keep_dims=True)
    spoilt = tl.min(counts, 1, keep_dims=True) < 0
    most = tl.max(tl.load(held_ptr + at, mask=has, other=0))
    one = tl.full((1, 1), 1.0, tl.float64)
    gamma64 = tl.load(gamma_ptr + row * gamma_step) * one
    theta64 = tl.load(theta_ptr + row * theta_step) * one
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    a64, k64, _ = exponents(theta64, KIND)
    a, k, gamma = a64.to(top.dtype), k64.to(top.dtype), gamma64.to(top.dtype)
    fine = (spoilt == 0) & (count > 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    level = fine
    if KIND == TSALLIS:
        level = fine & (a64 <= 1)
    unused = tl.zeros((1, 1), top.dtype)
    c, e, total = solve(unused, y_ptr + row * d, held_ptr + row * chunks, most, chunks, top, gamma,
                        a, k, count, level.to(tl.int32), KIND, True, CHUNK, CH, N)  # fmt: skip
    state = tl.where(spoilt, float("nan"), tl.where(fine, 1.0, 0.0)).to(tl.float64)
    if KIND == TSALLIS:
        if tl.max((fine & (a64 > 1)).to(tl.int32)) > 0:
            state = state + 1.0
            tl.debug_barrier()
            steep_row(x_ptr + row * x_stride, mask_ptr + row * mask_stride, y_ptr + row * d, d,
                      top.to(tl.float64), gamma64, a64, HAS_MASK, N // 4)  # fmt: skip
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    tl.store(out, state)
    tl.store(out + 1, top.to(tl.float64))
    tl.store(out + 2, gamma64)
    tl.store(out + 3, c.to(tl.float64))
    tl.store(out + 4, e.to(tl.float64))
    tl.store(out + 5, k.to(tl.float64))
    tl.store(out + 6, total.to(tl.float64))


@triton.jit
def write_chunks(x_ptr, mask_ptr, y_ptr, out_ptr, d, chunks, x_stride, mask_stride,
                 KIND: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program computes y of a chunk from x and the row's numbers."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    state, top, gamma = tl.load(out), tl.load(out + 1), tl.load(out + 2)
    c, e, k, total = tl.load(out + 3), tl.load(out + 4), tl.load(out + 5), tl.load(out + 6)
    delta = distance(x, top.to(x.dtype), gamma.to(x.dtype))
    k = k.to(x.dtype)
    y = entries(delta, c.to(x.dtype), e.to(x.dtype), k, total.to(x.dtype), special(k), KIND)
    y = tl.where(state != state, float("nan"), tl.where(state > 0, y, 0.0))
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside & (state != 2))


def forward_chunks(
    x: Tensor,
    on: Tensor,
    hyper: tuple[Tensor, Tensor],
    y: Tensor,
    strides: tuple[int, ...],
    flags: dict[str, int | bool],
    limit: int,
) -> None:
    """Write Π_Ω of each row to y. ``on`` is the mask (not read if there is none), ``hyper`` γ and
    θ, ``strides`` the row strides of x, ``on``, γ and θ."""
    rows, d = x.shape
    wide = x.dtype == torch.float64
    chunk, chunks = chunks_of(d, limit)
    warps = shape_of(chunk, wide)["num_warps"]
    tops = x.new_empty((rows, chunks), dtype=torch.float64 if wide else torch.float32)
    counts, held = x.new_empty((2, rows, chunks), dtype=torch.int32)
    out = x.new_empty((rows, 8), dtype=torch.float64)
    pack_chunks[(rows * chunks,)](
        x, on, *hyper, y, tops, counts, held, d, chunks, *strides, **flags, CHUNK=chunk,
        num_warps=warps,
    )  # fmt: skip
    solve_chunks[(rows,)](
        x, on, *hyper, y, tops, counts, held, out, d, chunks, *strides, **flags, CHUNK=chunk,
        CH=16, N=2048 if wide else 4096, MAX=max(triton.next_power_of_2(chunks), 16),
        num_warps=8,
    )  # fmt: skip
    write_chunks[(rows * chunks,)](
        x, on, y, out, d, chunks, *strides[:2], **flags, CHUNK=chunk, num_warps=warps
    )  # fmt: skip
