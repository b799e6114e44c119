"""Fenchel–Young losses on the CPU, of vertices e_k and distributions t, and their gradients y − t.

A thread computes y of some rows by the compiled function of the mapping, and their losses while
these rows are in its cache. See :mod:`regmax.kernels.cpu.loss_rows`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Hyper
from .between import Between, Plans, between, plans
from .chain import chain
from .job import COUNT
from .rows import PASSES, CompiledRows, result
from .threads import over_rows


@functools.cache
def _compiled(name: str) -> CompiledRows:
    return CompiledRows("regmax.kernels.cpu.loss_rows", names=(name,))


class CompiledLosses(CompiledRows):
    """``CompiledRows`` with losses, for a power e. ``theta`` is the number of an e' = y^(θ−1)
    without a hyperparameter, and ``norm`` says whether Ω is a norm. ``special`` are functions of
    less code, where θ is one number for which a condition holds: it, and their names."""

    distributions = True

    def __init__(
        self,
        module: str,
        theta: float | None = None,
        norm: bool = False,
        names: tuple[str, ...] = PASSES,
        special: tuple[tuple[Callable[[float], bool], tuple[str, str]], ...] = (),
    ) -> None:
        super().__init__(module, names=names)
        self.given, self.norm = theta is None, norm
        self.theta = theta or 0.0  # not a tensor: what is made under a tracer belongs to it
        self.special = [(holds, CompiledRows(module, names=own)) for holds, own in special]
        self.parts = tuple(rows for _, rows in self.special)

    def rows(self, theta: Hyper) -> CompiledRows:
        if theta and theta[0].numel() == 1:
            number = theta[0].item()
            for holds, rows in self.special:
                if holds(number):
                    return rows
        return self

    def forward_after(
        self, step: str, x: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        return chain(self, step).forward(x, gamma, (lam, *theta), mask)

    def backward_after(
        self, step: str, y: Tensor, v: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper,
        part: Tensor | None, hyper: bool,
    ) -> tuple[Tensor, Hyper | None] | None:  # fmt: skip
        return chain(self, step).backward(y, v, gamma, (lam, *theta), part, hyper)

    def between(self, each: bool) -> Between | None:
        return None if self.norm else between(self, each)

    def plans(self) -> Plans | None:
        return None if self.norm else plans(self)

    def compile(self, dtype: torch.dtype) -> None:
        super().compile(dtype)
        self.compile_losses(dtype)

    def compile_losses(self, dtype: torch.dtype) -> None:
        """Compile what the losses need."""
        self._tasks(self, dtype)
        _compiled("slopes").task(0, dtype)

    def _tasks(self, rows: CompiledRows, dtype: torch.dtype) -> tuple[int, tuple[Any, int]]:
        """The address of the function of the mapping, and the function of the losses."""
        losses = _compiled("losses")
        if (0, dtype) not in losses.compiled:
            losses.soon(dtype)
        _, code = rows.task(0, dtype, alone=True)
        return code, losses.task(0, dtype)

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
        return self._losses(x, target, gamma, theta, mask, epsilon)[:2]

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
        if not target.is_floating_point():
            target = target.reshape(-1)
        slopes = x.new_empty((len(x), 2), dtype=torch.float64)
        task = _compiled("slopes").task(0, x.dtype)
        self._run(task, x, target, (gamma, theta, mask, epsilon), dx, slopes)
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
        self, x: Tensor, target: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None,
        epsilon: float, ignored: int = -1, mean: bool = False,
    ) -> tuple[Tensor, Tensor, int]:  # fmt: skip
        """The losses of rows, their gradients, and how many targets count, −1 if one is out of
        range."""
        y, value = result(x), x.new_zeros(len(x), dtype=torch.float64)
        code, task = self._tasks(self.rows(theta), x.dtype)
        given = gamma, theta, mask, epsilon
        return value, y, self._run(task, x, target, given, y, value, code, ignored, mean)

    def _run(
        self, task: tuple[Any, int], x: Tensor, target: Tensor,
        given: tuple[Tensor, Hyper, Tensor | None, float], y: Tensor, value: Tensor,
        code: int = 0, ignored: int = 0, mean: bool = False,
    ) -> int:  # fmt: skip
        """Run a job of :mod:`regmax.kernels.cpu.loss_rows`, and return its result."""
        (gamma, theta, mask, epsilon), dense = given, target.is_floating_point()
        smooth, target = ctypes.c_double(epsilon), target.to(x.dtype) if dense else target
        number = theta[0] if theta else x.new_full((1,), self.theta, dtype=torch.float64)
        job = self.job(
            *(x, gamma, number, mask, y, target, value, ctypes.addressof(smooth)),
            *(self.norm, self.given, code, ignored, mean, dense, len(x), len(x)),
        )
        over_rows(*task, job, self.grain)
        count: int = job[COUNT]
        return count
