"""The kernel of α-entmax on the CPU, for every Ω whose e' is a power. Where α is one number, less
is compiled."""

from __future__ import annotations

from .losses import CompiledLosses

KERNEL = CompiledLosses(
    "regmax.kernels.cpu.entmax",
    special=(
        (lambda alpha: alpha == 1.5, ("forward_half", "backward_half")),
        (lambda alpha: alpha == 2.0, ("forward_linear", "backward_linear")),
        (lambda alpha: alpha in (0.0, 0.5), ("forward_inverse", "backward_inverse")),
        (lambda alpha: 1.05 < alpha < 2.0, ("forward_power", "backward_power")),
    ),
)
