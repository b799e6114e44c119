"""The kernel of a separable Ω that is given by its value, in Triton."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from ..base import Hyper
from ..sources import loaded
from ..triton.rows import check_device, guard
from . import source, triton_rows
from .entry import Entrywise
from .inputs import Inputs, varies
from .tape import Unknown
from .triton_source import translated

LIMIT = 4096
"""The longest row: it lies in the registers of one program."""


@functools.lru_cache(maxsize=128)  # the others live as long as their kernels
def _function(text: str) -> tuple[Any, Path]:
    """The function with this source for numba, for Triton; and its file."""
    name = text.split("(")[0].removeprefix("def ")
    module, path, _ = loaded(f"triton_{name}", translated(text), "")
    sys.modules.pop(module.__name__, None)
    return getattr(module, name), path


class TritonKernel:
    """Π_Ω of prepared rows in float64, for Ω(y) = Σ_i e(y_i; p_i) on a GPU; θ is the inputs p, as
    in :class:`~regmax.kernels.from_value.kernel.NumbaKernel`."""

    def __init__(
        self, entry: Entrywise, inputs: list[Tensor], d: int, device: torch.device
    ) -> None:
        if d > LIMIT:
            raise Unknown(f"its rows have more than {LIMIT} entries, on a GPU")
        vectors = [varies(t, d) for t in inputs]
        self.alike = not any(vectors)
        self._traits = {"KINKED": entry.kinked}
        block = max(triton.next_power_of_2(d), 32)
        # with two entries a thread, a row of up to 512 entries spills hardly a register
        self._shape = {"BLOCK": block, "num_warps": min(max(block // 64, 1), 16)}
        constants: list[float] = []
        self._slopes, self.path = _function(source.slopes(entry, vectors, constants))
        self._partials, _ = _function(source.partials(entry, vectors, constants))
        self.code = (self.path,)
        self._inputs = Inputs(vectors, constants, device)

    def slopes_at(self, y: Tensor, theta: Hyper) -> tuple[Tensor, Tensor]:
        """e' and e'' of each entry of rows y > 0."""
        y, (numbers, vectors) = y.contiguous(), self._inputs.rows(theta)
        g, h, steps = torch.empty_like(y), torch.empty_like(y), _steps(numbers, vectors)
        with guard(y):
            triton_rows.slopes_at[(len(y),)](
                y, numbers, vectors, g, h, y.shape[1], *steps, SLOPES=self._slopes, **self._shape
            )
        return g, h

    def solve(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None, tol: float = 1e-8,
        scores: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """y, and a bound on the distance of each row to the maximiser; +inf: not solved. There is
        no template, and ``scores`` are not used."""
        check_device(x)
        arrays = (gamma, *self._inputs.rows(theta))
        y, bound = x.new_empty(x.shape), x.new_empty(len(x))
        on = x if mask is None else mask
        strides = (x.stride(0), on.stride(0), *_steps(*arrays))
        with guard(x):
            triton_rows.forward[(len(x),)](
                x, on, *arrays, y, bound, x.shape[1], *strides, SLOPES=self._slopes,
                HAS_MASK=mask is not None, **self._traits, **self._shape,
            )  # fmt: skip
        return y, bound

    def backward(
        self, y: Tensor, v: Tensor, gamma: Tensor, theta: Hyper, hyper: bool,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Tensor, Hyper | None]:  # fmt: skip
        """The gradients in x and θ, as of :class:`~regmax.kernels.base.Kernel`."""
        check_device(y)
        given, d = self._inputs, y.shape[1]
        arrays = (gamma, *given.rows(theta))
        dx, grads = y.new_empty(y.shape), given.empty(len(y), d)
        strides = (y.stride(0), v.stride(0), *_steps(*arrays))
        with guard(y):
            triton_rows.backward[(len(y),)](
                y, v, *arrays, dx, *grads, d, *strides, SLOPES=self._slopes,
                PARTIALS=self._partials, HYPER=hyper, PLAIN=given.plain, COUNT=given.count,
                **self._shape,
            )  # fmt: skip
        return dx, tuple(given.gradients(*grads, d)) if hyper else None


def _steps(*rows: Tensor) -> list[int]:
    """The stride from row to row of each: 0 if all rows share it."""
    return [0 if len(t) == 1 else t.stride(0) for t in rows]
