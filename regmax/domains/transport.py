"""``Transport``: plans with given sums of rows and columns, for Ω of each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..regularizers import arguments
from ..regularizers.arguments import first
from ..regularizers.curvature import Curvature, Diagonal
from ..regularizers.identity import unscaled
from ..regularizers.penalty import who
from ..regularizers.regularizer import Regularizer
from .domain import Domain
from .plans import Plans


class OfRows(Regularizer):
    """Σ_i Ω(Y_i) of the rows of plans, of a separable Ω with ``inverse``, as an Ω of plans."""

    separable = True

    def __init__(self, base: Regularizer, n: int, m: int) -> None:
        self.base, self.shape = base, (n, m)

    def rows(self, y: Tensor) -> Tensor:
        """Plans as matrices."""
        return y.reshape(*y.shape[:-1], *self.shape)

    def value(self, y: Tensor) -> Tensor:
        return self.base.value(self.rows(y)).sum(-1)

    def grad(self, y: Tensor) -> Tensor:
        return self.base.grad(self.rows(y)).flatten(-2)

    def curvature(self, y: Tensor) -> Curvature:
        rows = self.rows(y)
        return Diagonal(self.base.curvature(rows).matvec(torch.ones_like(rows)).flatten(-2))

    def inverse(self, u: Tensor) -> Tensor:
        base, c = unscaled(self.base, 1)
        return base.inverse(self.rows(u) / c).flatten(-2)

    @property
    def steep(self) -> bool | Tensor:  # type: ignore[override]
        return unscaled(self.base, 1)[0].steep

    @property
    def strong_convexity(self) -> float | Tensor | None:
        beta = self.base.strong_convexity
        return beta.amin(-2) if isinstance(beta, Tensor) and beta.ndim > 1 else beta

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        plan = cvxpy.reshape(y, self.shape, order="C")
        return sum(self.base.as_cvxpy(plan[i]) for i in range(self.shape[0]))

    def leaves(self) -> tuple[Regularizer, ...]:
        return self.base.leaves()

    def min_positive(self, tiny: float) -> float | Tensor:
        least = self.base.min_positive(tiny)
        return least.max().item() if isinstance(least, Tensor) else least


class Transport(Domain):
    """{Y ≥ 0, Y1 = rows, Yᵀ1 = columns}: plans Y of the shape (n, m) of the last two dimensions.
    With the default arguments and n = m, doubly stochastic matrices.

    Π(X) = argmax ⟨Y, X⟩ − γ Σ_i Ω(Y_i) over the rows Y_i, for a separable Ω with ``inverse``.

    Parameters
    ----------
    rows: what each row, along ``dim``, adds up to, > 0: a number, or a tensor that broadcasts to
        the scores with size 1 along ``dim``, such as (n, 1).
    columns: the same for the columns, with size 1 along ``across``, such as (m,). They have the
        total of the rows. None: equal columns.
    across: the dimension along which a column lies; a row lies along ``dim`` of the mapping.

    A tensor that requires grad gets its gradient. Totals that differ by more than rounding, and a
    mask that leaves no plan, raise ValueError; so does a row or a column of which no entry takes
    part, unless none of the whole plan does: such a plan is 0. Rows of one plan have the same γ.
    """

    arguments = ("rows", "columns", "across")
    fixed_total = True

    def __init__(
        self,
        rows: float | Tensor = 1.0,
        columns: float | Tensor | None = None,
        across: int = -2,
    ) -> None:
        super().__init__()
        self.rows = arguments.hyperparameter("rows", rows, *arguments.POSITIVE)
        if columns is not None:
            columns = arguments.hyperparameter("columns", columns, *arguments.POSITIVE)
        self.columns = columns
        if isinstance(across, bool) or not isinstance(across, int):
            raise TypeError(f"across must be an int; got {across!r}")
        self.across: int = across

    def other(self, x: Tensor, dim: int) -> int:
        if x.ndim < 2 or not -x.ndim <= self.across < x.ndim:
            raise ValueError(
                f"x must have a dimension across={self.across}, of columns; got shape "
                f"{tuple(x.shape)}"
            )
        across = self.across % x.ndim
        if across == dim % x.ndim:
            raise ValueError(
                f"across={self.across} must be another dimension of x, of shape {tuple(x.shape)}, "
                f"than dim={dim}"
            )
        return across

    def prepared(
        self, omega: Regularizer, gamma: float | Tensor, x: Tensor, dim: int
    ) -> tuple[Regularizer, float | Tensor]:
        across, dim = self.other(x, dim), dim % x.ndim
        if not unscaled(omega, 1)[0].declares("inverse"):
            raise NotImplementedError(
                f"domain=Transport() needs a separable Ω with inverse; got {who(omega)}"
            )
        place = across - (across > dim)  # where the columns are, once dim is last
        if isinstance(gamma, Tensor):
            if gamma.shape[place] != 1:
                raise ValueError(
                    f"gamma must have size 1 along across={self.across}: one γ for each plan; got "
                    f"{gamma.shape[place]}"
                )
            gamma = gamma.squeeze(place)
        each = {name: t for name, t in omega.per_row_tensors(True).items() if t.ndim > 1}
        each = {name: t.view(*(1,) * (x.ndim - t.ndim), *t.shape) for name, t in each.items()}
        omega = omega.with_tensors({name: t.movedim(place, -2) for name, t in each.items()})
        return OfRows(omega, x.shape[across], x.shape[dim]), gamma

    def region(self, x: Tensor, dim: int, on: Tensor | None) -> Plans:
        across, dim = self.other(x, dim), dim % x.ndim
        n, m = x.shape[across], x.shape[dim]
        batch = x.movedim((across, dim), (-2, -1)).shape[:-2]
        rows = self._sums("rows", self.rows, x, dim, across).expand(*batch, n)
        if self.columns is None:
            columns = (rows.sum(-1, keepdim=True) / m).expand(*batch, m)
            return Plans(rows, columns, on)
        columns = self._sums("columns", self.columns, x, across, dim).expand(*batch, m)
        dtype = self._dtype(x)
        totals = rows.sum(-1, keepdim=True), columns.sum(-1, keepdim=True)
        off = (totals[0] - totals[1]).detach().abs() / totals[0].detach()
        bad = off > 8 * torch.finfo(dtype).eps * (n + m) ** 0.5
        if transforms.may_look(bad) and bool(bad.any()):
            at = first(bad.squeeze(-1))
            raise ValueError(
                "domain: the rows and the columns of a plan must have the same total; got rows = "
                f"{totals[0][at].item():.12g} and columns = {totals[1][at].item():.12g}"
                + (f" in plan {at}" if at else "")
            )
        return Plans(rows, columns * (totals[0] / totals[1]), on)

    def refused(self, region: Any, skip: Tensor | None) -> Tensor:
        if region.on is None:
            return torch.zeros_like(region.total, dtype=torch.bool)
        plan = region.on.unflatten(-1, region.shape)
        bad: Tensor = ~plan.any(-1).all(-1, keepdim=True) | ~plan.any(-2).all(-1, keepdim=True)
        bad = bad if skip is None else bad & ~skip
        if transforms.may_look(bad) and bool(bad.any()):
            at = first(bad.squeeze(-1))
            rows = ~plan[at].any(-1)
            kind, which = ("row", rows) if bool(rows.any()) else ("column", ~plan[at].any(-2))
            raise ValueError(
                f"domain: no entry of {kind} {int(which.nonzero()[0])} takes part"
                + (f" in plan {at}" if at else "")
                + ", which must add up to a number > 0"
            )
        return bad

    def _sums(self, name: str, item: float | Tensor, x: Tensor, dim: int, across: int) -> Tensor:
        """What is given for each place along ``across``, (*batch, size)."""
        found = arguments.per_row(name, item, arguments.POSITIVE, x, dim)
        if not isinstance(found, Tensor):
            return x.new_full((1,), found)
        place = across - (across > dim)
        return found.movedim(place, -1).squeeze(-2)

    def _dtype(self, x: Tensor) -> torch.dtype:
        """The dtype of the numbers given with the fewest digits."""
        given = [t.dtype for t in (self.rows, self.columns) if isinstance(t, Tensor)]
        return max([x.dtype, *given], key=lambda dtype: torch.finfo(dtype).eps)
