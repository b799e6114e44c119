"""Elementary functions of :mod:`regmax.kernels.cpu.simd` vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import simd
from .jit import Function, intrinsic, njit


class Either(Function):
    """A function of vectors with one code for float32 and another for float64: the dtype of the
    first vector counts, or that of another ``place``."""

    def __init__(self, single: Function, double: Function, place: int = 0) -> None:
        super().__init__(double.function)
        self.single, self.double, self.place = single, double, place

    def typed(self, context: Any, kinds: tuple[Any, ...]) -> Any:
        single = kinds[self.place].dtype == types.float32
        return (self.single if single else self.double).typed(context, kinds)


MAGIC = 1.5 * 2.0**52  # x + MAGIC − MAGIC is x rounded, and its lowest bits are that integer
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


@intrinsic
def cbrt(typingctx: Any, x: Any) -> Any:
    """∛x of a number, by the C library."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
        function = cgutils.get_or_insert_function(builder.module, kind, "cbrt")
        return builder.call(function, args)

    return types.float64(types.float64), code


@intrinsic
def multiply_add(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c of numbers, rounded as it is for vectors: once, where the processor can."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.f64")
        return builder.call(function, args)

    return types.float64(types.float64, types.float64, types.float64), code


@njit
def exp(x: Any) -> Any:
    """e^x, to about one rounding, for x ≤ 709; 0 below −708."""
    # x = k log 2 + r with |r| ≤ log(2)/2, and the Taylor series of e^r
    small = x < -708.0
    x = simd.larger(x, -708.0)
    shifted = x * 1.4426950408889634 + MAGIC
    k = shifted - MAGIC
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = r * 1.6059043836821613e-10 + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return simd.select(
        small,
        simd.spread(x, 0.0),
        p * simd.from_bits(simd.shift_left(simd.add_int(simd.as_bits(shifted), 1023), 52)),
    )


@njit
def log(x: Any) -> Any:
    """log x, to about one rounding, for normal x > 0."""
    # x = 2^k m, √½ ≤ m < √2, and log m = 2 artanh s, s = (m − 1)/(m + 1)
    bits_of = simd.as_bits(x)
    shifted = simd.sub_int(bits_of, 0x3FE6A09E667F3BCD)
    k = simd.shift_right(shifted, 52)
    m = simd.from_bits(simd.sub_int(bits_of, simd.shift_left(k, 52)))
    number = simd.to_float(k)
    f = m - 1.0
    s = f / (m + 1.0)
    t = s * s
    p = t * 0.10526315789473684 + 0.11764705882352941
    p = p * t + 0.13333333333333333
    p = p * t + 0.15384615384615385
    p = p * t + 0.18181818181818182
    p = p * t + 0.2222222222222222
    p = p * t + 0.2857142857142857
    p = p * t + 0.4
    p = p * t + 0.6666666666666666
    # log m = f − s (f − t p) − …: 2 s = f − s f
    return number * LN2_HIGH + (f - (s * (f - t * p) - number * LN2_LOW))


@njit
def _any_exp64(x: Any) -> Any:
    y = simd.select(x == x, exp(simd.smaller(x, 709.0)), x)
    if simd.count(x > 709.0) > 0:
        large = exp(simd.smaller(x - 1.0, 709.0)) * 2.718281828459045
        large = simd.select(x > 709.782712893384, simd.spread(x, np.inf), large)
        y = simd.select(x > 709.0, large, y)
    return y


@njit
def _any_log64(x: Any) -> Any:
    small = x < 2.2250738585072014e-308
    y = log(simd.select(small, x * 18014398509481984.0, x))
    y = simd.select(small, y - 37.42994775023705, y)
    y = simd.select(x < np.inf, y, x)
    y = simd.select(x == 0.0, simd.spread(x, -np.inf), y)
    return simd.select(x < 0.0, simd.spread(x, np.nan), y)


