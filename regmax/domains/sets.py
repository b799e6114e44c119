"""The domains by name: ``Simplex``, ``AtMost``, ``Box``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.clipped import add
from ..regularizers import arguments
from ..regularizers.arguments import first, hyperparameter
from .bounded import Bounded
from .domain import Domain

NONNEGATIVE = (">= 0", lambda t: t >= 0)


class _Sum(Domain):
    """l ≤ y ≤ u, and what is said of Σy."""

    total: float | Tensor | None
    lower: float | Tensor
    upper: float | Tensor | None
    at_most = False
    optional = "upper"
    """The one of these that may be None."""

    def __init__(self, total: Any, lower: Any, upper: Any) -> None:
        super().__init__()
        for name, item in (("total", total), ("lower", lower), ("upper", upper)):
            none = item is None and name == self.optional
            setattr(self, name, item if none else hyperparameter(name, item, *NONNEGATIVE))

    @property
    def fixed_total(self) -> bool:
        return self.total is not None and not self.at_most

    def limits(self, x: Tensor, dim: int) -> tuple[Any, Any, Any]:
        """l, u and k for the rows of ``x`` along ``dim``: numbers, or tensors like rows, k
        (*batch, 1); None where there is none."""
        low = arguments.per_entry("lower", self.lower, NONNEGATIVE, x, dim)
        high = total = None
        if self.upper is not None:
            high = arguments.per_entry("upper", self.upper, NONNEGATIVE, x, dim)
        if self.total is not None:
            total = arguments.per_row("total", self.total, NONNEGATIVE, x, dim)
        return low, high, total

    def refused(self, region: Bounded, skip: Tensor | None) -> Tensor:
        bad = empty(region)
        bad = bad if skip is None else bad & ~skip
        if not (transforms.may_look(bad) and bool(bad.any())):
            return bad
        at = first(bad.squeeze(-1))
        low, high = region.low[at], region.high[at]
        row = f" at row {at}" if at else ""
        k = region.total
        if bool((low > high).any()):
            (i,) = first(low > high)
            raise ValueError(
                f"domain: lower must be at most upper; got lower = {low[i].item():g} and upper = "
                f"{high[i].item():g} at entry {i}{row}"
            )
        assert k is not None
        which, found = ("lower", low) if bool(low.sum() > k[at]) else ("upper", high)
        sign = "<=" if region.at_most else "="
        raise ValueError(
            f"domain: no y has sum {sign} {k[at].item():g}{row}: the {which} bounds of the entries "
            f"that take part sum to {found.sum().item():g}"
        )

    def region(self, x: Tensor, dim: int, on: Tensor | None) -> Bounded:
        return region_of(self.limits(x, dim), x.movedim(dim, -1), on, self.at_most)


def region_of(
    limits: tuple[Any, Any, Any], rows: Tensor, on: Tensor | None, at_most: bool
) -> Bounded:
    """The domain of ``rows`` with these l, u, k, of which the entries ``on`` take part."""
    low, high, total = (rows.new_full((), t) if isinstance(t, float) else t for t in limits)
    low = low.expand(rows.shape)
    if on is not None:
        low = torch.where(on, low, 0)
    if total is not None:  # no entry can be more than what the lower bounds leave
        total = total.expand(*rows.shape[:-1], 1)
        room = low + (total - add(low)).clamp_min(0)
        high = room if high is None else torch.minimum(high, room)
    high = high.expand(rows.shape)
    if on is not None:
        high = torch.where(on, high, 0)
    return Bounded(low, high, total, at_most)


def empty(region: Bounded) -> Tensor:
    """The rows (*batch, 1) without a point."""
    low, high, k = region.low.detach(), region.high.detach(), region.total
    bad = (low > high).any(-1, keepdim=True)
    if k is not None:
        k = k.detach()
        noise = 8 * torch.finfo(low.dtype).eps * low.shape[-1] ** 0.5 * k
        bad = bad | (add(low) > k + noise)
        if not region.at_most:
            bad = bad | (add(high) < k - noise)
    return bad


class Simplex(_Sum):
    """{lower ≤ y ≤ upper, Σy = total}: caps, budgets, k-subsets. ``Simplex()`` is the simplex.

    Parameters
    ----------
    total: k ≥ 0, a number, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    lower: l ≥ 0, a number, or a tensor that broadcasts to the scores.
    upper: u ≥ 0, as ``lower``; None: no upper bound but what the sum leaves.

    A tensor that requires grad gets its gradient. Entries that do not take part are 0 and have no
    bounds. A row without a point, as Σu < k or Σl > k, raises ValueError; where numbers cannot be
    read, it is NaN.
    """

    arguments = ("total", "lower", "upper")

    def __init__(
        self,
        total: float | Tensor = 1.0,
        lower: float | Tensor = 0.0,
        upper: float | Tensor | None = None,
    ) -> None:
        super().__init__(total, lower, upper)

    @property
    def plain(self) -> bool:
        numbers = (self.total, self.lower)
        return self.upper is None and not any(map(torch.is_tensor, numbers)) and numbers == (1, 0)


class AtMost(_Sum):
    """{0 ≤ y ≤ upper, Σy ≤ total}. Ω counts as written: γΣ y log y is not γΣ (y log y − y) here.

    The parameters, and what holds for tensors, masks and rows without a point, are those of
    :class:`Simplex`.
    """

    arguments = ("total", "upper")
    at_most = True

    def __init__(self, total: float | Tensor = 1.0, upper: float | Tensor | None = None) -> None:
        super().__init__(total, 0.0, upper)


class Box(_Sum):
    """{lower ≤ y ≤ upper}, without a sum: each entry for itself. Ω counts as written.

    The parameters, and what holds for tensors, masks and rows without a point, are those of
    :class:`Simplex`.
    """

    arguments = ("lower", "upper")
    optional = "total"

    def __init__(self, lower: float | Tensor = 0.0, upper: float | Tensor = 1.0) -> None:
        super().__init__(None, lower, upper)
