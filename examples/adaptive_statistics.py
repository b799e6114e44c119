"""What the attention of a trained Transformer looks like, in numbers that JSON holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from regmax.analysis import AttentionSummary

from .common.text import PAD
from .common.transformer import BLOCKS, Transformer

BINS = 20
"""Of the histogram of densities."""


def statistics(model: Transformer, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Of each kind of block, over batches of source (B, S) and target so far (B, T):

    ``density``: the mean density of each layer's heads; ``histogram``: how many (sentence, head)
    have a density in each of 20 equal bins of [0, 1]; ``diversity``: the Jensen–Shannon divergence
    between the heads of each layer. The density of a head in a sentence is the mean over its
    queries of the share of keys with a weight above 0, among those it may look at.
    """
    summary = AttentionSummary()
    for source, target in batches:
        masks = _masks(source, target)
        for block, layers in _weights(model, source, target).items():
            for k, weights in enumerate(layers):
                summary.add(f"{block} {k}", weights, masks[block])
    density, diversity = (
        {b: [found[f"{b} {k}"] for k in range(len(model.attention(b)))] for b in BLOCKS}
        for found in (summary.density, summary.diversity)
    )
    return {
        "density": {b: [layer.mean(0).tolist() for layer in density[b]] for b in BLOCKS},
        "histogram": {b: _histogram(torch.cat(density[b])) for b in BLOCKS},
        "diversity": {b: [float(layer.mean()) for layer in diversity[b]] for b in BLOCKS},
    }


def example(model: Transformer, source: Tensor, target: Tensor) -> list[dict[str, Any]]:
    """In each kind of block the head whose weights on one sentence (1, S), (1, T) are the most
    concentrated, and the one whose are the least: by the mean over queries of the largest weight.
    """
    shown = []
    for block, layers in _weights(model, source, target).items():
        heads = torch.cat(layers).flatten(0, 1)  # (layers · heads, Q, K)
        largest = heads.amax(-1).mean(-1)
        for k in (int(largest.argmax()), int(largest.argmin())):
            layer, head = divmod(k, layers[0].shape[1])
            item = {"block": block, "layer": layer, "head": head, "weights": heads[k].tolist()}
            shown.append(item)
    return shown


def _weights(model: Transformer, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
    """(B, H, Q, K) by block and layer."""
    with model.watched() as kept:
        model(source, target)
    return {block: [calls[0] for calls in layers] for block, layers in kept.items()}


def _masks(source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Which queries and keys of each kind of block are words: (B, 1, Q, K)."""
    s, t = source != PAD, target != PAD
    pairs = {"encoder": (s, s), "context": (t, s), "decoder": (t, t)}
    masks = {b: (q[:, :, None] & k[:, None, :])[:, None] for b, (q, k) in pairs.items()}
    masks["decoder"] = masks["decoder"].tril()
    return masks


def _histogram(density: Tensor) -> list[int]:
    counts = torch.histc(density.float(), BINS, 0, 1)
    return [int(count) for count in counts.tolist()]
