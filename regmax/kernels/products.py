"""Matrix products inside a user's Ω, such as ``y @ q``, with the same bits for a row in any batch.

While Ω is evaluated for a solver, :func:`matmul` replaces ``@`` and similar functions, forward and
backward. It multiplies rows in blocks of one shape if a test product shows that every row of a
block is rounded alike; otherwise entry by entry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import rowwise, transforms

TILE = 32
"""Rows of a block."""
ENTRYWISE = 256
"""A matrix of at most this many entries is multiplied entry by entry."""


class Steady(TorchFunctionMode):
    """Replaces matrix products by batch-independent ones; ``met`` says whether there were any."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        product = _STEADY.get(func)
        if product is None:
            return func(*args, **(kwargs or {}))
        self.met = True
        if kwargs or not all(_plain(t) for t in args) or not _taken(func, args):
            return func(*args, **(kwargs or {}))
        if transforms.under_transform(args):
            return func(*args, **(kwargs or {}))
        return product(*args)


def evaluated(method: Callable[[Tensor], Any], y: Tensor) -> Any:
    """``method(y)``, a method of Ω, with batch-independent products. The first call for each row
    length records whether there are any; if there are none, later calls are not intercepted."""
    if transforms.tracing():
        return method(y)
    owner = getattr(method, "__self__", None)
    met: dict[int, bool] = {} if owner is None else owner.__dict__.setdefault("_multiplies", {})
    if not met.get(y.shape[-1], True):
        return method(y)
    with Steady() as steady:
        result = method(y)
    met[y.shape[-1]] = steady.met
    return result


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``."""
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return torch.matmul(a, b)  # raises PyTorch's error
    if b.ndim == 1:
        return (a * b).contiguous().sum(-1)
    if a.ndim == 1:
        return matmul(a.unsqueeze(-2), b).squeeze(-2)
    if b.ndim == 2:
        flat = a if a.ndim == 2 else a.reshape(-1, a.shape[-1])
        found = _product(flat, b)
        return found if a.ndim == 2 else found.view(*a.shape[:-1], b.shape[-1])
    if a.ndim == 2:
        return matmul(b.mT, a.mT).mT
    return (a.unsqueeze(-2) * b.mT.unsqueeze(-3)).contiguous().sum(-1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = matmul(x, weight.mT)
    return y if bias is None else y + bias


def _inner(a: Tensor, b: Tensor) -> Tensor:
    if b.ndim < 3 or a.shape[-1] != b.shape[-1]:
        return matmul(a, b.mT if b.ndim > 1 else b)
    return matmul(a, b.reshape(-1, b.shape[-1]).mT).view(*a.shape[:-1], *b.shape[:-1])


_STEADY: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm, torch.mv, torch.linalg.matmul), matmul),
    **dict.fromkeys((Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.__matmul__), matmul),
    **dict.fromkeys((torch.dot, Tensor.dot), matmul),
    Tensor.__rmatmul__: lambda b, a: matmul(a, b),
    torch.nn.functional.linear: _linear,
    torch.inner: _inner,
    Tensor.inner: _inner,
}
_RANKS = {
    **dict.fromkeys((torch.mm, Tensor.mm), (2, 2)),
    **dict.fromkeys((torch.bmm, Tensor.bmm), (3, 3)),
    **dict.fromkeys((torch.mv, Tensor.mv), (2, 1)),
    **dict.fromkeys((torch.dot, Tensor.dot), (1, 1)),
}
"""The dimensions of the operands, where PyTorch raises for others."""


def _taken(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether PyTorch takes these operands, which :func:`matmul` may broadcast."""
    ranks = _RANKS.get(func)
    if ranks is None:
        return True
    return tuple(t.ndim for t in args) == ranks and (ranks[0] < 3 or len(args[0]) == len(args[1]))


def _plain(t: Any) -> bool:
    """Whether products of t are replaced: float32 or float64 on a CPU."""
    if t is None:
        return True
    return (
        isinstance(t, Tensor)
        and t.device.type == "cpu"
        and t.dtype in (torch.float32, torch.float64)
        and t.ndim > 0
    )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A B of two matrices; no row of A affects another."""
    if b.numel() <= ENTRYWISE:
        return (a.unsqueeze(-2) * b.mT.contiguous()).contiguous().sum(-1)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        found: Tensor = _Product.apply(a, b)  # type: ignore[no-untyped-call]
        return found
    return _blockwise(a, b)


class _Product(torch.autograd.Function):
    """:func:`_blockwise` with derivatives of every order."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return _blockwise(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = transforms.stacked(lambda rows: matmul(rows, b.mT), g)
            grad_a = g @ b.mT if grad_a is None else grad_a
        if ctx.needs_input_grad[1]:
            grad_b = a.mT @ g  # a sum over rows
        return grad_a, grad_b


def _blockwise(a: Tensor, b: Tensor) -> Tensor:
    (n, k), m = a.shape, b.shape[1]
    if not n * k * m:
        return a @ b
    inner, outer = rowwise.whole(k), rowwise.whole(m)
    ordered = b.is_contiguous() or b.mT.is_contiguous()
    if (k, m) != (inner, outer) or b.data_ptr() % 64 or not ordered:
        b = torch.nn.functional.pad(b, (0, outer - m, 0, inner - k)).contiguous()
    rows = -(-n // TILE) * TILE
    if not _alike(inner, outer, b.is_contiguous(), b.dtype, torch.get_num_threads()):
        whole = torch.nn.functional.pad(a, (0, inner - k)).contiguous()
        return torch.stack([(whole * column).sum(-1) for column in b.mT.contiguous()[:m]], 1)
    if (n, k) != (rows, inner) or a.data_ptr() % 64 or not a.is_contiguous():
        whole = a.new_zeros(rows, inner)
        whole[:n, :k] = a
    else:
        whole = a
    out = a.new_empty(rows, outer)
    for block, target in zip(whole.split(TILE), out.split(TILE), strict=True):
        torch.mm(block, b, out=target)
    return out[:n, :m].contiguous()


@functools.lru_cache(maxsize=1024)
def _alike(k: int, m: int, contiguous: bool, dtype: torch.dtype, threads: int) -> bool:
    """Whether every row of a block gives the same bits, tested on equal rows times (k, m)."""
    steps = torch.arange(1, k + 1, dtype=torch.float64, device="cpu")
    columns = torch.arange(1, m + 1, dtype=torch.float64, device="cpu")
    for phase in range(4):
        row = ((steps * 12.9898 + phase).sin() * 43758.5453).remainder(2) - 1
        b = (((steps * 78.233 + phase).unsqueeze(-1) + columns * 3.7).cos() * 24634.6).remainder(2)
        right = (b - 1).to(dtype)
        if not contiguous:
            right = right.mT.contiguous().mT
        found = row.to(dtype).expand(TILE, k).contiguous() @ right
        if not torch.equal(found, found[:1].expand_as(found)):
            return False
    return True
