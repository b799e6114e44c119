"""Tables of what Π_Ω does over a grid of hyperparameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..mapping.rows import HALF
from ..nn.layer import RegularizedMax
from ..nn.layer_jacobian import Jacobian
from ..regularizers import display
from ..regularizers.regularizer import Regularizer
from .paths import varied
from .weights import group_count, rows_of, support_size

MEASURES = ("support", "entropy", "groups", "sensitivity", "error")


@dataclass(frozen=True)
class Sweep:
    """The table that :func:`sweep` returns: ``columns`` by name, one entry per setting. ``print``
    and a notebook show it; :meth:`to_dict` and :meth:`to_pandas` hand it on."""

    columns: dict[str, list[float]]

    def to_dict(self) -> dict[str, list[float]]:
        """The columns by name, as lists of floats."""
        return {name: list(column) for name, column in self.columns.items()}

    def to_pandas(self) -> Any:
        """A pandas DataFrame. Raises ImportError if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_pandas needs pandas, which is not installed; run: pip install pandas"
            ) from error
        return pandas.DataFrame(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def _cells(self) -> list[list[str]]:
        shown = [
            [f"{item:.1e}" if name == "error" else f"{item:.4g}" for item in column]
            for name, column in self.columns.items()
        ]
        return [list(row) for row in zip(*shown, strict=True)]

    def __repr__(self) -> str:
        return display.table(list(self.columns), self._cells())

    def _repr_markdown_(self) -> str:
        return display.markdown(list(self.columns), self._cells())


def sweep(
    omega: Regularizer,
    x: Tensor,
    over: Mapping[str, Sequence[float]],
    mask: Tensor | None = None,
    *,
    gamma: float = 1.0,
) -> Sweep:
    """What Π_Ω(x) is like at every combination of the values in ``over``.

    ``over``: by name, ``"gamma"`` or a declared hyperparameter of Ω (``{"gamma": [0.5, 1],
    "alpha": [1.5, 2]}``), the values to take; the last name varies fastest. ``x``: scores with rows
    along the last dimension; ``mask`` as in :class:`regmax.RegularizedMax`. Half precision is
    computed in float32. ``gamma``: γ, unless it is in ``over``.

    The columns after the hyperparameters, over the rows with participants:

    - ``support``: mean of |{i : yᵢ > 0}|
    - ``entropy``: mean of Shannon's −Σ yᵢ log yᵢ, in nats
    - ``groups``: mean number of :func:`groups` of equal weights, as Ω's penalty makes them
    - ``sensitivity``: mean of ‖J‖₂, J = ∂Π_Ω/∂x (:meth:`regmax.RegularizedMax.jacobian`)
    - ``error``: the largest certified bound on ‖y − y*‖₂ (:meth:`regmax.RegularizedMax.solve`)

    A row with a NaN makes its means NaN. Raises ValueError for an unknown name, for a name without
    values and for a value out of range.
    """
    rows_of(x, -1, mask, "x")
    x = x.float() if x.dtype in HALF else x
    names = varied(omega, list(over))
    grid = [[float(value) for value in over[name]] for name in names]
    for name, values in zip(names, grid, strict=True):
        if not values:
            raise ValueError(f"over[{name!r}] must hold at least one number; got none")
    columns: dict[str, list[float]] = {name: [] for name in (*names, *MEASURES)}
    for setting in itertools.product(*grid):
        given = dict(zip(names, setting, strict=True))
        tensors = {
            name: torch.tensor(value, dtype=torch.float64, device=x.device)
            for name, value in given.items()
            if name != "gamma"
        }
        layer = RegularizedMax(omega.with_tensors(tensors), given.get("gamma", gamma))
        for name, item in {**given, **_measured(layer, x, mask)}.items():
            columns[name].append(item)
    return Sweep(columns)


def _measured(layer: RegularizedMax, x: Tensor, mask: Tensor | None) -> dict[str, float]:
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        solution = layer.solve(at, mask)
    y = solution.y.detach()
    on = x > -torch.inf if mask is None else mask & (x > -torch.inf)
    real = rows_of(y, -1, on)[1].any(-1)
    jacobian = Jacobian(at, solution.y, -1, layer.omega.exact, keep=False)

    def mean(items: Tensor) -> float:
        items = torch.where(y.isnan().any(-1), torch.nan, items.double())
        return float(items[real].mean())

    return {
        "support": mean(support_size(y, mask=on)),
        "entropy": mean(torch.special.entr(y).sum(-1)),
        "groups": mean(group_count(y, layer.omega, mask=on)),
        "sensitivity": mean(jacobian.norm()),
        "error": float(solution.error_bound[real].max()) if bool(real.any()) else torch.nan,
    }
