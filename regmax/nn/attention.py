"""Attention by scaled dot products, with any Ω in the place of softmax's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .mapping import Omega, mapped


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
) -> Tensor:
    """Π_Ω(q kᵀ · scale + mask) v, the rows of Π_Ω being the queries, their entries the keys.

    With the entropy it is :func:`torch.nn.functional.scaled_dot_product_attention`, whose arguments
    these are, except that a query with no key left gives zeros in every mapping.

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`, a :class:`regmax.nn.Learnable`, or the name of a mapping
        ("entmax15") or regularizer, with its default hyperparameters. Tensors inside it broadcast
        to the scores with size 1 along the keys: (Hq, 1, 1) is one number per head.
    attn_mask: broadcasts to the scores. bool: True = takes part. Floating: added to the scores;
        −inf leaves the key out. Where the order of the entries means something, as in fusedmax,
        neighbours are neighbours among the keys that take part.
    dropout_p: the share of weights that is dropped, whether in training or not.
    is_causal: query i sees keys 0, …, i, for L ≠ S too; goes without ``attn_mask``.
    scale: by default 1/√E.
    enable_gqa: whether Hq may be a multiple of H: consecutive queries' heads share a key's head.
    gamma: γ > 0, the temperature; a tensor broadcasts as those inside Ω do.

    Shapes: q (…, Hq, L, E), k (…, H, S, E), v (…, H, S, Ev), the result (…, Hq, L, Ev), of v's
    dtype; without ``enable_gqa``, Hq = H, and there may be no such dimension. Products are taken
    in the dtype of the arguments, or of autocast; Π_Ω as :class:`regmax.RegularizedMax` does.
    """
    _check_values(k, v)
    weights = attention_weights(
        q,
        k,
        omega,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        gamma=gamma,
    )
    return averages(F.dropout(weights, dropout_p), v, enable_gqa)


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
) -> Tensor:
    """Π_Ω(q kᵀ · scale + mask), (…, Hq, L, S): what :func:`attention` multiplies v with."""
    return weights_of(scores(q, k, scale, enable_gqa), omega, attn_mask, is_causal, gamma)


def scores(q: Tensor, k: Tensor, scale: float | None, enable_gqa: bool) -> Tensor:
    """q kᵀ · scale, (…, Hq, L, S)."""
    _check_tensors(q=q, k=k)
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have shapes (..., L, E) and (..., S, E) with the same E; got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    q = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if not enable_gqa:
        return q @ k.mT
    return _ungrouped(_grouped(q, k, "k") @ k.mT, q)


def weights_of(
    scores: Tensor,
    omega: Omega,
    attn_mask: Tensor | None,
    is_causal: bool = False,
    gamma: float | Tensor = 1.0,
) -> Tensor:
    """Π_Ω of the scores after the mask."""
    if attn_mask is None:
        return mapped(omega, scores, gamma, causal(scores) if is_causal else None)
    if is_causal:
        raise ValueError("attn_mask must be None where is_causal=True; join the two into one mask")
    _check_mask(attn_mask, scores)
    if attn_mask.dtype == torch.bool:
        return mapped(omega, scores, gamma, attn_mask)
    return mapped(omega, scores + attn_mask, gamma, None)


def causal(scores: Tensor) -> Tensor:
    """(L, S), True where query i sees key j ≤ i."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


def averages(weights: Tensor, v: Tensor, enable_gqa: bool) -> Tensor:
    """weights · v, (…, Hq, L, Ev)."""
    weights = weights.to(v.dtype)
    if not enable_gqa:
        return weights @ v
    return _ungrouped(_grouped(weights, v, "v") @ v, weights)


def _grouped(t: Tensor, shared: Tensor, name: str) -> Tensor:
    """(…, Hq, L, n) as (…, H, Hq/H · L, n): the heads that share one of ``shared``'s, stacked."""
    if t.ndim < 3 or shared.ndim < 3 or t.shape[-3] % shared.shape[-3]:
        raise ValueError(
            f"with enable_gqa=True, q's number of heads, dim -3, must be a multiple of {name}'s; "
            f"got shapes {tuple(t.shape)} and {tuple(shared.shape)}"
        )
    stacked: Tensor = t.unflatten(-3, (shared.shape[-3], -1)).flatten(-3, -2)
    return stacked


def _ungrouped(t: Tensor, like: Tensor) -> Tensor:
    """The heads of ``like`` again, each by itself."""
    heads, length = like.shape[-3:-1]
    return t.reshape(*t.shape[:-3], heads, length, t.shape[-1])


def _check_tensors(**tensors: Any) -> None:
    for name, item in tensors.items():
        if not isinstance(item, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(item).__name__}")


def _check_values(k: Tensor, v: Tensor) -> None:
    _check_tensors(k=k, v=v)
    if k.ndim < 2 or v.ndim < 2 or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "k and v must have shapes (..., S, E) and (..., S, Ev) with the same S; got "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )


def _check_mask(attn_mask: Any, scores: Tensor) -> None:
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a Tensor or None; got {type(attn_mask).__name__}")
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
