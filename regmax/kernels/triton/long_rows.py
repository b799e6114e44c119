"""Threshold mappings of long rows in Triton: Π_Ω(x) by chunks of a row.

y_i is 0 where δ_i is beyond the reach of the support (1, or 1/a; :mod:`.equation`). A chunk's
maximum is at most the row's, so entries within reach of the row's maximum are within reach of the
chunk's. The first launch packs
the candidates of each chunk to the front of its part of the output, which serves as scratch. The
second solves the equation of each row on its candidates. The third reads x again and writes y,
chunk by chunk. The host reads nothing back.

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

from .equation import entries, powers, solve, special
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
    score_of,
    sums_beside,
    sums_with,
    unscaled,
    vertex_loss,
)
from .rows import (
    ENTROPY,
    PNORM,
    TSALLIS,
    chunks_of,
    distance,
    divide,
    exponents,
    load_scores,
    of_row,
    power_of_2,
    quotient,
    shape_of,
    survey,
)


@triton.jit
def reduced(reach, delta, a, k, exact):
    """A smaller reach r, by Newton's method on (Σ [a(r − δ)]₊^k)^a = 1, a k-norm and convex for
    k ≥ 1. It is at least 1 at r = 1/a, and the steps from there do not pass the root."""
    r = 1.0 / a
    for _ in range(6):
        _, t, v = powers(delta, 1.0 / r, 0.0, k, exact)
        total = tl.sum(v)
        norm = tl.exp(a * tl.log(total))
        r = r - (a * r * norm - 1.0) * total / (a * norm * tl.sum(t))
    return tl.where((r > 0) & (r < reach), 1.001 * r, reach)


@triton.jit
def pack_chunks(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                theta: tl.float64, theta_step, y_ptr, k_ptr, tops_ptr, counts_ptr, held_ptr,
                sums_ptr, d, chunks, x_stride, mask_stride, k_stride, KIND: tl.constexpr,
                EXACT: tl.constexpr, HAS_MASK: tl.constexpr, DENSE: tl.constexpr,
                CHUNK: tl.constexpr):  # fmt: skip
    """Each program packs the candidates of a chunk, by the chunk's maximum, to the front of its
    part of y, and writes the chunk's maximum, its number of participants (−1: a NaN or +inf), its
    number of candidates, and if DENSE its part of m."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    if k_ptr is not None:
        if not DENSE:
            inside = inside & (tl.load(k_ptr + row) >= 0)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, inside,
                    HAS_MASK)  # fmt: skip
    if DENSE:
        t = tl.load(k_ptr + row * k_stride + column, mask=inside, other=0.0).to(x.dtype)
        part = sums_ptr + (row * chunks + chunk) * 4 + 3
        tl.store(part + tl.zeros((1, 1), tl.int64), mass_of(x, t))
    top, count, spoilt = survey(x)
    scale = of_row(gamma_ptr, gamma, row, gamma_step).to(x.dtype)
    a64, k64, reach64 = exponents(of_row(theta_ptr, theta, row, theta_step), KIND)
    a, k, reach = a64.to(x.dtype), k64.to(x.dtype), reach64.to(x.dtype)
    delta = distance(x, top, scale)
    # without participants the maximum is 0, and no entry is kept
    on = inside & (x < float("inf")) & (x != -float("inf"))
    keep = on & (delta <= reach)
    if KIND != PNORM:
        if (tl.sum(keep.to(tl.int32)) > CHUNK // 8) & (a > 0) & (a <= 1):
            near = tl.where(on, delta, float("inf"))
            keep = on & (delta <= reduced(reach, near, a, k, special(k, EXACT)))
    place = tl.cumsum(keep.to(tl.int32), 1) - 1
    tl.store(y_ptr + row * d + chunk * CHUNK + place, x.to(y_ptr.dtype.element_ty), mask=keep)
    at = row * chunks + chunk
    held = tl.sum(keep.to(tl.int32))
    tl.store(tops_ptr + at, tl.where(held > 0, tl.max(top), -float("inf")))
    tl.store(counts_ptr + at, tl.where(tl.max(spoilt) > 0, -1, tl.max(count)))
    tl.store(held_ptr + at, held)


@triton.jit
def solve_chunks(gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr, theta: tl.float64, theta_step,
                 y_ptr, tops_ptr, counts_ptr, held_ptr, sums_ptr, out_ptr, d, chunks,
                 KIND: tl.constexpr, EXACT: tl.constexpr, DENSE: tl.constexpr, CHUNK: tl.constexpr,
                 CH: tl.constexpr, N: tl.constexpr, MAX: tl.constexpr):  # fmt: skip
    """Each program solves the equation of a row on its candidates and writes eight numbers for
    ``write_chunks``: the number of participants (NaN: one of them is NaN or +inf), max, γ, c, e, k,
    Σv, and if DENSE m."""
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
    a64, k64, _ = exponents(theta64, KIND)
    a, k, scale = a64.to(top.dtype), k64.to(top.dtype), gamma64.to(top.dtype)
    fine = (spoilt == 0) & (count > 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    level = fine
    if KIND == TSALLIS:
        level = fine & (a64 <= 1)
    unused = tl.zeros((1, 1), top.dtype)
    c, e, total = solve(unused, y_ptr + row * d, held_ptr + row * chunks, most, chunks, top, scale,
                        a, k, special(k, EXACT), count, level.to(tl.int32), KIND, True, CHUNK, CH,
                        N)  # fmt: skip
    found = tl.where(spoilt, float("nan"), count.to(tl.float64))
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    tl.store(out, found)
    tl.store(out + 1, top.to(tl.float64))
    tl.store(out + 2, gamma64)
    tl.store(out + 3, c.to(tl.float64))
    tl.store(out + 4, e.to(tl.float64))
    tl.store(out + 5, k.to(tl.float64))
    tl.store(out + 6, total.to(tl.float64))
    if DENSE:
        m = tl.load(sums_ptr + at * 4 + 3, mask=has, other=0.0)
        tl.store(out + 7, tl.sum(m, 1, keep_dims=True))


@triton.jit
def write_chunks(x_ptr, mask_ptr, y_ptr, k_ptr, sums_ptr, epsilon: tl.float64, out_ptr, d, chunks,
                 x_stride, mask_stride, k_stride, KIND: tl.constexpr, EXACT: tl.constexpr,
                 HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, DENSE: tl.constexpr,
                 CHUNK: tl.constexpr):  # fmt: skip
    """Each program computes y of a chunk from x and the row's numbers; with targets ``k`` the
    gradients of losses in place of y, and the chunk's part of the sums for ``loss_of_chunks``."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inside = column < d
    seen = inside
    if k_ptr is not None:
        if not DENSE:
            target = tl.load(k_ptr + row)
            seen = inside & (target >= 0)
    x = load_scores(x_ptr, mask_ptr, row * x_stride + column, row * mask_stride + column, seen,
                    HAS_MASK)  # fmt: skip
    out = out_ptr + row * 8
    found, top, gamma = tl.load(out), tl.load(out + 1), tl.load(out + 2)
    c, e, k, total = tl.load(out + 3), tl.load(out + 4), tl.load(out + 5), tl.load(out + 6)
    delta = distance(x, top.to(x.dtype), gamma.to(x.dtype))
    k = k.to(x.dtype)
    exact = special(k, EXACT)
    c, e = c.to(x.dtype), e.to(x.dtype)
    y = entries(delta, c, e, k, total.to(x.dtype), exact, KIND)
    if k_ptr is None:
        y = tl.where(found != found, float("nan"), tl.where(found > 0, y, 0.0))
    elif DENSE:
        t = tl.load(k_ptr + row * k_stride + column, mask=inside, other=0.0).to(x.dtype)
        w = raised(y, delta, c, e, k, exact, KIND)
        a = tl.where(k == 0, 0.0, 1.0 / tl.where(k == 0, 1.0, k)).to(x.dtype)
        m = tl.load(out + 7)
        s, h, q = sums_with(w, x, t, m, top, a, exact, KIND)
        sums = sums_ptr + (row * chunks + chunk) * 4 + tl.zeros((1, 1), tl.int64)
        tl.store(sums, s)
        tl.store(sums + 1, h)
        tl.store(sums + 2, q)
        y = difference_with(y, t, m, found > 0)
    else:
        own = column == target
        w = raised(y, delta, c, e, k, exact, KIND)
        r, s, t = sums_beside(y, w, x, top, own, SMOOTH)
        sums = sums_ptr + (row * chunks + chunk) * 4 + tl.zeros((1, 1), tl.int64)
        tl.store(sums, r)
        tl.store(sums + 1, s)
        tl.store(sums + 2, t)
        score = score_of(x_ptr + row * x_stride, mask_ptr + row * mask_stride, target, HAS_MASK)
        fine = tl.where(score > -float("inf"), found, 0.0) > 0
        y = difference(y, delta, own, found, fine, epsilon, SMOOTH)
    tl.store(y_ptr + row * d + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def loss_of_chunks(x_ptr, mask_ptr, theta_ptr, theta: tl.float64, theta_step, k_ptr, loss_ptr,
                   epsilon: tl.float64, sums_ptr, out_ptr, chunks, x_stride, mask_stride, k_stride,
                   KIND: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr,
                   DENSE: tl.constexpr, MAX: tl.constexpr):  # fmt: skip
    """Each program computes the loss of a row from the sums of its chunks."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, MAX)[None, :]
    has = at < chunks
    sums = sums_ptr + (row * chunks + at) * 4
    r = tl.sum(tl.load(sums, mask=has, other=0.0), 1, keep_dims=True)
    s = tl.sum(tl.load(sums + 1, mask=has, other=0.0), 1, keep_dims=True)
    t = tl.sum(tl.load(sums + 2, mask=has, other=0.0), 1, keep_dims=True)
    out = out_ptr + row * 8 + tl.zeros((1, 1), tl.int64)
    found, gamma = tl.load(out), tl.load(out + 2)
    a, k, _ = exponents(of_row(theta_ptr, theta, row, theta_step) + tl.zeros_like(gamma), KIND)
    c, e, total = tl.load(out + 3), tl.load(out + 4), tl.load(out + 6)
    if DENSE:
        m = tl.load(out + 7)
        log_y = log_top(c, e, k, total, KIND)
        loss = distribution_loss(unscaled(r, a, total, KIND), s, t, m, log_y, gamma, a, KIND)
        loss = of_mass(loss, gamma, m, found, found != found)
    else:
        target = tl.load(k_ptr + row)
        score = score_of(x_ptr + row * x_stride, mask_ptr + row * mask_stride, target, HAS_MASK)
        off = off_of(tl.load(out + 1), score)
        loss = vertex_loss(r, s, off / gamma, c, e, a, k, total, KIND)
        loss = of_state(loss, t, off, gamma, target, found, found != found, score, epsilon,
                        SMOOTH)  # fmt: skip
    tl.store(loss_ptr + row + tl.zeros((1, 1), tl.int64), loss)


@triton.jit
def softmax_blocks(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, y_ptr, k_ptr,
                   loss_ptr, epsilon: tl.float64, d, x_stride, mask_stride, k_stride,
                   HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, DENSE: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes softmax of a row, which it reads twice; with targets ``k`` losses, and
    their gradients in place of y."""
    row = tl.program_id(0).to(tl.int64)
    end = d
    if k_ptr is not None:
        if DENSE:
            t_at = k_ptr + row * k_stride
        else:
            target = tl.load(k_ptr + row)
            end = tl.where(target >= 0, d, 0)
    column = tl.arange(0, BLOCK)[None, :]
    gamma64 = of_row(gamma_ptr, gamma, row, gamma_step)
    x_at, mask_at = x_ptr + row * x_stride, mask_ptr + row * mask_stride
    first = load_scores(x_at, mask_at, column, column, column < end, HAS_MASK)
    high, count, spoilt = survey(first)
    scale = gamma64.to(first.dtype) + tl.zeros_like(high)
    total = tl.sum(tl.exp(-distance(first, high, scale)), 1, keep_dims=True)
    mass = tl.zeros((1, 1), tl.float64)
    if DENSE:
        mass = mass_of(first, tl.load(t_at + column, mask=column < d, other=0.0).to(first.dtype))
    for b in range(BLOCK, d, BLOCK):
        i = b + column
        x = load_scores(x_at, mask_at, i, i, i < end, HAS_MASK)
        if DENSE:
            mass += mass_of(x, tl.load(t_at + i, mask=i < d, other=0.0).to(x.dtype))
        top, n, wrong = survey(x)
        top = tl.where(count > 0, tl.where(n > 0, tl.maximum(high, top), high), top)
        kept = tl.where(count > 0, total * tl.exp(-distance(high, top, scale)), 0.0)
        total = kept + tl.sum(tl.exp(-distance(x, top, scale)), 1, keep_dims=True)
        high, count, spoilt = top, count + n, spoilt | wrong
    spoilt = (tl.max(spoilt) > 0) | (gamma64 != gamma64)
    total = tl.maximum(total, 1.0)
    r = tl.zeros((1, 1), tl.float64)
    s, t = r, r
    if k_ptr is not None:
        fine = (spoilt == 0) & (count > 0)
        if not DENSE:
            score = score_of(x_at, mask_at, target, HAS_MASK)
            fine = fine & (score > -float("inf"))
    for b in range(0, d, BLOCK):
        i = b + column
        x = load_scores(x_at, mask_at, i, i, i < end, HAS_MASK)
        delta = distance(x, high, scale)
        y = tl.exp(-delta)
        y = quotient(y, total, divide(tl.zeros_like(total) + 1.0, total))
        if k_ptr is None:
            y = tl.where(spoilt, float("nan"), tl.where(tl.max(count) > 0, y, 0.0))
        elif DENSE:
            v = tl.load(t_at + i, mask=i < d, other=0.0).to(x.dtype)
            dr, ds, dt = sums_with(y, x, v, mass, high, 0.0, 0, ENTROPY)
            r, s, t = r + dr, s + ds, t + dt
            y = difference_with(y, v, mass, fine)
        else:
            dr, ds, dt = sums_beside(y, y, x, high, i == target, SMOOTH)
            r, s, t = r + dr, s + ds, t + dt
            y = difference(y, delta, i == target, count, fine, epsilon, SMOOTH)
        tl.store(y_ptr + row * d + i, y.to(y_ptr.dtype.element_ty), mask=i < d)
    if k_ptr is not None:
        wide = total.to(tl.float64)
        if DENSE:
            loss = distribution_loss(r, s, t, mass, -tl.log(wide), gamma64, r, ENTROPY)
            loss = of_mass(loss, gamma64, mass, count, spoilt)
        else:
            off = off_of(high, score)
            loss = vertex_loss(r, s, off / gamma64, wide, wide, r, r, wide, ENTROPY)
            loss = of_state(loss, t, off, gamma64, target, count, spoilt, score, epsilon, SMOOTH)
        tl.store(loss_ptr + row + tl.zeros((1, 1), tl.int64), loss)


def forward_chunks(
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
    warps = shape_of(chunk, wide)["num_warps"]
    tops = x.new_empty((rows, chunks), dtype=torch.float64 if wide else torch.float32)
    counts, held = x.new_empty((2, rows, chunks), dtype=torch.int32)
    out = x.new_empty((rows, 8), dtype=torch.float64)
    solver = {key: flags[key] for key in ("KIND", "EXACT", "DENSE")}
    slots = power_of_2(chunks)
    k, losses, epsilon = wanted
    sums = None if losses is None else x.new_empty((rows, chunks, 4), dtype=torch.float64)
    pack_chunks[(rows * chunks,)](
        x, on, *hyper, y, k, tops, counts, held, sums, d, chunks, *strides, **solver,
        HAS_MASK=flags["HAS_MASK"], CHUNK=chunk, num_warps=warps,
    )  # fmt: skip
    solve_chunks[(rows,)](
        *hyper, y, tops, counts, held, sums, out, d, chunks, **solver, CHUNK=chunk,
        CH=min(slots, 16), N=2048 if wide else 4096, MAX=max(slots, 16), num_warps=8,
    )  # fmt: skip
    write_chunks[(rows * chunks,)](
        x, on, y, k, sums, epsilon, out, d, chunks, *strides, **flags, CHUNK=chunk,
        num_warps=warps,
    )  # fmt: skip
    if losses is not None:
        known = {key: flags[key] for key in ("KIND", "HAS_MASK", "SMOOTH", "DENSE")}
        loss_of_chunks[(rows,)](
            x, on, *hyper[3:], *wanted, sums, out, chunks, *strides, **known, MAX=max(slots, 16),
            num_warps=1,
        )  # fmt: skip
