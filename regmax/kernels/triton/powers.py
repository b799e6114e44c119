"""Descriptions of the mappings whose e' is a power of y in Triton: with a = θ − 1,

    e' = y^a/a,  or up to a constant (y^a − 1)/a, which is log y at a = 0.

Of softmax (a = 0), sparsemax (a = 1), a = ½, other a ≤ 1, and a > 1 (:mod:`.steep`). The host
knows which of them a number is; rows of a tensor are computed by the general one.

Sparsemax has v_i = [T − δ_i + e]₊, and T by Michelot's finite iteration (1986).
"""


# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from .equation import NEVER, Description, log1p, newton, stats, totals
from .jacobian import separable_product, separable_sums
from .rows import BIG, LOWEST, divide
from .steep import steep_inverse, steep_logarithm, steep_root


@triton.jit
def expm1(x):
    """e^x − 1, from u, the rounded e^x: (u − 1) x / log u corrects the rounding of u."""
    u = tl.exp(x)
    near = (tl.abs(x) < 0.5) & (u != 1)
    ratio = x / tl.log(tl.where(near, u, 2.0))
    return tl.where(near, (u - 1) * ratio, tl.where(u == 1, x, u - 1))


@triton.jit
def dphi(u):
    """φ'(u) = (u e^u − e^u + 1)/u², φ(u) = (e^u − 1)/u; by its series near 0."""
    near = tl.abs(u) < 1
    small = tl.where(near, u, 0.0)
    # Σ_j (j+1)/(j+2)! u^j = 1/2 Σ_j (j+1) u^j / (3·4···(j+2)), from its end
    series = tl.zeros_like(u) + 20.0
    one = tl.full((1, 1), 1.0, u.dtype)
    for i in tl.static_range(19):
        j = 18 - i
        series = (j + 1.0) + small * (one / (j + 3.0)) * series
    large = tl.where(near, 1.0, u)
    power = tl.exp(large)
    return tl.where(near, 0.5 * series, (large * power - power + 1.0) / (large * large))


@triton.jit
def logarithm_of(y):
    return tl.log(tl.where(y > 0, y, 1.0))


# powers


@triton.jit
def base_of(delta, c, e):
    """1 − cδ + e where positive, and where that is."""
    near = tl.minimum(delta, BIG)
    base = tl.fma(tl.zeros_like(delta) - c, near, tl.zeros_like(delta) + 1.0) + e
    on = (base > 0) & (delta < float("inf"))
    return tl.where(on, base, 0.0), on


@triton.jit
def power(x, u, base, on, k):
    """base^k where ``on`` by log1p, base = 1 + x, e^u if k = 0; and the same over base."""
    safe = tl.where(on, base, 1.0)
    v = tl.where(on, tl.exp(tl.where(k == 0, u, k * log1p(x, safe))), 0.0)
    return v, v / safe


@triton.jit
def power_p(u, n):
    u = tl.maximum(u, LOWEST)  # a · −∞ is NaN at a = 0
    x = u * n[0]
    base = tl.maximum(1.0 + x, 0.0)
    on = base > 0
    v, t = power(tl.where(on, x, 0.0), u, base, on, n[1])
    return v, t, tl.where(on, t / tl.where(on, base, 1.0), 0.0), base


@triton.jit
def power_inverse(delta, c, e, n):
    base, on = base_of(delta, c, e)
    near = tl.where(on, tl.minimum(delta, BIG), 0.0)
    x = tl.fma(tl.zeros_like(near) - c, near, tl.zeros_like(near) + e)
    v, t = power(x, -near, base, on, n[1])
    return v, t, base


@triton.jit
def half_p(u, n):
    base = tl.maximum(1.0 + u * 0.5, 0.0)
    return base * base, base, tl.where(base > 0, 1.0, 0.0), base


@triton.jit
def half_inverse(delta, c, e, n):
    base, _ = base_of(delta, c, e)
    return base * base, base, base


@triton.jit
def power_reach(n):
    a = n[0]
    # y_i ≤ e^(−δ_i) for a ≥ 0
    reach = tl.where(a == 0, 800.0, tl.minimum(1.001 * n[1], 800.0))
    return tl.where(a < 0, float("inf"), reach)


@triton.jit
def power_slope(t, a):
    return a * tl.exp(-a * t)


@triton.jit
def power_equation(t, n, sums):
    slope = sums[0] / sums[1]
    return t + tl.log(sums[1]), slope, n[1] * slope


@triton.jit
def power_logarithm(delta, c, e, n, total):
    a, k = n[0], n[1]
    base = 1.0 - c * delta + e
    on = base > 0
    change = tl.where(on, e - c * delta, 0.0)  # next to α = 1 it is below the rounding of base
    log_v = tl.where(a == 0, -delta, k * log1p(change, 1.0 + change))
    below = tl.where(on, 0.0, delta - (1.0 + e) / tl.where(on, 1.0, c))
    return tl.where(on, log_v - tl.log(total), -float("inf")), below


@triton.jit
def power_vertex(r, s, log_y, near, a):
    rest = tl.where(near, r, 1.0 - tl.exp(log_y))
    some = tl.where(a == 0, 1.0, a)
    change = expm1(some * log_y + log1p(some * rest, 1.0 + some * rest))
    return tl.where(a == 0, -log_y, s / (a + 1.0) - change / (some * (a + 1.0)))


@triton.jit
def power_terms(t, a):
    log = logarithm_of(t)
    power = tl.where(a == 0, log, expm1(a * log) / tl.where(a == 0, 1.0, a))
    return t * power


