"""Fenchel–Young losses in Triton, from sums over a row of y = Π_Ω(x).

In units of γ, with a = α − 1 or p − 1, that of a vertex e_k is a Bregman divergence, and the
distance s of x_k/γ to the threshold where x_k is below it (Blondel, Martins & Niculae 2020):

    gini      ((1 − y_k)² + Σ' y_i²) / 2 + s,
    entropy   −log y_k,
    tsallis   (1 − y_k^a (1 + a(1 − y_k))) / (αa) + Σ' y_i^α / α + s,
    p-norm    (1 − N)² / 2 + N (1 − (y_k/N)^a) + s,    N = ‖y‖_p,

Σ' over i ≠ k. No term is negative, and 1 − y_k = Σ' y_i, so a small loss has as many digits as
these sums. Numbers per row are float64.

Label smoothing with ε adds ε(x_k − mean x), the mean over the participants.

A distribution t comes as m t, and its loss and gradient are multiplied by m. With y₁ the largest
entry, δ_i = (max x − x_i)/γ and log_a(t) = (t^a − 1)/a, log t at a = 0, the loss is

    gini, entropy, tsallis   (Σ t_i log_a t_i − 1 + Σ y_i^α)/α − log_a y₁ + Σ t_i δ_i,
    p-norm                   (‖t‖_p² + N²)/2 − N^(1−a) y₁^a + Σ t_i δ_i,

to some roundings of these terms. m is +∞ where the support of t is masked in part, and NaN where t
is not a multiple of a distribution.

The derivatives in γ and θ are those of γ(Ω(e_k) − Ω(y)) with y held fixed. One program computes
them for a row, from y − t. See :mod:`regmax.kernels.cpu.loss_rows`.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..base import Number
from .equation import log1p, powers
from .jacobian import dphi
from .rows import (
    ENTROPY,
    GINI,
    KINDS,
    PNORM,
    TSALLIS,
    guard,
    load_scores,
    of_row,
    parameter,
    power_of_2,
)


@triton.jit
def expm1(x):
    """e^x − 1, from u, the rounded e^x: (u − 1) x / log u corrects the rounding of u."""
    u = tl.exp(x)
    near = (tl.abs(x) < 0.5) & (u != 1)
    ratio = x / tl.log(tl.where(near, u, 2.0))
    return tl.where(near, (u - 1) * ratio, tl.where(u == 1, x, u - 1))


@triton.jit
def raised(y, delta, c, e, k, exact, KIND: tl.constexpr):
    """y^(1+a) of a tile, times (Σv)^(1+a) for Tsallis and the p-norm; not needed for entropy."""
    if KIND == GINI:
        return y * y
    elif KIND == ENTROPY:
        return y
    else:
        base, _, v = powers(delta, c, e, k, exact)
        return base * v


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
def score_of(x_ptr, mask_ptr, k, HAS_MASK: tl.constexpr):
    """x_k of a row, (1, 1); −∞ where it is masked or k < 0."""
    at = k + tl.zeros((1, 1), tl.int64)
    return load_scores(x_ptr, mask_ptr, at, at, at >= 0, HAS_MASK)


@triton.jit
def off_of(top, score):
    """max x − x_k, float64; 0 where k is masked."""
    off = tl.minimum(top.to(tl.float64) - score.to(tl.float64), 1.7e308)
    return tl.where(score == -float("inf"), 0.0, off)


@triton.jit
def own_entry(gap, c, e, a, k, total, KIND: tl.constexpr):
    """log y_k, and s: from the numbers of the row's equation."""
    if KIND == ENTROPY:
        return -gap - tl.log(total), tl.zeros_like(gap)
    elif KIND == GINI:
        return tl.zeros_like(gap), tl.maximum(gap - (c + e), 0.0)
    else:
        base = 1.0 - c * gap + e
        on = base > 0
        change = tl.where(on, e - c * gap, 0.0)  # next to α = 1 it is below the rounding of base
        log_v = tl.where(a == 0, -gap, k * log1p(change, 1.0 + change))
        s = tl.where(on, 0.0, gap - (1.0 + e) / tl.where(on, 1.0, c))
        return tl.where(on, log_v - tl.log(total), -float("inf")), s


