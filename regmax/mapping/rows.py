"""From the user's tensor to clean rows along the last dimension, and back."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Bounded, Domain, Plans, Projected, Region, Unit
from ..kernels import simplex, transforms, wrappers
from ..kernels.wrappers import dense
from ..optimality.problem import Problem
from ..regularizers import arguments
from ..regularizers.identity import may_hide, refuse_hidden, unpenalized
from ..regularizers.regularizer import Regularizer, as_written

HALF = (torch.float16, torch.bfloat16)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the arithmetic with tensors of this one: float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


@dataclass(frozen=True, eq=False)
class Rows:
    """Scores prepared for Ω and the solvers.

    ``x`` (*batch, d) is float32 or float64 and finite; the largest participating entry of a row is
    0 and each row has a participant; ``dtype`` is that of the user's scores. ``mask`` is None
    where all take part. ``gamma`` and the hyperparameters of ``omega`` are floats or have size 1 in
    their last dimension. ``empty`` and ``spoilt`` mark rows, (*batch, 1), that had no participant,
    or a NaN or +inf among them; None where there are none. ``bounds``: the domain of these rows,
    None for the simplex; with it the median is 0, or where it has no fixed sum nothing is shifted.
    ``across``: the other dimension of the scores that is part of a row, of a plan.
    """

    x: Tensor
    gamma: float | Tensor
    mask: Tensor | None
    omega: Regularizer
    shift: Tensor
    empty: Tensor | None
    spoilt: Tensor | None
    dim: int
    dtype: torch.dtype
    bounds: Bounded | Plans | Projected | None = None
    across: int | None = None

    @property
    def domain(self) -> Region:
        """What y lies in."""
        return Unit(self.mask) if self.bounds is None else self.bounds

    @property
    def z(self) -> Tensor:
        """x/γ."""
        return self.x / self.gamma

    @property
    def literal(self) -> Rows:
        """These rows for max_Ω on a domain: Ω with the multiple of Σy − 1 that its formula has."""
        return self if self.bounds is None else replace(self, omega=as_written(self.omega))

    @property
    def problem(self) -> Problem:
        """These rows as a problem."""
        return Problem(self.omega, self.z, self.mask, bounds=self.bounds)

    def start(self, y0: Any) -> Tensor:
        """``y0`` as points of Δ in these rows, where a solver may start.

        Rows without an answer may hold anything, such as the zeros or NaN of an earlier answer.
        """
        shape = self.outer(self.x).shape
        y0 = dense("y0", y0, self.x)
        if not isinstance(y0, Tensor) or not y0.dtype.is_floating_point:
            got = y0.dtype if isinstance(y0, Tensor) else type(y0).__name__
            raise TypeError(f"y0 must be a floating tensor like x; got {got}")
        if y0.shape != shape:
            raise ValueError(f"y0 must have the shape of x, {tuple(shape)}; got {tuple(y0.shape)}")
        y = self.inner(y0.detach()).to(self.x)
        if self.mask is not None:
            y = torch.where(self.mask, y, 0)
        if self.unanswered is not None:
            y = torch.where(self.unanswered, self.domain.middle(y), y)
        total = y.sum(-1, keepdim=True)
        if not bool(((y >= 0) & (y < torch.inf)).all() & (total > 0).all()):
            raise ValueError(
                "y0 must be nonnegative and finite, with a positive sum over the participants of "
                f"each row; got entries in [{y.min().item():g}, {y.max().item():g}] and sums from "
                f"{total.min().item():g}"
            )
        return y / total if self.bounds is None else self.bounds.nearest(y)

    def read(self, y: Tensor) -> Tensor:
        """An answer in the user's layout, as points of these rows."""
        return self.point(self.inner(y))

    def inner(self, t: Tensor) -> Tensor:
        """Entries in the user's layout, as those of these rows."""
        return laid_out(t, self.dim, self.across)

    def outer(self, t: Tensor) -> Tensor:
        """Entries of these rows in the user's layout."""
        if self.across is None:
            return t.movedim(-1, self.dim)
        assert isinstance(self.bounds, Plans)
        plans = t.reshape(*t.shape[:-1], *self.bounds.shape)
        return plans.movedim((-2, -1), (self.across, self.dim))

    def point(self, y: Tensor) -> Tensor:
        """y in the dtype of these rows, at a bound where it is that bound but for rounding, with
        the sum k where AtMost holds but for rounding, and some point of D in a row without an
        answer."""
        ulps = 4 * torch.finfo(y.dtype).eps
        y = y.to(self.x.dtype)
        if isinstance(self.bounds, Bounded | Plans):
            for bound in (self.bounds.low, self.bounds.high):
                y = torch.where((y - bound).abs() <= ulps * bound, bound, y)
        if isinstance(self.bounds, Bounded) and self.bounds.at_most:
            total = self.bounds.tensors["total"]
            off = (y.sum(-1, keepdim=True) - total).abs()
            tight = off <= ulps * y.shape[-1] ** 0.5 * total
            y = torch.where(tight, replace(self.bounds, at_most=False).inside(y), y)
        if self.unanswered is not None:
            y = torch.where(self.unanswered, self.domain.middle(y), y)
        return y

    @property
    def unanswered(self) -> Tensor | None:
        """The rows without an answer, (*batch, 1): empty or spoilt. None where all have one."""
        if self.empty is None or self.spoilt is None:
            return self.spoilt
        return self.empty | self.spoilt

    def fill(self, t: Tensor) -> Tensor:
        """``t`` with the rows that have no answer set: 0 where empty, NaN where spoilt; counts are
        0 in both."""
        spoilt = torch.nan if t.dtype.is_floating_point else 0
        if self.empty is not None:
            t = torch.where(self.empty, 0, t)
        if self.spoilt is not None:
            t = torch.where(self.spoilt, spoilt, t)
        return t

    @property
    def narrow(self) -> torch.dtype:
        """The dtype in which a kernel from the value computes these rows, where it can."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def given(self, x: Tensor) -> Tensor:
        """x, rows like these, in that dtype: in float32, the scores that the user gave if x is
        these rows themselves."""
        own = x.data_ptr() == self.x.data_ptr() and self.narrow == torch.float32
        return (self.x + self.shift).view(x.shape).to(self.narrow) if own else x.to(self.narrow)

    def restore(self, y: Tensor) -> Tensor:
        """The user's layout and dtype."""
        return self.outer(self.fill(y)).to(self.dtype)

    def restore_rows(self, t: Tensor) -> Tensor:
        """One number per row, (*batch)."""
        return self.fill(t.unsqueeze(-1)).squeeze(-1)


