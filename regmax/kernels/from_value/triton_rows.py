"""Rows of Π_Ω for a separable Ω in Triton: :mod:`.separable` with one program for each row.

The row lies in registers. Every entry follows the power model of :mod:`.powers`, and the steps
and the certificate are the same. The functions of e are those of :mod:`.triton_source`.
"""

# mypy: disable-error-code="import-not-found, import-untyped, valid-type"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import triton
import triton.language as tl

from ..triton.rows import interpreted

EPS = tl.constexpr(2.220446049250313e-16)
FLOOR = tl.constexpr(EPS.value**2)
STEPS = tl.constexpr(30)


class _InPyTorch:
    """The functions of libdevice for Triton's interpreter, which has none."""

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            found = getattr(torch, name)(*(torch.from_numpy(a.handle.data) for a in args))
            handle = type(args[0].handle)(found.numpy(), tl.float64)
            return tl.tensor(handle, functools.reduce(operator.add, args).type)

        return call


if interpreted():
    libdevice: Any = _InPyTorch()
else:
    from triton.language.extra import libdevice  # type: ignore[no-redef]


@triton.jit
def positive(h):
    """e'', kept positive and finite."""
    return tl.where(h == h, tl.minimum(tl.maximum(h, 1e-250), 1e250), 1e-250)


@triton.jit
def exponent(y, h, c):
    """b of the power model at y, 0 for an exponential and 1 for a straight line."""
    b = 1.0 + y * c / h
    b = tl.where(tl.abs(b) < 20.0, b, tl.where(b > 0.0, 20.0, 1.0))
    rounded = tl.where((b > 0.8) & (b < 1.3), 1.0, tl.maximum(b, -3.0))
    rounded = tl.where(tl.abs(b - 0.5) < 1e-9, 0.5, rounded)
    return tl.where(tl.abs(b) < 1e-7, 0.0, rounded)


@triton.jit
def model(u, y, s, b, b0, power):
    """t of each entry at u = (z − e' − τ)/(y e''), and its first two derivatives by −τ. ``power``:
    b where all are the same, else NaN."""
    t = tl.where(u > -1.0, y * (u + 1.0), y * 0.01)
    slope = tl.where(u > -1.0, y * s, 0.0)
    bend = 0.0 * u
    if power == 0.5:
        x = u * 0.5 + 1.0
        t = tl.where(u > -2.0, y * x * x, y * 0.01)
        slope = tl.where(u > -2.0, y * s * x, 0.0)
        bend = tl.where(u > -2.0, y * s * s * 0.5, 0.0)
    elif power != 1.0:
        b = tl.where(u < 0.0, tl.minimum(b, b0), b)
        x = u * b
        inside = x > -1.0
        x = tl.where(inside, x, 0.0)
        logs = tl.where(b == 0.0, u, libdevice.log1p(x) / tl.where(b == 0.0, 1.0, b))
        t = y * libdevice.exp(tl.minimum(logs, 700.0))
        t = tl.where(inside, t, tl.where(b > 0.0, y * 0.01, 2.0))
        rate = s / (x + 1.0)
        slope = tl.where(inside, t * rate, 0.0)
        bend = slope * rate * (1.0 - b)
    return t, slope, bend


@triton.jit
def root(tau, at, at0, y, s, b, b0, power, high):
    """τ with Σ t_i(τ) = 1 in the model through y, where e' = z − at, that sum, and t, which is 0
    where τ ≥ at0."""
    low = 0.0 * tau - float("inf")
    reach = 0.0 * tau + 1.0
    total = 0.0 * tau
    t = 0.0 * y
    k = 0
    going = 1
    while going > 0:  # ends: after 100 turns by k; the certificate then tests what is left
        t, slopes, bends = model((at - tau) * s, y, s, b, b0, power)
        # t may be above 1, so that τ is where the largest entry says
        on = at0 > tau
        t = tl.where(on, tl.where(t < 2.0, t, 2.0), 0.0)
        on = on & (t < 2.0)
        total = tl.sum(t)
        slope = tl.sum(tl.where(on, slopes, 0.0))
        bend = tl.sum(tl.where(on, bends, 0.0))
        rounding = (8.0 * (total - tl.max(t)) + 2.0 + 2.0 * tl.abs(tau) * slope) * EPS
        low = tl.where(total > 1.0, tau, low)
        high = tl.where(total > 1.0, high, tl.minimum(high, tau))
        settled = tl.abs(total - 1.0) <= rounding
        settled = settled | ((high < float("inf")) & (high - low <= tl.abs(high) * EPS / 2.0))
        # a Newton step on a power of the sum
        p = 1.0 - total * bend / (slope * slope)
        p = tl.minimum(tl.maximum(p, -1.0), 1.0)
        p = tl.where(tl.abs(p) > 1e-3, p, 1e-3)
        straight = (total - 1.0) / slope
        curved = total * libdevice.expm1(-p * libdevice.log(total)) / (p * slope)
        trial = tau + tl.where(p == 1.0, straight, -curved)
        fits = (slope > 0.0) & (total > 0.0) & (low < trial) & (trial < high)
        bounded = (low > -float("inf")) & (high < float("inf"))
        reach = tl.where(fits | bounded, reach, reach * 4.0)
        beyond = tl.where(high < float("inf"), high - reach, low + reach)
        middle = tl.where(bounded, low + (high - low) / 2.0, beyond)
        newton = fits & ((k < 10) | (k % 3 != 0))
        going = tl.where(settled | (k >= 99), 0, 1)
        tau = tl.where(going > 0, tl.where(newton, trial, middle), tau)
        k += 1
    return tau, total, t


