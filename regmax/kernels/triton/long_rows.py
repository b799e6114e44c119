"""Threshold mappings of long rows in Triton: Π_Ω(x) by chunks of a row.

y_i is 0 where δ_i is beyond the reach of the support (:func:`.equation.reach_of`). A chunk's
maximum is at most the row's, so entries within reach of the row's maximum are within reach of the
chunk's. The first launch packs the candidates of each chunk to the front of its part of the output,
which serves as scratch. The second solves the equation of each row on its candidates. The third
reads x again and writes y, chunk by chunk. The host reads nothing back.

Where many entries of a chunk are within reach, a few Newton steps on the chunk alone reduce r: more
entries only raise the threshold of a separable Ω.
"""

# ruff: noqa: SIM102 (what is decided at compilation needs its own if)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import Description, numbers, reach_of
from .losses import DENSE, NONE, aim_at, loss_of, mass_of, score_of, target_of, written
from .rows import (
    chunks_of,
    distance,
    load_scores,
    of_row,
    packed,
    part_of,
    power_of_2,
    shape_of,
    survey,
)


@triton.jit
def pack_chunks(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                theta: tl.float64, theta_step, y_ptr, k_ptr, tops_ptr, counts_ptr, held_ptr,
                sums_ptr, d, chunks, x_stride, mask_stride, k_stride, OWN: tl.constexpr,
                HAS_MASK: tl.constexpr, AIM: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program packs the candidates of a chunk, by the chunk's maximum, to the front of its
    part of y, and writes the chunk's maximum, its number of participants (−1: a NaN or +inf), its
    number of candidates, and its part of m."""
    row, part, column = part_of(chunks, CHUNK)
    inside = column < d
    target = target_of(k_ptr, row, row >= 0, AIM)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column,
                    inside & (target >= 0), HAS_MASK)  # fmt: skip
    if AIM == DENSE:
        aim = aim_at(k_ptr, row * k_stride, target, column, inside, x, AIM)
        tl.store(sums_ptr + part * 4 + 3 + tl.zeros((1, 1), tl.int64), mass_of(x, aim, AIM))
    top, count, spoilt = survey(x)
    scale = of_row(gamma_ptr, gamma, row, gamma_step).to(x.dtype)
    n64, n = numbers(of_row(theta_ptr, theta, row, theta_step), x.dtype, OWN)
    reach, a = reach_of(n64, OWN).to(x.dtype), n[0]
    delta = distance(x, top, scale)
    # without participants the maximum is 0, and no entry is kept
    on = inside & (x < float("inf")) & (x != -float("inf"))
    keep = on & (delta <= reach)
    if OWN.reduced is not None:
        if (tl.sum(keep.to(tl.int32)) > CHUNK // 8) & (a > 0) & (a <= 1):
            near = tl.where(on, delta, float("inf"))
            keep = on & (delta <= OWN.reduced(reach, near, n, OWN))
    held = packed(y_ptr + row * d + (part - row * chunks) * CHUNK, x, keep)
    tl.store(tops_ptr + part, tl.where(held > 0, tl.max(top), -float("inf")))
    tl.store(counts_ptr + part, tl.where(tl.max(spoilt) > 0, -1, tl.max(count)))
    tl.store(held_ptr + part, held)


@triton.jit
def solve_chunks(gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr, theta: tl.float64, theta_step,
                 y_ptr, tops_ptr, counts_ptr, held_ptr, sums_ptr, out_ptr, d, chunks,
                 OWN: tl.constexpr, AIM: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
                 N: tl.constexpr, MAX: tl.constexpr):  # fmt: skip
    """Each program solves the equation of a row on its candidates and writes six numbers for
    ``write_chunks``: the number of participants (NaN: one of them is NaN or +inf), max, c, e, Σv,
    and m."""
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
    gamma64 = of_row(gamma_ptr, gamma, row, gamma_step) * one
    theta64 = of_row(theta_ptr, theta, row, theta_step) * one
    spoilt = spoilt | (gamma64 != gamma64) | (theta64 != theta64)
    n64, n = numbers(theta64, top.dtype, OWN)
    top = tl.where(top == -float("inf"), 0.0, top)
    active = ((spoilt == 0) & (count > 0) & (n64[0] <= 1)).to(tl.int32)
    front = y_ptr + row * d
    held = (top, front, held_ptr + row * chunks, most, chunks, top, gamma64.to(top.dtype))
    c, e, total = OWN.root(held, n, count, active, OWN, CHUNK, CH, N)
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    tl.store(out, tl.where(spoilt, float("nan"), count.to(tl.float64)))
    tl.store(out + 1, top.to(tl.float64))
    tl.store(out + 2, c.to(tl.float64))
    tl.store(out + 3, e.to(tl.float64))
    tl.store(out + 4, total.to(tl.float64))
    if AIM == DENSE:
        m = tl.load(sums_ptr + at * 4 + 3, mask=has, other=0.0)
        tl.store(out + 5, tl.sum(m, 1, keep_dims=True))


@triton.jit
def solved(out_ptr, row, AIM: tl.constexpr):
    """What ``solve_chunks`` wrote: (c, e, Σv), max, the number of participants, whether the row is
    spoilt, and m."""
    out = out_ptr + row * 8
    root = (tl.load(out + 2), tl.load(out + 3), tl.load(out + 4))
    found, m = tl.load(out), root[0]
    if AIM == DENSE:
        m = tl.load(out + 5)
    return root, tl.load(out + 1), found, (found != found).to(tl.int32), m


@triton.jit
def write_chunks(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                 theta: tl.float64, theta_step, y_ptr, k_ptr, sums_ptr, epsilon: tl.float64,
                 out_ptr, d, chunks, x_stride, mask_stride, k_stride, OWN: tl.constexpr,
                 HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, AIM: tl.constexpr,
                 CHUNK: tl.constexpr):  # fmt: skip
    """Each program computes y of a chunk from x and the row's numbers; with targets ``k`` the
    gradients of losses in place of y, and the chunk's part of the sums for ``loss_of_chunks``."""
    row, part, column = part_of(chunks, CHUNK)
    inside = column < d
    target = target_of(k_ptr, row, row >= 0, AIM)
    x_at, mask_at = x_ptr + row * x_stride, mask_ptr + row * mask_stride
    x = load_scores(x_at, mask_at, column, column, inside & (target >= 0), HAS_MASK)
    root, top, count, spoilt, m = solved(out_ptr, row, AIM)
    root = (root[0].to(x.dtype), root[1].to(x.dtype), root[2].to(x.dtype))
    _, n = numbers(of_row(theta_ptr, theta, row, theta_step), x.dtype, OWN)
    scale = of_row(gamma_ptr, gamma, row, gamma_step)
    delta = distance(x, top.to(x.dtype), scale.to(x.dtype))
    aim = aim_at(k_ptr, row * k_stride, target, column, inside, x, AIM)
    score = score_of(x_at, mask_at, target, HAS_MASK, AIM)
    y, sums = written(x, delta, root, n, top, count, spoilt, aim, score, m, epsilon, OWN, SMOOTH,
                      AIM)  # fmt: skip
    if AIM != NONE:
        out = sums_ptr + part * 4 + tl.zeros((1, 1), tl.int64)
        tl.store(out, sums[0])
        tl.store(out + 1, sums[1])
        tl.store(out + 2, sums[2])
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def loss_of_chunks(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                   theta: tl.float64, theta_step, k_ptr, loss_ptr, epsilon: tl.float64, sums_ptr,
                   out_ptr, chunks, x_stride, mask_stride, k_stride, OWN: tl.constexpr,
                   HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, AIM: tl.constexpr,
                   MAX: tl.constexpr):  # fmt: skip
    """Each program computes the loss of a row from the sums of its chunks."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, MAX)[None, :]
    parts = sums_ptr + (row * chunks + at) * 4
    r = tl.sum(tl.load(parts, mask=at < chunks, other=0.0), 1, keep_dims=True)
    s = tl.sum(tl.load(parts + 1, mask=at < chunks, other=0.0), 1, keep_dims=True)
    t = tl.sum(tl.load(parts + 2, mask=at < chunks, other=0.0), 1, keep_dims=True)
    root, top, count, spoilt, m = solved(out_ptr, row, AIM)
    gamma64 = of_row(gamma_ptr, gamma, row, gamma_step)
    n, _ = numbers(of_row(theta_ptr, theta, row, theta_step), tl.float64, OWN)
    target = target_of(k_ptr, row, row >= 0, AIM)
    score = score_of(x_ptr + row * x_stride, mask_ptr + row * mask_stride, target, HAS_MASK, AIM)
    loss = loss_of((r, s, t), root, n, top, gamma64, count, spoilt, target, score, m, epsilon, OWN,
                   SMOOTH, AIM)  # fmt: skip
    tl.store(loss_ptr + row + tl.zeros((1, 1), tl.int64), loss)


def forward_chunks(
    own: Description,
    x: Tensor,
    on: Tensor,
    hyper: tuple[Tensor | float | None, ...],
    y: Tensor,
    wanted: tuple[Tensor | None, Tensor | None, float],
    strides: tuple[int, int, int],
    flags: dict[str, int | bool],
    limit: int,
) -> None:
    """Write Π_Ω of each row to y. ``on`` is the mask (not read if there is none), ``hyper`` γ and
    θ as arguments, ``strides`` the row strides of x, ``on`` and distributions. ``wanted``: targets,
    where to write losses, and ε; the gradients of losses are then written to y."""
    rows, d = x.shape
    wide = x.dtype == torch.float64
    chunk, chunks = chunks_of(d, limit)
    parts = {"CHUNK": chunk, "num_warps": shape_of(chunk, wide)["num_warps"]}
    tops = x.new_empty((rows, chunks), dtype=torch.float64 if wide else torch.float32)
    counts, held = x.new_empty((2, rows, chunks), dtype=torch.int32)
    out = x.new_empty((rows, 8), dtype=torch.float64)
    slots = power_of_2(chunks)
    k, losses, epsilon = wanted
    sums = None if losses is None else x.new_empty((rows, chunks, 4), dtype=torch.float64)
    less = {"OWN": own, "HAS_MASK": flags["HAS_MASK"], "AIM": flags["AIM"]}
    pack_chunks[(rows * chunks,)](
        x, on, *hyper, y, k, tops, counts, held, sums, d, chunks, *strides, **less, **parts
    )  # fmt: skip
    solve_chunks[(rows,)](
        *hyper, y, tops, counts, held, sums, out, d, chunks, OWN=own, AIM=flags["AIM"], CHUNK=chunk,
        CH=min(slots, 16), N=2048 if wide else 4096, MAX=max(slots, 16), num_warps=8,
    )  # fmt: skip
    write_chunks[(rows * chunks,)](
        x, on, *hyper, y, k, sums, epsilon, out, d, chunks, *strides, OWN=own, **flags, **parts
    )  # fmt: skip
    if losses is not None:
        loss_of_chunks[(rows,)](
            x, on, *hyper, *wanted, sums, out, chunks, *strides, OWN=own, **flags,
            MAX=max(slots, 16), num_warps=1,
        )  # fmt: skip
