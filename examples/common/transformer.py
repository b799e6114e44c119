"""An encoder–decoder Transformer with any mapping in its attention.

Vaswani et al. (2017) with layer normalisation before each block (pre-norm), sinusoidal positions,
and one matrix for the target's embedding and the output. Correia et al. (2019), eqs. 8 and 10,
replace softmax by α-entmax with a learned α = 1 + sigmoid(a) for each head of each block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regmax.nn import AdaptiveEntmax, MultiheadAttention

from .mappings import omega
from .text import PAD

ADAPTIVE = "adaptive"
BLOCKS = ("encoder", "context", "decoder")
"""Encoder self-attention, attention from the decoder to the encoder, decoder self-attention."""


def attention(width: int, heads: int, mapping: str) -> MultiheadAttention:
    """An attention block. ``mapping``: what :func:`examples.common.mappings.omega` accepts, or
    ``"adaptive"``: entmax with a learned α per head, 1.5 at first."""
    chosen = AdaptiveEntmax(heads) if mapping == ADAPTIVE else omega(mapping)
    return MultiheadAttention(width, heads, batch_first=True, omega=chosen)


class Layer(nn.Module):
    """Self-attention, attention to the encoder (in a decoder), and two linear maps with a ReLU."""

    def __init__(
        self, width: int, heads: int, mapping: str, dropout: float, *, decoder: bool
    ) -> None:
        super().__init__()
        self.self_attention = attention(width, heads, mapping)
        self.context = attention(width, heads, mapping) if decoder else None
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decoder else 2))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        padding: Tensor,
        future: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
    ) -> Tensor:
        """(B, T, width) from ``x`` of the same shape. Masks are True for keys that are left out."""
        y = self.norms[0](x)
        x = x + self.dropout(self._attend(self.self_attention, y, y, padding, future))
        if self.context is not None:
            y = self.norms[1](x)
            x = x + self.dropout(self._attend(self.context, y, memory, memory_padding))
        out: Tensor = x + self.dropout(self.feed(self.norms[-1](x)))
        return out

    @staticmethod
    def _attend(
        block: MultiheadAttention,
        x: Tensor,
        memory: Tensor | None,
        padding: Tensor | None,
        future: Tensor | None = None,
    ) -> Tensor:
        given = {"key_padding_mask": padding, "attn_mask": future}
        out: Tensor = block(x, memory, memory, **given, average_attn_weights=False)[0]
        return out


class Transformer(nn.Module):
    """Logits of the next target word from a source sentence and the previous target words.

    ``words``: the sizes of the source and the target vocabulary. ``mapping``: as in
    :func:`attention`, for all three kinds of block. Dropout is applied to the output of each block
    and to the embeddings with their positions.
    """

    def __init__(
        self,
        words: tuple[int, int],
        width: int,
        layers: int,
        heads: int,
        mapping: str,
        dropout: float = 0.1,
    ) -> None:
        if width % heads or width % 2:
            raise ValueError(f"width must be even and a multiple of heads = {heads}; got {width}")
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, width, PAD) for n in words)
        for table in self.embeddings:
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=width**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.encoder, self.decoder = (
            nn.ModuleList(
                Layer(width, heads, mapping, dropout, decoder=decoder) for _ in range(layers)
            )
            for decoder in (False, True)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, T, V) logits: those at t from ``source`` (B, S) and ``target[:, : t + 1]``."""
        return self.logits(self.decode(self.encode(source), source, target))

    def encode(self, source: Tensor) -> Tensor:
        """(B, S, width) encoder states."""
        x, padding = self._embed(0, source), source == PAD
        for layer in self.encoder:
            x = layer(x, padding)
        out: Tensor = self.norms[0](x)
        return out

    def decode(self, memory: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """(B, T, width) from the result of :meth:`encode`, the source and the previous target."""
        x, steps = self._embed(1, target), target.shape[1]
        future = torch.ones(steps, steps, dtype=torch.bool, device=target.device).triu(1)
        for layer in self.decoder:
            x = layer(x, target == PAD, future, memory, source == PAD)
        out: Tensor = self.norms[1](x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(..., V) logits from decoder states."""
        table = self.embeddings[1]
        assert isinstance(table, nn.Embedding)
        return nn.functional.linear(x, table.weight)

    def attention(self, block: str) -> list[MultiheadAttention]:
        """The attention of each layer, in order: ``block`` is one of ``BLOCKS``."""
        layers = self.encoder if block == "encoder" else self.decoder
        which = "context" if block == "context" else "self_attention"
        return [getattr(layer, which) for layer in layers]

    def weights(self, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
        """The attention weights (B, H, Q, K) of a forward pass, by block and layer."""
        found: dict[str, list[Tensor]] = {block: [] for block in BLOCKS}
        hooks = [
            module.register_forward_hook(lambda _, given, out, kept=kept: kept.append(out[1]))
            for block, kept in found.items()
            for module in self.attention(block)
        ]
        try:
            self(source, target)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def alphas(self) -> dict[str, Tensor]:
        """α by block, (layers, heads); empty where no α is learned."""
        found = {}
        for block in BLOCKS:
            omegas = [module.omega for module in self.attention(block)]
            learned = [o.alpha.flatten() for o in omegas if isinstance(o, AdaptiveEntmax)]
            if learned:
                found[block] = torch.stack(learned)
        return found

    def _embed(self, side: int, words: Tensor) -> Tensor:
        x = self.embeddings[side](words)
        out: Tensor = self.dropout(x * math.sqrt(x.shape[-1]) + _positions(x))
        return out


def _positions(x: Tensor) -> Tensor:
    """(T, width) sines and cosines of the position at geometric wavelengths from 2π to 20000π."""
    steps, width = x.shape[-2:]
    rates = 10000 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(steps, device=x.device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
