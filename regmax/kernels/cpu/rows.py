"""A kernel of two functions of a job, which numba compiles."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base import Direct, Hyper, Kernel
from ..wrappers import without_memory
from . import fitting
from .threads import GRAIN, over_rows

fitting.require()

PASSES = "forward", "backward"
_LARGE = 1 << 25
"""Bytes above which the C library maps new memory for every tensor. This memory is 0, and the
first access to it is most of the cost of a large sparse result."""


def result(like: Tensor) -> Tensor:
    """Memory for a result: zeros if it is large, else uninitialised."""
    if like.nbytes < _LARGE:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    return torch.from_numpy(np.zeros(like.shape, "f4" if like.dtype == torch.float32 else "f8"))


class CompiledRows(Kernel):
    """A kernel of two functions in a module, compiled for float32 and float64 on first use; of one
    where ``names`` has one.

    forward(job, like) takes rows from the job until none is left; its arrays are x, γ, θ …, the
    mask, y. The arrays of backward(job, like) are y, v, γ, θ …, the gradient of x, those of θ, the
    mask that forward returned.
    ``like`` is a pointer of x's type. See :func:`regmax.kernels.cpu.common.rows_at`. The module is
    imported if the functions are compiled, not if they are on disk.
    """

    name = "numba"
    parts: tuple[CompiledRows, ...] = ()
    """Other kernels that this one uses."""

    def __init__(self, module: str, grain: int = GRAIN, names: tuple[str, ...] = PASSES) -> None:
        self.module, self.grain, self.names = module, grain, names
        self.compiled: dict[tuple[int, torch.dtype], tuple[Any, int]] = {}

    def task(self, which: int, dtype: torch.dtype, alone: bool = False) -> tuple[Any, int]:
        """A C function of a job, and its address. While the first function is compiled, another
        process compiles the second, unless it is wanted ``alone``."""
        try:
            return self.compiled[which, dtype]
        except KeyError:
            from .compiling import address_of

            if which == 0 and not alone:
                self.soon(dtype, 1)
            address = address_of(self.module, self.names[which], _like(dtype))
            task = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(address)
            self.compiled[which, dtype] = task, address
            return task, address

    def soon(self, dtype: torch.dtype, first: int = 0) -> None:
        """Start to compile the functions for a dtype, from this one on, in other processes."""
        from .compiling import soon

        for which, name in enumerate(self.names):
            if which >= first and (which, dtype) not in self.compiled:
                soon(self.module, name, _like(dtype))

    def rows(self, theta: Hyper) -> CompiledRows:
        """What computes y and its product with J for these hyperparameters."""
        return self

    def direct(
        self, dtype: torch.dtype, d: int, gamma: Tensor, theta: tuple[Tensor | None, ...]
    ) -> DirectRows | None:
        if type(self).forward is not CompiledRows.forward:
            return None
        return DirectRows(self, d, gamma, theta)

    def compile(self, dtype: torch.dtype) -> None:
        """Compile all functions for a dtype, or load them from disk."""
        for kernel in (self, *self.parts):
            for which in range(len(kernel.names)):
                kernel.task(which, dtype)

    def job(self, x: Tensor, *arrays: Tensor | int | None) -> Any:
        """The arrays as a function of a job takes them; a number stands in the job as it is. An
        array more, that is not given, ends the job."""
        numbers = [0, x.shape[0], 0, x.shape[1], x.nbytes >= _LARGE]
        for t in (x, *arrays, None):
            if t is None or isinstance(t, int):
                numbers += (t or 0, 0)
            else:
                numbers += (t.data_ptr(), t.stride(0) if t.shape[0] > 1 else 0)
                if not numbers[-2] and t.numel():
                    raise without_memory(t)
        return (ctypes.c_int64 * len(numbers))(*numbers)

    def run(self, which: int, x: Tensor, *arrays: Tensor | int | None) -> None:
        """Run a function on the arrays."""
        over_rows(*self.task(which, x.dtype), self.job(x, *arrays), self.grain)

    def rerun(
        self,
        which: int,
        job: Any,
        arrays: dict[int, Tensor],
        numbers: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Run a function on a copy of a job, with these arrays, of which 0 is x, and with numbers
        at places of the job."""
        copy, x = type(job).from_buffer_copy(job), arrays[0]
        copy[1], copy[4] = x.shape[0], x.nbytes >= _LARGE
        for k, t in arrays.items():
            copy[5 + 2 * k] = at = t.data_ptr()
            copy[6 + 2 * k] = t.stride(0) if t.shape[0] > 1 else 0
            if not at and t.numel():
                raise without_memory(t)
        for k, number in numbers:
            copy[k] = number
        over_rows(*self.task(which, x.dtype), copy, self.grain)

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y = result(x)
        self.rows(theta).run(0, x, gamma, *theta, mask, y)
        return y, None

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        out = result(y)
        each = tuple(gamma.new_empty(len(y)) for _ in theta) if hyper else ()
        rows = self.rows(theta)
        rows.run(1, y, v, gamma, *theta, out, *(each or (None for _ in theta)), mask)
        return out, each if hyper else None


def _like(dtype: torch.dtype) -> str:
    """The name of a dtype that a kernel computes in."""
    return "float32" if dtype == torch.float32 else "float64"


class DirectRows(Direct):
    """``CompiledRows`` with jobs that lack only the arrays of a call."""

    def __init__(
        self,
        kernel: CompiledRows,
        d: int,
        gamma: Tensor,
        theta: tuple[Tensor | None, ...],
        bounds: tuple[Tensor, ...] = (),
    ) -> None:
        self.kernel, self.width = kernel, d
        self.gamma, self.theta, self.bounds = gamma, theta, bounds  # jobs hold addresses of these
        self.open = [k for k, t in enumerate(theta) if t is None]
        self.rows = kernel if self.open else kernel.rows(theta)  # type: ignore[arg-type]
        given = [
            n for t in (gamma, *theta, *bounds) for n in (t.data_ptr() if t is not None else 0, 0)
        ]
        self.at = 3 + len(theta) + len(bounds)
        """The place of y; that of the gradient of x, where k is not given."""
        self.end = self.at - bool(bounds)
        kind = ctypes.c_int64 * (17 + 2 * len(given))
        self.jobs = kind(0, 0, 0, d, 0, 0, 0, *given), kind(0, 0, 0, d, 0, 0, 0, 0, 0, *given)

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        y = result(x)
        self.run(0, {0: x, self.at: y}, theta)
        return y, None

    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        out = result(y)
        each = self.slopes(y) if hyper else ()
        arrays = {0: y, 1: v, self.end: out}
        for k, t in zip(self.open, each, strict=False):
            arrays[1 + self.end + k] = t
        self.run(1, arrays, theta)
        return out, each

    def slopes(self, y: Tensor) -> Hyper:
        """Memory for the products of the hyperparameters that were not kept."""
        return tuple([self.gamma.new_empty(len(y)) for _ in self.open])

    def run(self, which: int, arrays: dict[int, Tensor], theta: Hyper) -> None:
        """Run a function on the arrays of a call."""
        kernel = self.rows
        if self.open:
            found = iter(theta)
            each = tuple([next(found) if t is None else t for t in self.theta])
            for k in self.open:
                arrays[2 + which + k] = each[k]
            kernel = self.kernel.rows(each)
        kernel.rerun(which, self.jobs[which], arrays)
