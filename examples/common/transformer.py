"""An encoder–decoder Transformer whose attention heads map scores to weights as one likes.

Vaswani et al. (2017) with layer normalisation before each block (pre-norm), sinusoidal positions,
and one matrix for the target's embedding and the output. In Correia et al. (2019), eqs. 8 and 10,
softmax becomes α-entmax with one α = 1 + sigmoid(a) for each head of each block, a learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import regmax
from regmax.functional import entmax

from .mappings import omega
from .text import PAD

ADAPTIVE = "adaptive"
BLOCKS = ("encoder", "context", "decoder")
"""Encoder self-attention, attention from the decoder to the encoder, decoder self-attention."""


class Attention(nn.Module):
    """softmax(QKᵀ/√d)V for each head, with another mapping in softmax's place.

    ``mapping``: what :func:`examples.common.mappings.omega` accepts, or ``"adaptive"``: entmax with
    a learned α per head, where a starts as a draw of N(0, 1).
    """

    def __init__(self, width: int, heads: int, mapping: str) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width must be a multiple of 2·heads = {2 * heads}; got {width}")
        self.heads = heads
        self.a = nn.Parameter(torch.randn(heads, 1, 1)) if mapping == ADAPTIVE else None
        self.fixed = regmax.RegularizedMax(omega("entmax15" if mapping == ADAPTIVE else mapping))
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.kept: list[Tensor] | None = None

    @property
    def alpha(self) -> Tensor | None:
        """(H,) α of each head, where it is learned."""
        return None if self.a is None else 1 + torch.sigmoid(self.a.flatten())

    def forward(self, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        """``x`` (B, Q, width) attends to ``memory`` (B, K, width) where ``allowed`` is True."""
        q = self._split(self.query(x))
        k, v = map(self._split, self.key_value(memory).chunk(2, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.a is None:
            weights = self.fixed(scores, allowed)
        else:
            weights = entmax(scores, alpha=1 + torch.sigmoid(self.a), mask=allowed)
        if self.kept is not None:
            self.kept.append(weights.detach())
        out: Tensor = self.output((weights @ v).transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        parts: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return parts


class Layer(nn.Module):
    """Self-attention, attention to the encoder (in a decoder), and two linear maps with a ReLU."""

    def __init__(
        self, width: int, heads: int, mapping: str, dropout: float, *, decoder: bool
    ) -> None:
        super().__init__()
        self.self_attention = Attention(width, heads, mapping)
        self.context = Attention(width, heads, mapping) if decoder else None
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
        allowed: Tensor,
        memory: Tensor | None = None,
        memory_allowed: Tensor | None = None,
    ) -> Tensor:
        y = self.norms[0](x)
        x = x + self.dropout(self.self_attention(y, y, allowed))
        if self.context is not None:
            y = self.norms[1](x)
            x = x + self.dropout(self.context(y, memory, memory_allowed))
        x = x + self.dropout(self.feed(self.norms[-1](x)))
        return x


class Transformer(nn.Module):
    """Logits of the next target word from a source sentence and the target words so far.

    ``words``: how many the source's and the target's vocabulary hold. ``mapping``: as in
    :class:`Attention`, for all three kinds of block. Dropout is applied to what a block adds and to
    the embeddings with their positions.
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
        """(B, S, width) what the source says."""
        x, allowed = self._embed(0, source), self._words(source)
        for layer in self.encoder:
            x = layer(x, allowed)
        out: Tensor = self.norms[0](x)
        return out

    def decode(self, memory: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """(B, T, width) from what :meth:`encode` returned, the source and the target so far."""
        x, steps = self._embed(1, target), target.shape[1]
        causal = torch.ones(steps, steps, dtype=torch.bool, device=target.device).tril()
        for layer in self.decoder:
            x = layer(x, causal & self._words(target), memory, self._words(source))
        out: Tensor = self.norms[1](x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(..., V) logits from rows of :meth:`decode`."""
        table = self.embeddings[1]
        assert isinstance(table, nn.Embedding)
        return nn.functional.linear(x, table.weight)

    def attention(self, block: str) -> list[Attention]:
        """The attention of each layer, in order: ``block`` is one of ``BLOCKS``."""
        layers = self.encoder if block == "encoder" else self.decoder
        which = "context" if block == "context" else "self_attention"
        return [getattr(layer, which) for layer in layers]

    @contextmanager
    def watched(self) -> Iterator[dict[str, list[list[Tensor]]]]:
        """Within it, the weights (B, H, Q, K) of every call are kept: by block, layer and call."""
        blocks = {block: self.attention(block) for block in BLOCKS}
        kept: dict[str, list[list[Tensor]]] = {b: [[] for _ in blocks[b]] for b in BLOCKS}
        for block, modules in blocks.items():
            for module, weights in zip(modules, kept[block], strict=True):
                module.kept = weights
        try:
            yield kept
        finally:
            for modules in blocks.values():
                for module in modules:
                    module.kept = None

    def alphas(self) -> dict[str, list[list[float]]]:
        """α of each head, by block and layer; empty where no α is learned."""
        found: dict[str, list[list[float]]] = {}
        for block in BLOCKS:
            learned = [module.alpha for module in self.attention(block)]
            if all(alpha is not None for alpha in learned):
                found[block] = [alpha.tolist() for alpha in learned if alpha is not None]
        return found

    def _embed(self, side: int, words: Tensor) -> Tensor:
        x = self.embeddings[side](words)
        out: Tensor = self.dropout(x * math.sqrt(x.shape[-1]) + _positions(x))
        return out

    def _words(self, words: Tensor) -> Tensor:
        """(B, 1, 1, T): False at padding."""
        return (words != PAD)[:, None, None]


def _positions(x: Tensor) -> Tensor:
    """(T, width) sines and cosines of the position at geometric wavelengths from 2π to 20000π."""
    steps, width = x.shape[-2:]
    rates = 10000 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(steps, device=x.device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
