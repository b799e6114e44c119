"""Scaled dot-product attention with any Ω instead of softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from .. import domains
from ..domains import Domain
from ..kernels import transforms
from ..kernels.base import CannotLaunch
from ..mapping.rows import HALF
from ..regularizers.printing import brief
from . import chunks, fused, gradients, matmul, packed, whole
from .omega import Omega, resolved
from .whole import Inputs, Options


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
    domain: Domain | None = None,
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
        the weights of the keys add up to at most 1. A tensor of shape (heads,) is one number for
        each head; others broadcast to the scores with size 1 along the keys. A query without keys
        gives zeros.
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
    domain: what the weights of a query are in, in place of the simplex, as in
        :class:`regmax.RegularizedMax`. Bounds and totals broadcast to the scores, (H, 1, 1) for
        instance; those of each query, or that learn, need all scores at once. A sink is one more
        entry. A query without keys gives zeros; one whose keys cannot have the total, as the first
        ones of ``is_causal`` under a cap, raises ValueError: ``AtMost`` has a point for any keys.

    Shapes: q (…, Hq, L, E), k (…, H, S, E), v (…, H, S, Ev), the result (…, Hq, L, Ev) in v's
    dtype. Without ``enable_gqa``, Hq = H, or there is no head dimension. Each size may be 0;
    S = 0 gives zeros. Autocast rounds q, k and v to its dtype. Scores and Π_Ω of
    half-precision inputs are in float32, and the result is rounded once. q, k and v may be nested
    tensors of layout ``torch.jagged``, (N, L, E) or (N, H, L, E): packed sequences.

    :func:`explain_attention` tells which of three ways a call takes, and why: one kernel, chunks of
    queries, or all scores at once.
    """
    call, begin = _checked(
        *(q, k, v, omega, attn_mask, dropout_p, is_causal, scale, enable_gqa),
        *(gamma, certify, sink, chunk, cu_seq_q, cu_seq_k, domain),
    )
    out = _computed(*call)
    return out if begin is None else packed.nested(out, begin)


def explain_attention(q: Tensor, k: Tensor, v: Tensor, omega: Omega, **options: Any) -> str:
    """How :func:`attention` computes a call with these arguments, and why.

    "kernel": one compiled kernel, without scores in memory. "chunks": some queries at a time;
    backward computes their weights again. "whole": all scores at once. "sequences": each packed
    sequence alone, in one of these ways.
    """
    call, _ = _checked(q, k, v, omega, **{**(attention.__kwdefaults__ or {}), **options})
    way = chosen(*call)
    return f"{way.name}: {'; '.join(way.why)}"


class Way(NamedTuple):
    """How attention is computed, and why so."""

    name: str
    why: tuple[str, ...]
    compute: Callable[[], Tensor]


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Omega,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    gamma: float | Tensor,
    certify: bool,
    sink: float | Tensor | None,
    chunk: int | None,
    cu_seq_q: Tensor | None,
    cu_seq_k: Tensor | None,
    domain: Domain | None,
) -> tuple[tuple[Any, ...], Tensor | None]:
    """The arguments of :func:`chosen`, and where the sequences of nested tensors begin."""
    chunks.check(chunk)
    if not isinstance(dropout_p, Real) or not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p must be a number in [0, 1]; got {brief(dropout_p)}")
    begin = None
    if any(isinstance(t, Tensor) and t.is_nested for t in (q, k, v)):
        (q, begin), (k, cu_seq_k), (v, _) = packed.rows_of(q, k, v, cu_seq_q, cu_seq_k)
        cu_seq_q = begin
    whole.check_queries(q, k)
    whole.check_numbers(scale=scale, sink=sink)
    _check_values(k, v)
    whole.refuse_context_parallel()
    queries, keys = q.shape[-2], k.shape[-2]
    _check_causal(attn_mask, is_causal)
    offsets = packed.offsets(cu_seq_q, cu_seq_k, queries, keys)
    if offsets is not None and attn_mask is not None:
        raise ValueError("attn_mask must be None for nested or packed q, k and v: no key is padded")
    diagonal = 0 if is_causal else whole.diagonal_of(attn_mask, queries, keys)
    mask = attn_mask if diagonal is None else None
    options = Options(
        *(whole.scale_of(scale, q), diagonal, offsets, dropout_p),
        enable_gqa=enable_gqa,
        certify=certify,
        domain=domains.given(domain),
    )
    if sink is not None:
        sink = _by_head(sink, q, k)
    return (options, omega, chunk, Inputs(q, k, v, mask, sink, gamma)), begin