@triton.jit
def divergence(r, s, log_y, below, a, KIND: tl.constexpr):
    """L/γ from r = Σ' y, s = Σ' y^(1+a), log y_k and the distance below the threshold."""
    near = r < 0.5
    log_y = tl.where(near, log1p(-r, 1.0 - r), log_y)
    if KIND == GINI:
        return 0.5 * (r * r + s) + below
    elif KIND == ENTROPY:
        return -log_y
    elif KIND == PNORM:
        p = a + 1.0
        share = tl.exp(-p * tl.where(near, log_y, 0.0))
        log_rho = -log1p(s * share, 1.0 + s * share) / p
        log_norm = tl.where(near, log_y - log_rho, tl.log(tl.exp(p * log_y) + s) / p)
        log_rho = tl.where(near, log_rho, log_y - log_norm)
        off = expm1(log_norm)
        return 0.5 * off * off - (off + 1.0) * expm1(a * log_rho) + below
    else:
        rest = tl.where(near, r, 1.0 - tl.exp(log_y))
        some = tl.where(a == 0, 1.0, a)
        power = expm1(some * log_y + log1p(some * rest, 1.0 + some * rest))
        own = tl.where(a == 0, -(log_y + rest), -power / (some * (a + 1.0)))
        return own + s / (a + 1.0) + below


@triton.jit
def unscaled(s, a, total, KIND: tl.constexpr):
    """Σ y^(1+a) from Σ of :func:`raised`."""
    if (KIND == TSALLIS) | (KIND == PNORM):
        return s * tl.exp(-(1.0 + a) * tl.log(total))
    else:
        return s


@triton.jit
def vertex_loss(r, s, gap, c, e, a, k, total, KIND: tl.constexpr):
    """L/γ from the sums beside k of y and :func:`raised`, and the numbers of the equation."""
    s = unscaled(s, a, total, KIND)
    log_y, below = own_entry(gap, c, e, a, k, total, KIND)
    return divergence(r, s, log_y, below, a, KIND)


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
def mass_of(x, t):
    """m of a tile's rows, float64."""
    m = tl.sum(t, 1, keep_dims=True).to(tl.float64)
    outside = ((t > 0) & (x == -float("inf"))).to(tl.int32)
    wrong = 1 - ((t >= 0) & (t < float("inf"))).to(tl.int32)
    m = tl.where(tl.max(outside, 1, keep_dims=True) > 0, float("inf"), m)
    return tl.where(tl.max(wrong, 1, keep_dims=True) > 0, float("nan"), m)


@triton.jit
def usual(m):
    """m, and 1 where the row has no gradient."""
    return tl.where((m > 0) & (m < float("inf")), m, 1.0)


@triton.jit
def sums_with(w, x, t, m, top, a, exact, KIND: tl.constexpr):
    """Σ w, Σ t log_a t, for the p-norm Σ t^p, and Σ t (max x − x), float64; the tile holds mt."""
    on = (t > 0) & (x > -float("inf"))
    t = tl.where(on, t / usual(m).to(x.dtype), 0.0)
    on = t > 0
    if KIND == GINI:
        h = t * t - t
    elif KIND == ENTROPY:
        h = t * tl.log(tl.where(on, t, 1.0))
    else:
        log = tl.log(tl.where(on, t, 1.0))
        if KIND == PNORM:
            h = tl.where(on, tl.exp((a + 1.0) * log), 0.0)
        else:
            h = t * tl.where(a == 0, log, expm1(a * log) / tl.where(a == 0, 1.0, a))
        if exact == 1:
            h = t * t if KIND == PNORM else t * t - t
        elif exact == 2:
            h = t * tl.sqrt(t) if KIND == PNORM else 2.0 * (t * tl.sqrt(t) - t)
    half = t * tl.where(on, top.to(x.dtype) * 0.5 - x * 0.5, 0.0)  # the whole may overflow
    s = tl.sum(w, 1, keep_dims=True).to(tl.float64)
    h = tl.sum(h, 1, keep_dims=True).to(tl.float64)
    return s, h, 2.0 * tl.sum(half, 1, keep_dims=True).to(tl.float64)


@triton.jit
def log_top(c, e, k, total, KIND: tl.constexpr):
    """log y₁, from the numbers of the row's equation."""
    if KIND == GINI:
        return tl.log(c + e)
    elif KIND == ENTROPY:
        return -tl.log(total)
    else:
        return k * log1p(e, 1.0 + e) - tl.log(total)


@triton.jit
def distribution_loss(s, h, q, m, log_y, gamma, a, KIND: tl.constexpr):
    """mL/γ from s = Σ y^(1+a), the sums of :func:`sums_with` and log y₁."""
    if KIND == ENTROPY:
        loss = h - log_y
    elif KIND == PNORM:
        p = a + 1.0
        log_norm = tl.log(s) / p
        square = tl.exp(2.0 / p * tl.log(tl.where(h > 0, h, 1.0)))
        loss = 0.5 * (square + tl.exp(2.0 * log_norm)) - tl.exp((1.0 - a) * log_norm + a * log_y)
    else:
        top = tl.where(a == 0, log_y, expm1(a * log_y) / tl.where(a == 0, 1.0, a))
        loss = (h - 1.0 + s) / (a + 1.0) - top
    return usual(m) * tl.maximum(loss + q / gamma, 0.0)


