"""Hugging Face transformers: ``attn_implementation="regmax-entmax15"``.

    from regmax.integrations import transformers as hf
    hf.register()
    model = AutoModel.from_pretrained(name, attn_implementation="regmax-entmax15")

transformers passes a mask only if a mask function is registered under the same name, and omits the
mask if softmax's kernels need none. This module handles both. ``regmax.integrations.pretrained``
makes Ω a part of the model, which is saved and loaded with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels.wrappers import is_dtensor
from ..nn import chunks
from ..nn.attention import attention
from ..nn.learnable import Learnable
from ..nn.omega import Omega, at_present, fresh
from ..nn.whole import averages, causal, scores, weights_of
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer
from . import pretrained
from .decoding import MappedLogits, beam_search, logits_processor

__all__ = [
    "MappedLogits",
    "attach",
    "beam_search",
    "from_pretrained",
    "logits_processor",
    "register",
]

PREFIX = "regmax-"
# arguments that would change the result and are not supported: refused unless None
REFUSED = {
    "cache": "a paged cache, which continuous batching uses",
    "indices": "keys chosen by an index",
    "block_indices": "keys chosen by an index of blocks",
}
PACKED = dict.fromkeys(
    ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens"), "packed sequences without a mask"
)


def register(name: str | None = None, omega: Omega | None = None) -> list[str]:
    """Make ``attn_implementation="regmax-<mapping>"`` known to transformers, for every mapping.

    With ``name`` and ``omega`` (a :class:`regmax.Regularizer` or a :class:`regmax.nn.Learnable`),
    register that Ω: ``register("regmax-mine", omega)``. A model that is made with the name, or
    switched to it, holds this Ω, as after :func:`attach`. A loaded model holds a copy. Returns the
    names. A second call replaces earlier registrations and adds new plugins.

    Call it before loading a model that was saved with regmax: ``from_pretrained`` then restores the
    attention, or raises.

    Works with each model that supports the attention interface: bool, causal, sliding and packed
    masks, caches, grouped queries, position biases and soft caps. A query without keys gives zeros.
    Weights are returned for ``output_attentions``. Other features raise
    NotImplementedError.
    """
    if (name is None) != (omega is None):
        raise TypeError("name and omega go together; got one of them")
    pretrained.wrap_methods()
    _register(pretrained.ATTACHED, None)
    if name is None:
        mappings = registry().names("mapping")
        for mapping in mappings:
            _register(PREFIX + mapping, mapping)
        return [PREFIX + mapping for mapping in mappings]
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a non-empty str; got {name!r}")
    if name == pretrained.ATTACHED:
        raise ValueError(f"name must not be {name!r}, which means the Ω that a model holds")
    omega = _checked(omega)
    _register(name, omega)
    return [name]


def attach(model: Any, omega: Omega, per_layer: bool = False) -> Any:
    """Make a Hugging Face model use Ω in its attention, and make Ω a part of it. Returns the model.

    ``omega``: a :class:`regmax.nn.Learnable`, a :class:`regmax.Regularizer` or the name of a
    mapping. All attention layers share Ω; with ``per_layer`` each layer learns its own copy. Ω
    moves to the model's device and dtype.

    The parameters of Ω become the model's: ``parameters()`` and ``state_dict()`` contain them, and
    DistributedDataParallel synchronises them if it wraps the model afterwards. ``save_pretrained``
    writes them with the others, and Ω itself into config.json. ``from_pretrained`` of the model's
    class, or of an ``AutoModel``, restores Ω after :func:`register`, and raises without it.
    ``model.set_attn_implementation`` removes Ω.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers.PreTrainedModel; got {type(model).__name__}")
    if not isinstance(per_layer, bool):
        raise TypeError(f"per_layer must be a bool; got {type(per_layer).__name__} {per_layer!r}")
    omega = _checked(omega)
    register()
    pretrained.attach(model, omega, per_layer)
    return model


def from_pretrained(cls: Any, *args: Any, omega: Omega | None = None, **kwargs: Any) -> Any:
    """``cls.from_pretrained(*args, **kwargs)`` for a model that was saved with regmax's attention.

    ``cls``: a model's class, or an ``AutoModel``. ``omega``: the Ω that the model was saved with,
    if its class or that of a part comes from no plugin, so that the config cannot restore it. The
    parameters come from the file; the object ``omega`` stays unchanged.
    """
    register()
    if omega is not None:
        omega = _checked(omega)
    with pretrained.giving(omega):
        found = cls.from_pretrained(*args, **kwargs)
    if omega is not None and not pretrained.holds(found[0] if isinstance(found, tuple) else found):
        raise ValueError(
            f"omega is {omega}, and the model was saved without an Ω of its own: load it without "
            "omega and call attach(model, omega)"
        )
    return found


