"""Entmax with α > 2 in Triton, by the smallest entry of its support.

With a = α − 1 > 1 and the distances δ_i = (max x − x_i)/γ, y has an infinite slope at its
threshold. As a function of t = y_k, δ_k the largest distance in the support,

    y_i = (a (δ_k − δ_i) + t^a)^(1/a),    Σ y = 1,

Σ y is convex and increasing. All arithmetic is float64, as float32 is too inaccurate here.

Source: Peters, Niculae & Martins (2019) for entmax.
"""

# ruff: noqa: SIM102 (what is decided at compilation needs its own if)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import EXCESS, NEXT, STEEP, log_sum, stats
from .losses import (
    difference,
    difference_with,
    distribution_loss,
    divergence,
    mass_of,
    of_mass,
    of_state,
    off_of,
    score_of,
    sums_beside,
    sums_with,
)
from .rows import TSALLIS, distance, load_scores, of_row


@triton.jit
def solve_steep(delta, ptr, counts_ptr, most, chunks, top, gamma, a, active,
                PACKED: tl.constexpr, CHUNK: tl.constexpr, CH: tl.constexpr,
                N: tl.constexpr):  # fmt: skip
    """α > 2, all in float64: δ_k, log t^a and Σy, t the smallest entry, at the distance δ_k.

    A distance θ is in the support iff Σ [a (θ − δ)]₊^(1/a) < 1; the largest such is found among
    the distances by bisection, then t by Newton's method on Σ y − 1, convex and increasing.
    """
    zero = tl.zeros_like(a)
    low = zero
    high = 1.0 / a
    looking = active
    # ends: two turns bring low and high half as near, until no distance is between them
    while tl.max(looking) > 0:
        middle = low + (high - low) / 2
        above, below, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, middle,
                                high, zero, NEXT, PACKED, CHUNK, CH, N)  # fmt: skip
        some = above < float("inf")
        at = tl.where(some, above, middle)
        total, _, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, at, a, zero, zero,
                            EXCESS, PACKED, CHUNK, CH, N)  # fmt: skip
        fits = some & (total < 1)
        on = looking > 0
        low = tl.where(on & fits, at, low)
        high = tl.where(on & (fits == 0), at, high)
        looking = (on & (some | (below < float("inf")))).to(tl.int32)
    total, n, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, zero, zero,
                        EXCESS, PACKED, CHUNK, CH, N)  # fmt: skip
    n = tl.maximum(n, 1.0)
    least = tl.maximum((1.0 - total) / n, 1e-300)
    t = tl.maximum(1.0 / n, least)
    turns = 0
    while (tl.max(active) > 0) & (turns < 200):  # ends: turns < 200
        log_power = a * tl.log(t)
        total, rate, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, log_power,
                               zero, STEEP, PACKED, CHUNK, CH, N)  # fmt: skip
        f = total - 1.0
        following = tl.maximum(t - f / tl.maximum(rate, 1e-300), least)
        moves = (active > 0) & (tl.abs(f) > 4e-16) & (tl.abs(following - t) > 2e-16 * t)
        t = tl.where(moves, following, t)
        active = moves.to(tl.int32)
        turns += 1
    log_power = a * tl.log(t)
    total, _, _ = stats(delta, ptr, counts_ptr, most, chunks, top, gamma, low, a, log_power, zero,
                        STEEP, PACKED, CHUNK, CH, N)  # fmt: skip
    return low, log_power, total


@triton.jit
def steep_entries(delta, a, last, log_power, total):
    """y of a tile where α > 2, in float64."""
    gap = last - delta
    log_gap = tl.where(gap > 0, tl.log(tl.where(gap > 0, gap, 1.0) * a), -float("inf"))
    return tl.where(gap >= 0, tl.exp(log_sum(log_gap, log_power) / a) / total, 0.0)