@triton.jit
def of_mass(loss, gamma, m, count, spoilt):
    """The loss of a row from mL/γ, as :func:`of_state`."""
    k = tl.where(m == 0, -1, 0)
    score = tl.where(m == float("inf"), -float("inf"), 0.0)
    spoilt = (spoilt != 0) | (m != m)
    return of_state(loss, loss, loss, gamma, k, count, spoilt, score, 0.0, False)


@triton.jit
def difference_with(y, t, m, fine):
    """m(y − t) from y and mt; 0 in rows without gradient."""
    fine = fine & (m > 0) & (m < float("inf"))
    return tl.where(fine, y * tl.where(fine, m, 0.0).to(y.dtype) - t, 0.0)


@triton.jit
def slopes_of_rows(dx_ptr, x_ptr, mask_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                   theta: tl.float64, theta_step, k_ptr, out_ptr, epsilon: tl.float64, d, x_stride,
                   mask_stride, KIND: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTH: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """The derivatives of the loss of a row in γ and θ; 0 for k < 0 and without participants."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    scale = of_row(gamma_ptr, gamma, row, gamma_step)
    a64 = of_row(theta_ptr, theta, row, theta_step) - 1.0
    k = tl.load(k_ptr + row)
    count = tl.zeros((), tl.int32)
    if SMOOTH:
        for start in range(0, d, BLOCK):
            at = column + start
            x = load_scores(x_ptr, mask_ptr, row * x_stride + at, row * mask_stride + at, at < d,
                            HAS_MASK)  # fmt: skip
            count += tl.sum((x > -float("inf")).to(tl.int32))
    share = tl.full((), 0.0, tl.float64) + epsilon
    each = share / tl.maximum(count, 1).to(tl.float64)
    s = tl.zeros((), tl.float64)
    t = s
    for start in range(0, d, BLOCK):
        at = column + start
        y = tl.load(dx_ptr + row * d + at, mask=at < d, other=0.0)
        a = a64.to(y.dtype)
        y = tl.where(at == k, y + (1.0 - share).to(y.dtype), y)
        if SMOOTH:
            x = load_scores(x_ptr, mask_ptr, row * x_stride + at, row * mask_stride + at, at < d,
                            HAS_MASK)  # fmt: skip
            y = tl.where(x > -float("inf"), y + each.to(y.dtype), 0.0)
        on = (y > 0) & (k >= 0)
        y = tl.where(on, y, 0.0)
        if KIND == GINI:
            s += tl.sum(y * y).to(tl.float64)
        else:
            log = tl.log(tl.where(on, y, 1.0))
            if KIND == ENTROPY:
                s += tl.sum(y * log).to(tl.float64)
            elif KIND == PNORM:
                power = y * tl.exp(a * log)
                s += tl.sum(power).to(tl.float64)
                t += tl.sum(power * log).to(tl.float64)
            else:
                u = a * log
                ratio = tl.where(u == 0, 1.0, expm1(u) / tl.where(u == 0, 1.0, u))
                s += tl.sum(y * ratio * log).to(tl.float64)
                t += tl.sum(y * dphi(u) * (log * log)).to(tl.float64)
    by_gamma = tl.where(s > 0, 0.5 - 0.5 * s, 0.0)
    by_theta, p = tl.zeros_like(s), a64 + 1.0
    if KIND == ENTROPY:
        by_gamma = -s
    elif KIND == TSALLIS:
        by_gamma, by_theta = -s / p, scale * (s / p - t) / p
    elif KIND == PNORM:
        some = tl.where(s > 0, s, 1.0)
        square = tl.exp(2.0 / p * tl.log(some))
        by_gamma = 0.5 - 0.5 * square
        by_theta = scale * square * (tl.log(some) / p - t / some) / p
    tl.store(out_ptr + 2 * row, by_gamma)
    tl.store(out_ptr + 2 * row + 1, by_theta)


def slopes(
    kind: str,
    dx: Tensor,
    x: Tensor,
    k: Tensor,
    gamma: Number,
    theta: Number | None,
    mask: Tensor | None,
    epsilon: float,
) -> Tensor:
    """``Kernel.loss_slopes``."""
    out = torch.empty((len(x), 2), dtype=torch.float64, device=x.device)
    on = x if mask is None else mask
    if len(x):
        block = min(max(power_of_2(x.shape[1]), 16), 4096)
        with guard(x):
            slopes_of_rows[(len(x),)](
                dx, x, on, *parameter(gamma), *parameter(theta), k.reshape(-1).contiguous(), out,
                epsilon, x.shape[1], x.stride(0), on.stride(0), KIND=KINDS[kind],
                HAS_MASK=mask is not None, SMOOTH=epsilon > 0, BLOCK=block,
                num_warps=max(block // 512, 1),
            )  # fmt: skip
    return out
