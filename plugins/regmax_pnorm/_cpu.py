"""The kernel of sq-pnorm-max on the CPU. Where p is one number, less is compiled."""

from __future__ import annotations

from regmax.kernels.cpu.losses import CompiledLosses

KERNEL = CompiledLosses(
    "regmax_pnorm._numba",
    norm=True,
    special=(
        (lambda p: p == 1.5, ("forward_half", "backward_half")),
        (lambda p: p == 2.0, ("forward_linear", "backward_linear")),
        (lambda p: 1.05 < p < 2.0, ("forward_power", "backward_power")),
    ),
)
