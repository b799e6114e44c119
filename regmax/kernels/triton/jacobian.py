"""The Jacobian of threshold mappings in Triton: v ↦ Jv/γ and the gradients of α and p.

With s = 1/h, h the diagonal of ∇²Ω(y), J = diag(s) − ssᵀ/Σs on the support; the p-norm's ∇²Ω also
has a rank-one term. With w = Jv the gradients are w/γ and −⟨w, ∂∇Ω(y; θ)/∂θ⟩, from y and v alone,
with one read of both and one write. The entry of the largest s is subtracted from v, and from
∂∇Ω/∂θ, as ⟨w, 1⟩ = 0. This avoids cancellation, also for s_i of very different size.

A row longer than the limit needs three launches: references, sums, products.

Sources: Peters, Niculae & Martins (2019), Prop. 2; Correia, Niculae & Martins (2019), Prop. 1.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rows import (
    ENTROPY,
    GINI,
    KINDS,
    PNORM,
    TSALLIS,
    check_device,
    chunks_of,
    exponents,
    guard,
    limit_of,
    of_row,
    parameter,
    per_row,
    power_of_2,
    shape_of,
    single,
)


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
def by_alpha(log_y, a):
    """∂∇Ω(y)/∂α up to a constant, for Tsallis. For a ≤ 1 of log_α y = (y^a − 1)/a =
    log y φ(a log y). For a > 1 of y^a/a: J is as large as y^(1−a), and a constant would cancel."""
    low = log_y * log_y * dphi(tl.minimum(a * log_y, 80.0))
    b = tl.where(a > 1, a, 1.0)
    high = tl.exp(b * log_y) * (log_y / b - 1.0 / (b * b))
    return tl.where(a > 1, high, low)


@triton.jit
def load_pair(y_ptr, v_ptr, at, v_at, inside):
    y = tl.load(y_ptr + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + v_at, mask=inside, other=0.0)
    if y.dtype != tl.float64:
        y = y.to(tl.float32)
        v = v.to(tl.float32)
    return y, tl.where(y > 0, v, 0.0)


@triton.jit
def reference(y, v, a):
    """y_r and v_r at the entry r where the curvature is least, the reference against cancellation:
    the largest entry, or the smallest for α > 2; (1, 0) without a support."""
    on = y > 0
    large = tl.max(y, 1, keep_dims=True)
    small = tl.min(tl.where(on, y, float("inf")), 1, keep_dims=True)
    ref = tl.where(large > 0, tl.where(a > 1, small, large), 1.0)
    at = tl.max(tl.where(on & (y == ref), v, -float("inf")), 1, keep_dims=True)
    return ref, tl.where(at == -float("inf"), 0.0, at)


@triton.jit
def weights(y, ref, a, KIND: tl.constexpr):
    """On the support: log y/y_r or log y, and the weights s_i/s_r = (y_i/y_r)^(1−a)."""
    on = y > 0
    log_y = tl.log(tl.where(on, y, 1.0))
    if KIND == GINI:
        s = tl.where(on, 1.0, 0.0).to(y.dtype)
    elif KIND == ENTROPY:
        s = tl.where(on, y, 0.0)
    else:
        s = tl.where(on, tl.exp((1.0 - a) * (log_y - tl.log(ref))), 0.0)
    return log_y, s


@triton.jit
def jacobian_sums(y, v, ref, v_ref, a, KIND: tl.constexpr):
    """Σs and Σs(v − v_r); for the p-norm, with ρ = y/y_r, also Σρ, Σρ(v − v_r), Σρ^p and
    Σρ^p log ρ."""
    log_y, s = weights(y, ref, a, KIND)
    u = tl.where(y > 0, v - v_ref, 0.0)
    total = tl.sum(s, 1, keep_dims=True)
    by_v = tl.sum(s * u, 1, keep_dims=True)
    first = tl.zeros_like(total)
    first_v, power, power_log = first, first, first
    if KIND == PNORM:
        log_rho = tl.where(y > 0, log_y - tl.log(ref), 0.0)
        rho = tl.where(y > 0, tl.exp(log_rho), 0.0)
        rho_p = tl.where(y > 0, tl.exp((a + 1.0) * log_rho), 0.0)
        first = tl.sum(rho, 1, keep_dims=True)
        first_v = tl.sum(rho * u, 1, keep_dims=True)
        power = tl.sum(rho_p, 1, keep_dims=True)
        power_log = tl.sum(rho_p * log_rho, 1, keep_dims=True)
    return total, by_v, first, first_v, power, power_log


@triton.jit
def jacobian_product(y, v, ref, v_ref, a, total, by_v, first, first_v, power, power_log,
                     KIND: tl.constexpr, HYPER: tl.constexpr):  # fmt: skip
    """w = Jv, and ⟨w, ∂∇Ω(y)/∂θ⟩ (0 unless HYPER)."""
    log_y, s = weights(y, ref, a, KIND)
    on = y > 0
    total = tl.where(total > 0, total, 1.0)
    u = tl.where(on, v - v_ref, 0.0) - by_v / total
    log_ref = tl.log(ref)
    if KIND == PNORM:
        # r = κρ = y/‖y‖; J = D − c D u uᵀD/(1 + c uᵀDu), D that of diag(r^(p−2)) (p−1),
        # u = r^(p−1), c = 2 − p  (Sherman–Morrison)
        p = a + 1.0
        power = tl.where(power > 0, power, 1.0)
        log_kappa = -tl.log(power) / p
        mean_u = tl.exp(a * log_kappa) * first / total
        to_v = tl.exp(log_kappa) / a * (first_v - by_v / total * first)
        to_u = tl.maximum(1.0 - first / total * first / power, 0.0) / a
        share = (2.0 - p) * to_v / (1.0 + (2.0 - p) * to_u)
        log_r = tl.where(on, log_y - log_ref + log_kappa, 0.0)
        own_u = tl.exp(a * log_r)
        scale = tl.exp((1.0 - a) * log_kappa) / a
        w = s * scale * (u - share * (own_u - mean_u))
    elif KIND == TSALLIS:
        top = 700.0 if y.dtype == tl.float64 else 88.0
        w = s * (tl.exp(tl.minimum((1.0 - a) * log_ref, top)) * u)
    else:
        w = s * u
    w = tl.where(on, w, 0.0)
    by_theta = tl.zeros_like(total)
    if HYPER:
        if KIND == PNORM:
            # ∇Ω(y) = ‖y‖ r^(p−1)
            norm = ref * tl.exp(-log_kappa)
            mean_log = (power_log / power + log_kappa) / p
            slope = norm * own_u * ((2.0 - p) * mean_log + log_r)
            at_ref = norm * tl.exp(a * log_kappa) * ((2.0 - p) * mean_log + log_kappa)
            by_theta = tl.sum(w * (slope - at_ref), 1, keep_dims=True)
        elif KIND == TSALLIS:
            slope = by_alpha(log_y, a) - by_alpha(log_ref, a)
            by_theta = tl.sum(tl.where(on, w * slope, 0.0), 1, keep_dims=True)
    return w, by_theta


@triton.jit(do_not_specialize=["rows"])
def backward_rows(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                  theta: tl.float64, theta_step, g_ptr, dtheta_ptr, rows, d, y_stride, v_stride,
                  KIND: tl.constexpr, HYPER: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows: Jv/γ and −⟨Jv, ∂∇Ω(y)/∂θ⟩."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y, v = load_pair(y_ptr, v_ptr, row * y_stride + column, row * v_stride + column, inside)
    scale = per_row(gamma_ptr, gamma, row, gamma_step, rows).to(y.dtype)
    a64, _, _ = exponents(per_row(theta_ptr, theta, row, theta_step, rows), KIND)
    a = a64.to(y.dtype)
    ref, v_ref = reference(y, v, a)
    s0, s1, s2, s3, s4, s5 = jacobian_sums(y, v, ref, v_ref, a, KIND)
    w, by_theta = jacobian_product(y, v, ref, v_ref, a, s0, s1, s2, s3, s4, s5, KIND,
                                   HYPER)  # fmt: skip
    g = tl.where(y > 0, w / scale, 0.0)
    tl.store(g_ptr + row * d + column, g.to(g_ptr.dtype.element_ty), mask=inside)
    if HYPER:
        by_theta = tl.where(s0 > 0, -by_theta.to(tl.float64), 0.0)
        tl.store(dtheta_ptr + row, by_theta, mask=row < rows)


@triton.jit
def gather_reference(refs_ptr, row, chunks, a, KIND: tl.constexpr, MAX: tl.constexpr):
    """The row's reference from those of its chunks; the weights of gini and entropy are at most 1
    and need none."""
    if (KIND == GINI) | (KIND == ENTROPY):
        return tl.zeros_like(a) + 1.0, tl.zeros_like(a)
    else:
        s = tl.arange(0, MAX)[None, :]
        has = s < chunks
        at = (row * chunks + s) * 2
        y = tl.load(refs_ptr + at, mask=has, other=0.0)
        v = tl.load(refs_ptr + at + 1, mask=has, other=0.0)
        ref, v_ref = reference(y, v, a)
        return single(ref), single(v_ref)


@triton.jit
def reference_chunks(y_ptr, v_ptr, theta_ptr, theta: tl.float64, theta_step, refs_ptr, d, chunks,
                     y_stride, v_stride, KIND: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Each program computes the reference of a chunk, with y = 0 if the chunk has no support."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    y, v = load_pair(y_ptr, v_ptr, row * y_stride + column, row * v_stride + column, column < d)
    a, _, _ = exponents(of_row(theta_ptr, theta, row, theta_step), KIND)
    ref, v_ref = reference(y, v, a.to(y.dtype))
    ref = tl.where(tl.max(y, 1, keep_dims=True) > 0, ref, 0.0)
    out = refs_ptr + (row * chunks + chunk) * 2 + tl.zeros((1, 1), tl.int64)
    tl.store(out, ref)
    tl.store(out + 1, v_ref)


@triton.jit
def sum_chunks(y_ptr, v_ptr, theta_ptr, theta: tl.float64, theta_step, refs_ptr, sums_ptr, d,
               chunks, y_stride, v_stride, KIND: tl.constexpr, CHUNK: tl.constexpr,
               MAX: tl.constexpr):  # fmt: skip
    """Each program computes the six sums of a chunk."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    y, v = load_pair(y_ptr, v_ptr, row * y_stride + column, row * v_stride + column, column < d)
    a, _, _ = exponents(of_row(theta_ptr, theta, row, theta_step), KIND)
    a = a.to(y.dtype)
    ref, v_ref = gather_reference(refs_ptr, row, chunks, a, KIND, MAX)
    s0, s1, s2, s3, s4, s5 = jacobian_sums(y, v, ref, v_ref, a, KIND)
    out = sums_ptr + (row * chunks + chunk) * 8 + tl.zeros((1, 1), tl.int64)
    tl.store(out, s0)
    tl.store(out + 1, s1)
    if KIND == PNORM:
        tl.store(out + 2, s2)
        tl.store(out + 3, s3)
        tl.store(out + 4, s4)
        tl.store(out + 5, s5)