def laid_out(t: Tensor, dim: int, across: int | None) -> Tensor:
    """Entries with those of a row along the last dimension."""
    return t.movedim(dim, -1) if across is None else t.movedim((across, dim), (-2, -1)).flatten(-2)


def prepare(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    wide: bool | None = False,
    domain: Domain | None = None,
) -> Rows:
    """Check the arguments and make :class:`Rows` of them.

    The shift by a number does not change Π_Ω where Σy is fixed, and keeps the accuracy of x where
    scores are large. ``wide``: in float64, whatever the dtype of x, if Ω and the device can; with a
    domain always, unless it is None.
    """
    if transforms.baking():
        raise NotImplementedError(
            "torch.jit.trace would keep this answer as a constant; torch.export records the mapping"
        )
    x, dim, takes_part = arguments.rows(omega, x, dim, mask)
    dtype = x.dtype
    across = None if domain is None else domain.other(x, dim)
    if wide is not None:
        wide = (wide or domain is not None) and x.device.type != "mps"  # which has no float64
    rows = x.to(torch.float64 if wide else computed_in(dtype))
    given = omega
    gamma = arguments.per_row("gamma", gamma, arguments.POSITIVE, rows, dim)
    omega = aligned(omega, rows, dim)
    scores = rows.detach()
    if domain is not None:
        omega, gamma = domain.prepared(omega, gamma, scores, dim)
    rows = laid_out(rows, dim, across).contiguous()  # sums do not depend on the layout
    if wide and dtype != torch.float64 and not computes(omega, rows):
        return prepare(given, x, gamma, dim, mask, None, domain)
    on = None if takes_part is None else laid_out(takes_part, dim, across)

    empty = spoilt = None
    # if all scores are finite, which is checked where it costs no synchronisation, this is all
    low = -(torch.finfo(rows.dtype).max ** 0.5)
    if on is None and transforms.may_look(rows) and _within(rows.detach(), low):
        top = _origin(rows.detach(), domain)
        rows = rows - top
    else:
        own = rows.detach()
        on = torch.ones_like(own, dtype=torch.bool) if on is None else on
        on = (on & (own != -torch.inf)).contiguous()
        spoilt = (on & ~(own < torch.inf)).any(-1, keepdim=True)  # NaN or +inf
        empty = ~on.any(-1, keepdim=True)
        rows = torch.where(on & ~spoilt, rows, 0)
        on = on | empty if across is None else on | empty | spoilt
        top = _origin(rows.detach(), domain, on)
        # scores as low as finfo.min must not overflow when they are shifted or divided by γ
        rows = (rows - top).clamp_min(low)
        rows = torch.where(on, rows if domain is None else rows.clamp_max(-low), 0)
    bounds = None
    if domain is not None:
        bounds = domain.region(scores, dim, on)
        bounds = bounds.below(
            min(part.highest for part in omega.modules() if isinstance(part, Regularizer))
        )
        skip = None if empty is None or spoilt is None else empty | spoilt
        none = domain.refused(bounds, skip)
        spoilt = none if spoilt is None else spoilt | none
    return Rows(rows, gamma, on, omega, top, empty, spoilt, dim, dtype, bounds, across)


