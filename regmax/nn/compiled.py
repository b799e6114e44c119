"""Attention in one compiled kernel, where Ω offers one (:class:`regmax.kernels.AttentionKernel`).

The scores are never in memory, so no chunks are needed. Derivatives of gradients, and gradients
under transforms, are those of the scores and weights, computed again.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import AttentionKernel, transforms
from ..kernels.base import Arrangement, CannotLaunch, Offsets
from ..mapping.methods import kernel as kernels
from ..regularizers import arguments
from ..regularizers.expressions import Scaled
from ..regularizers.identity import names_of
from ..regularizers.regularizer import Regularizer
from . import chunks, packed, products
from .learnable import Learnable
from .omega import Omega, resolved

Attend = Callable[..., Tensor]
F32 = torch.float32
_REFUSED: set[tuple[Any, ...]] = set()


def attended(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Omega,
    mask: Any,
    sink: Any,
    gamma: Any,
    diagonal: int | None,
    offsets: Offsets | None,
    scale: float | None,
    enable_gqa: bool,
    dropout: float,
) -> Tensor | None:
    """The attention that ``attend(q, k, v, omega, mask, gamma, sink, kept)`` gives, or None where
    no kernel computes it. A wrong argument may give None: ``attend`` raises the error. ``kept`` is
    what dropout multiplies the weights by, or None."""
    if not transforms.plain() or not isinstance(scale, int | float | None) or dropout >= 1:
        return None
    omega = resolved(omega)
    kernel = _kernel(omega, q, k)
    if kernel is None:
        return None
    q, k, v = products.as_autocast(q, k, v)
    ndim, score_ndim = max(q.ndim, k.ndim, v.ndim), max(q.ndim, k.ndim)
    if not q.dtype == k.dtype == v.dtype or q.dtype not in kernel.dtypes or ndim > 4:
        return None
    present, ranges = (omega(), omega.ranges()) if isinstance(omega, Learnable) else (omega, {})
    try:
        q, k, v, scores = _laid_out(q, k, v, enable_gqa)
        if mask is not None:
            mask = mask.expand(scores.shape[4 - score_ndim :])[(None,) * (4 - score_ndim)]
            mask = mask.expand(scores.shape)
    except (RuntimeError, AttributeError):  # of the wrong shape, or no tensor
        return None
    numbers, bare = _numbers(present, kernel, ranges, gamma, scores, score_ndim)
    if sink is not None:
        sink = _per_head(sink, scores, score_ndim)
        numbers = [] if sink is None else numbers
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    how = Arrangement(scale, diagonal, offsets, dropout)
    tensors = [t for t in (q, k, v, mask, sink, *numbers) if isinstance(t, Tensor)]
    key = (kernel, q.device, q.dtype, q.shape[-1], v.shape[-1])
    if (
        not numbers
        or key in _REFUSED
        or not all(type(t) in transforms.PLAIN and t.device == q.device for t in tensors)
        or any(t.layout != torch.strided or t.is_neg() or not t.numel() for t in tensors)
        or not (mask is None or _takes_mask(mask, q, k, omega))
        or not kernel.takes(how, q, k, v, mask, sink)
    ):
        return None

    if dropout:
        how = dataclasses.replace(how, seed=torch.randint(1 << 62, (1,), device=q.device))

    def again(
        q: Tensor, k: Tensor, v: Tensor, mask: Any, sink: Any, gamma: Any, *theta: Any
    ) -> Tensor:
        names = names_of(bare)
        held = {n: t[..., None, None] for n, t in zip(names, theta, strict=True) if _is_tensor(t)}
        sink, gamma = (t[..., None, None] if _is_tensor(t) else t for t in (sink, gamma))
        at = bare.with_tensors(held) if held else bare
        kept = kernel.factors(how, q, k) if dropout else None
        if offsets is None:
            return attend(q, k, v, at, mask, gamma, sink, kept)

        def alone(q: Tensor, k: Tensor, v: Tensor, kept: Any = None) -> Tensor:
            return attend(q, k, v, at, mask, gamma, sink, kept)

        return packed.attended(alone, offsets, q, k, v, kept)

    given = (q, k, v, mask, sink, *numbers)
    try:
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            out = _Attention.apply(kernel, again, how, *given)  # type: ignore[no-untyped-call]
        else:
            out = kernel.forward(how, False, *given)[0]
    except CannotLaunch as error:
        _warn(error, key)
        return None
    result: Tensor = out.reshape(out.shape[4 - ndim :])
    return result


class _Attention(torch.autograd.Function):
    """The kernel, with its gradients; ``again`` computes the same from the scores."""

    @staticmethod
    def forward(
        ctx: Any, kernel: AttentionKernel, again: Attend, how: Arrangement, *given: Any
    ) -> Tensor:
        out, kept = kernel.forward(how, True, *given)
        ctx.kernel, ctx.again, ctx.how = kernel, again, how
        ctx.given = [None if isinstance(t, Tensor) else (t,) for t in given]
        ctx.save_for_backward(*kept, *(t for t in given if isinstance(t, Tensor)))
        ctx.count = len(kept)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        kept, held = ctx.saved_tensors[: ctx.count], iter(ctx.saved_tensors[ctx.count :])
        given = [next(held) if t is None else t[0] for t in ctx.given]
        wants = ctx.needs_input_grad[3:]
        found = None
        if not torch.is_grad_enabled() and transforms.plain() and not transforms.batched(g):
            try:
                found = ctx.kernel.backward(ctx.how, wants, g, kept, *given)
            except CannotLaunch as error:
                _warn(error)
        if found is None:
            found = _again(ctx.again, given, wants, g)
        pairs = zip(found, given, strict=True)
        return (None,) * 3 + tuple(None if t is None else t.to(item.dtype) for t, item in pairs)


def _again(again: Attend, given: list[Any], wants: tuple[bool, ...], g: Tensor) -> list[Any]:
    """The gradients by the scores, with a graph where autograd records one."""
    recorded = torch.is_grad_enabled()
    if not recorded:
        pairs = zip(given, wants, strict=True)
        given = [t.detach().requires_grad_(w) if _is_tensor(t) else t for t, w in pairs]
    with torch.enable_grad(), transforms.full_precision(g.device.type):
        out = again(*given)
        learnt = [t for t, w in zip(given, wants, strict=True) if w]
        found = iter(torch.autograd.grad(out, learnt, g, create_graph=recorded))
    return [next(found) if w else None for w in wants]


def _warn(error: CannotLaunch, key: tuple[Any, ...] | None = None) -> None:
    """One warning for each device, dtype and size."""
    if key is not None:
        _REFUSED.add(key)
    warnings.warn(
        f"the attention kernel does not fit this device, and scores are computed instead: {error}",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _kernel(omega: Regularizer | Learnable, q: Tensor, k: Tensor) -> AttentionKernel | None:
    bare = omega.base if isinstance(omega, Learnable) else omega
    while isinstance(bare, Scaled):
        bare = bare.base
    if type(q) not in transforms.PLAIN or q.is_meta or bare.entries not in (None, k.shape[-2]):
        return None
    row = torch.empty((), dtype=F32, device=q.device).expand(1, k.shape[-2])
    kernel = kernels.kernel_of(bare, row)
    return None if kernel is None else kernel.attention


def _laid_out(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, ...]:
    """q, k and v with four dimensions and one batch size, and a tensor of the shape of the scores;
    RuntimeError if they do not fit."""
    fewest = min(t.ndim for t in (q, k, v))
    q, k, v = (t[(None,) * (4 - t.ndim)] for t in (q, k, v))
    if enable_gqa:
        (batch,) = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
        if fewest < 3 or k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1):
            raise RuntimeError
        q, k, v = (t.expand(batch, *t.shape[1:]) for t in (q, k, v))
    else:
        lead = torch.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
        q, k, v = (t.expand(*lead, *t.shape[2:]) for t in (q, k, v))
    like = q.new_empty((), dtype=torch.promote_types(q.dtype, F32)).expand(
        *q.shape[:-1], k.shape[-2]
    )
    return q, k, v, like


def _numbers(
    omega: Regularizer,
    kernel: AttentionKernel,
    ranges: dict[str, tuple[float, float]],
    gamma: Any,
    scores: Tensor,
    ndim: int,
) -> tuple[list[Any], Regularizer]:
    """γ and θ as the kernel takes them, and the Ω that has θ. No numbers, if there is not one for
    each head, or one may be out of the kernel's range."""
    like = scores[(0,) * (4 - ndim)]
    prefix, factors = "", []
    while isinstance(omega, Scaled):
        factors.append(omega.c)
        omega, prefix = omega.base, prefix + "base."
    numbers = kernels.checked(omega, gamma, like)
    for c in factors:
        c = arguments.per_row("c", c, Scaled.ranges["c"], like, ndim - 1)
        numbers["gamma"] = numbers["gamma"] * c
    theta = list(numbers.items())[1:]
    for (name, item), (low, high) in zip(theta, kernel.bounds, strict=True):
        if isinstance(item, Tensor):
            least, most = ranges.get(prefix + name) or _range(item)
        else:
            least = most = item
        if not low <= least <= most <= high:
            return [], omega
    made = list(numbers.values())
    if any(isinstance(t, Tensor) and t.shape[-2] != 1 for t in made):
        return [], omega
    heads = scores.shape[:2]
    return [t[..., 0, 0].expand(heads) if _is_tensor(t) else t for t in made], omega


