"""Scaled dot-product attention with any Ω instead of softmax."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels import transforms
from ..kernels.wrappers import dense, is_dtensor
from ..mapping.rows import HALF
from . import chunks, compiled, packed, products
from .omega import Omega, mapped

# modules of tensor subclasses that are accepted as masks: fake tensors and DTensors
MASK_SUBCLASSES = ("torch._subclasses", "torch.distributed")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Omega,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    gamma: float | Tensor = 1.0,
    certify: bool = False,
    sink: float | Tensor | None = None,
    chunk: int | None = None,
    cu_seq_q: Tensor | None = None,
    cu_seq_k: Tensor | None = None,
) -> Tensor:
    """Π_Ω(q kᵀ · scale + mask) v. Each query is a row of scores; its entries are the keys.

    The arguments up to ``enable_gqa`` are those of
    :func:`torch.nn.functional.scaled_dot_product_attention`. With the entropy the results are
    equal, except that a query without keys gives zeros in every mapping.

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`, a :class:`regmax.nn.Learnable`, or the name of a mapping
        ("entmax15") or regularizer, with its default hyperparameters. Tensors inside it broadcast
        to the scores with size 1 along the keys: (Hq, 1, 1) is one number per head.
    attn_mask: broadcasts to the scores. bool: True = takes part. Floating: added to the scores;
        −inf masks the key. Or a :class:`torch.nn.attention.bias.CausalBias` of size (L, S).
        If the order of the entries matters, as in fusedmax, neighbours are neighbours among the
        participants.
    dropout_p: the share of weights that is dropped, in training and in evaluation. The others are
        divided by 1 − dropout_p.
    is_causal: query i sees keys 0, …, i, also if L ≠ S. Then ``attn_mask`` must be None.
    scale: by default 1/√E. If E = 0, all scores are 0.
    enable_gqa: whether Hq may be a multiple of H. Consecutive query heads then share a key head.
    gamma: γ > 0, the temperature. A tensor broadcasts like the tensors inside Ω.
    certify: as in :class:`regmax.RegularizedMax`, for debugging.
    sink: the score of one more entry, after the keys, whose value is 0 (Xiao et al. 2024, §3.3). So
        the weights of the keys add up to at most 1. A tensor broadcasts to the scores with size 1
        along the keys. A query without keys gives zeros.
    chunk: how many queries are computed at a time; the backward pass computes their weights again.
        Memory is then proportional to chunk · S. The scores of keys that ``is_causal`` hides from
        the whole chunk are not computed if Ω has a closed form or is declared separable. By
        default: all queries if they have at most 8 million scores (134 million on a GPU), else as
        many as have half of that. Under transforms and in a graph always all. A kernel
        without scores in memory is taken where Ω has one that takes the arguments: on CUDA, and on
        the CPU PyTorch's own for long softmax attention.
    cu_seq_q: where packed sequences begin among the L queries, and L: int32 or int64, (N + 1,), as
        in :func:`torch.nn.attention.varlen.varlen_attn`, but q is (…, Hq, L, E). A query sees the
        keys of its sequence. Each sequence is computed alone: ``is_causal`` counts queries and keys
        in it, and tensors of numbers broadcast to its scores. The offsets are read, which waits for
        a GPU that holds them.
    cu_seq_k: the same of the S keys; by default ``cu_seq_q``.

    Shapes: q (…, Hq, L, E), k (…, H, S, E), v (…, H, S, Ev), the result (…, Hq, L, Ev) in v's
    dtype. Without ``enable_gqa``, Hq = H, or there is no head dimension. Each size may be 0;
    S = 0 gives zeros. Autocast rounds q, k and v to its dtype. Scores and Π_Ω of
    half-precision inputs are in float32, and the result is rounded once. q, k and v may be nested
    tensors of layout ``torch.jagged``, (N, L, E) or (N, H, L, E): packed sequences.
    """
    chunks.check(chunk)
    alone: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "gamma": gamma,
        "certify": certify,
        "sink": sink,
        "chunk": chunk,
    }
    if any(isinstance(t, Tensor) and t.is_nested for t in (q, k, v)):
        several = partial(attention, omega=omega, attn_mask=attn_mask, **alone)
        return packed.nested(several, q, k, v, cu_seq_q, cu_seq_k)
    _check_queries(q, k)
    _check_values(k, v)
    queries, keys = q.shape[-2], k.shape[-2]
    _check_causal(attn_mask, is_causal)
    offsets = packed.offsets(cu_seq_q, cu_seq_k, queries, keys)
    if offsets is not None and attn_mask is not None:
        raise ValueError("attn_mask must be None for nested or packed q, k and v: no key is padded")
    diagonal = 0 if is_causal else _diagonal(attn_mask, queries, keys)
    mask = attn_mask if diagonal is None else None

    def weigh(
        first: int | None, s: Tensor, omega: Omega, mask: Any, gamma: Any, sink: Any
    ) -> Tensor:
        if diagonal is not None and first is not None:
            _hide(s, first + diagonal + 1)
        return weights_of(s, omega, mask, gamma, certify, sink)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, omega: Omega, mask: Any, gamma: Any, sink: Any, kept: Any
    ) -> Tensor:
        s = scores(q, k, scale, enable_gqa)
        mask = mask if diagonal is None else causal(s, diagonal)
        weights = weights_of(s, omega, mask, gamma, certify, sink)
        weights = F.dropout(weights, dropout_p) if kept is None else weights * kept
        return averages(weights, v, enable_gqa)

    if not certify and chunk is None:
        _refuse_context_parallel()
        found = compiled.attended(
            *(attend, q, k, v, omega, mask, sink, gamma),
            *(diagonal, offsets, scale, enable_gqa, dropout_p),
        )
        if found is not None:
            return found
    if offsets is not None:
        return packed.attended(partial(attention, omega=omega, **alone), offsets, q, k, v)
    if not chunks.whole(q, k, v, random=dropout_p > 0):
        chunk = chunk or chunks.automatic(q, k, omega)
        if chunk < queries:
            plan = chunks.Plan(
                lambda q, k: scores(q, k, scale, enable_gqa),
                weigh,
                lambda weights, v: averages(weights, v, enable_gqa),
                lambda weights, v, g: _pulled(weights, v, g, enable_gqa),
                *(_number(scale, q), enable_gqa, diagonal, dropout_p, certify),
            )
            whole = chunks.all_scores(q, k, enable_gqa)
            if chunks.misses(mask, queries):
                _check_mask(mask, whole)
            if chunks.misses(sink, queries):
                _beside(sink, whole)
            return chunks.attended(plan, chunk, q, k, v, omega, (mask, gamma, sink))
    return attend(q, k, v, omega, mask, gamma, sink, None)


def attention_weights(
    q: Tensor,
    k: Tensor,
    omega: Omega,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    gamma: float | Tensor = 1.0,
    certify: bool = False,
    sink: float | Tensor | None = None,
) -> Tensor:
    """Π_Ω(q kᵀ · scale + mask), (…, Hq, L, S): the weights of :func:`attention`. They are rounded
    to the dtype of q, or of autocast, if that is half precision."""
    s = scores(q, k, scale, enable_gqa)
    _check_causal(attn_mask, is_causal)
    mask = causal(s) if is_causal else attn_mask
    weights = weights_of(s, omega, mask, gamma, certify, sink)
    (q,) = products.as_autocast(q)
    return weights.to(q.dtype) if q.dtype in HALF else weights


def scores(q: Tensor, k: Tensor, scale: float | None, enable_gqa: bool) -> Tensor:
    """q kᵀ · scale, (…, Hq, L, S), in float32 at least."""
    _check_queries(q, k)
    _refuse_context_parallel()
    q, k = products.as_autocast(q, k)
    if q.dtype != k.dtype:
        raise TypeError(f"q and k must have the same dtype; got {q.dtype} and {k.dtype}")
    scale = _number(scale, q)
    if not enable_gqa:
        return products.scores(q, k, scale)
    return _ungrouped(products.scores(_grouped(q, k, "k"), k, scale), q)


def _number(scale: float | None, q: Tensor) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale


def weights_of(
    scores: Tensor,
    omega: Omega,
    attn_mask: Tensor | None,
    gamma: float | Tensor = 1.0,
    certify: bool = False,
    sink: float | Tensor | None = None,
) -> Tensor:
    """Π_Ω of the scores after the mask."""
    mask = None
    if attn_mask is not None:
        mask = materialized(attn_mask, scores.device)
        _check_mask(mask, scores)
        if mask.dtype != torch.bool:
            scores, mask = scores + mask, None
    if scores.shape[-1] == 0:  # no key: nothing to map
        return scores
    if sink is None:
        return mapped(omega, scores, gamma, mask, certify)
    mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    beside = _beside(sink, scores)
    return mapped(omega, torch.cat([scores, beside], -1), gamma, mask, certify)[..., :-1]


def _beside(sink: Any, scores: Tensor) -> Tensor:
    """The scores of the sink, (…, L, 1)."""
    if not is_dtensor(scores):
        sink = dense("sink", sink, scores)
    t = torch.as_tensor(sink, dtype=scores.dtype, device=scores.device)
    try:
        return t.expand(*scores.shape[:-1], 1)
    except RuntimeError:
        raise ValueError(
            "sink must broadcast to the scores with size 1 along the keys, "
            f"{(*scores.shape[:-1], 1)}; got {tuple(t.shape)}"
        ) from None


def _diagonal(mask: Any, queries: int, keys: int) -> int | None:
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
    diagonal = _diagonal(mask, rows, keys)
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


def averages(weights: Tensor, v: Tensor, enable_gqa: bool) -> Tensor:
    """weights · v, (…, Hq, L, Ev)."""
    (v,) = products.as_autocast(v)
    if not enable_gqa:
        return products.averages(weights, v)
    return _ungrouped(products.averages(_grouped(weights, v, "v"), v), weights)


def _pulled(weights: Tensor, v: Tensor, g: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor]:
    """The gradients of weights and v, given g, that of their averages."""
    if v.dtype in HALF or transforms.autocasting(v.device.type):
        weights, v = (t.detach().requires_grad_() for t in (weights, v))
        with torch.enable_grad():
            out = averages(weights, v, enable_gqa)
        return torch.autograd.grad(out, (weights, v), g)  # type: ignore[return-value]
    own = weights.to(v.dtype)
    if enable_gqa:
        g, own = _grouped(g, v, "v"), _grouped(own, v, "v")
    dweights, dv = g @ v.mT, own.mT @ g
    if enable_gqa:
        dweights = _ungrouped(dweights, weights)
    return dweights.to(weights.dtype).sum_to_size(weights.shape), dv.sum_to_size(v.shape)


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


def _refuse_context_parallel() -> None:
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


def _check_tensors(**tensors: Any) -> None:
    for name, item in tensors.items():
        if not isinstance(item, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(item).__name__}")


def _check_queries(q: Any, k: Any) -> None:
    _check_tensors(q=q, k=k)
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have shapes (..., L, E) and (..., S, E) with the same E; got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )


def _check_causal(attn_mask: Any, is_causal: bool) -> None:
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask must be None where is_causal=True; join the two into one mask")


def _check_values(k: Tensor, v: Tensor) -> None:
    _check_tensors(k=k, v=v)
    if k.ndim < 2 or v.ndim < 2 or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "k and v must have shapes (..., S, E) and (..., S, Ev) with the same S; got "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )


def _check_mask(attn_mask: Any, scores: Tensor) -> None:
    refuse_subclasses("attn_mask", attn_mask)
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(
            "attn_mask must be bool (True = takes part) or floating (added to the scores); got "
            f"{attn_mask.dtype}"
        )
    shape, wanted = tuple(attn_mask.shape), tuple(scores.shape)
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
