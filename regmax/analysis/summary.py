"""Statistics of a model's attention weights over the batches of a data set."""

from __future__ import annotations

import torch
from torch import Tensor

from .weights import density, head_diversity, rows_of


class AttentionSummary:
    """Density and head diversity of the attention modules of a model, over the batches of a set.

        summary = AttentionSummary()
        for each batch and each module: summary.add("encoder 1", weights, mask)
        summary.density["encoder 1"]  # (sentences, heads)

    Each number is the mean over the queries of one sentence that have participants, so averages do
    not depend on the batching.
    """

    def __init__(self) -> None:
        self._density: dict[str, list[Tensor]] = {}
        self._diversity: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def add(self, name: str, weights: Tensor, mask: Tensor | None = None) -> None:
        """Add the ``weights`` (batch, head, query, key) of the module called ``name``.

        ``mask``: bool, broadcastable to them, True where query and key are no padding.
        """
        if weights.ndim != 4:
            raise ValueError(
                f"weights must have shape (batch, head, query, key); got {tuple(weights.shape)}"
            )
        real = rows_of(weights, -1, mask, "weights")[1].any(-1)
        dense, diverse = density(weights, mask=mask), head_diversity(weights, mask=mask)
        self._density.setdefault(name, []).append(_mean(dense, real))
        self._diversity.setdefault(name, []).append(_mean(diverse, real.any(1)))

    @property
    def density(self) -> dict[str, Tensor]:
        """By module: (sentences, heads)."""
        return {name: torch.cat(parts) for name, parts in self._density.items()}

    @property
    def diversity(self) -> dict[str, Tensor]:
        """By module: (sentences,)."""
        return {name: torch.cat(parts) for name, parts in self._diversity.items()}


def _mean(items: Tensor, real: Tensor) -> Tensor:
    """The mean of ``items`` along the last dimension where ``real``. A NaN there gives NaN."""
    return torch.where(real, items, 0).sum(-1) / real.sum(-1)
