"""The Jacobian of threshold mappings in Triton: v ↦ Jv/γ and the gradients of α and p.

With s = 1/h, h the diagonal of ∇²Ω(y), J = diag(s) − ssᵀ/Σs on the support of a separable Ω; that
of the p-norm is in :mod:`.norms`. With w = Jv the gradients are w/γ and −⟨w, ∂∇Ω(y; θ)/∂θ⟩, from y
and v alone, with one read of both and one write. The entry of the largest s is subtracted from v,
and from ∂∇Ω/∂θ, as ⟨w, 1⟩ = 0. This avoids cancellation, also for s_i of very different size.

A row longer than the limit is read three times: for the reference, the sums and the products.

Sources: Peters, Niculae & Martins (2019), Prop. 2; Correia, Niculae & Martins (2019), Prop. 1.
"""


# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .equation import Description, numbers
from .rows import (
    check_device,
    guard,
    limit_of,
    of_row,
    parameter,
    part_of,
    per_row,
    shape_of,
)


@triton.jit
def load_pair(y_ptr, v_ptr, at, v_at, inside):
    y = tl.load(y_ptr + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + v_at, mask=inside, other=0.0)
    if y.dtype != tl.float64:
        y = y.to(tl.float32)
        v = v.to(tl.float32)
    return y, tl.where(y > 0, v, 0.0)


@triton.jit
def flattest(y, v, a):
    """y_r and v_r at the entry r where the curvature is least: the largest entry, or the smallest
    for α > 2. Without a support y_r is 0 or ∞."""
    on = y > 0
    large = tl.max(y, 1, keep_dims=True)
    small = tl.min(tl.where(on, y, float("inf")), 1, keep_dims=True)
    ref = tl.where(a > 1, small, large)
    return ref, tl.max(tl.where(on & (y == ref), v, -float("inf")), 1, keep_dims=True)


@triton.jit
def reference(ref, at):
    """:func:`flattest` of a row, the reference against cancellation; (1, 0) without a support."""
    some = (ref > 0) & (ref < float("inf"))
    return tl.where(some, ref, 1.0), tl.where(at == -float("inf"), 0.0, at)


@triton.jit
def weights(y, log_ref, a, OWN: tl.constexpr):
    """On the support: log(y/y_r), and s_i over s_r, or s_i itself."""
    on = y > 0
    off = tl.where(on, tl.log(tl.where(on, y, 1.0)) - log_ref, 0.0)
    return off, tl.where(on, OWN.weight(y, off, a), 0.0).to(y.dtype)


@triton.jit
def separable_sums(y, v, ref, v_ref, a, OWN: tl.constexpr):
    """Σs and Σs(v − v_r)."""
    _, s = weights(y, tl.log(ref), a, OWN)
    u = tl.where(y > 0, v - v_ref, 0.0)
    return tl.sum(s, 1, keep_dims=True), tl.sum(s * u, 1, keep_dims=True)


@triton.jit
def separable_product(y, v, ref, v_ref, a, sums, OWN: tl.constexpr, HYPER: tl.constexpr):
    on, log_ref = y > 0, tl.log(ref)
    _, s = weights(y, log_ref, a, OWN)
    u = tl.where(on, v - v_ref, 0.0) - sums[1] / tl.where(sums[0] > 0, sums[0], 1.0)
    if OWN.relative:
        top = 700.0 if y.dtype == tl.float64 else 88.0
        u = tl.exp(tl.minimum((1.0 - a) * log_ref, top)) * u
    w = tl.where(on, s * u, 0.0)
    by_theta = tl.zeros_like(ref)
    if HYPER:
        slope = OWN.rate(tl.log(tl.where(on, y, 1.0)), a) - OWN.rate(log_ref, a)
        by_theta = tl.sum(tl.where(on, w * slope, 0.0), 1, keep_dims=True)
    return w, by_theta


@triton.jit
def stored(w, by_theta, sums, scale, g_at, dtheta_at, inside, here, HYPER: tl.constexpr):
    """Writes Jv/γ of a tile, and −⟨Jv, ∂∇Ω(y)/∂θ⟩ of rows that are ``here``."""
    tl.store(g_at, (w / scale).to(g_at.dtype.element_ty), mask=inside)
    if HYPER:
        by_theta = tl.where(sums[0] > 0, -by_theta.to(tl.float64), 0.0)
        tl.store(dtheta_at, by_theta, mask=here)