@triton.jit
def power_whole(h, s, log_y, a):
    top = tl.where(a == 0, log_y, expm1(a * log_y) / tl.where(a == 0, 1.0, a))
    return (h + tl.where(a == 0, 0.0, s - 1.0)) / (a + 1.0) - top


@triton.jit
def half_terms(t, a):
    return 2.0 * (t * tl.sqrt(t) - t)


@triton.jit
def power_weight(y, off, a):
    return tl.exp((1.0 - a) * off)


@triton.jit
def power_rate(log_y, a):
    """For a ≤ 1 of log_a y = log y φ(a log y). For a > 1 of y^a/a: J is as large as y^(1−a), and a
    constant would cancel."""
    low = log_y * log_y * dphi(tl.minimum(a * log_y, 80.0))
    b = tl.where(a > 1, a, 1.0)
    high = tl.exp(b * log_y) * (log_y / b - 1.0 / (b * b))
    return tl.where(a > 1, high, low)


# softmax


@triton.jit
def exp_p(u, n):
    v = tl.exp(u)
    return v, v, v, tl.zeros_like(v) + 1.0


@triton.jit
def exp_inverse(delta, c, e, n):
    v = tl.exp(-delta)
    return v, v, tl.zeros_like(v) + 1.0


@triton.jit
def exp_root(held, n, count, active, OWN: tl.constexpr, N: tl.constexpr):
    total = tl.maximum(tl.sum(tl.exp(-held[0]), 1, keep_dims=True), 1.0)
    return n[0], n[0], total


@triton.jit
def exp_weight(y, off, a):
    return y


# sparsemax


@triton.jit
def linear_p(u, n):
    v = tl.maximum(1.0 + u, 0.0)
    return v, tl.where(v > 0, 1.0, 0.0), tl.zeros_like(v), v


@triton.jit
def linear_inverse(delta, c, e, n):
    v = tl.where(delta < c, tl.maximum((c - delta) + e, 0.0), 0.0)
    return v, tl.where(v > 0, 1.0, 0.0).to(v.dtype), v


@triton.jit
def linear_sums(delta, q, OWN: tl.constexpr):
    """How many δ are below T, their sum, and Σ (T − δ + e)."""
    t, e = q
    on = delta < t
    ones = tl.where(on, 1.0, 0.0).to(delta.dtype)
    return totals(ones, tl.where(on, delta, 0.0), tl.where(on, (t - delta) + e, 0.0))


@triton.jit
def michelot(held, n, count, active, OWN: tl.constexpr, N: tl.constexpr):
    """T from above, so that supports only shrink: T ← (1 + Σ_S δ)/|S| until it no longer falls."""
    zero = tl.zeros_like(n[1])
    t = zero + 1.0
    # ends: t falls only if the support has shrunk, as equal supports have equal sums
    while tl.max(active) > 0:
        size, total, _ = stats(held, (t, zero), linear_sums, OWN, N)
        following = divide(1.0 + total, tl.maximum(size, 1.0))
        falls = (following < t) & (active > 0)
        t = tl.where(falls, following, t)
        active = falls.to(tl.int32)
    size, _, total = stats(held, (t, zero), linear_sums, OWN, N)
    # the rounding error, less than the last bit of T
    e = (1.0 - total) / tl.maximum(size, 1.0)
    _, _, total = stats(held, (t, e), linear_sums, OWN, N)
    size = tl.minimum(tl.maximum(1.0 / t, 1.0), 1e6)
    # no division where the sum is 1 up to rounding: 1/d stays 1/d
    close = tl.abs(total - 1.0) <= (2e-16 if t.dtype == tl.float64 else 1.2e-7) * tl.sqrt(size)
    return t, e, tl.where(close, 1.0, total)


@triton.jit
def linear_logarithm(delta, c, e, n, total):
    return logarithm_of((c - delta) + e), tl.maximum(delta - (c + e), 0.0)


@triton.jit
def linear_vertex(r, s, log_y, near, a):
    return 0.5 * (r * r + s)


@triton.jit
def linear_terms(t, a):
    return t * t - t


@triton.jit
def linear_weight(y, off, a):
    return tl.zeros_like(y) + 1.0


POWER = Description(
    power_p, power_inverse, power_reach, power_slope, power_equation, newton, power_logarithm,
    power_vertex, power_terms, power_whole, power_weight, power_rate, separable_sums,
    separable_product, pack=1024,
)  # fmt: skip
"""A number a < 1."""
HALF = replace(
    POWER, p=half_p, inverse=half_inverse, terms=half_terms, a=0.5,
    covers=lambda theta: theta == 1.5,
)  # fmt: skip
EXP = replace(
    POWER, p=exp_p, inverse=exp_inverse, root=exp_root, weight=exp_weight, a=0.0,
    covers=lambda theta: theta == 1, scales=True, relative=False, limit=16384,
    pack=NEVER,
)  # fmt: skip
LINEAR = replace(
    POWER, p=linear_p, inverse=linear_inverse, root=michelot, logarithm=linear_logarithm,
    vertex=linear_vertex, terms=linear_terms, weight=linear_weight, a=1.0,
    covers=lambda theta: theta == 2, linear=True, relative=False,
    limit=16384, pack=NEVER,
)  # fmt: skip
STEEP = replace(
    POWER, inverse=steep_inverse, root=steep_root, logarithm=steep_logarithm,
    covers=lambda alpha: alpha > 2, precise=True,
)  # fmt: skip
"""a > 1."""
MIXED = replace(POWER, beyond=STEEP)
"""Any a, one for each row."""
TSALLIS = EXP, HALF, LINEAR, STEEP, POWER, MIXED
"""θ = α. The last one takes a tensor."""
