"""The recurrent encoder–decoder with global attention and input feeding, for any attention Ω."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import regmax

from .text import PAD


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; ``hidden`` is the size of both directions together. ``gamma``: γ of the
    attention; it divides the scores."""

    source: int
    target: int
    embedding: int = 300
    hidden: int = 300
    layers: int = 2
    dropout: float = 0.3
    bidirectional: bool = True
    gamma: float = 1.0


class State(NamedTuple):
    """The decoder's state after some words; each tensor has one row per hypothesis."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]
    fed: Tensor
    """o of the last step, an input of the next step."""
    memory: Tensor
    keys: Tensor
    mask: Tensor

    def select(self, rows: Tensor) -> State:
        """The state of the hypotheses ``rows``; an index may occur several times."""
        hidden, cell = (tuple(t[rows] for t in part) for part in (self.hidden, self.cell))
        return State(hidden, cell, *(t[rows] for t in self[2:]))


class Seq2Seq(nn.Module):
    """Encoder states hⱼ, decoder states sₜ and, with s and h of size ``hidden``,

        zⱼ = sₜᵀ W hⱼ,   π = Π_Ω(z),   c = Σ πⱼ hⱼ,   oₜ = tanh(U [sₜ; c] + a),   scores V oₜ + b,

    The decoder's next input is the next word's embedding with oₜ (Luong et al. 2015, §3.3; Peters
    et al. 2019, §2, eq. 1–2). Dropout is applied between layers and to oₜ. The decoder starts with
    the last encoder states.
    """

    def __init__(self, shape: Shape, omega: regmax.Regularizer) -> None:
        super().__init__()
        size, directions = shape.hidden, 1 + shape.bidirectional
        self.source = nn.Embedding(shape.source, shape.embedding, padding_idx=PAD)
        self.target = nn.Embedding(shape.target, shape.embedding, padding_idx=PAD)
        self.encoder = nn.LSTM(
            shape.embedding,
            size // directions,
            shape.layers,
            batch_first=True,
            dropout=shape.dropout if shape.layers > 1 else 0.0,
            bidirectional=shape.bidirectional,
        )
        inputs = [shape.embedding + size, *[size] * (shape.layers - 1)]
        self.decoder = nn.ModuleList(nn.LSTMCell(width, size) for width in inputs)
        self.key = nn.Linear(size, size, bias=False)
        self.combine = nn.Linear(2 * size, size)
        self.scores = nn.Linear(size, shape.target)
        self.mapping = regmax.RegularizedMax(omega, shape.gamma)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, source: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (n, T, target words) of the word after each given one, and attention (n, T, S).

        ``source``: (n, S), padded; ``given``: (n, T), the previous words, from BOS on.
        """
        state = self.start(source)
        outputs, weights = [], []
        for word in self.target(given).unbind(1):
            state, attention = self._step(word, state)
            outputs.append(state.fed)
            weights.append(attention)
        return self.scores(torch.stack(outputs, 1)), torch.stack(weights, 1)

    def start(self, source: Tensor) -> State:
        """The state before the first word: (n, S) -> n hypotheses."""
        mask = source != PAD
        packed = pack_padded_sequence(
            self.source(source), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        encoded, (hidden, cell) = self.encoder(packed)
        memory, _ = pad_packed_sequence(encoded, batch_first=True, total_length=source.shape[1])
        first = memory.new_zeros(len(source), memory.shape[-1])
        return State(
            self._joined(hidden), self._joined(cell), first, memory, self.key(memory), mask
        )

    def step(self, words: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Scores (n, target words) of the next word, attention (n, S), and the state after it."""
        state, weights = self._step(self.target(words), state)
        return self.scores(state.fed), weights, state

    def _step(self, word: Tensor, state: State) -> tuple[State, Tensor]:
        x = torch.cat((word, state.fed), -1)
        hidden, cell = [], []
        for k, layer in enumerate(self.decoder):
            h, c = layer(self.dropout(x) if k else x, (state.hidden[k], state.cell[k]))
            hidden.append(h)
            cell.append(c)
            x = h
        # a product and a sum cost less than a batch of matrix–vector products
        weights = self.mapping((state.keys * x.unsqueeze(1)).sum(-1), mask=state.mask)
        context = (state.memory * weights.unsqueeze(-1)).sum(1)
        fed = self.dropout(torch.tanh(self.combine(torch.cat((x, context), -1))))
        return state._replace(hidden=tuple(hidden), cell=tuple(cell), fed=fed), weights

    def _joined(self, states: Tensor) -> tuple[Tensor, ...]:
        """(layers · directions, n, size) -> for each layer (n, directions · size)."""
        layers = states.unflatten(0, (len(self.decoder), -1))
        return tuple(layer.transpose(0, 1).flatten(1) for layer in layers)


def summed_loss(loss: nn.Module, scores: Tensor, wanted: Tensor) -> tuple[Tensor, int]:
    """The loss over all words that are not padding, and their number.

    ``loss``: with ``ignore_index=PAD`` and ``reduction="sum"``, classes on dimension 1.
    """
    return loss(scores.flatten(0, 1), wanted.flatten()), int((wanted != PAD).sum())


def uniform_(model: nn.Module, width: float) -> None:
    """Draw every weight from [−width, width]; padding stays 0."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -width, width)
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight.data[module.padding_idx])