@triton.jit
def total_of(sums_ptr, row, chunks, i: tl.constexpr, MAX: tl.constexpr):
    s = tl.arange(0, MAX)[None, :]
    part = tl.load(sums_ptr + (row * chunks + s) * 8 + i, mask=s < chunks, other=0.0)
    return tl.sum(part)


@triton.jit
def product_chunks(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                   theta: tl.float64, theta_step, refs_ptr, sums_ptr, g_ptr, parts_ptr, d, chunks,
                   y_stride, v_stride, KIND: tl.constexpr, HYPER: tl.constexpr, CHUNK: tl.constexpr,
                   MAX: tl.constexpr):  # fmt: skip
    """Each program computes Jv/γ of a chunk, and its part of the inner product."""
    chunk = tl.program_id(0) % chunks
    row = (tl.program_id(0) // chunks).to(tl.int64)
    column = (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    y, v = load_pair(y_ptr, v_ptr, row * y_stride + column, row * v_stride + column, column < d)
    scale = of_row(gamma_ptr, gamma, row, gamma_step).to(y.dtype)
    a, _, _ = exponents(of_row(theta_ptr, theta, row, theta_step), KIND)
    a = a.to(y.dtype)
    ref, v_ref = gather_reference(refs_ptr, row, chunks, a, KIND, MAX)
    s0 = total_of(sums_ptr, row, chunks, 0, MAX)
    s1 = total_of(sums_ptr, row, chunks, 1, MAX)
    s2, s3, s4, s5 = s0, s0, s0, s0
    if KIND == PNORM:
        s2 = total_of(sums_ptr, row, chunks, 2, MAX)
        s3 = total_of(sums_ptr, row, chunks, 3, MAX)
        s4 = total_of(sums_ptr, row, chunks, 4, MAX)
        s5 = total_of(sums_ptr, row, chunks, 5, MAX)
    w, by_theta = jacobian_product(y, v, ref, v_ref, a, s0, s1, s2, s3, s4, s5, KIND,
                                   HYPER)  # fmt: skip
    g = tl.where(y > 0, w / scale, 0.0)
    tl.store(g_ptr + row * d + column, g.to(g_ptr.dtype.element_ty), mask=column < d)
    if HYPER:
        out = parts_ptr + row * chunks + chunk + tl.zeros((1, 1), tl.int64)
        tl.store(out, tl.where(s0 > 0, -by_theta.to(tl.float64), 0.0))


def backward(
    kind: str,
    y: Tensor,
    v: Tensor,
    gamma: Tensor | float,
    theta: Tensor | float | None,
    hyper: bool,
    limit: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Jv/γ and, if ``hyper``, the gradient of θ per row."""
    check_device(y)
    rows, d = y.shape
    g = torch.empty((rows, d), dtype=y.dtype, device=y.device)
    # unused without ``hyper``, but a kernel needs a pointer
    dtheta = y.new_empty(rows if hyper else 1, dtype=torch.float64)
    if rows == 0:
        return g, dtheta if hyper else None
    wide = y.dtype == torch.float64
    limit = limit_of(kind, y, limit)
    by_gamma, by_theta = parameter(gamma), parameter(theta)
    strides = (y.stride(0), v.stride(0))
    with guard(y):
        if d <= limit:
            shape = shape_of(d, wide)
            backward_rows[(-(-rows // shape["ROWS"]),)](
                y, v, *by_gamma, *by_theta, g, dtheta, rows, d, *strides, KIND=KINDS[kind],
                HYPER=hyper, **shape,
            )  # fmt: skip
            return g, dtheta if hyper else None
        chunk, chunks = chunks_of(d, limit)
        size = {
            "KIND": KINDS[kind],
            "CHUNK": chunk,
            "num_warps": shape_of(chunk, wide)["num_warps"],
        }
        most = max(power_of_2(chunks), 16)
        dtype = torch.float64 if wide else torch.float32
        refs = y.new_empty((rows, chunks, 2), dtype=dtype)
        sums = y.new_empty((rows, chunks, 8), dtype=dtype)
        parts = y.new_empty((rows, chunks) if hyper else (1,), dtype=torch.float64)
        grid = (rows * chunks,)
        if kind in ("tsallis", "pnorm"):
            reference_chunks[grid](y, v, *by_theta, refs, d, chunks, *strides, **size)
        sum_chunks[grid](y, v, *by_theta, refs, sums, d, chunks, *strides, MAX=most, **size)
        product_chunks[grid](
            y, v, *by_gamma, *by_theta, refs, sums, g, parts, d, chunks, *strides, HYPER=hyper,
            MAX=most, **size,
        )  # fmt: skip
        return g, parts.sum(1) if hyper else None
