"""The positive entries of Π_Ω(x): where few are, a loss is computed from these alone."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from ..kernels import asked, transforms
from ..regularizers.regularizer import Regularizer


def packed(omega: Regularizer, x: Tensor, y: Tensor, keep: bool) -> tuple[Tensor, Tensor] | None:
    """The positive y_i and their x_i, (*batch, k) in float64, or None if k > d/8. With ``keep``,
    None if k > d/2, as gradients of Ω cost more than its value."""
    d = x.shape[-1]
    if (
        not x.numel()
        or d < (16 if keep else 256)
        or not (omega.ignores_zeros and asked() and transforms.may_look(x))
    ):
        return None
    pack = _packer()
    found = pack and pack(flat(y), flat(x), d // (2 if keep else 8))
    return found and tuple(t.view(*x.shape[:-1], -1) for t in found)


def flat(t: Tensor) -> Tensor:
    t = t.reshape(-1, t.shape[-1])
    return t if t.stride(1) == 1 else t.contiguous()


@functools.cache
def _packer() -> Any:
    try:
        from ..kernels.cpu.support import packed
    except ModuleNotFoundError:  # numba
        return None
    return packed
