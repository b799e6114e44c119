"""Π_Ω as a function of γ and of the hyperparameters of Ω: a path over one, a table over several."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..mapping.rows import computed_in
from ..nn.layer import RegularizedMax
from ..nn.layer_jacobian import Jacobian
from ..regularizers import arguments, display
from ..regularizers.printing import brief
from ..regularizers.registry import suggestion
from ..regularizers.regularizer import Regularizer, checked
from .weights import group_count, groups, rows_of, support_size

POINTS = 400
MEASURES = ("support", "entropy", "groups", "sensitivity", "error")


# -- a path over one -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Π_Ω(x) at several values of γ or of one hyperparameter.

    ``over``: its name. ``values``: (points,), float64. ``y``: the weights, (points, *x.shape), in
    x's dtype. ``groups``: as :func:`regmax.analysis.groups` numbers them for Ω, (points, *x.shape).
    ``present``: the value that Ω (or ``gamma``) has now, the mean of a tensor.
    """

    over: str
    values: Tensor
    y: Tensor
    groups: Tensor
    present: float

    def __repr__(self) -> str:
        low, high = float(self.values[0]), float(self.values[-1])
        return (
            f"RegularizationPath({len(self.values)} values of {self.over} from {low:g} to "
            f"{high:g}, y of shape {tuple(self.y.shape)})"
        )


def path(
    omega: Regularizer,
    x: Tensor,
    over: str = "gamma",
    values: Sequence[float] | Tensor | None = None,
    *,
    gamma: float = 1.0,
    mask: Tensor | None = None,
    domain: Domain | None = None,
) -> RegularizationPath:
    """y(t) = Π_Ω(x) where t is γ or one hyperparameter of Ω, at each t in ``values``.

    ``x``: scores with rows along the last dimension; −inf, ``mask`` and ``domain`` as in
    :class:`regmax.RegularizedMax`. ``over``: ``"gamma"``, or the name of a declared hyperparameter,
    dotted in nested Ω (``"base.alpha"``; ``"lam"`` is the λ of a penalty). ``values``: by default
    400 values that Ω accepts around the present one, evenly spaced in the logarithm. All values are
    one batch. :func:`regmax.plots.path` draws it. Raises ValueError for an unknown name and for a
    value out of range.
    """
    rows_of(x, -1, mask, "x")
    if not isinstance(over, str):
        raise TypeError(f"over must be one name; got {over!r}")
    (over,) = varied(omega, [over])
    at, present = span(omega, over, x, gamma)
    if values is not None:
        at = arguments.table("values", values).reshape(-1)
    if len(at) == 0:
        raise ValueError("values must hold at least one number; got none")
    column, rows = at.view(-1, *(1,) * x.ndim).to(x.device), x.expand(len(at), *x.shape)
    with torch.no_grad():
        y = _layer(omega, {over: column}, gamma, x, domain)(rows, mask)
    return RegularizationPath(over, at, y, groups(y, omega, mask=_on(rows, mask)), present)


def varied(omega: Regularizer, over: Any) -> list[str]:
    """The name or names in ``over``, by default all: γ and each hyperparameter. ValueError for
    what is no name."""
    declared = checked(omega).declared()
    known = ["gamma", *dict.fromkeys(prefix + name for prefix, name, _ in declared)]
    several = isinstance(over, list | tuple | Mapping)
    names = known if over is None else list(dict.fromkeys(over if several else [over]))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = ", ".join(map(repr, unknown)) or "none"
        like = suggestion(str(unknown[0]), known) if unknown else ""
        raise ValueError(f"over must name one of {', '.join(known)}; got {got}{like}")
    return names


def span(omega: Regularizer, over: str, x: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Accepted values of γ or of a hyperparameter, evenly spaced on a logarithmic axis, and the
    present value."""
    if over == "gamma":
        on = x[x.abs() < torch.inf].detach().double()
        wide = max(float(on.max() - on.min()), 1e-3) if len(on) else 1.0
        return _even(min(0.03 * wide, gamma / 2), max(10 * wide, 2 * gamma)), gamma
    owner = next(o for prefix, key, o in omega.declared() if prefix + key == over)
    attribute = over.rpartition(".")[2]
    present = torch.as_tensor(getattr(owner, attribute), dtype=torch.float64, device="cpu")
    value = float(present.detach().mean())
    around = _even(1 / 30, 30.0, 3001) * (value or 0.1)
    words, accepts = owner.ranges.get(attribute, ("", torch.isfinite))
    inside = around[accepts(around)].tolist()
    if not inside:
        raise ValueError(f"{over} is {value:g} and must be {words}: no value near it is accepted")
    return _even(inside[0], inside[-1]), value


def _even(first: float, last: float, points: int = POINTS) -> Tensor:
    """Values evenly spaced in the logarithm between two numbers of the same sign."""
    share = torch.linspace(0, 1, points, dtype=torch.float64, device="cpu")
    between = first * (last / first) ** share
    between[-1] = last  # rounding could leave the accepted range
    return between


def _layer(
    omega: Regularizer, given: Mapping[str, Any], gamma: float, x: Tensor, domain: Domain | None
) -> RegularizedMax:
    """The layer for ``x`` with these numbers or tensors as γ and hyperparameters."""
    tensors = {
        name: torch.as_tensor(value, dtype=torch.float64, device=x.device)
        for name, value in given.items()
        if name != "gamma"
    }
    return RegularizedMax(omega.with_tensors(tensors), given.get("gamma", gamma), domain=domain)


def _on(x: Tensor, mask: Tensor | None) -> Tensor:
    """Who takes part."""
    return x > -torch.inf if mask is None else mask & (x > -torch.inf)


# -- a table over several --------------------------------------------------------------------------


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
    domain: Domain | None = None,
) -> Sweep:
    """What Π_Ω(x) is like at every combination of the values in ``over``.

    ``over``: by name, ``"gamma"`` or a declared hyperparameter of Ω (``{"gamma": [0.5, 1],
    "alpha": [1.5, 2]}``), the values to take; the last name varies fastest. ``x``: scores with rows
    along the last dimension; ``mask`` and ``domain`` as in :class:`regmax.RegularizedMax`. Half
    precision is computed in float32. ``gamma``: γ, unless it is in ``over``.

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
    x = x.to(computed_in(x.dtype))
    if not isinstance(over, Mapping):
        raise TypeError(f"over must be a dict of names and their values; got {brief(over)}")
    if domain is not None and domain.across is not None:
        raise NotImplementedError(
            f"analysis.sweep measures rows, and domain= of plans has none; got {domain!r}"
        )
    names = varied(omega, over)
    grid = [arguments.table(f"over[{n!r}]", over[n]).reshape(-1).tolist() for n in names]
    for name, values in zip(names, grid, strict=True):
        if not values:
            raise ValueError(f"over[{name!r}] must hold at least one number; got none")
    columns: dict[str, list[float]] = {name: [] for name in (*names, *MEASURES)}
    for setting in itertools.product(*grid):
        given = dict(zip(names, setting, strict=True))
        measured = _measured(_layer(omega, given, gamma, x, domain), x, mask)
        for name, item in {**given, **measured}.items():
            columns[name].append(item)
    return Sweep(columns)


def _measured(layer: RegularizedMax, x: Tensor, mask: Tensor | None) -> dict[str, float]:
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        solution = layer.solve(at, mask)
    y = solution.y.detach()
    on = _on(x, mask)
    real = rows_of(y, -1, on)[1].any(-1)
    whole = layer.domain is not None and layer.domain.projects
    jacobian = Jacobian(at, solution.y, -1, layer.omega.exact, False, whole)

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
