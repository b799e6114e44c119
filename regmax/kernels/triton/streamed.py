"""Rows in Triton that one program reads from memory several times, a part at a time: long ones, and
those with α > 2 (:mod:`.steep`). With targets, losses and their gradients.

The first pass finds the maximum, and packs the entries within reach of the maximum so far
(``reach``) to the front of the output row, which serves as scratch: among them are
those within reach of the row's. The second writes y from the root. Softmax needs no candidates: its
sum is updated as the maximum rises.

Source: Milakov & Gimelshein (2018) for online softmax.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from .equation import numbers
from .losses import NONE, aim_at, loss_of, mass_of, score_of, target_of, written
from .rows import distance, load_scores, of_row, packed, survey


@triton.jit
def load_as(x_ptr, mask_ptr, at, end, HAS_MASK: tl.constexpr, DTYPE: tl.constexpr):
    """Scores in the dtype of the arithmetic."""
    return load_scores(x_ptr, mask_ptr, at, at, at < end, HAS_MASK).to(DTYPE)


@triton.jit
def streamed_row(x_ptr, mask_ptr, y_ptr, k_ptr, loss_ptr, epsilon, row, k_stride, d, gamma64,
                 theta64, OWN: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr,
                 AIM: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """One row, read N entries at a time. x, y and the mask are those of the row."""
    column = tl.arange(0, N)[None, :]
    target = target_of(k_ptr, row, row >= 0, AIM)
    end = tl.where(target >= 0, d, 0)
    start = row * k_stride
    one = tl.full((1, 1), 1.0, tl.float64)
    gamma64, theta64 = gamma64 * one, theta64 * one
    WIDE: tl.constexpr = OWN.precise or x_ptr.dtype.element_ty == tl.float64
    DTYPE: tl.constexpr = tl.float64 if WIDE else tl.float32
    n64, n = numbers(theta64, DTYPE, OWN)
    scale, top = gamma64.to(DTYPE), tl.zeros((1, 1), DTYPE)
    total, mass = top, one * 0.0
    count, held = tl.zeros((1, 1), tl.int32), 0
    spoilt = ((gamma64 != gamma64) | (theta64 != theta64)).to(tl.int32)
    for w in range(0, d, N):
        at = w + column
        x = load_as(x_ptr, mask_ptr, at, end, HAS_MASK, DTYPE)
        mass += mass_of(x, aim_at(k_ptr, start, target, at, at < d, x, AIM), AIM)
        high, size, wrong = survey(x)
        high = tl.where((count > 0) & ((size == 0) | (high < top)), top, high)
        delta = distance(x, high, scale)
        if OWN.scales:
            kept = tl.where(count > 0, total * tl.exp(-distance(top, high, scale)), 0.0)
            total = kept + tl.sum(tl.exp(-delta), 1, keep_dims=True)
        else:
            keep = (delta <= OWN.reach(n)) & (delta < float("inf"))
            held += packed(y_ptr + held, x, keep)
        top, count, spoilt = high, count + size, spoilt | wrong
    if OWN.scales:
        root = (n[0], n[0], tl.maximum(total, 1.0))
    else:
        tl.debug_barrier()
        active = ((spoilt == 0) & (count > 0)).to(tl.int32)
        root = OWN.root((top, y_ptr, held, top, scale), n, count, active, OWN, N)
        tl.debug_barrier()
    score = score_of(x_ptr, mask_ptr, target, HAS_MASK, AIM)
    r, s, t = one * 0.0, one * 0.0, one * 0.0
    for w in range(0, d, N):
        at = w + column
        x = load_as(x_ptr, mask_ptr, at, end, HAS_MASK, DTYPE)
        aim = aim_at(k_ptr, start, target, at, at < d, x, AIM)
        y, sums = written(x, distance(x, top, scale), root, n, top, count, spoilt, aim, score, mass,
                          epsilon, OWN, SMOOTH, AIM)  # fmt: skip
        r, s, t = r + sums[0], s + sums[1], t + sums[2]
        if y_ptr.dtype.element_ty != tl.float64:
            y = y.to(tl.float32)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < d)
    if AIM != NONE:
        loss = loss_of((r, s, t), root, n64, top, gamma64, count, spoilt, target, score, mass,
                       epsilon, OWN, SMOOTH, AIM)  # fmt: skip
        tl.store(loss_ptr + row + tl.zeros((1, 1), tl.int64), loss)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def streamed_rows(x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                  theta: tl.float64, theta_step, y_ptr, k_ptr, loss_ptr, epsilon: tl.float64, rows,
                  d, x_stride, mask_stride, k_stride, OWN: tl.constexpr, HAS_MASK: tl.constexpr,
                  SMOOTH: tl.constexpr, AIM: tl.constexpr, ROWS: tl.constexpr,
                  N: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows: those with α > 2 of a precise description, else the
    others."""
    for i in range(ROWS):
        row = (tl.program_id(0) * ROWS + i).to(tl.int64)
        if row < rows:
            theta64 = of_row(theta_ptr, theta, row, theta_step)
            if (theta64 > 2.0) == OWN.precise:
                streamed_row(x_ptr + row * x_stride, mask_ptr + row * mask_stride, y_ptr + row * d,
                             k_ptr, loss_ptr, epsilon, row, k_stride, d,
                             of_row(gamma_ptr, gamma, row, gamma_step), theta64, OWN, HAS_MASK,
                             SMOOTH, AIM, N)  # fmt: skip