@njit
def exp32(x: Any) -> Any:
    """e^x of float32, to about one rounding, for x ≤ 88; e^−87 below −87."""
    x = simd.larger(x, -87.0)
    shifted = x * 1.44269504 + 12582912.0
    k = shifted - 12582912.0
    r = (x - k * 0.693359375) - k * -2.12194440e-4
    t = r * r
    p = (t * 0.0013888889 + (r * 0.008333334 + 0.041666666)) * t + (r * 0.16666667 + 0.5)
    p = p * t + (r + 1.0)
    return p * simd.from_bits32(simd.shift_left(simd.add_int(simd.as_bits32(shifted), 127), 23))


@njit
def _any_exp32(x: Any) -> Any:
    y = exp32(simd.smaller(x, 88.0))
    return simd.select(x > 88.0, simd.spread(x, np.inf), simd.select(x == x, y, x))


@njit
def _any_log32(x: Any) -> Any:
    y = log32(simd.larger(x, 1.2e-38))
    y = simd.select(x < np.inf, simd.select(x == 0.0, simd.spread(x, -np.inf), y), x)
    return simd.select(x < 0.0, simd.spread(x, np.nan), y)


@njit
def exps32(x: Any) -> tuple[Any, Any]:
    """e^x and e^x − 1 of float32, each to about one rounding, for |x| ≤ 87."""
    shifted = x * 1.44269504 + 12582912.0
    k = shifted - 12582912.0
    r = (x - k * 0.693359375) - k * -2.12194440e-4
    t = r * r
    p = (t * 0.0013888889 + (r * 0.008333334 + 0.041666666)) * t + (r * 0.16666667 + 0.5)
    p = p * t + r
    power = simd.from_bits32(simd.shift_left(simd.add_int(simd.as_bits32(shifted), 127), 23))
    return p * power + power, p * power + (power - 1.0)


@njit
def log32(x: Any) -> Any:
    """log x of float32, to about one rounding, for normal x > 0."""
    bits_of = simd.as_bits32(x)
    shifted = simd.sub_int(bits_of, 0x3F3504F3)
    k = simd.shift_right(shifted, 23)
    m = simd.from_bits32(simd.sub_int(bits_of, simd.shift_left(k, 23)))
    f = m - 1.0
    # log(1 + f) = f + f² p, p a minimax polynomial by pairs, which wait less for each other
    t = f * f
    p = (f * 0.0873483633 - 0.14307519) * t + (f * 0.149179747 - 0.165705086)
    q = (f * 0.199620721 - 0.250017552) * t + (f * 0.333339502 - 0.499999916)
    p = p * (t * t) + q
    number = simd.to_float32(k)
    return number * 0.693359375 + (p * t + (number * -2.12194440e-4 + f))


any_exp, any_log = Either(_any_exp32, _any_exp64), Either(_any_log32, _any_log64)
"""e^x, 0 below −708 (below −87 in float32 at least e^−87), and log x of any numbers; log of a
subnormal number only in float64."""


@njit
def log2_32(x: Any) -> Any:
    """log₂ x of float32, to about one rounding, for normal x > 0."""
    bits_of = simd.as_bits32(x)
    k = simd.shift_right(simd.sub_int(bits_of, 0x3F3504F3), 23)
    f = simd.from_bits32(simd.sub_int(bits_of, simd.shift_left(k, 23))) - 1.0
    # log₂(1 + f) = f p, p a minimax polynomial for √½ ≤ 1 + f < √2
    p = f * 0.129264369 - 0.20893385
    p = p * f + 0.215212243
    p = p * f - 0.238675675
    p = p * f + 0.287939095
    p = p * f - 0.360716264
    p = p * f + 0.48091028
    p = p * f - 0.721347199
    p = p * f + 1.442695005
    return f * p + simd.to_float32(k)


