"""Fenchel–Young losses in Triton, from sums over a row of y = Π_Ω(x).

In units of γ, with a = θ − 1, that of a vertex e_k is a Bregman divergence, and the distance s of
x_k/γ to the threshold where x_k is below it (Blondel, Martins & Niculae 2020):

    Ω = Σ e(y_i)       (1 − y_k^a (1 + a(1 − y_k))) / (a(a + 1)) + Σ' y_i^(a+1) / (a + 1) + s,
    Ω = ½‖y‖_p²        (1 − N)² / 2 + N (1 − (y_k/N)^a) + s,    N = ‖y‖_p,  p = a + 1,

Σ' over i ≠ k. No term is negative, and 1 − y_k = Σ' y_i, so a small loss has as many digits as
these sums. The first is −log y_k for softmax and ((1 − y_k)² + Σ' y_i²)/2 + s for sparsemax.
Numbers per row are float64.

Label smoothing with ε adds ε(x_k − mean x), the mean over the participants.

A distribution t comes as m t, and its loss and gradient are multiplied by m. With y₁ the largest
entry, δ_i = (max x − x_i)/γ and log_a(t) = (t^a − 1)/a, log t at a = 0, the loss is

    Ω = Σ e(y_i)       (Σ t_i log_a t_i − 1 + Σ y_i^(a+1))/(a + 1) − log_a y₁ + Σ t_i δ_i,
    Ω = ½‖y‖_p²        (‖t‖_p² + N²)/2 − N^(1−a) y₁^a + Σ t_i δ_i,

to some roundings of these terms. m is +∞ where the support of t is masked in part, and NaN where t
is not a multiple of a distribution.

See :mod:`regmax.kernels.cpu.loss_rows`.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .equation import log1p, shares
from .rows import load_scores

NONE = tl.constexpr(0)
VERTEX = tl.constexpr(1)
DENSE = tl.constexpr(2)


def aim_of(target: Tensor | None) -> int:
    """What a kernel's AIM is: without a target, vertices, or distributions."""
    return 0 if target is None else 2 if target.is_floating_point() else 1


@triton.jit
def target_of(k_ptr, row, here, AIM: tl.constexpr):
    """k of rows, −1 where not ``here``; 0 without vertices."""
    if AIM == VERTEX:
        return tl.load(k_ptr + row, mask=here, other=-1)
    else:
        return tl.zeros_like(row)


@triton.jit
def aim_at(k_ptr, start, target, at, inside, x, AIM: tl.constexpr):
    """Of the entries ``at`` of rows: t m, ``start`` where it is in memory; or whether they are the
    vertex's."""
    if AIM == DENSE:
        return tl.load(k_ptr + start + at, mask=inside, other=0.0).to(x.dtype)
    else:
        return at == target


@triton.jit
def sums_beside(y, w, x, top, own, SMOOTH: tl.constexpr):
    """Σ' y, Σ' w, and with label smoothing Σ (max x − x_i) over the participants, float64."""
    r = tl.sum(tl.where(own, 0.0, y), 1, keep_dims=True).to(tl.float64)
    s = tl.sum(tl.where(own, 0.0, w), 1, keep_dims=True).to(tl.float64)
    t = r
    if SMOOTH:
        # times a power of 2, so that no sum overflows
        half = 0.5 / x.shape[1]
        off = top.to(x.dtype) * half - x * half
        t = tl.sum(tl.where(x == -float("inf"), 0.0, off), 1, keep_dims=True)
        t = t.to(tl.float64) * (2.0 * x.shape[1])
    return r, s, t


@triton.jit
def score_of(x_ptr, mask_ptr, k, HAS_MASK: tl.constexpr, AIM: tl.constexpr):
    """x_k of rows; −∞ where it is masked or k < 0. 0 without vertices."""
    at = k + tl.zeros((1, 1), tl.int64)
    if AIM == VERTEX:
        return load_scores(x_ptr, mask_ptr, at, at, at >= 0, HAS_MASK)
    else:
        return tl.zeros_like(at)


@triton.jit
def off_of(top, score):
    """max x − x_k, float64; 0 where k is masked."""
    off = tl.minimum(top.to(tl.float64) - score.to(tl.float64), 1.7e308)
    return tl.where(score == -float("inf"), 0.0, off)


@triton.jit
def of_state(loss, t, off, gamma, k, count, spoilt, score, epsilon, SMOOTH: tl.constexpr):
    """The loss of a row from L/γ, smoothed; 0 where k < 0 or nothing takes part, NaN where the row
    is, and +∞ where k is masked."""
    loss = gamma * loss
    if SMOOTH:
        loss += epsilon * (t / tl.maximum(count, 1).to(tl.float64) - off)
    value = tl.where(score == -float("inf"), float("inf"), loss)
    value = tl.where(count > 0, value, 0.0)
    return tl.where(k < 0, 0.0, tl.where(spoilt != 0, float("nan"), value))


@triton.jit
def difference(y, delta, own, count, fine, epsilon, SMOOTH: tl.constexpr):
    """y − t; 0 in rows without gradient."""
    if SMOOTH:
        share = tl.full((), 0.0, tl.float64) + epsilon
        each = (share / tl.maximum(count, 1).to(tl.float64)).to(y.dtype)
        y = y - tl.where(own, (1.0 - share).to(y.dtype), 0.0)
        y = y - tl.where(delta < float("inf"), each, 0.0)
    else:
        y = tl.where(own, y - 1.0, y)
    return tl.where(fine, y, 0.0)


