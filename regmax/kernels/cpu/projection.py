"""One row of P_Δ, the projection on the simplex, as a step of other kernels."""

from __future__ import annotations

from typing import Any

from . import mapping, memory, powers, simd
from .jit import njit

_single = mapping.single(powers.LINEAR)


@njit
def bound(z: Any) -> float:
    """A lower bound on τ, from sixteen entries."""
    tau = -1.0
    for _ in range(2):
        on = z > tau
        tau = (simd.total(simd.select(on, z, 0.0)) - 1.0) / simd.count(on)
    return tau


@njit(apart=True)
def forward(
    row: Any, d: int, gamma: float, z: Any, spare: Any, kept: Any, out: Any, blank: bool
) -> None:
    """out = P_Δ(row / γ); z and ``spare`` are scratch of float64, ``kept`` of the row's dtype."""
    rows = kept, kept, kept, z, memory.floats(memory.address_of(spare))
    _single(row, d, gamma, 2.0, 0.0, rows, 0, out, blank)
