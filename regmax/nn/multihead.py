"""``torch.nn.MultiheadAttention`` with any Ω."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import domains
from ..domains import Domain
from ..regularizers.arguments import POSITIVE, hyperparameter
from ..regularizers.printing import called, unusual
from .attention import attention
from .learnable import LengthScaled
from .omega import Omega, fresh
from .whole import Inputs, Options, attended, materialized, refuse_subclasses, scale_of


class MultiheadAttention(nn.MultiheadAttention):
    """Concat(head_1, …, head_H) W_o, head_h = Π_Ω(Q_h K_hᵀ / √E_h) V_h.

    Signature, masks, initialisation and state dict are those of
    :class:`torch.nn.MultiheadAttention`. With the entropy the results are equal, except that a
    query without keys gives weights 0 and not NaN.

    From ``embed_dim`` to ``dtype`` the arguments are those of :class:`torch.nn.MultiheadAttention`.

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`, a :class:`regmax.nn.Learnable`, or the name of a mapping
        ("entmax15"). Scores have the shape (N, H, L, S): a tensor of shape (H, 1, 1) inside Ω is
        one number per head, and :class:`regmax.nn.AdaptiveEntmax` learns one α per head. Learned
        parameters are in the state dict under ``omega.``.
    gamma: γ > 0, a float, a tensor of shape (H, 1, 1) or so, or a module that computes one, such as
        ``regmax.nn.Positive((H, 1, 1))``, also from the number of keys, :class:`LengthScaled`.
    certify: as in :class:`regmax.RegularizedMax`, for debugging.
    sink: whether to learn the score of a sink for each head, the parameter ``sink`` of shape
        (H, 1, 1), at first 0 (:func:`regmax.nn.attention`).
    domain: as in :func:`regmax.nn.attention`.

    Without ``need_weights`` long sequences are computed by chunks of queries, in less memory.

    Masks: True = left out, in ``key_padding_mask`` (N, S) and ``attn_mask`` (L, S) or
    (N·H, L, S). This is PyTorch's convention here, and the opposite of that of
    :func:`regmax.nn.attention`. Floating masks are added to the scores. ``is_causal`` is a hint: it
    needs ``attn_mask`` and adds nothing to it.

    ``load_state_dict`` or :meth:`from_torch` takes the weights of a trained PyTorch layer. A
    :class:`torch.nn.TransformerEncoderLayer` or decoder layer that holds this layer also calls it
    in inference, and does not use PyTorch's fused softmax.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        omega: Omega,
        gamma: float | Tensor | nn.Module = 1.0,
        certify: bool = False,
        sink: bool = False,
        domain: Domain | None = None,
    ) -> None:
        omega, domain = fresh(omega), domains.given(domain)
        if not isinstance(sink, bool):
            raise TypeError(f"sink must be a bool; got {type(sink).__name__} {sink!r}")
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        self.omega = omega
        if not isinstance(gamma, nn.Module):
            gamma = hyperparameter("gamma", gamma, *POSITIVE)
        self.gamma = gamma
        self.certify = certify
        self.domain = domain
        sinks = torch.zeros(num_heads, 1, 1, device=device, dtype=dtype) if sink else None
        self.sink = None if sinks is None else nn.Parameter(sinks)

    @classmethod
    def from_torch(
        cls,
        layer: nn.MultiheadAttention,
        omega: Omega,
        gamma: float | Tensor | nn.Module = 1.0,
        domain: Domain | None = None,
    ) -> MultiheadAttention:
        """A layer with Ω, on a domain, and a copy of the weights of ``layer``."""
        weight = layer.out_proj.weight
        made = cls(
            layer.embed_dim,
            layer.num_heads,
            layer.dropout,
            layer.in_proj_bias is not None,
            layer.bias_k is not None,
            layer.add_zero_attn,
            layer.kdim,
            layer.vdim,
            layer.batch_first,
            weight.device,
            weight.dtype,
            omega=omega,
            gamma=gamma,
            domain=domain,
        )
        own = dict(made.named_parameters())
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                own[name].copy_(parameter)
                own[name].requires_grad_(parameter.requires_grad)
        return made.train(layer.training)

    def __repr__(self) -> str:
        weight = self.out_proj.weight
        options = unusual(
            dropout=(self.dropout, 0.0),
            bias=(self.in_proj_bias is not None, True),
            add_bias_kv=(self.bias_k is not None, False),
            add_zero_attn=(self.add_zero_attn, False),
            kdim=(self.kdim, self.embed_dim),
            vdim=(self.vdim, self.embed_dim),
            batch_first=(self.batch_first, False),
            device=(str(weight.device), str(torch.get_default_device())),
            dtype=(weight.dtype, torch.get_default_dtype()),
            omega=(self.omega, None),
            gamma=(self.gamma, 1.0),
            sink=(self.sink is not None, False),
            domain=(self.domain, None),
        )
        return called(self, [str(self.embed_dim), str(self.num_heads), *options])

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # nn.TransformerEncoderLayer reads this: were it True, it would not call this layer in
        # inference, but compute a softmax of its own
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs, of query's shape, and the weights: (N, L, S), averaged over the heads,
        (N, H, L, S) without ``average_attn_weights``, or None without ``need_weights``."""
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask must be given where is_causal=True; got None")
        itself = query is key and key is value
        if query.is_nested:
            if not (itself and self.batch_first and key_padding_mask is attn_mask is None):
                raise ValueError(
                    "a nested query must be key and value too, with batch_first=True and without "
                    "masks; pad it instead (nn.TransformerEncoder does, with "
                    "enable_nested_tensor=False)"
                )
            return self._nested(query), None
        self._check_shapes(query, key, value)
        batched = query.ndim == 3
        if not batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        mask = self._mask(query, key, key_padding_mask, attn_mask)

        q, k, v = map(self._heads, self._projected(query, key, value, itself))
        k, v = self._extended(k, self.bias_k), self._extended(v, self.bias_v)
        gamma = self._temperature(query, k, mask)
        dropout = self.dropout if self.training else 0.0
        seen = None
        if need_weights:
            asked: Any = {"certify": self.certify, "domain": self.domain}
            options = Options(scale_of(None, q), dropout=dropout, **asked)
            given = Inputs(q, k, v, mask, self.sink, gamma)
            heads, weights = attended(options, self.omega, given)
            seen = (weights.mean(1) if average_attn_weights else weights).to(v.dtype)
        else:
            heads = attention(
                *(q, k, v, self.omega),
                attn_mask=mask,
                dropout_p=dropout,
                gamma=gamma,
                certify=self.certify,
                sink=self.sink,
                domain=self.domain,
            )
        out: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if seen is None else seen.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), seen

    def _projected(
        self, query: Tensor, key: Tensor, value: Tensor, itself: bool
    ) -> tuple[Tensor, ...]:
        """Q, K and V, (N, L or S, E) each."""
        if self.in_proj_weight is None:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif itself:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            matrices = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        given = zip((query, key, value), matrices, biases, strict=True)
        return tuple(F.linear(*arguments) for arguments in given)

    def _heads(self, t: Tensor) -> Tensor:
        """(N, S, E) as (N, H, S, E_h)."""
        heads: Tensor = t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        return heads

    def _extended(self, t: Tensor, bias: Tensor | None) -> Tensor:
        """Keys or values, with those that ``add_bias_kv`` and ``add_zero_attn`` append."""
        if bias is not None:
            t = torch.cat([t, self._heads(bias).expand(t.shape[0], -1, -1, -1).to(t.dtype)], 2)
        return F.pad(t, (0, 0, 0, 1)) if self.add_zero_attn else t

    def _mask(
        self, query: Tensor, key: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor | None:
        """One mask for :func:`regmax.nn.attention`, bool or floating, for (N, H, L, S)."""
        n, rows, keys = query.shape[0], query.shape[1], key.shape[1]
        masks = []
        if padding is not None:
            _check_mask("key_padding_mask", padding, [(n, keys)])
            masks.append(padding[:, None, None])
        if attn_mask is not None:
            seen = materialized(attn_mask, query.device)
            attn_mask = attn_mask if seen is attn_mask else ~seen
            _check_mask("attn_mask", attn_mask, [(rows, keys), (n * self.num_heads, rows, keys)])
            masks.append(
                attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (n, self.num_heads))
            )
        # every query sees the appended keys
        more = (self.bias_k is not None) + self.add_zero_attn
        masks = [F.pad(m, (0, more)) for m in masks]
        if any(m.is_floating_point() for m in masks):
            dtype = torch.promote_types(query.dtype, torch.float32)
            return sum(_floating(m, dtype) for m in masks)  # type: ignore[return-value]
        return ~functools.reduce(torch.logical_or, masks) if masks else None

    def _temperature(self, query: Tensor, k: Tensor, mask: Tensor | None) -> Any:
        """γ; ``query`` (N, L, E)."""
        if isinstance(self.gamma, LengthScaled):
            n: Any = k.shape[2]
            if mask is not None:
                on = mask if mask.dtype == torch.bool else mask != -torch.inf
                n = on.sum(-1, keepdim=True)
            return self.gamma(n, query)
        return self.gamma() if isinstance(self.gamma, nn.Module) else self.gamma

    def _nested(self, rows: Tensor) -> Tensor:
        """Rows of different lengths, which nn.TransformerEncoder makes in inference."""
        lengths = [len(row) for row in rows.unbind()]
        x = rows.to_padded_tensor(0.0)
        ends = torch.tensor(lengths, device=x.device)[:, None]
        left_out = torch.arange(x.shape[1], device=x.device) >= ends
        out, _ = self.forward(x, x, x, left_out, need_weights=False)
        kept = [row[:length] for row, length in zip(out, lengths, strict=True)]
        nested: Tensor = torch.nested.as_nested_tensor(kept)
        return nested

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        shapes = [tuple(t.shape) for t in (query, key, value)]
        wanted = (self.embed_dim, self.kdim, self.vdim)
        same = len({len(shape) for shape in shapes}) == 1 and shapes[1][:-1] == shapes[2][:-1]
        dims = tuple(shape[-1] for shape in shapes if shape)
        if not same or query.ndim not in (2, 3) or dims != wanted:
            raise ValueError(
                "query, key and value must have 2 dimensions or, batched, 3, the last ones "
                f"{wanted}, and key and value agree in the others; got "
                f"{', '.join(map(str, shapes))}"
            )


def _check_mask(name: str, mask: Any, accepted: list[tuple[int, ...]]) -> None:
    refuse_subclasses(name, mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be bool (True = left out) or floating; got {mask.dtype}")
    if tuple(mask.shape) not in accepted:
        shapes = " or ".join(map(str, accepted))
        raise ValueError(f"{name} must have shape {shapes}; got {tuple(mask.shape)}")


def _floating(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to the scores, in their dtype or a wider one."""
    if mask.is_floating_point():
        return mask.to(torch.promote_types(mask.dtype, dtype))
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
