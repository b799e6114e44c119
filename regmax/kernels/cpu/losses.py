"""Fenchel–Young losses on the CPU, of vertices e_k and distributions t, and their gradients y − t.

A thread computes y of some rows by the compiled function of the mapping, and their losses while
these rows are in its cache. See :mod:`regmax.kernels.cpu.divergence` and
:mod:`regmax.kernels.cpu.distributions`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Hyper
from ..wrappers import without_memory
from .rows import PASSES, CompiledRows, is_large, result
from .threads import over_rows

KINDS = ("gini", "entropy", "tsallis", "pnorm")
_DIVERGENCE = CompiledRows("regmax.kernels.cpu.divergence", names=("forward",))
_SLOPES = CompiledRows("regmax.kernels.cpu.divergence", names=("slopes",))


class CompiledLosses(CompiledRows):
    """``CompiledRows`` with losses, for an Ω of one of ``KINDS``. ``special`` are functions of less
    code, where θ is one number for which a condition holds: it, and their names."""

    distributions = True

    def __init__(
        self,
        module: str,
        kind: str,
        names: tuple[str, ...] = PASSES,
        special: tuple[tuple[Callable[[float], bool], tuple[str, str]], ...] = (),
    ) -> None:
        super().__init__(module, names=names)
        self.kind = KINDS.index(kind)
        self.special = [(holds, CompiledRows(module, names=own)) for holds, own in special]
        self.parts = tuple(rows for _, rows in self.special)

    def rows(self, theta: Hyper) -> CompiledRows:
        if theta and theta[0].numel() == 1:
            number = theta[0].item()
            for holds, rows in self.special:
                if holds(number):
                    return rows
        return self

    def compile(self, dtype: torch.dtype) -> None:
        super().compile(dtype)
        self.compile_losses(dtype)

    def compile_losses(self, dtype: torch.dtype) -> None:
        """Compile what the losses need."""
        self._tasks(self, dtype)
        _SLOPES.task(0, dtype)

    def _tasks(self, rows: CompiledRows, dtype: torch.dtype) -> tuple[int, tuple[Any, int]]:
        """The address of the function of the mapping, and the function of the losses."""
        if (0, dtype) not in _DIVERGENCE.compiled:
            _DIVERGENCE.soon(dtype)
        _, code = rows.task(0, dtype, alone=True)
        return code, _DIVERGENCE.task(0, dtype)

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Tensor, Tensor] | None:
        if not target.is_floating_point():
            target = target.reshape(-1)
        elif epsilon > 0:
            return None
        return self._losses(x, target, gamma, theta, mask, epsilon, -1, False)[:2]

    def loss_slopes(
        self,
        dx: Tensor,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        epsilon: float,
    ) -> Tensor | None:
        slopes = x.new_empty((len(x), 2), dtype=torch.float64)
        dense = target.is_floating_point()
        target = target.to(x.dtype) if dense else target.reshape(-1)
        numbers = (0, 0, False, dense, len(x), 0)
        job = self._job(x, target, gamma, theta, mask, epsilon, dx, slopes, *numbers)
        over_rows(*_SLOPES.task(0, x.dtype), job, self.grain)
        return slopes

    def reduced(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        epsilon: float,
        ignored: int,
        mean: bool,
    ) -> tuple[Tensor, Tensor, int] | None:
        if target.is_floating_point() and epsilon > 0:
            return None
        found = self._losses(x, target, gamma, theta, None, epsilon, ignored, mean)
        return found if found[2] >= 0 else None

    def _losses(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        epsilon: float,
        ignored: int,
        mean: bool,
    ) -> tuple[Tensor, Tensor, int]:
        """The losses of rows, their gradients, and how many targets count, −1 if one is out of
        range."""
        y, value = result(x), x.new_zeros(len(x), dtype=torch.float64)
        code, task = self._tasks(self.rows(theta), x.dtype)
        dense = target.is_floating_point()
        numbers = (code, ignored, mean, dense, len(x), len(x))
        target = target.to(x.dtype) if dense else target
        job = self._job(x, target, gamma, theta, mask, epsilon, y, value, *numbers)
        over_rows(*task, job, self.grain)
        return value, y, job[-1]

    def _job(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        epsilon: float,
        y: Tensor,
        value: Tensor,
        *numbers: int,
    ) -> Any:
        """A job of :mod:`regmax.kernels.cpu.divergence`; ``numbers`` are those after the kind."""
        smooth = ctypes.c_double(epsilon)
        job = _Job(
            *(0, x.shape[0], 0, x.shape[1], is_large(x)),
            *(*_place(x), *_place(gamma), *_place(theta[0] if theta else None), *_place(mask)),
            *(*_place(y), *_place(target), *_place(value), ctypes.addressof(smooth), 0),
            *(self.kind, *numbers),
        )
        job.epsilon = smooth  # of which the job has the address
        return job


class _Job(ctypes.c_int64 * 28):  # type: ignore[misc]
    """Its last number is a result."""


def _place(t: Tensor | None) -> tuple[int, int]:
    """The address of an array and the distance of its rows, 0 for one row."""
    if t is None:
        return 0, 0
    address: int = t.data_ptr()
    if not address and t.numel():
        raise without_memory(t)
    return address, t.stride(0) if t.shape[0] > 1 else 0
