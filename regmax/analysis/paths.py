"""Regularization paths: Π_Ω(x) as a function of γ or of one hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..regularizers.registry import suggestion
from ..regularizers.regularizer import Regularizer
from .weights import groups, rows_of

POINTS = 400


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
) -> RegularizationPath:
    """y(t) = Π_Ω(x) where t is γ or one hyperparameter of Ω, at each t in ``values``.

    ``x``: scores with rows along the last dimension; −inf and ``mask`` as in
    :class:`regmax.RegularizedMax`. ``over``: ``"gamma"``, or the name of a declared hyperparameter,
    dotted in nested Ω (``"base.alpha"``; ``"lam"`` is the λ of a penalty). ``values``: by default
    400 values that Ω accepts around the present one, evenly spaced in the logarithm. All values are
    one batch. :func:`regmax.plots.path` draws it. Raises ValueError for an unknown name and for a
    value out of range.
    """
    rows_of(x, -1, mask, "x")
    (over,) = varied(omega, [over])
    found, present = span(omega, over, x, gamma)
    at = (
        found
        if values is None
        else torch.as_tensor(values, dtype=torch.float64, device="cpu").reshape(-1)
    )
    if len(at) == 0:
        raise ValueError("values must hold at least one number; got none")
    column, rows = at.view(-1, *(1,) * x.ndim).to(x.device), x.expand(len(at), *x.shape)
    if over == "gamma":
        layer = RegularizedMax(omega, column)
    else:
        layer = RegularizedMax(omega.with_tensors({over: column}), gamma)
    with torch.no_grad():
        y = layer(rows, mask)
    on = rows > -torch.inf if mask is None else mask & (rows > -torch.inf)
    return RegularizationPath(over, at, y, groups(y, omega, mask=on), present)


def varied(omega: Regularizer, over: Sequence[str] | None) -> list[str]:
    """The names in ``over``, by default all: γ and each hyperparameter. ValueError for an unknown
    name."""
    known = ["gamma", *dict.fromkeys(prefix + name for prefix, name, _ in omega.declared())]
    names = known if over is None else list(dict.fromkeys(over))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = ", ".join(map(repr, unknown)) or "none"
        like = suggestion(unknown[0], known) if unknown else ""
        raise ValueError(f"over must name one of {', '.join(known)}; got {got}{like}")
    return names


def span(omega: Regularizer, over: str, x: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Accepted values of γ or of a hyperparameter, evenly spaced on a logarithmic axis, and the
    present value."""
    if over == "gamma":
        on = x[x > -torch.inf].detach().double()
        wide = max(float(on.max() - on.min()), 1e-3) if len(on) else 1.0
        return _even(min(0.03 * wide, gamma / 2), max(10 * wide, 2 * gamma)), gamma
    owner = next(o for prefix, key, o in omega.declared() if prefix + key == over)
    attribute = over.rpartition(".")[2]
    value = float(
        torch.as_tensor(getattr(owner, attribute), dtype=torch.float64, device="cpu")
        .detach()
        .mean()
    )
    around = _even(1 / 30, 30.0, 3001) * (value or 0.1)
    words, accepts = owner.ranges.get(attribute, ("", torch.isfinite))
    inside = around[accepts(around)].tolist()
    if not inside:
        raise ValueError(f"{over} is {value:g} and must be {words}: no value near it is accepted")
    return _even(inside[0], inside[-1]), value


def _even(first: float, last: float, points: int = POINTS) -> Tensor:
    """Values evenly spaced in the logarithm between two numbers of the same sign."""
    between = first * (last / first) ** torch.linspace(
        0, 1, points, dtype=torch.float64, device="cpu"
    )
    between[-1] = last  # rounding could leave the accepted range
    return between