@triton.jit
def steep_row(x_ptr, mask_ptr, y_ptr, k_ptr, loss_ptr, epsilon, row, d, gamma, a,
              HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr, DENSE: tl.constexpr,
              N: tl.constexpr):  # fmt: skip
    """One row with α > 2, read from memory N entries at a time; in float64 except x and y. With a
    target ``k``, of the row, its loss, and the gradient in place of y."""
    column = tl.arange(0, N)[None, :]
    end = d
    if k_ptr is not None:
        if not DENSE:
            target = tl.load(k_ptr)
            end = tl.where(target >= 0, d, 0)
    mass = tl.zeros((1, 1), tl.float64)
    high = tl.full((), -float("inf"), tl.float64)
    count, wrong = 0, 0
    for w0 in range(0, d, N):
        at = w0 + column
        x = load_scores(x_ptr, mask_ptr, at, at, at < end, HAS_MASK).to(tl.float64)
        if DENSE:
            mass += mass_of(x, tl.load(k_ptr + at, mask=at < d, other=0.0).to(tl.float64))
        on = x != -float("inf")
        finite = on & (x < float("inf"))
        high = tl.maximum(high, tl.max(tl.where(finite, x, -float("inf"))))
        count += tl.sum(on.to(tl.int32))
        wrong += tl.sum((on & (finite == 0)).to(tl.int32))
    fine = (count > 0) & (wrong == 0) & (gamma == gamma)
    one = tl.full((1, 1), 1.0, tl.float64)
    top, gamma, a = one * tl.where(fine, high, 0.0), one * gamma, one * a
    held = 0
    for w0 in range(0, d, N):
        at = w0 + column
        x = load_scores(x_ptr, mask_ptr, at, at, at < end, HAS_MASK)
        keep = fine & (distance(x.to(tl.float64), top, gamma) * a <= 1.001)
        place = held + tl.cumsum(keep.to(tl.int32), 1) - 1
        tl.store(y_ptr + place, x.to(y_ptr.dtype.element_ty), mask=keep)
        held += tl.sum(keep.to(tl.int32))
    tl.debug_barrier()
    active = tl.full((1, 1), 1, tl.int32) * fine.to(tl.int32)
    none = tl.zeros_like(a)
    last, log_power, total = solve_steep(none, y_ptr, y_ptr, held, 1, top, gamma, a, active, True,
                                         1, 1, N)  # fmt: skip
    tl.debug_barrier()
    r, s, t = none, none, none
    if k_ptr is not None:
        if not DENSE:
            score = score_of(x_ptr, mask_ptr, target, HAS_MASK)
            off = off_of(top, score)
            right = fine & (score > -float("inf"))
    for w0 in range(0, d, N):
        at = w0 + column
        x = load_scores(x_ptr, mask_ptr, at, at, at < end, HAS_MASK)
        delta = distance(x.to(tl.float64), top, gamma)
        y = steep_entries(delta, a, last, log_power, total)
        if k_ptr is None:
            y = tl.where(fine, y, tl.where((wrong > 0) | (gamma != gamma), float("nan"), 0.0))
        elif DENSE:
            v = tl.load(k_ptr + at, mask=at < d, other=0.0).to(tl.float64)
            w = tl.exp((a + 1.0) * tl.log(tl.where(y > 0, y, 1.0)))
            ds, dr, dt = sums_with(tl.where(y > 0, w, 0.0), x.to(tl.float64), v, mass, top, a,
                                   0, TSALLIS)  # fmt: skip
            r, s, t = r + dr, s + ds, t + dt
            y = difference_with(y, v, mass, fine)
        else:
            w = tl.exp((a + 1.0) * tl.log(tl.where(y > 0, y, 1.0)))
            dr, ds, dt = sums_beside(y, tl.where(y > 0, w, 0.0), x, top, at == target,
                                     SMOOTH)  # fmt: skip
            r, s, t = r + dr, s + ds, t + dt
            y = difference(y, delta, at == target, count, right, epsilon, SMOOTH)
        if x.dtype != tl.float64:
            y = y.to(tl.float32)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < d)
    if k_ptr is not None:
        spoilt = ((wrong > 0) | (gamma != gamma)).to(tl.int32)
        if DENSE:
            log_y = tl.log(a * last + tl.exp(log_power)) / a - tl.log(total)
            loss = distribution_loss(s, r, t, mass, log_y, gamma, a, TSALLIS)
            loss = of_mass(loss, gamma, mass, count, spoilt)
        else:
            power = a * (last - off / gamma) + tl.exp(log_power)
            on = power > 0
            log_y = tl.log(tl.where(on, power, 1.0)) / a - tl.log(total)
            log_y = tl.where(on, log_y, -float("inf"))
            below = tl.where(on, 0.0, -power / a)
            loss = divergence(r, s, log_y, below, a, TSALLIS)
            loss = of_state(loss, t, off, gamma, target, count, spoilt, score, epsilon, SMOOTH)
        tl.store(loss_ptr + row + tl.zeros((1, 1), tl.int64), loss)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def steep_rows(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
               theta: tl.float64, theta_step, y_ptr, k_ptr, loss_ptr, epsilon: tl.float64, rows, d,
               x_stride, mask_stride, k_stride, HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr,
               DENSE: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Each program computes those of ROWS rows that have α > 2."""
    for i in range(ROWS):
        row = (tl.program_id(0) * ROWS + i).to(tl.int64)
        if row < rows:
            a = of_row(theta_ptr, theta, row, theta_step) - 1.0
            if a > 1.0:
                k_at = k_ptr
                if k_ptr is not None:
                    k_at = k_ptr + row * k_stride
                steep_row(x_ptr + row * x_stride, mask_ptr + row * mask_stride, y_ptr + row * d,
                          k_at, loss_ptr, epsilon, row, d,
                          of_row(gamma_ptr, gamma, row, gamma_step), a, HAS_MASK, SMOOTH, DENSE,
                          N)  # fmt: skip