def _origin(rows: Tensor, domain: Domain | None, on: Tensor | None = None) -> Tensor:
    """What is subtracted from each row, (*batch, 1): its largest score, next to which others keep
    their digits; with bounds, where that may be far from the others, the median. 0 without a
    sum."""
    if domain is None:
        return (rows if on is None else torch.where(on, rows, -torch.inf)).amax(-1, keepdim=True)
    if not domain.fixed_total or not rows.numel():
        return torch.zeros_like(rows[..., :1])
    some = rows if on is None else torch.where(on, rows, torch.nan)
    return some.nanmedian(-1, keepdim=True).values


def _within(rows: Tensor, low: float) -> bool:
    """Whether all scores are between ``low`` and −``low``."""
    least, most = rows.aminmax() if rows.numel() else (rows.new_zeros(()),) * 2
    return low < least.item() and most.item() < -low


def computes(omega: Regularizer, rows: Tensor) -> bool:
    """Whether Ω can be evaluated in the dtype of ``rows``. It cannot where it multiplies by a
    matrix of another dtype that is not an attribute."""
    if transforms.under_transform((rows,)) or rows.numel() == 0:
        return True
    with torch.no_grad():
        # a value that takes no single row may take this batch
        for some in (rows.view(-1, rows.shape[-1])[:1], rows):
            try:
                omega.value(simplex.uniform(some, None))
            except RuntimeError:
                continue
            return True
    return False


def refuse_hidden_at(omega: Regularizer, x: Tensor, mask: Tensor | None) -> None:
    """:func:`refuse_hidden` at y = 1/d of rows like x, in float64 where Ω needs that."""
    if not torch.is_grad_enabled() or not may_hide(omega) or not x.numel():
        return
    y = x.new_full((), 1 / x.shape[-1]).expand_as(x)
    declares = omega.hyperparameters is not None
    if not (x.dtype == torch.float64 or declares or computes(omega, y)):
        y = y.double()
        omega = aligned(omega, y, -1)
    refuse_hidden(omega, y, mask)


def aligned(omega: Regularizer, x: Tensor, dim: int) -> Regularizer:
    """``omega`` in the dtype of the rows, its hyperparameters checked and laid out as these are.

    They are checked at every call: training may move a tensor out of its range.
    """
    given = omega.tensors(fixed=True)
    held = {name: dense(name, t, x) for name, t in given.items()}
    values = {
        name: t.to(x.dtype) if t.dtype.is_floating_point else t
        for name, t in held.items()
        if (t.dtype.is_floating_point and t.dtype != x.dtype) or t is not given[name]
    }
    for prefix, name, owner in omega.declared():
        item = held[full] if (full := prefix + name) in held else getattr(owner, name)
        item = arguments.per_row(name, item, owner.ranges.get(name), x, dim)
        if isinstance(item, Tensor):
            values[prefix + name] = item
    for prefix, name, owner in omega.declared("per_entry"):
        if (full := prefix + name) in held:
            item = arguments.per_entry(name, held[full], owner.ranges[name], x, dim)
            assert isinstance(item, Tensor)
            values[full] = item
    return unpenalized(omega.with_tensors(values) if values else omega)


def numbered(item: Any, x: Tensor) -> Tensor:
    """A hyperparameter in float64: one number, one for each row of x, or one for each entry."""
    if not isinstance(item, Tensor):
        return constant(item, x.device)
    t = wrappers.allocated(item.detach()).double()
    t = t.resolve_neg() if t.is_neg() else t
    if t.numel() == 1:
        return t.reshape(1)
    if t.shape[-1] == 1:
        return t.expand(*x.shape[:-1], 1).reshape(-1)
    if t.numel() == t.shape[-1]:
        return t.reshape(1, -1)
    return t.expand(*x.shape[:-1], t.shape[-1]).reshape(-1, t.shape[-1])


def constant(value: float, device: torch.device) -> Tensor:
    """A number as a tensor, (1,)."""
    # memory of a GPU belongs to a stream, and to a graph that is being captured
    made: Tensor = (_constant if device.type == "cpu" else _constant.__wrapped__)(value, device)
    return made


@functools.lru_cache(maxsize=256)
def _constant(value: float, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((1,), value, dtype=torch.float64, device=device)


def flat(t: Tensor) -> Tensor:
    """(R, d), the entries of a row adjacent in memory."""
    if t.ndim == 2 and t.stride(1) == 1 and not t.is_neg():
        return t
    t = wrappers.allocated(t).resolve_neg() if t.is_neg() else wrappers.allocated(t)
    t = t.reshape(-1, t.shape[-1]) if t.ndim != 2 else t
    return t if t.stride(1) == 1 else t.contiguous()