def _computed(*call: Any) -> Tensor:
    try:
        return chosen(*call).compute()
    except CannotLaunch:  # the kernel is now known not to fit this device
        return chosen(*call).compute()


def chosen(options: Options, omega: Omega, chunk: int | None, given: Inputs) -> Way:
    """The way that computes a call."""
    q, k = given.q, given.k

    def every() -> Tensor:
        return whole.attended(options, omega, given)[0]

    if options.offsets is None and transforms.under_transform(given[:3]):
        return Way("whole", ("in a graph, under a transform or of wrapped tensors",), every)
    kernel: Any = "a chunk is asked for"
    if chunk is None:
        kernel = fused.prepared(options, resolved(omega), given)
    if not isinstance(kernel, str):
        return Way("kernel", ("scores are not in memory",), kernel)
    if options.offsets is not None:
        alone = replace(options, offsets=None)

        def one(q: Tensor, k: Tensor, v: Tensor, _: None) -> Tensor:
            return _computed(alone, omega, chunk, Inputs(q, k, v, *given[3:]))

        each = partial(packed.each, one, options.offsets, *given[:3])
        return Way("sequences", ("each packed sequence alone", kernel), each)
    if options.dropout and q.device.type not in ("cpu", "cuda"):
        return Way("whole", ("chunks could not repeat the dropout of this device", kernel), every)
    if gradients.learns(options.scale):
        return Way("whole", ("scale requires grad", kernel), every)
    if chunks.unfit(options.domain):
        return Way("whole", ("domain= learns, or differs between queries", kernel), every)
    size = chunk or chunks.automatic(q, k, omega)
    if size >= q.shape[-2]:
        return Way("whole", ("a chunk takes all queries", kernel), every)
    parts = chunks.prepared(options, omega, size, given)
    return Way("chunks", (f"of {size} queries", kernel), parts)


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
    domain: Domain | None = None,
) -> Tensor:
    """Π_Ω(q kᵀ · scale + mask), (…, Hq, L, S): the weights of :func:`attention`. They are rounded
    to the dtype of q, or of autocast, if that is half precision."""
    s = whole.scores(q, k, scale, enable_gqa)
    _check_causal(attn_mask, is_causal)
    mask = whole.causal(s) if is_causal else attn_mask
    sink, domain = _by_head(sink, q, k), domains.given(domain)
    weights = whole.weights_of(s, omega, mask, gamma, certify, sink, domain)
    (q,) = matmul.as_autocast(q)
    return weights.to(q.dtype) if q.dtype in HALF else weights


def _by_head(sink: Any, q: Tensor, k: Tensor) -> Any:
    """The sink; one number for each head, (heads,), as (heads, 1, 1)."""
    heads = max(t.shape[-3] if t.ndim > 2 else 0 for t in (q, k))
    return sink[:, None, None] if isinstance(sink, Tensor) and sink.shape == (heads,) else sink


def _check_causal(attn_mask: Any, is_causal: bool) -> None:
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask must be None where is_causal=True; join the two into one mask")


def _check_values(k: Tensor, v: Tensor) -> None:
    whole.check_tensors(k=k, v=v)
    if k.ndim < 2 or v.ndim < 2 or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "k and v must have shapes (..., S, E) and (..., S, Ev) with the same S; got "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )
