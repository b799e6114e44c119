"""Hugging Face transformers: ``attn_implementation="regmax-entmax15"``.

    from regmax.integrations import transformers as hf
    hf.register()
    model = AutoModel.from_pretrained(name, attn_implementation="regmax-entmax15")

The library hands the mask over only if a function that makes it is registered under the same name,
and leaves it out where softmax's kernels need none. Both are seen to here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nn.attention import averages, causal, scores, weights_of
from ..nn.mapping import Omega, resolved
from ..plugins import registry

PREFIX = "regmax-"
# what would change the answer, and is not done here: each is refused, unless it is None
REFUSED = {
    "s_aux": "attention sinks: softmax scores beside the keys' own",
    "sinks": "attention sinks: softmax scores beside the keys' own",
    "cache": "a paged cache, which continuous batching uses",
    "indices": "keys chosen by an index",
    "block_indices": "keys chosen by an index of blocks",
}
# packed sequences, which a mask tells apart too
PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens")


def register(name: str | None = None, omega: Omega | None = None) -> list[str]:
    """Make ``attn_implementation="regmax-<mapping>"`` known to transformers, for every mapping.

    With ``name`` and ``omega``, a :class:`regmax.Regularizer` or a :class:`regmax.nn.Learnable`,
    that one: ``register("regmax-mine", omega)``. All layers share it, and a model does not list
    its parameters. Returns the names. To be called again for plugins that came later; it replaces
    what it registered before.

    Works on each model that supports the attention interface: bool, causal, sliding and packed
    masks, caches, grouped queries, position biases and soft caps. A query with no key left gives
    zeros. Weights are returned, for ``output_attentions``. What else a model asks for and Π_Ω has
    no answer to, such as sinks, raises NotImplementedError.
    """
    if (name is None) != (omega is None):
        raise TypeError("name and omega go together; got one of them")
    if name is None:
        for mapping in registry().mappings():
            _register(PREFIX + mapping, mapping)
        return [PREFIX + mapping for mapping in registry().mappings()]
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a non-empty str; got {name!r}")
    _register(name, resolved(omega))
    return [name]


def _register(name: str, omega: Omega) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(*args: Any, **kwargs: Any) -> Any:
        """(N, 1, L, S), True = takes part, never left out for a kernel that needs none."""
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(*args, **{**kwargs, **skips})

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return _attention(omega, module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def _attention(
    omega: Omega,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The attention (N, L, Hq, Ev) and its weights (N, Hq, L, S)."""
    _refuse(module, attention_mask, kwargs)
    shared = query.shape[1] != key.shape[1]
    s = scores(query, key, scaling, shared)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if position_bias is not None:
        s = s + position_bias
    if attention_mask is None:
        attention_mask = _unmade_mask(module, s, is_causal, sliding_window)
    weights = F.dropout(weights_of(s, omega, attention_mask), dropout)
    out = averages(weights, value, shared).transpose(1, 2).contiguous()
    return out, weights.to(out.dtype)


def _refuse(module: Any, attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    found = [f"{key} ({REFUSED[key]})" for key in REFUSED if kwargs.get(key) is not None]
    if attention_mask is None:
        found += [
            f"{key} (packed sequences without a mask)"
            for key in PACKED
            if kwargs.get(key) is not None
        ]
    if found:
        raise NotImplementedError(
            f"{type(module).__name__} asks for what regmax's attention does not do: "
            f"{', '.join(found)}"
        )


def _unmade_mask(
    module: Any, s: Tensor, is_causal: bool | None, sliding_window: int | None
) -> Tensor | None:
    """The mask of a module that was handed none: causal where it says so, or says nothing."""
    rows, keys = s.shape[-2:]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if sliding_window is not None and keys > sliding_window:
        raise NotImplementedError(
            f"regmax's attention takes a sliding window as a mask; got sliding_window="
            f"{sliding_window} for {keys} keys, and no mask, from {type(module).__name__}"
        )
    return causal(s) if is_causal and rows > 1 else None
