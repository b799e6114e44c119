"""sq-pnorm-max on the CPU: ∇Ω = ‖y‖^(2−p) y^a, a = p − 1, so that y is a multiple of (e')⁻¹ of
(z − τ)/a for e' = y^a/a and z = x/γ (the conditions of Niculae & Blondel 2017, §3.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regmax.kernels.cpu import elementary, mapping, simd
from regmax.kernels.cpu.elementary import Either
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.job import LEAST
from regmax.kernels.cpu.powers import HALF, LINEAR, POWER, PRECISE


@njit
def _factor(p: float) -> float:
    return 1.0 / (p - 1.0)


@njit
def _rate32(y: Any, p: Any) -> tuple[Any, Any]:
    t = elementary.log32(simd.larger(y, 1.2e-38))
    return elementary.exp32(t * (2.0 - p)), t * y


@njit
def _rate64(y: Any, p: Any) -> tuple[Any, Any]:
    t = elementary.log(simd.larger(y, 2.3e-308))
    return elementary.exp(t * (2.0 - p)), t * y


@njit
def _is_precise(p: float) -> bool:
    return 1.0 < p <= 1.0 + LEAST


own = {"norm": True, "factor": _factor, "rate": Either(_rate32, _rate64)}
half, power, linear = (replace(each, **own) for each in (HALF, POWER, LINEAR))
precise = replace(PRECISE, covers=_is_precise, **own)
forward_half, backward_half = mapping.functions(half, theta=True)
forward_power, backward_power = mapping.functions(power, theta=True)
forward_linear, backward_linear = mapping.functions(linear, theta=True)
forward, backward = mapping.functions(half, power, replace(linear, widest=0), precise, theta=True)
