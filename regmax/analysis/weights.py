"""Statistics of rows of attention weights: support, density, groups, diversity of heads; and of a
model's weights over the batches of a data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import neighbours
from ..mapping.rows import computed_in
from ..regularizers import arguments
from ..regularizers.penalty import structured
from ..regularizers.regularizer import Regularizer


def support_size(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}|, the number of entries above 0 in each row.

    ``y``: weights, floating, with rows along ``dim``. ``mask``: bool, broadcastable to y, True =
    takes part; the values of masked entries do not matter. Returns int64 of y's shape without
    ``dim``. A NaN does not count.
    """
    rows, _ = rows_of(y, dim, mask)
    return (rows > 0).sum(-1)


def density(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}| / d, the share of the d participants of each row that are above 0.

    ``y``, ``dim`` and ``mask`` as in :func:`support_size`. Returns y's shape without ``dim``, in
    y's dtype (float32 for half precision). A row without participants gives NaN, which ``nanmean``
    ignores: a mask of queries and keys so excludes padding from an average. A row with a NaN gives
    NaN too. Correia et al. (2019), §5.1.
    """
    rows, on = rows_of(y, dim, mask)
    size = (rows > 0).sum(-1).to(computed_in(y.dtype)) / on.sum(-1)
    return torch.where(rows.isnan().any(-1), torch.nan, size)


def groups(
    y: Tensor, kind: str | Regularizer = "runs", dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """The number of each entry's group. The entries of a group have equal weights, bit for bit.

    ``kind``: ``"runs"``: neighbours (among the participants) of equal weight, as in fusedmax,
    numbered from the first. ``"clusters"``: entries of equal weight anywhere, as in oscarmax,
    numbered from the largest weight. An Ω: the groups of its penalty, or clusters without one.
    ``y``, ``dim`` and ``mask`` as in :func:`support_size`.

    Returns int64 of y's shape: 0, 1, … without gaps in each row, and −1 for entries that are 0, NaN
    or masked. Niculae & Blondel (2017), §3.2.
    """
    rows, on = rows_of(y, dim, mask)
    if isinstance(kind, Regularizer):
        rows = rows.to(computed_in(y.dtype)).contiguous()
        if structured(kind):
            ids = kind.penalty.groups(rows, on.contiguous())
        else:
            ids = _clusters(rows)
    elif kind == "clusters":
        ids = _clusters(rows)
    elif kind == "runs":
        order = neighbours.participants_first(on)
        ids = neighbours.ids_of(rows.gather(-1, order), order)
    else:
        raise ValueError(f'kind must be "runs", "clusters" or a Regularizer; got {kind!r}')
    positive = rows > 0
    used = torch.zeros_like(ids).scatter_add(-1, ids, positive.long()) > 0
    number = (used.cumsum(-1) - 1).gather(-1, ids)
    return torch.where(positive, number, -1).movedim(-1, dim)


def group_count(
    y: Tensor, kind: str | Regularizer = "runs", dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """The number of :func:`groups` in each row: int64 of y's shape without ``dim``."""
    return groups(y, kind, dim, mask).amax(dim) + 1


def head_diversity(
    p: Tensor, head_dim: int = -3, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """JS = H(mean_j p_j) − mean_j H(p_j): how much the heads' distributions differ.

    The generalised Jensen–Shannon divergence of the rows p_j of heads j for one query. H is
    Shannon's entropy to the base d, the number of participants. JS is 0 if all heads have the same
    distribution, and at most 1. ``p``: probabilities, floating, heads along ``head_dim`` and rows
    along ``dim``; the defaults are for (batch, head, query, key). ``mask``: bool, broadcastable to
    p; an entry takes part if it does for some head.

    Returns p's shape without both dimensions, in p's dtype (float32 for half precision). A row with
    one participant gives 0, a row without participants NaN. Correia et al. (2019), eq. 11.
    """
    rows, on = rows_of(p, dim, mask, "p")
    if not -p.ndim <= head_dim < p.ndim or head_dim % p.ndim == dim % p.ndim:
        raise ValueError(
            f"head_dim must be a dimension of p, of shape {tuple(p.shape)}, other than dim={dim}; "
            f"got {head_dim}"
        )
    at = head_dim % p.ndim - (head_dim % p.ndim > dim % p.ndim)  # dim has moved to the end
    rows = rows.to(computed_in(p.dtype))
    of_mean = torch.special.entr(rows.mean(at)).sum(-1)
    mean_of = torch.special.entr(rows).sum(-1).mean(at)
    d = on.any(at).sum(-1).to(rows.dtype)
    js = ((of_mean - mean_of) / d.clamp_min(2).log()).clamp(0, 1)
    return torch.where(d > 0, js, torch.nan)


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


def rows_of(y: Any, dim: int, mask: Any, name: str = "y") -> tuple[Tensor, Tensor]:
    """Rows along the last dimension, 0 where masked, and the mask of participants."""
    y, dim = arguments.scores(y, dim, name)
    on = arguments.expanded(mask, y, name)
    on = torch.ones_like(y, dtype=torch.bool) if on is None else on
    return torch.where(on, y, 0).movedim(dim, -1), on.movedim(dim, -1)


def _clusters(rows: Tensor) -> Tensor:
    return neighbours.ids_of(*rows.sort(-1, descending=True))
