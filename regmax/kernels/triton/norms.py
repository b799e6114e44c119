"""Descriptions of the p-norms in Triton, Ω = ½‖y‖_p² with p = θ and a = p − 1.

The curvature has a rank-one term: with r = y/‖y‖ and u = r^(p−1),

    ∇²Ω = (p − 1) diag(r^(p−2)) + (2 − p) u uᵀ,
    J = D − c D u uᵀ D/(1 + c uᵀ D u),    c = 2 − p,

D that of the diagonal (Sherman–Morrison).

Sources: Niculae & Blondel (2017), §3.1, for Ω and its curvature.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from .equation import log1p
from .jacobian import separable_sums, weights
from .powers import HALF, LINEAR, POWER, expm1, logarithm_of


@triton.jit
def norm_reach(n):
    return tl.zeros_like(n[0]) + 1.001


@triton.jit
def norm_slope(t, a):
    return tl.exp(-t)


@triton.jit
def norm_equation(t, n, sums):
    p, k = n[0] + 1.0, n[1]
    sums_t, sums_v, sums_w = sums
    f = t + (p - 2.0) / p * tl.log(sums_w) + tl.log(sums_v)
    by_e = k * ((p - 2.0) * sums_v / sums_w + sums_t / sums_v)
    slope = 1.0 + k * ((p - 2.0) * (sums_v - sums_w) / sums_w + (sums_t - sums_v) / sums_v)
    return f, slope, by_e


@triton.jit
def norm_vertex(r, s, log_y, near, a):
    p = a + 1.0
    share = tl.exp(-p * tl.where(near, log_y, 0.0))
    log_rho = -log1p(s * share, 1.0 + s * share) / p
    log_norm = tl.where(near, log_y - log_rho, tl.log(tl.exp(p * log_y) + s) / p)
    log_rho = tl.where(near, log_rho, log_y - log_norm)
    off = expm1(log_norm)
    return 0.5 * off * off - (off + 1.0) * expm1(a * log_rho)


@triton.jit
def norm_whole(h, s, log_y, a):
    p = a + 1.0
    log_norm = tl.log(s) / p
    square = tl.exp(2.0 / p * tl.log(tl.where(h > 0, h, 1.0)))
    return 0.5 * (square + tl.exp(2.0 * log_norm)) - tl.exp((1.0 - a) * log_norm + a * log_y)


@triton.jit
def norm_terms(t, a):
    return t * tl.exp(a * logarithm_of(t))


@triton.jit
def half_norm_terms(t, a):
    return t * tl.sqrt(t)


@triton.jit
def norm_sums(y, v, ref, v_ref, a, OWN: tl.constexpr):
    """Those of a separable Ω, and with ρ = y/y_r, Σρ, Σρ(v − v_r), Σρ^p and Σρ^p log ρ."""
    on = y > 0
    off, _ = weights(y, tl.log(ref), a, OWN)
    u = tl.where(on, v - v_ref, 0.0)
    rho = tl.where(on, tl.exp(off), 0.0)
    rho_p = tl.where(on, tl.exp((a + 1.0) * off), 0.0)
    first = tl.sum(rho, 1, keep_dims=True)
    first_v = tl.sum(rho * u, 1, keep_dims=True)
    power = tl.sum(rho_p, 1, keep_dims=True)
    more = first, first_v, power, tl.sum(rho_p * off, 1, keep_dims=True)
    return separable_sums(y, v, ref, v_ref, a, OWN) + more


@triton.jit
def norm_product(y, v, ref, v_ref, a, sums, OWN: tl.constexpr, HYPER: tl.constexpr):
    on, p = y > 0, a + 1.0
    off, s = weights(y, tl.log(ref), a, OWN)
    total = tl.where(sums[0] > 0, sums[0], 1.0)
    u = tl.where(on, v - v_ref, 0.0) - sums[1] / total
    first, power = sums[2], tl.where(sums[4] > 0, sums[4], 1.0)
    log_kappa = -tl.log(power) / p  # r = κρ
    mean_u = tl.exp(a * log_kappa) * first / total
    to_v = tl.exp(log_kappa) / a * (sums[3] - sums[1] / total * first)
    to_u = tl.maximum(1.0 - first / total * first / power, 0.0) / a
    share = (2.0 - p) * to_v / (1.0 + (2.0 - p) * to_u)
    log_r = tl.where(on, off + log_kappa, 0.0)
    own_u = tl.exp(a * log_r)
    w = s * (tl.exp((1.0 - a) * log_kappa) / a) * (u - share * (own_u - mean_u))
    w = tl.where(on, w, 0.0)
    by_theta = tl.zeros_like(total)
    if HYPER:
        # ∇Ω(y) = ‖y‖ r^(p−1)
        norm = ref * tl.exp(-log_kappa)
        mean_log = (sums[5] / power + log_kappa) / p
        slope = norm * own_u * ((2.0 - p) * mean_log + log_r)
        at_ref = norm * tl.exp(a * log_kappa) * ((2.0 - p) * mean_log + log_kappa)
        by_theta = tl.sum(w * (slope - at_ref), 1, keep_dims=True)
    return w, by_theta


NORM = replace(
    POWER, reach=norm_reach, slope=norm_slope, equation=norm_equation, vertex=norm_vertex,
    terms=norm_terms, whole=norm_whole, sums=norm_sums, product=norm_product,
)  # fmt: skip
HALF_NORM = replace(
    NORM, p=HALF.p, inverse=HALF.inverse, terms=half_norm_terms, a=HALF.a, covers=HALF.covers
)
NORMS = LINEAR, HALF_NORM, NORM
"""θ = p."""