def _per_head(item: Any, scores: Tensor, ndim: int) -> Any:
    """A number, or a tensor that broadcasts to the scores, as the kernel takes it; None if it is
    neither, or not one number for each head."""
    if not _is_tensor(item):
        return float(item) if isinstance(item, int | float) else None
    if item.ndim > ndim or any(n != 1 for n in item.shape[-2:]) or item.is_complex():
        return None
    try:
        item = item[(None,) * (4 - item.ndim)].expand(*scores.shape[:2], 1, 1)
    except RuntimeError:
        return None
    return item[..., 0, 0]


def _range(t: Tensor) -> tuple[float, float]:
    """The least and the largest number of t; all numbers where reading them would synchronise."""
    if not transforms.may_look(t) or not t.numel():
        return -math.inf, math.inf
    least, most = t.detach().aminmax()
    return float(least), float(most)


def _takes_mask(mask: Tensor, q: Tensor, k: Tensor, omega: Omega) -> bool:
    """Whether the kernel takes the mask. The gradient of one that is shared by heads or queries is
    first as large as the scores: no larger than those that are computed at once otherwise."""
    if mask.dtype == torch.bool:
        return True
    learns = mask.requires_grad and torch.is_grad_enabled()
    if learns and 0 in mask.stride() and chunks.automatic(q, k, omega) < q.shape[-2]:
        return False
    return mask.dtype in (F32, torch.float16, torch.bfloat16)
