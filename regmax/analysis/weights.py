"""What rows of attention weights look like, in numbers: how sparse, how fused, how different from
head to head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..mapping.rows import HALF
from ..regularizers.penalty import penalty_of
from ..regularizers.regularizer import Regularizer


def support_size(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}|, the number of entries above 0 in each row.

    ``y``: weights, floating, with rows along ``dim``. ``mask``: bool, broadcastable to y, True =
    takes part; what a masked entry holds does not matter. Gives int64 of y's shape without ``dim``.
    A NaN does not count.
    """
    rows, _ = rows_of(y, dim, mask)
    return (rows > 0).sum(-1)


def density(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}| / d, the share of the d participants of each row that are above 0.

    ``y``, ``dim`` and ``mask`` as in :func:`support_size`. Gives y's shape without ``dim``, in y's
    dtype (float32 for half precision). A row without participants has no density: NaN, which
    ``nanmean`` leaves out, so a mask of queries and keys leaves padding out of an average. A row
    that holds a NaN gives NaN too. Correia et al. (2019), §5.1.
    """
    rows, on = rows_of(y, dim, mask)
    size = (rows > 0).sum(-1).to(_real(y)) / on.sum(-1)
    return torch.where(rows.isnan().any(-1), torch.nan, size)


def groups(
    y: Tensor, kind: str | Regularizer = "runs", dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Which entries of a row share their weight, bit for bit: the number of each entry's group.

    ``kind``: ``"runs"``, neighbours of equal weight, as fusedmax makes them (neighbours among the
    participants), counted from the first; ``"clusters"``, entries of equal weight anywhere, as
    oscarmax makes them, counted from the heaviest; or an Ω, whose penalty tells (without one:
    clusters). ``y``, ``dim`` and ``mask`` as in :func:`support_size`.

    Gives int64 of y's shape: 0, 1, … without gaps in each row, and −1 for entries that are 0, NaN
    or masked. Niculae & Blondel (2017), §3.2.
    """
    rows, on = rows_of(y, dim, mask)
    if isinstance(kind, Regularizer):
        penalty = penalty_of(kind)
        rows = rows.to(_real(y)).contiguous()
        ids = _clusters(rows) if penalty is None else penalty.groups(rows, on.contiguous())
    elif kind in ("runs", "clusters"):
        ids = _runs(rows, on) if kind == "runs" else _clusters(rows)
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
    """JS = H(mean_j p_j) − mean_j H(p_j): how far the heads disagree on where to look.

    The generalised Jensen–Shannon divergence of the rows p_j that the heads j give to one query. H
    is Shannon's entropy to the base d, the number of participants: 0 where all heads give one
    distribution, at most 1. ``p``: probabilities, floating, heads along ``head_dim`` and rows along
    ``dim``: (batch, head, query, key) as it stands. ``mask``: bool, broadcastable to p; an entry
    takes part where it does for some head.

    Gives p's shape without both dimensions, in p's dtype (float32 for half precision). A row with
    one participant gives 0, one without any NaN. Correia et al. (2019), eq. 11.
    """
    rows, on = rows_of(p, dim, mask, "p")
    if not -p.ndim <= head_dim < p.ndim or head_dim % p.ndim == dim % p.ndim:
        raise ValueError(
            f"head_dim must be a dimension of p, of shape {tuple(p.shape)}, other than dim={dim}; "
            f"got {head_dim}"
        )
    at = head_dim % p.ndim - (head_dim % p.ndim > dim % p.ndim)  # dim has moved to the end
    rows = rows.to(_real(p))
    of_mean = torch.special.entr(rows.mean(at)).sum(-1)
    mean_of = torch.special.entr(rows).sum(-1).mean(at)
    d = on.any(at).sum(-1).to(rows.dtype)
    js = ((of_mean - mean_of) / d.clamp_min(2).log()).clamp(0, 1)
    return torch.where(d > 0, js, torch.nan)


def rows_of(y: Any, dim: int, mask: Any, name: str = "y") -> tuple[Tensor, Tensor]:
    """Rows along the last dimension, 0 where an entry takes no part, and where one does."""
    if not isinstance(y, Tensor) or not y.dtype.is_floating_point:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{name} must be a floating torch.Tensor; got {got}")
    if not -y.ndim <= dim < y.ndim or y.shape[dim] == 0:
        raise ValueError(
            f"dim must be a dimension of {name} that is not empty; got {dim} for {name} of shape "
            f"{tuple(y.shape)}"
        )
    if mask is None:
        on = torch.ones_like(y, dtype=torch.bool)
    elif not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool torch.Tensor (True = takes part) or None; got {got}")
    else:
        try:
            on = mask.to(y.device).expand(y.shape)
        except RuntimeError:
            raise ValueError(
                f"mask must broadcast to {name}: mask has shape {tuple(mask.shape)}, {name} "
                f"{tuple(y.shape)}"
            ) from None
    return torch.where(on, y, 0).movedim(dim, -1), on.movedim(dim, -1)


def _real(y: Tensor) -> torch.dtype:
    return torch.float32 if y.dtype in HALF else y.dtype


def _runs(rows: Tensor, on: Tensor) -> Tensor:
    order = (~on).to(torch.uint8).argsort(dim=-1, stable=True)  # participants first
    near = rows.gather(-1, order)
    ids = nn.functional.pad((near[..., 1:] != near[..., :-1]).cumsum(-1), (1, 0))
    return torch.zeros_like(ids).scatter(-1, order, ids)


def _clusters(rows: Tensor) -> Tensor:
    ordered, order = rows.sort(-1, descending=True)
    ids = nn.functional.pad((ordered[..., 1:] != ordered[..., :-1]).cumsum(-1), (1, 0))
    return torch.zeros_like(ids).scatter(-1, order, ids)