@triton.jit
def distance(y, z, g0, h, on, lo, hi, numbers, vectors, d, SLOPES: tl.constexpr,
             KINKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The bound of ``separable._distance``, +inf where there is none."""
    above = z - g0 + (tl.abs(z) + tl.abs(g0)) * (4.0 * EPS) - lo
    delta = tl.minimum(2.0 * tl.maximum(above, 0.0) / h, 1.0) + 2.0 * FLOOR
    delta = tl.where(y >= 2.0 * FLOOR, 2.0 * (hi - lo) / h + y * (4.0 * EPS), delta)
    delta = tl.where(on, delta, 0.0)
    free = tl.arange(0, BLOCK) == tl.argmax(delta, 0)
    asked = on & (delta > 2.0 * FLOOR) & (free == 0)
    if not KINKED:
        asked = asked & (delta > 1e-4 * y)
    missed = 0
    for side in range(2):
        left = asked.to(tl.int32)
        sign = 1.0 - 2.0 * side
        k = 0
        while (tl.max(left) > 0) & (k < 40):  # ends: k < 40; what is left then has no bound
            end = y + sign * delta
            inside = (left > 0) & (end < 1.0) & (end > 0.0)
            slope, _, _ = SLOPES(tl.maximum(tl.minimum(end, 1.0), FLOOR), numbers, vectors, d)
            beyond = (sign * (z - slope)) <= sign * tl.where(side == 0, lo, hi)
            left = (inside & (beyond == 0)).to(tl.int32)
            delta = tl.where(left > 0, delta * 4.0, delta)
            k += 1
        missed += tl.max(left)
    rest = tl.sum(tl.where(free, 0.0, delta)) + 2.0 * EPS
    delta = tl.minimum(tl.where(free, rest, delta), 1.0)
    return tl.where(missed > 0, float("inf"), tl.sqrt(tl.sum(delta * delta)))


@triton.jit
def forward(x_ptr, mask_ptr, gamma_ptr, numbers_ptr, vectors_ptr, y_ptr, bound_ptr, d, x_stride,
            mask_stride, gamma_step, numbers_step, vectors_step, SLOPES: tl.constexpr,
            HAS_MASK: tl.constexpr, KINKED: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y = Π_Ω(x) and the bound of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place = tl.minimum(column, d - 1)
    numbers = numbers_ptr + row * numbers_step + tl.arange(0, 1)
    vectors = vectors_ptr + row * vectors_step + place
    on = column < d
    if HAS_MASK:
        on = on & (tl.load(mask_ptr + row * mask_stride + place) != 0)
    x = tl.load(x_ptr + row * x_stride + place)
    scale = 1.0 / tl.load(gamma_ptr + row * gamma_step)
    top = tl.max(tl.where(on, x, -float("inf")))
    z = tl.where(on, (x - top) * scale, 0.0)
    # no y_i is above 1, so τ ≥ z_i − e'(1)
    one = tl.full([1], 1.0, tl.float64)
    g1, h1, _ = SLOPES(one, numbers, vectors, d)
    g0, h0, c0 = SLOPES(one * FLOOR, numbers, vectors, d)
    bent = (h1 < 0.0) | (h0 < 0.0) | (g1 < g0) | (g0 != g0)
    wrong = tl.max((on & bent).to(tl.int32))
    b0 = exponent(one * FLOOR, positive(h0), c0)
    at0 = tl.where(b0 <= 0.0, float("inf"), z - g0)  # e'(0) is −∞
    on = on & (at0 >= tl.max(tl.where(on & (g1 < float("inf")), z - g1, -float("inf"))))
    at0 = tl.where(on, at0, -float("inf"))
    high = tl.max(at0)
    count = tl.sum(on.to(tl.int32))
    if count == 0:
        wrong = 1
    y = tl.where(on, 1.0 / tl.maximum(count, 1).to(tl.float64), 0.0)
    h = 0.0 * y
    tau = 0.0 * scale
    before = tau + float("inf")
    lo = tau
    hi = tau
    step = 0
    going = 1 - wrong
    while going > 0:  # ends: at STEPS, and the bound is that of the last y
        point = tl.minimum(tl.maximum(y, FLOOR), 1.0)
        g, h, c = SLOPES(point, numbers, vectors, d)
        at = z - g
        sound = (h > 0.0) & (tl.abs(at) < float("inf"))
        sound = tl.min(tl.where(y > 0.0, sound.to(tl.int32), 1)) == 1
        if (step == 0) & (tl.min(tl.where(on, h, 1.0)) < 0.0):
            wrong = 1
        h = positive(h)
        rounding = (4.0 * (tl.abs(z) + tl.abs(g)) + h * point) * EPS
        known = y >= 2.0 * FLOOR
        noise = tl.max(tl.where(known, rounding, 0.0))
        lo = tl.min(tl.where(known, at - rounding, float("inf")))
        outside = z - g0 + (tl.abs(z) + tl.abs(g0)) * (4.0 * EPS)
        high_end = tl.where(y == 0.0, outside, at + rounding)
        hi = tl.max(tl.where(on, high_end, -float("inf")))
        fine = sound & (tl.abs(hi) < float("inf")) & (tl.abs(lo) < float("inf"))
        spread = hi - lo
        slow = (step > 5) & (spread >= 0.5 * before) & (spread < 1e-9)
        wrong = tl.where(fine | (step <= 4), wrong, 1)
        done = (fine & ((spread <= 4.0 * noise) | slow)) | (step == STEPS)
        before = tl.where(fine, spread, float("inf"))
        going = tl.where(done | (wrong > 0), 0, 1)
        if going > 0:
            b = exponent(point, h, c)
            if step == 0:
                tau = tl.max(tl.where(on, at, -float("inf")))
            power = tl.max(tl.where(on, b, -float("inf")))
            least = tl.min(tl.where(on, tl.minimum(b, b0), float("inf")))
            power = tl.where(power == least, power, float("nan"))
            tau, total, y = root(tau, at, at0, point, 1.0 / (point * h), b, b0, power, high)
            if (total > 0.0) & (total < float("inf")):
                y = y / total
            else:
                wrong = 1
                going = 0
        step += 1
    total = tl.sum(y)
    bound = tl.abs(total - 1.0)
    bound += distance(y, z, g0, h, on, lo, hi, numbers, vectors, d, SLOPES, KINKED, BLOCK)
    tl.store(bound_ptr + row, tl.where(wrong > 0, float("inf"), bound))
    tl.store(y_ptr + row * d + column, y / total, mask=column < d)


@triton.jit
def backward(y_ptr, v_ptr, gamma_ptr, numbers_ptr, vectors_ptr, dx_ptr, dnumbers_ptr, dvectors_ptr,
             d, y_stride, v_stride, gamma_step, numbers_step, vectors_step, SLOPES: tl.constexpr,
             PARTIALS: tl.constexpr, HYPER: tl.constexpr, PLAIN: tl.constexpr,
             COUNT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """J v/γ, and −⟨J v, ∂e'/∂p⟩ for the inputs p of e, of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < d
    place = tl.minimum(column, d - 1)
    numbers = numbers_ptr + row * numbers_step + tl.arange(0, 1)
    vectors = vectors_ptr + row * vectors_step + place
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0)
    v = tl.load(v_ptr + row * v_stride + column, mask=inside, other=0.0)
    on = y > 0.0
    y = tl.where(on, tl.maximum(y, 1e-154), 1.0)
    _, h, _ = SLOPES(y, numbers, vectors, d)
    # relative to the entry of the least e'' (Peters et al. 2019, Prop. 2)
    h = tl.where(on, positive(h), float("inf"))
    least = tl.min(h)
    v = tl.where(on, v - tl.sum(tl.where(column == tl.argmin(h, 0), v, 0.0)), 0.0)
    weights = least / h
    w = weights * ((v - tl.sum(weights * v) / tl.sum(weights)) / least)
    w = tl.where(on & (tl.sum(on.to(tl.int32)) > 1), w, 0.0)
    scale = 1.0 / tl.load(gamma_ptr + row * gamma_step)
    tl.store(dx_ptr + row * d + column, w * scale, mask=inside)
    if HYPER:
        partials = PARTIALS(y, numbers, vectors, d)
        for k in tl.static_range(PLAIN):
            product = tl.where(on, w * partials[k], 0.0)
            tl.store(dnumbers_ptr + row * (PLAIN + 1) + k, -tl.sum(product))
        for k in tl.static_range(COUNT):
            product = tl.where(on, w * partials[PLAIN + k], 0.0)
            at = row * (COUNT * d + 1) + k * d + column
            tl.store(dvectors_ptr + at, -product, mask=inside)


@triton.jit
def slopes_at(y_ptr, numbers_ptr, vectors_ptr, g_ptr, h_ptr, d, numbers_step, vectors_step,
              SLOPES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """e' and e'' of each entry of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place = tl.minimum(column, d - 1)
    numbers = numbers_ptr + row * numbers_step + tl.arange(0, 1)
    vectors = vectors_ptr + row * vectors_step + place
    g, h, _ = SLOPES(tl.load(y_ptr + row * d + place), numbers, vectors, d)
    tl.store(g_ptr + row * d + column, g, mask=column < d)
    tl.store(h_ptr + row * d + column, h, mask=column < d)
