"""The prox of total variation on the CPU."""

from __future__ import annotations

from torch import Tensor

from regmax.kernels.cpu.chain import Step
from regmax.kernels.cpu.rows import CompiledRows, result

KERNEL = Step("regmax_tv._numba")
_WHOLE = CompiledRows("regmax_tv._numba", names=("whole",))


def whole_rows(x: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """The prox of weight·TV at rows x, without a shift; masked entries are 0."""
    z = result(x)
    _WHOLE.run(0, x, weight, mask, z)
    return z
