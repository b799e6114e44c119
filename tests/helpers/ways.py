"""The kernels of the grid: a way is a compiled kernel that computes the rows of a public call.

On the CPU it is numba's. Triton's kernels have three ways, with blocks small enough for short rows
to need them: rows in registers, packed candidates, chunks of a row. They are interpreted on the
CPU, and compiled on a GPU. The truth is PyTorch's closed form of the same scores in float64.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from devices import CUDA, need_triton
from torch import Tensor

from regmax import kernels

F32, F64 = torch.float32, torch.float64
TRITON = {"registers": {}, "packed": {"pack": 16}, "chunks": {"limit": 16}}
WAYS = ("cpu", *(pytest.param(way, marks=pytest.mark.slow) for way in TRITON))
ways = pytest.mark.parametrize("way", WAYS)


def by_ways(cases, few):
    """``cases`` on the CPU; of Triton's ways, whose templates all mappings share, ``few``."""
    slow = (pytest.param(way, case, marks=pytest.mark.slow) for way in TRITON for case in few)
    return [*(("cpu", case) for case in cases), *slow]


once = pytest.mark.parametrize("way", WAYS[:2])
"""For what is done before a kernel is called: it does not depend on the way."""
DEVICE = "cuda" if CUDA else "cpu"


def triton_kernel(module: str, way: str) -> Any:
    """That of a plugin's module, by one of the ways."""
    from regmax.kernels.triton.chain import ChainKernel
    from regmax.kernels.triton.mappings import ThresholdKernel

    kernel = importlib.import_module(module).KERNEL
    if isinstance(kernel, ChainKernel):
        return ChainKernel(kernel.ranked, **({"longest": 16} if way == "chunks" else {}))
    return ThresholdKernel(*kernel.own, attention=kernel.attention is not None, **TRITON[way])


@contextlib.contextmanager
def by(way: str) -> Iterator[None]:
    """Calls are computed by that kernel."""
    if way == "cpu":
        pytest.importorskip("numba")
        yield
        return
    need_triton()
    import interpreted
    from gpu_on_cpu import as_on_a_gpu

    made: dict[str, Any] = {}

    def get(lazy: Any, device: str) -> Any:
        module = lazy.modules["cuda"]
        return made.setdefault(module, triton_kernel(module, way))

    with as_on_a_gpu(), mock.patch.object(kernels.Lazy, "get", get), interpreted.used():
        yield


def derivatives(
    f: Callable[..., Tensor], inputs: list[Tensor], v: Tensor, learnt: bool = True
) -> list[Tensor]:
    """f(inputs), and the gradients of ⟨f, v⟩ in the inputs, unless ``learnt`` in the first alone;
    on the CPU."""
    given = [t.clone() for t in inputs]
    wanted = [t.requires_grad_() for t in (given if learnt else given[:1])]
    y = f(*given)
    # an infinite loss has no gradient
    total = (torch.where(y.isfinite(), y, 0) * v.to(y)).sum()
    found = torch.autograd.grad(total, wanted, materialize_grads=True)
    return [y.detach().cpu(), *(g.cpu() for g in found)]


def found_and_right(
    way: str, f: Callable[..., Tensor], inputs: list[Tensor], v: Tensor, learnt: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """What the kernel finds, and the closed form in float64. f takes tensors of any device."""
    with kernels.reference():
        right = derivatives(f, [t.double() for t in inputs], v.double(), learnt)
    device = "cpu" if way == "cpu" else DEVICE
    with by(way):
        found = derivatives(f, [t.to(device) for t in inputs], v.to(device), learnt)
    return found, right
