"""Attention by its scores and weights, which are in memory."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..domains import Domain
from ..kernels import transforms
from ..kernels.base import Arrangement
from ..kernels.wrappers import dense, is_dtensor
from ..regularizers.printing import brief
from . import matmul
from .omega import Omega, mapped

# modules of tensor subclasses that are accepted as masks: fake tensors and DTensors
MASK_SUBCLASSES = ("torch._subclasses", "torch.distributed")


@dataclass(frozen=True)
class Options(Arrangement):
    """What attention computes, beside its tensors: also whether heads share keys, whether the
    weights are certified, and the domain that the weights of a query are in, None for the
    simplex."""

    enable_gqa: bool = False
    certify: bool = False
    domain: Domain | None = None


class Inputs(NamedTuple):
    """The tensors of attention. Mask, sink and γ broadcast to the scores; they may be None, None
    and numbers."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Any
    sink: Any
    gamma: Any


def attended(
    options: Options, omega: Omega, given: Inputs, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The attention of all queries and its weights. ``factors``: what dropout multiplies the
    weights by; by default they are drawn."""
    s = scores(given.q, given.k, options.scale, options.enable_gqa)
    found = weights_of_queries(options, omega, s, given)
    found = F.dropout(found, options.dropout) if factors is None else found * factors
    return averages(found, given.v, options.enable_gqa), found


def weights_of_queries(
    options: Options, omega: Omega, s: Tensor, given: Inputs, first: int = 0
) -> Tensor:
    """The weights of queries ``first``, ``first`` + 1, …, from their scores, which may change."""
    mask = given.mask
    if options.diagonal is not None:
        diagonal = options.diagonal + first
        if transforms.under_transform((s,)):
            mask = causal(s, diagonal)
        else:
            _hide(s, diagonal + 1)
    return weights_of(s, omega, mask, given.gamma, options.certify, given.sink, options.domain)


def scores(q: Tensor, k: Tensor, scale: float | None, enable_gqa: bool) -> Tensor:
    """q kᵀ · scale, (…, Hq, L, S), in float32 at least."""
    check_queries(q, k)
    refuse_context_parallel()
    q, k = matmul.as_autocast(q, k)
    if q.dtype != k.dtype:
        raise TypeError(f"q and k must have the same dtype; got {q.dtype} and {k.dtype}")
    scale = scale_of(scale, q)
    if q.shape[:-2] != k.shape[:-2]:
        shape_of_scores(q, k, enable_gqa)
    if not enable_gqa:
        return matmul.scores(q, k, scale)
    return _ungrouped(matmul.scores(_grouped(q, k, "k"), k, scale), q)


def scale_of(scale: float | None, q: Tensor) -> float:
    """``scale``, by default 1/√E."""
    return 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale


def shape_of_scores(q: Tensor, k: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    """(…, Hq, L, S)."""
    own, others = (t.shape[: -3 if enable_gqa else -2] for t in (q, k))
    try:
        batch = (*torch.broadcast_shapes(own, others), *q.shape[len(own) : -2])
    except RuntimeError:
        raise ValueError(
            "q and k must have the same batch and heads, and enable_gqa=True where k has fewer "
            f"heads; got {tuple(q.shape)} and {tuple(k.shape)}"
        ) from None
    return (*batch, q.shape[-2], k.shape[-2])


def weights_of(
    scores: Tensor,
    omega: Omega,
    attn_mask: Tensor | None,
    gamma: float | Tensor = 1.0,
    certify: bool = False,
    sink: float | Tensor | None = None,
    domain: Domain | None = None,
) -> Tensor:
    """Π_Ω of the scores after the mask."""
    mask = None
    if attn_mask is not None:
        mask = materialized(attn_mask, scores.device)
        check_mask(mask, scores.shape)
        if mask.dtype != torch.bool:
            scores, mask = scores + mask, None
    if scores.shape[-1] == 0:  # no key: nothing to map
        return scores
    if sink is None:
        return mapped(omega, scores, gamma, mask, certify, domain)
    mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    beside = scores_of_sink(sink, scores)
    both = torch.cat([scores, beside], -1)
    return mapped(omega, both, gamma, mask, certify, domain)[..., :-1]


def averages(weights: Tensor, v: Tensor, enable_gqa: bool) -> Tensor:
    """weights · v, (…, Hq, L, Ev)."""
    (v,) = matmul.as_autocast(v)
    if not enable_gqa:
        return matmul.averages(weights, v)
    return _ungrouped(matmul.averages(_grouped(weights, v, "v"), v), weights)


def gradients_of_averages(
    weights: Tensor, v: Tensor, g: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of weights and v, given the gradient g of their averages."""
    if not enable_gqa:
        found = matmul.gradients_of_averages(weights, v, g)
        return found[0].sum_to_size(weights.shape), found[1].sum_to_size(v.shape)
    own, g = _grouped(weights, v, "v"), _grouped(g, v, "v")
    dweights, dv = matmul.gradients_of_averages(own, v, g)
    return _ungrouped(dweights, weights).sum_to_size(weights.shape), dv.sum_to_size(v.shape)


def scores_of_sink(sink: Any, scores: Tensor) -> Tensor:
    """The scores of the sink, (…, L, 1)."""
    if not is_dtensor(scores):
        sink = dense("sink", sink, scores)
    t = torch.as_tensor(sink, dtype=scores.dtype, device=scores.device)
    try:
        return t.expand(*scores.shape[:-1], 1)
    except RuntimeError:
        raise ValueError(
            "sink must broadcast to the scores with size 1 along the keys, "
            f"{(*scores.shape[:-1], 1)}, or have shape (heads,); got {tuple(t.shape)}"
        ) from None


def diagonal_of(mask: Any, queries: int, keys: int) -> int | None:
    """The number n where query i sees keys 0, …, i + n by a CausalBias, or None for other masks."""
    bias = sys.modules.get("torch.nn.attention.bias")  # importing it loads the compiler
    if bias is None or type(mask) is not bias.CausalBias:
        return None
    if (mask.seq_len_q, mask.seq_len_kv) != (queries, keys):
        return None  # it is refused as a mask
    return keys - queries if mask.variant == bias.CausalVariant.LOWER_RIGHT else 0


def materialized(mask: Any, device: torch.device) -> Any:
    """A CausalBias, which stores no entries, as bool (L, S), True = takes part."""
    rows, keys = getattr(mask, "seq_len_q", 0), getattr(mask, "seq_len_kv", 0)
    diagonal = diagonal_of(mask, rows, keys)
    if diagonal is None:
        return mask
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(diagonal)


def causal(scores: Tensor, diagonal: int = 0) -> Tensor:
    """(L, S), True where query i sees key j ≤ i + diagonal."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(diagonal)


def _hide(scores: Tensor, first: int) -> None:
    """Set the scores of keys ≥ first + i of each query i to −inf, in place and unknown to autograd:
    their gradient is 0."""
    after = scores.detach()[..., max(first, 0) :]
    above = torch.ones(after.shape[-2:], dtype=torch.bool, device=after.device)
    after.masked_fill_(above.triu(min(first, 0)), -torch.inf)


def _grouped(t: Tensor, shared: Tensor, name: str) -> Tensor:
    """(…, Hq, L, n) as (…, H, Hq/H · L, n): the heads that share one of ``shared``'s, stacked."""
    if t.ndim < 3 or shared.ndim < 3 or t.shape[-3] % max(shared.shape[-3], 1):
        raise ValueError(
            f"with enable_gqa=True, q's number of heads, dim -3, must be a multiple of {name}'s; "
            f"got shapes {tuple(t.shape)} and {tuple(shared.shape)}"
        )
    heads, each = shared.shape[-3], t.shape[-3] // max(shared.shape[-3], 1)
    stacked: Tensor = t.unflatten(-3, (heads, each)).flatten(-3, -2)
    return stacked


def _ungrouped(t: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_grouped`: separate heads, as in ``like``."""
    heads, length = like.shape[-3:-1]
    return t.reshape(*t.shape[:-3], heads, length, t.shape[-1])


def refuse_context_parallel() -> None:
    """Raise inside ``context_parallel``: each process has a part of the keys there, and only
    PyTorch's own attention, whose DTensor operation it replaces, gets the others."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None:
        return
    dispatcher = getattr(getattr(distributed, "DTensor", None), "_op_dispatcher", None)
    handlers = getattr(dispatcher, "_custom_op_handlers", ())
    if torch.ops.aten._scaled_dot_product_flash_attention.default in handlers:
        raise NotImplementedError(
            "regmax's attention needs all keys, and context_parallel leaves each process a part of "
            "them: call it outside of context_parallel, on whole sequences"
        )


def check_tensors(**tensors: Any) -> None:
    for name, item in tensors.items():
        if not isinstance(item, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(item).__name__}")
        if not item.is_floating_point():
            raise TypeError(f"{name} must be a floating tensor; got {item.dtype}")


def check_numbers(**items: Any) -> None:
    for name, item in items.items():
        number = isinstance(item, Real)
        tensor = item is None or isinstance(item, Tensor | torch.SymFloat | torch.SymInt)
        if not (number or tensor) or (number and item != item):
            raise ValueError(f"{name} must be a number, a torch.Tensor or None; got {brief(item)}")


def check_queries(q: Any, k: Any) -> None:
    check_tensors(q=q, k=k)
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have shapes (..., L, E) and (..., S, E) with the same E; got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )


def check_mask(attn_mask: Any, wanted: tuple[int, ...]) -> None:
    """``wanted``: the shape of the scores."""
    refuse_subclasses("attn_mask", attn_mask)
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(
            "attn_mask must be bool (True = takes part) or floating (added to the scores); got "
            f"{attn_mask.dtype}"
        )
    shape, wanted = tuple(attn_mask.shape), tuple(wanted)
    padded = (1,) * (len(wanted) - len(shape)) + shape
    if len(shape) > len(wanted) or any(
        n not in (1, m) for n, m in zip(padded, wanted, strict=True)
    ):
        raise ValueError(
            f"attn_mask must broadcast to the scores, (..., L, S) = {wanted}; got {shape}"
        )


def refuse_subclasses(name: str, mask: Any) -> None:
    """Refuse masks that are not tensors, and subclasses that may not mean their stored entries."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a Tensor or None; got {type(mask).__name__}")
    kind = type(mask)
    if kind not in (Tensor, nn.Parameter) and not kind.__module__.startswith(MASK_SUBCLASSES):
        raise TypeError(
            f"{name} must be a plain Tensor, a CausalBias of torch.nn.attention.bias as attn_mask, "
            f"or None; got {kind.__name__}"
        )