@triton.jit
def mass_of(x, t, AIM: tl.constexpr):
    """m of a tile's rows, float64; 0 without distributions."""
    m = tl.zeros((1, 1), tl.float64)
    if AIM == DENSE:
        m = tl.sum(t, 1, keep_dims=True).to(tl.float64)
        outside = ((t > 0) & (x == -float("inf"))).to(tl.int32)
        wrong = 1 - ((t >= 0) & (t < float("inf"))).to(tl.int32)
        m = tl.where(tl.max(outside, 1, keep_dims=True) > 0, float("inf"), m)
        m = tl.where(tl.max(wrong, 1, keep_dims=True) > 0, float("nan"), m)
    return m


@triton.jit
def usual(m):
    """m, and 1 where the row has no gradient."""
    return tl.where((m > 0) & (m < float("inf")), m, 1.0)


@triton.jit
def sums_with(w, x, t, m, top, a, OWN: tl.constexpr):
    """Σ of the terms of t, Σ w, and Σ t (max x − x), float64; the tile holds mt."""
    on = (t > 0) & (x > -float("inf"))
    t = tl.where(on, t / usual(m).to(x.dtype), 0.0)
    h = OWN.terms(t, a)
    half = t * tl.where(t > 0, top.to(x.dtype) * 0.5 - x * 0.5, 0.0)  # the whole may overflow
    h = tl.sum(h, 1, keep_dims=True).to(tl.float64)
    s = tl.sum(w, 1, keep_dims=True).to(tl.float64)
    return h, s, 2.0 * tl.sum(half, 1, keep_dims=True).to(tl.float64)


@triton.jit
def difference_with(y, t, m, fine):
    """m(y − t) from y and mt; 0 in rows without gradient."""
    fine = fine & (m > 0) & (m < float("inf"))
    return tl.where(fine, y * tl.where(fine, m, 0.0).to(y.dtype) - t, 0.0)


@triton.jit
def written(x, delta, root, n, top, count, spoilt, aim, score, m, epsilon, OWN: tl.constexpr,
            SMOOTH: tl.constexpr, AIM: tl.constexpr):  # fmt: skip
    """What a tile writes, y or the gradient of the loss, and its three sums for the loss; ``top``,
    ``count``, ``spoilt``, and ``score`` or ``m`` are those of its rows."""
    v, _, base = OWN.inverse(delta, root[0], root[1], n)
    y, w = shares(v, root[2]), v * base
    fine = (spoilt == 0) & (count > 0)
    if AIM == NONE:
        sums = (score, score, score)
        y = tl.where(spoilt != 0, float("nan"), tl.where(count > 0, y, 0.0))
    elif AIM == DENSE:
        sums = sums_with(w, x, aim, m, top, n[0], OWN)
        y = difference_with(y, aim, m, fine)
    else:
        sums = sums_beside(y, w, x, top, aim, SMOOTH)
        fine = fine & (score > -float("inf"))
        y = difference(y, delta, aim, count, fine, epsilon, SMOOTH)
    return y, sums


@triton.jit
def vertex_loss(r, s, gap, root, n, OWN: tl.constexpr):
    """L/γ from Σ' y and Σ' y^(1+a)."""
    log_y, below = OWN.logarithm(gap, root[0], root[1], n, root[2])
    near = r < 0.5
    log_y = tl.where(near, log1p(-r, 1.0 - r), log_y)
    return OWN.vertex(r, s, log_y, near, n[0]) + below


@triton.jit
def distribution_loss(h, s, q, m, gamma, root, n, OWN: tl.constexpr):
    """mL/γ from the sums of :func:`sums_with`."""
    a = n[0]
    log_y, _ = OWN.logarithm(tl.zeros_like(gamma), root[0], root[1], n, root[2])
    loss = OWN.whole(h, s, log_y, a)
    return usual(m) * tl.maximum(loss + q / gamma, 0.0)


@triton.jit
def loss_of(sums, root, n, top, gamma, count, spoilt, k, score, m, epsilon, OWN: tl.constexpr,
            SMOOTH: tl.constexpr, AIM: tl.constexpr):  # fmt: skip
    """The loss of rows from the sums of :func:`written`, all float64; for a vertex k of its score,
    for a distribution of m."""
    r, s, t = sums
    root = (root[0].to(tl.float64), root[1].to(tl.float64), root[2].to(tl.float64))
    if not OWN.linear:  # Σv is 1
        s = s * tl.exp(-(1.0 + n[0]) * tl.log(root[2]))
    if AIM == DENSE:
        loss = distribution_loss(r, s, t, m, gamma, root, n, OWN)
        off = loss
        k = tl.where(m == 0, -1, 0)
        score = tl.where(m == float("inf"), -float("inf"), 0.0)
        spoilt = (spoilt != 0) | (m != m)
    else:
        off = off_of(top, score)
        loss = vertex_loss(r, s, off / gamma, root, n, OWN)
    return of_state(loss, t, off, gamma, k, count, spoilt, score, epsilon, SMOOTH)
