"""sq-pnorm-max on the CPU, from its descriptions: ∇Ω = ‖y‖^(2−p) y^(p−1).

    y = p(u)/Σp(u),  u = z − τ,  p(u) = u₊^q,  q = 1/(p − 1),  Σp(u) (Σ u p(u))^((p−2)/p) = 1,

for z = x/γ (the conditions of Niculae & Blondel 2017, §3.1, solved for one scalar).
"""

from __future__ import annotations

from typing import Any

from regmax.kernels.cpu import elementary, mapping, simd
from regmax.kernels.cpu.elementary import Either, exp, log
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import larger, select, spread
from regmax.kernels.cpu.threshold import Description

LEAST = 1.05
"""Below this p, powers lose digits."""


def powers(power: Any) -> tuple[Any, Any]:
    """p and p', and the derivatives of y^p/(p (p − 1))."""

    @njit
    def inverse(u: Any, p: Any) -> tuple[Any, Any]:
        q, t = 1.0 / (p - 1.0), larger(u, 1e-30)
        dy = select(t > 1e-30, power(t, q - 1.0), 0.0)
        return dy * t, dy * q

    @njit
    def slope(y: Any, p: Any) -> tuple[Any, Any]:
        h = power(y, p - 2.0)
        return h * y / (p - 1.0), h

    return inverse, slope


@njit
def _weight32(y: Any, p: Any) -> Any:
    return elementary.power(larger(y, 1.2e-38), 2.0 - p)


@njit
def _weight64(y: Any, p: Any) -> Any:
    return exp(log(larger(y, 2.3e-308)) * (2.0 - p))


@njit
def _rate32(y: Any, p: Any) -> tuple[Any, Any]:
    t = elementary.log32(larger(y, 1.2e-38))
    return elementary.exp32(t * (2.0 - p)), t * y


@njit
def _rate64(y: Any, p: Any) -> tuple[Any, Any]:
    t = log(larger(y, 2.3e-308))
    return exp(t * (2.0 - p)), t * y


@njit
def _bend(p: Any) -> Any:
    return p - 1.0


@njit
def _between(p: float) -> bool:
    return LEAST < p < 2.0


POWER = Description(
    *powers(elementary.power), Either(_weight32, _weight64), Either(_rate32, _rate64),
    covers=_between, bend=_bend, rough=powers(elementary.rough_power), norm=True, corrected=True,
)  # fmt: skip


@njit
def _half_inverse(u: Any, p: Any) -> tuple[Any, Any]:
    t = larger(u, 0.0)
    return t * t, t * 2.0


@njit
def _half_slope(y: Any, p: Any) -> tuple[Any, Any]:
    s = simd.sqrt(y)
    return s * 2.0, 1.0 / s


@njit
def _half_weight(y: Any, p: Any) -> Any:
    return simd.sqrt(y)


@njit
def _is_half(p: float) -> bool:
    return p == 1.5


HALF = Description(
    _half_inverse, _half_slope, _half_weight, POWER.rate, covers=_is_half, bend=0.5, norm=True,
    widest=1024,
)  # fmt: skip


@njit
def _two_inverse(u: Any, p: Any) -> tuple[Any, Any]:
    return larger(u, 0.0), select(u > 0.0, spread(u, 1.0), 0.0)


@njit
def _two_slope(y: Any, p: Any) -> tuple[Any, Any]:
    return y, spread(y, 1.0)


@njit
def _two_weight(y: Any, p: Any) -> Any:
    return spread(y, 1.0)


@njit
def _is_two(p: float) -> bool:
    return p == 2.0


TWO = Description(
    _two_inverse, _two_slope, _two_weight, POWER.rate, covers=_is_two, norm=True, cheap=True,
    widest=0,
)  # fmt: skip


@njit
def _log_inverse(u: Any, p: Any) -> tuple[Any, Any]:
    """(1 + au)₊^(1/a), a = p − 1, for scores that are divided by a."""
    a = p - 1.0
    t = u * a
    inside = t > -1.0
    t = select(inside, t, 0.0)
    v = select(inside, exp(elementary.log1p(t) / a), 0.0)
    return v, v / (t + 1.0)


@njit
def _log_weight32(y: Any, p: Any) -> Any:
    return simd.narrow(_weight64(simd.wide(y), simd.wide(p)))


@njit
def _log_rate32(y: Any, p: Any) -> tuple[Any, Any]:
    w, rate = _rate64(simd.wide(y), simd.wide(p))
    return simd.narrow(w), simd.narrow(rate)


@njit
def _zero(p: Any) -> Any:
    return spread(p, 0.0)


@njit
def _log_zero(p: float) -> float:
    return -1.0 / (p - 1.0)


@njit
def _factor(p: float) -> float:
    return 1.0 / (p - 1.0)


@njit
def _below(p: float) -> bool:
    return 1.0 < p <= LEAST


PRECISE = Description(
    _log_inverse, POWER.slope, Either(_log_weight32, _weight64), Either(_log_rate32, _rate64),
    _zero, _log_zero, _below, bend=0.0, norm=True, precise=True, factor=_factor, widest=0,
)  # fmt: skip

forward_half, backward_half = mapping.functions(HALF, theta=True)
forward_power, backward_power = mapping.functions(POWER, theta=True)
forward, backward = mapping.functions(HALF, POWER, TWO, PRECISE, theta=True)