def _checked(omega: Any) -> Regularizer | Learnable:
    """``omega`` as an object. Refuses tensors that require grad and are not parameters."""
    found = fresh(omega)
    for prefix, part in found.named_modules():
        for key, item in vars(part).items():
            if isinstance(item, Tensor) and item.requires_grad:
                name = f"{prefix}.{key}" if prefix else key
                raise TypeError(
                    f"{name} of {found} requires grad and is no parameter, so no model can list or "
                    "save it: make it an nn.Parameter, or take regmax.nn.Learnable"
                )
    return found


def _register(name: str, omega: Omega | None) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(*args: Any, **kwargs: Any) -> Any:
        """(N, 1, L, S), True = takes part. Always made, although some kernels need none."""
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(*args, **{**kwargs, **skips})

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        found = _of_heads(pretrained.omega_of(module, name), module, query)
        return _attention(found, module, query, key, value, attention_mask, **kwargs)

    pretrained.OMEGAS[name] = omega
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def _of_heads(omega: Omega, module: Any, query: Tensor) -> Omega:
    """Ω with the numbers of the heads in ``query`` (N, H, L, E), which may be some of the model's.

    Each process has all parameters of Ω, and uses them for its own heads: their gradients are added
    over the processes.
    """
    own = query.shape[1]
    heads = getattr(getattr(module, "config", None), "num_attention_heads", own)
    if isinstance(omega, str) or own == heads:
        return omega
    parts = (p for p in module.parameters() if is_dtensor(p))
    sharded = (p.device_mesh for p in parts if any(s.is_shard() for s in p.placements))
    mesh: Any = next(sharded, None)
    if mesh is None:
        return omega
    from torch.distributed.tensor import DTensor, Partial, Replicate

    present = at_present(omega)
    per_row = present.per_row_tensors()
    found = {}
    for name, t in present.tensors(fixed=True).items():
        if is_dtensor(t):
            continue
        whole = DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)
        part = whole.to_local(grad_placements=[Partial()] * mesh.ndim)
        if name in per_row and t.ndim > 2 and t.shape[-3] == heads == own * mesh.size():
            part = part.narrow(-3, own * mesh.get_local_rank(), own)
        found[name] = part
    return present.with_tensors(found) if found else present


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
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention (N, L, Hq, Ev) and its weights (N, Hq, L, S); None instead of the weights of
    long sequences that nobody asked for. ``s_aux``: the scores of sinks,
    one for each head."""
    _refuse(module, attention_mask, kwargs)
    sinks = kwargs.get("sinks") if s_aux is None else s_aux
    sink = None if sinks is None else sinks.view(-1, 1, 1)
    shared = query.shape[1] != key.shape[1]
    bare = softcap is None and position_bias is None and attention_mask is not None
    if (
        bare
        and query.shape[2] > chunks.automatic(query, key, omega)
        and not _wanted(module, kwargs)
    ):
        long = attention(
            *(query, key, value, omega),
            attn_mask=attention_mask,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=shared,
            sink=sink,
        )
        return long.transpose(1, 2).contiguous(), None
    s = scores(query, key, scaling, shared)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if position_bias is not None:
        s = s + position_bias
    if attention_mask is None:
        attention_mask = _unmade_mask(module, s, is_causal, sliding_window)
    weights = F.dropout(weights_of(s, omega, attention_mask, sink=sink), dropout)
    out = averages(weights, value, shared).transpose(1, 2).contiguous()
    return out, weights.to(out.dtype)


def _wanted(module: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the call or the config asks for attention weights, or a model collects them."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # before transformers 5
        return True
    collected = _active_collector.get() or {}
    config = getattr(module, "config", None)
    return (
        any("attentions" in key for key in collected)
        or bool(kwargs.get("output_attentions"))
        or bool(getattr(config, "output_attentions", False))
    )


def _refuse(module: Any, attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    refused = REFUSED | PACKED if attention_mask is None else REFUSED
    found = [f"{key} ({what})" for key, what in refused.items() if kwargs.get(key) is not None]
    if found:
        raise NotImplementedError(
            f"{type(module).__name__} asks for what regmax's attention does not do: "
            f"{', '.join(found)}"
        )


def _unmade_mask(
    module: Any, s: Tensor, is_causal: bool | None, sliding_window: int | None
) -> Tensor | None:
    """The mask of a module that got none: causal, unless the module says otherwise."""
    rows, keys = s.shape[-2:]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if sliding_window is not None and keys > sliding_window:
        raise NotImplementedError(
            f"regmax's attention takes a sliding window as a mask; got sliding_window="
            f"{sliding_window} for {keys} keys, and no mask, from {type(module).__name__}"
        )
    return causal(s) if is_causal and rows > 1 else None
