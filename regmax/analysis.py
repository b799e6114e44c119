"""What attention weights look like, in numbers: how sparse, how fused, how different from head to
head, and what became of the hyperparameters that learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .operators import Operand
from .penalty import penalty_of
from .regularizer import Regularizer
from .rows import HALF

# -- rows of weights -----------------------------------------------------------------------------


def support_size(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}|, the number of entries above 0 in each row.

    ``y``: weights, floating, with rows along ``dim``. ``mask``: bool, broadcastable to y, True =
    takes part; what a masked entry holds does not matter. Gives int64 of y's shape without ``dim``.
    A NaN does not count.
    """
    rows, _ = _rows(y, dim, mask)
    return (rows > 0).sum(-1)


def density(y: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """|{i : yᵢ > 0}| / d, the share of the d participants of each row that are above 0.

    ``y``, ``dim`` and ``mask`` as in :func:`support_size`. Gives y's shape without ``dim``, in y's
    dtype (float32 for half precision). A row without participants has no density: NaN, which
    ``nanmean`` leaves out, so a mask of queries and keys leaves padding out of an average. A row
    that holds a NaN gives NaN too. Correia et al. (2019), §5.1.
    """
    rows, on = _rows(y, dim, mask)
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
    rows, on = _rows(y, dim, mask)
    if isinstance(kind, Regularizer):
        penalty = penalty_of(kind)
        ids = _clusters(rows) if penalty is None else penalty.groups(rows, on)
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
    rows, on = _rows(p, dim, mask, "p")
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


def _rows(y: Any, dim: int, mask: Any, name: str = "y") -> tuple[Tensor, Tensor]:
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


# -- over a data set -----------------------------------------------------------------------------


class AttentionSummary:
    """Density and head diversity of the attention modules of a model, over the batches of a set.

        summary = AttentionSummary()
        for each batch and each module: summary.add("encoder 1", weights, mask)
        summary.density["encoder 1"]  # (sentences, heads)

    Each number is the mean over the queries of a sentence that have participants, so that averages
    do not depend on how sentences were batched.
    """

    def __init__(self) -> None:
        self._density: dict[str, list[Tensor]] = {}
        self._diversity: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def add(self, name: str, weights: Tensor, mask: Tensor | None = None) -> None:
        """Count in the ``weights`` (batch, head, query, key) of the module that goes by ``name``.

        ``mask``: bool, broadcastable to them, True = takes part: of real queries and real keys.
        """
        if weights.ndim != 4:
            raise ValueError(
                f"weights must have shape (batch, head, query, key); got {tuple(weights.shape)}"
            )
        real = _rows(weights, -1, mask, "weights")[1].any(-1)
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
    """The mean of ``items`` along the last dimension where ``real``: a NaN there is not hidden."""
    return torch.where(real, items, 0).sum(-1) / real.sum(-1)


# -- over a training run -------------------------------------------------------------------------


class Trajectories:
    """The hyperparameters of a model that learn, step by step: α of each head, for instance.

        record = Trajectories(model)
        for step in …: …; optimizer.step(); record.step(step)
        record.values["encoder.0.omega.alpha"]  # (steps, *shape of alpha)

    Recorded are the declared hyperparameters of every Ω and penalty inside ``model`` (of an Ω that
    declares none: its tensors), and the γ beside an Ω, as far as they are tensors that require grad
    when the record is made; a property computed from parameters, as α = 1 + sigmoid(a), is read
    anew at each step. Steps are kept on the device of the values, without synchronisation.
    ``state_dict`` and ``load_state_dict`` let the record of a resumed run go on. Correia et al.
    (2019), Figure 2.
    """

    def __init__(self, model: nn.Module) -> None:
        with torch.enable_grad():  # a property requires grad only where it is recorded
            self._learns = {
                (f"{prefix}." if prefix else "") + name: (module, name)
                for prefix, module in model.named_modules()
                for name in _hyperparameters(module)
                if isinstance(item := getattr(module, name, None), Tensor) and item.requires_grad
            }
        self._shapes = {key: getattr(*place).shape for key, place in self._learns.items()}
        self.steps: list[int] = []
        self._rows: list[Tensor] = []

    @torch.no_grad()
    def step(self, n: int) -> None:
        """Record the present values as those after step ``n``, which is later than the last."""
        if self.steps and n <= self.steps[-1]:
            raise ValueError(f"n must be > {self.steps[-1]}, the last step recorded; got {n}")
        self._rows.append(_flat([getattr(*place) for place in self._learns.values()]))
        self.steps.append(n)

    @property
    def values(self) -> dict[str, Tensor]:
        """By dotted name: (steps, *shape)."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        table = torch.stack(self._rows) if self._rows else torch.empty(0, sum(sizes))
        parts = zip(self._shapes.items(), table.split(sizes, -1), strict=True)
        return {key: part.reshape(len(table), *shape) for (key, shape), part in parts}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "values": self.values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, of a model with the same hyperparameters."""
        steps, values = list(state["steps"]), state["values"]
        wanted = {key: (len(steps), *shape) for key, shape in self._shapes.items()}
        found = {key: tuple(table.shape) for key, table in values.items()}
        if found != wanted:
            raise ValueError(f"state must hold values of the shapes {wanted}; got {found}")
        self.steps = steps
        self._rows = [_flat([values[key][k] for key in wanted]) for k in range(len(steps))]


def _hyperparameters(module: nn.Module) -> Iterator[str]:
    """The names of what may learn in this module itself."""
    if isinstance(getattr(module, "omega", None), Regularizer):
        yield "gamma"
    if isinstance(module, Regularizer) and module.hyperparameters is None:
        yield from (key for key in module.tensors() if "." not in key)
    elif isinstance(module, Operand):
        yield from module.hyperparameters or ()


def _flat(items: list[Tensor]) -> Tensor:
    """All numbers in one vector, on the device of the first."""
    parts = [item.detach().reshape(-1) for item in items]
    return torch.cat([part.to(parts[0].device) for part in parts]) if parts else torch.empty(0)
