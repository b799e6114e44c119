"""Statistics of the attention of a trained Transformer, in JSON types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from regmax.analysis import AttentionSummary, Trajectories

from .common.text import PAD
from .common.transformer import BLOCKS, Transformer

BINS = 20
"""Bins of the histogram of densities."""


def alphas(model: Transformer, record: Trajectories) -> dict[str, Any]:
    """``alpha``: by block, (layers, heads), the present α. ``trajectories``: by block, (steps,
    layers, heads), α at the recorded ``steps``. Both are empty if no α is learned."""
    names = {module: name for name, module in model.named_modules()}
    values, trajectories = record.values, {}
    for block in model.alphas():
        layers = [values[f"{names[layer]}.omega.alpha"] for layer in model.attention(block)]
        trajectories[block] = torch.stack(layers, 1).flatten(2).tolist()
    alpha = {block: alpha.tolist() for block, alpha in model.alphas().items()}
    return {"alpha": alpha, "trajectories": trajectories, "steps": record.steps}


def statistics(model: Transformer, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Statistics per block, over batches of sources (B, S) and decoder inputs (B, T):

    ``density``: (layers, heads), the mean over sentences; ``histogram``: the number of pairs of a
    sentence and a head with a density in each of 20 equal bins of [0, 1]; ``diversity``: (layers,),
    the mean over sentences of the Jensen–Shannon divergence between heads. A sentence's density is
    the mean over queries of the share of participants with a positive weight.
    """
    summary = AttentionSummary()
    for source, target in batches:
        masks = _masks(source, target)
        for block, layers in model.weights(source, target).items():
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


def example(model: Transformer, source: Tensor, target: Tensor) -> dict[str, list[dict[str, Any]]]:
    """The weights of two heads of each block on one sentence, (1, S) and (1, T): of the heads with
    the most and the least concentrated weights, by the mean over queries of the largest weight."""
    shown = {}
    for block, layers in model.weights(source, target).items():
        heads = torch.cat(layers).flatten(0, 1)  # (layers · heads, Q, K)
        largest = heads.amax(-1).mean(-1)
        ends = [divmod(int(k), layers[0].shape[1]) for k in (largest.argmax(), largest.argmin())]
        shown[block] = [
            {"layer": layer, "head": head, "weights": layers[layer][0, head].tolist()}
            for layer, head in ends
        ]
    return shown


def _masks(source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The masks of each block, (B, 1, Q, K), True where query and key are words that take part."""
    s, t = source != PAD, target != PAD
    pairs = {"encoder": (s, s), "context": (t, s), "decoder": (t, t)}
    masks = {b: (q[:, :, None] & k[:, None, :])[:, None] for b, (q, k) in pairs.items()}
    masks["decoder"] = masks["decoder"].tril()
    return masks


def _histogram(density: Tensor) -> list[int]:
    return [int(count) for count in torch.histc(density.float().cpu(), BINS, 0, 1)]