@triton.jit(do_not_specialize=["rows"])
def backward_rows(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                  theta: tl.float64, theta_step, g_ptr, dtheta_ptr, rows, d, y_stride, v_stride,
                  OWN: tl.constexpr, HYPER: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Each program computes ROWS rows: Jv/γ and −⟨Jv, ∂∇Ω(y)/∂θ⟩."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    y, v = load_pair(y_ptr, v_ptr, row * y_stride + column, row * v_stride + column, inside)
    scale = per_row(gamma_ptr, gamma, row, gamma_step, rows).to(y.dtype)
    _, n = numbers(per_row(theta_ptr, theta, row, theta_step, rows), y.dtype, OWN)
    ref, at = flattest(y, v, n[0])
    ref, v_ref = reference(ref, at)
    sums = OWN.sums(y, v, ref, v_ref, n[0], OWN)
    w, by_theta = OWN.product(y, v, ref, v_ref, n[0], sums, OWN, HYPER)
    stored(w, by_theta, sums, scale, g_ptr + row * d + column, dtheta_ptr + row, inside, row < rows,
           HYPER)  # fmt: skip


@triton.jit
def added(a, b):
    found = (a[0] + b[0],)
    for i in tl.static_range(1, len(a)):
        found = found + (a[i] + b[i],)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def backward_streamed(y_ptr, v_ptr, gamma_ptr, gamma: tl.float64, gamma_step, theta_ptr,
                      theta: tl.float64, theta_step, g_ptr, dtheta_ptr, d, y_stride, v_stride,
                      OWN: tl.constexpr, HYPER: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """As ``backward_rows``, one row, N entries at a time."""
    row = tl.program_id(0).to(tl.int64)
    y_at, v_at = y_ptr + row * y_stride, v_ptr + row * v_stride
    column = tl.arange(0, N)[None, :]
    y, v = load_pair(y_at, v_at, column, column, column < d)
    scale = of_row(gamma_ptr, gamma, row, gamma_step).to(y.dtype)
    _, n = numbers(of_row(theta_ptr, theta, row, theta_step), y.dtype, OWN)
    a = n[0]
    ref, at = flattest(y, v, a)
    if OWN.relative:  # else any number of the row will do
        for w in range(N, d, N):
            y, v = load_pair(y_at, v_at, w + column, w + column, w + column < d)
            other, at_other = flattest(y, v, a)
            flatter = tl.where(a > 1, other < ref, other > ref)
            ref, at = tl.where(flatter, other, ref), tl.where(flatter, at_other, at)
        y, v = load_pair(y_at, v_at, column, column, column < d)
    ref, v_ref = reference(ref, at)
    sums = OWN.sums(y, v, ref, v_ref, a, OWN)
    for w in range(N, d, N):
        y, v = load_pair(y_at, v_at, w + column, w + column, w + column < d)
        sums = added(sums, OWN.sums(y, v, ref, v_ref, a, OWN))
    one, total = tl.zeros((1, 1), tl.int64), tl.zeros((1, 1), tl.float64)
    for w in range(0, d, N):
        inside = w + column < d
        y, v = load_pair(y_at, v_at, w + column, w + column, inside)
        product, by_theta = OWN.product(y, v, ref, v_ref, a, sums, OWN, HYPER)
        total += by_theta.to(tl.float64)
        stored(product, total, sums, scale, g_ptr + row * d + w + column, dtheta_ptr + row + one,
               inside, one == 0, HYPER)  # fmt: skip


def backward(
    own: Description,
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
    limit = limit_of(own.limit, y, limit)
    by_gamma, by_theta = parameter(gamma), parameter(theta)
    strides = (y.stride(0), v.stride(0))
    with guard(y):
        if d <= limit:
            shape = shape_of(d, wide)
            backward_rows[(-(-rows // shape["ROWS"]),)](
                y, v, *by_gamma, *by_theta, g, dtheta, rows, d, *strides, OWN=own,
                HYPER=hyper, **shape,
            )  # fmt: skip
            return g, dtheta if hyper else None
        backward_streamed[(rows,)](
            y, v, *by_gamma, *by_theta, g, dtheta, d, *strides, OWN=own, HYPER=hyper,
            **part_of(limit),
        )  # fmt: skip
        return g, dtheta if hyper else None