@njit
def exp2_32(x: Any) -> Any:
    """2^x of float32, to about one rounding, for x < 128; 2^−125 below −125."""
    x = simd.larger(x, -125.0)
    shifted = x + 12582912.0
    r = x - (shifted - 12582912.0)
    p = r * 1.53458121e-4 + 1.33999312e-3
    p = p * r + 9.61848896e-3
    p = p * r + 0.0555032878
    p = p * r + 0.240226469
    p = p * r + 0.693147206
    p = p * r + 1.0
    k = simd.shift_left(simd.as_bits32(shifted), 23)
    return simd.from_bits32(simd.add_int(simd.as_bits32(p), k))


@njit
def rough_power(x: Any, p: Any) -> Any:
    """x^p of float32 for normal x > 0, to 3e-6 + 2e-6·|p| in relative terms; 2^−125 below it."""
    bits_of = simd.as_bits32(x)
    k = simd.shift_right(simd.sub_int(bits_of, 0x3F3504F3), 23)
    f = simd.from_bits32(simd.sub_int(bits_of, simd.shift_left(k, 23))) - 1.0
    # as log2_32 and exp2_32, with minimax polynomials of lower degree
    log = f * -0.20659184 + 0.32215492
    log = log * f - 0.36748999
    log = log * f + 0.47934801
    log = log * f - 0.72113186
    log = log * f + 1.44271348
    x = simd.larger((f * log + simd.to_float32(k)) * p, -125.0)
    shifted = x + 12582912.0
    r = x - (shifted - 12582912.0)
    power = r * 0.0095701 + 0.05591786
    power = power * r + 0.24024745
    power = power * r + 0.69312181
    power = power * r + 0.99999926
    k = simd.shift_left(simd.as_bits32(shifted), 23)
    return simd.from_bits32(simd.add_int(simd.as_bits32(power), k))


@njit
def log1p(u: Any) -> Any:
    """log(1 + u) for u > −1, with a relative error of about one rounding, also for small u."""
    w = u + 1.0
    return log(w) + (u - (w - 1.0)) / w


@njit
def any_log1p(u: Any) -> Any:
    """log(1 + u) of any numbers."""
    w = u + 1.0
    rest = simd.select((w > 0.0) & (w < np.inf), (u - (w - 1.0)) / w, 0.0)
    return any_log(w) + rest


@njit
def absolute(v: Any) -> Any:
    """|v|."""
    return simd.larger(v, 0.0 - v)


@njit
def _power32(x: Any, p: Any) -> Any:
    t = log2_32(x) * p
    return simd.select(t > -125.0, exp2_32(t), 0.0)


@njit
def _power64(x: Any, p: Any) -> Any:
    return exp(log(x) * p)


power = Either(_power32, _power64)
"""x^p of normal x > 0, in float32 or float64; 0 where it is not a normal number."""


@njit
def ratios(u: Any) -> tuple[Any, Any]:
    """φ(u) = (e^u − 1)/u and its derivative, by their series near 0."""
    power, far = exp(u), (u > 0.1) | (u < -0.1)
    w, v = simd.select(far, simd.spread(u, 0.0), u), simd.select(far, u, 1.0)
    # φ = Σ u^k/(k+1)!, φ' = Σ (k+1) u^k/(k+2)!
    p = w * (1 / 362880) + 1 / 40320
    q = w * (9 / 3628800) + 8 / 362880
    p = p * w + 1 / 5040
    q = q * w + 7 / 40320
    p = p * w + 1 / 720
    q = q * w + 6 / 5040
    p = p * w + 1 / 120
    q = q * w + 5 / 720
    p = p * w + 1 / 24
    q = q * w + 4 / 120
    p = p * w + 1 / 6
    q = q * w + 3 / 24
    p = p * w + 1 / 2
    q = q * w + 2 / 6
    p = simd.select(far, (power - 1.0) / v, p * w + 1.0)
    return p, simd.select(far, (power - p) / v, q * w + 1 / 2)
