"""Shared parts of the Triton kernels: device, shape of tiles, and loading of rows.

A tile is (rows, columns); a number per row is (rows, 1). Arithmetic is float32, and float64 for
float64. A row's distances to its maximum are δ_i = (max x − x_i)/γ ≥ 0, and +∞ for masked entries,
so that no mask is needed.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..wrappers import without_memory

BIG = tl.constexpr(1e30)
"""δ is at most this for participants, and +∞ for masked entries."""
LOWEST = tl.constexpr(-1e37)
"""Scores of attention are at least this for participants, and −∞ for masked keys."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def check_device(x: Tensor) -> None:
    """Raise an error unless x is on CUDA, or on the CPU in the interpreter."""
    if x.device.type != "cuda" and not interpreted():
        raise ValueError(f"Triton kernels need a CUDA tensor; got one on {x.device}")


def limit_of(limit: int, x: Tensor, given: int | None) -> int:
    """The longest row for one program: the one given, or half of ``limit`` in float64."""
    return given or limit // (2 if x.dtype == torch.float64 else 1)


def power_of_2(n: int) -> int:
    """The least power of 2 that is at least n; Triton's function takes microseconds."""
    return 1 << (n - 1).bit_length()


def part_of(limit: int) -> dict[str, int]:
    """How much of a longer row a program reads at a time, and its warps."""
    size = min(8192, power_of_2(max(limit // 2, 16)))
    return {"N": size, "num_warps": max(1, size // 512)}


def guard(x: Tensor) -> AbstractContextManager[object]:
    """Makes the device of x the current one, where kernels start; x must have memory."""
    if not x.data_ptr() and x.numel():
        raise without_memory(x)
    if x.device.type != "cuda" or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def parameter(item: Tensor | float | None) -> tuple[Tensor | None, float, int]:
    """A hyperparameter as three arguments of a kernel: memory (None for a number), the number, and
    the stride from row to row (0 if all rows share it)."""
    if isinstance(item, Tensor):
        return item.contiguous(), 0.0, int(item.numel() > 1)
    return None, 1.0 if item is None else item, 0


@functools.lru_cache(maxsize=1024)
def shape_of(d: int, wide: bool, alone: bool = False) -> dict[str, int]:
    """Rows (one if ``alone``) and columns of a program's tile, and its warps.

    A function of d and the dtype, so that a row's result does not depend on its batch.
    """
    block = max(16, power_of_2(d))
    rows = 1 if alone else max(1, 512 // block)
    warps = min(max(rows * block // (128 if wide else 512), 1), 16)
    return {"ROWS": rows, "BLOCK": block, "num_warps": warps}


@triton.jit
def _nothing():
    pass


def probe() -> None:
    """Launch a kernel that does nothing: at its first launch Triton needs a C compiler and a driver
    that fits."""
    try:
        _nothing[(1,)]()
    except Exception as error:
        raise RuntimeError(f"Triton cannot launch kernels: {error}") from error


if torch.cuda.is_available() and not interpreted():
    probe()


@triton.jit
def divide(a, b):
    """a/b, correctly rounded: Triton's float32 division is not."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def quotient(a, b, inverse):
    """a/b from 1/b, for a tile a: a product and one correction, rounded as a division."""
    q = a * inverse
    # 0 where b or 1/b is infinite
    b = tl.where((inverse > 0) & (inverse < float("inf")), b, 0.0)
    rest = tl.fma(-q, tl.zeros_like(a) + b, a)
    return tl.fma(rest, tl.zeros_like(a) + inverse, q)


@triton.jit
def distance(x, top, gamma):
    """δ = (top − x)/γ in [0, BIG]; +∞ where x is −∞."""
    off = top - x
    delta = quotient(off, gamma, divide(tl.zeros_like(gamma) + 1.0, gamma))
    delta = tl.where(delta < BIG, delta, BIG)
    delta = tl.where(off > 0, delta, 0.0)
    return tl.where(x == -float("inf"), float("inf"), delta)


@triton.jit
def load_scores(x_ptr, mask_ptr, at, mask_at, inside, HAS_MASK: tl.constexpr):
    """Scores in the dtype of the arithmetic, −∞ for masked entries."""
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf"))
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    if HAS_MASK:
        on = tl.load(mask_ptr + mask_at, mask=inside, other=0)
        x = tl.where(on != 0, x, -float("inf"))
    return x


@triton.jit
def survey(x):
    """Per row: the maximum (0 without a finite participant), the number of participants, and
    whether one of them is NaN or +∞."""
    on = x != -float("inf")
    wrong = on & (x < float("inf"))
    top = tl.max(tl.where(wrong, x, -float("inf")), 1, keep_dims=True)
    count = tl.sum(on.to(tl.int32), 1, keep_dims=True)
    finite = tl.sum(wrong.to(tl.int32), 1, keep_dims=True)
    return tl.where(top == -float("inf"), 0.0, top), count, (finite != count).to(tl.int32)


@triton.jit
def packed(at, x, keep):
    """Stores the entries to keep at the front, and returns how many they are."""
    place = tl.cumsum(keep.to(tl.int32), 1) - 1
    tl.store(at + place, x.to(at.dtype.element_ty), mask=keep)
    return tl.sum(keep.to(tl.int32))


@triton.jit
def per_row(ptr, value, row, step, rows):
    """A hyperparameter of each row of the tile: float64, (rows, 1)."""
    if ptr is None:
        return tl.full(row.shape, 0.0, tl.float64) + value
    else:
        return tl.load(ptr + row * step, mask=row < rows, other=1.0)


@triton.jit
def of_row(ptr, value, row, step):
    """A hyperparameter of one row: float64."""
    if ptr is None:
        return tl.full((), 0.0, tl.float64) + value
    else:
        return tl.load(ptr + row * step)
