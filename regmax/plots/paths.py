"""Regularization paths: the weights of one row as functions of γ or a hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import analysis
from ..analysis.paths import varied
from ..regularizers.regularizer import Regularizer
from .mappings import one_row
from .style import INK, QUIET, blank, formula, frame, letter, line, styled
from .subjects import label


@styled
def path(
    omega: Regularizer,
    x: Tensor | None = None,
    gamma: float = 1.0,
    over: Sequence[str] | None = None,
    name: str = "",
    figure: Any = None,
) -> Any:
    """A figure of Π_Ω(x) over γ and over each hyperparameter of Ω, with one line per entry.

    A wide grey line lies below entries that are equal bit for bit. A dotted line marks the present
    value. Each panel varies one hyperparameter.

    ``x``: scores of shape (d,), −inf for a masked one; by default six, or as many as Ω is made for.
    ``over``: ``"gamma"``, or names of declared hyperparameters, dotted in nested Ω
    (``"base.alpha"``); by default all, γ first. ``name``: the name of Π_Ω in the figure.
    ``figure``: a matplotlib figure or subfigure to draw in; by default a new one. Raises ValueError
    for an unknown name, and for x that is not one row.
    """
    x = default_row(omega) if x is None else one_row(x)
    names = varied(omega, over)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    if figure is None:
        figure = blank(max(4 * columns, 5) + 1, 3.2 * rows + 0.4)
        others = "" if names == ["gamma"] else f", γ = {gamma:g}"
        figure.suptitle(formula(f"{name or label(omega)}{others}"), fontsize=14, color=INK)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    fused = [
        _draw(axis, omega, x, gamma, over) for over, axis in zip(names, axes.flat, strict=False)
    ]
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("weight")
    _key(figure, x, any(fused))
    return figure


def default_row(omega: Regularizer) -> Tensor:
    """(d,) scores: two runs of neighbours at about one level each, with noise."""
    level = torch.tensor([0.15, 0.0, 0.95, 1.2, 1.05, 0.55], dtype=torch.float64, device="cpu")
    d = omega.entries or len(level)
    return level.repeat(-(-d // len(level)))[:d] + 0.01 * torch.arange(d, device="cpu") * (
        d > len(level)
    )


def _draw(axis: Any, omega: Regularizer, x: Tensor, gamma: float, over: str) -> bool:
    """Draw the lines over γ or a hyperparameter, and return whether some entries are fused."""
    found = analysis.path(omega, x, over, gamma=gamma)
    at, y, ids = found.values, found.y, found.groups
    fused = False
    for k in (x > -torch.inf).nonzero()[:, 0].tolist():
        same = ((ids == ids[:, k : k + 1]) & (ids >= 0)).sum(-1) > 1
        fused = fused or bool(same.any())
        shared = torch.where(same, y[:, k], torch.nan)
        axis.plot(at.tolist(), shared.tolist(), **_SHARED, zorder=1)
        axis.plot(at.tolist(), y[:, k].tolist(), linewidth=1.5, **line(k))
    axis.axvline(found.present, color=QUIET, linewidth=1, linestyle=":")
    axis.set(xlabel="temperature γ" if over == "gamma" else letter(over), ylim=(-0.03, 1.03))
    low, high = sorted((float(at[0]), float(at[-1])))
    axis.set(xscale="log" if high > 4 * low > 0 else "linear", xlim=(low, high))
    axis.xaxis.set_major_formatter("{x:g}")
    frame(axis)
    return fused


_SHARED: dict[str, Any] = {"color": "#c9c9c9", "linewidth": 6}


def _key(figure: Any, x: Tensor, fused: bool) -> None:
    """A key of the score of each line, for up to eight scores, and of the grey lines."""
    from matplotlib.lines import Line2D

    shown = [Line2D([], [], **_SHARED, label="equal weights")] if fused else []
    if len(x) <= 8:
        scores = [(k, item) for k, item in enumerate(x.tolist()) if item > -torch.inf]
        lines = [Line2D([], [], **line(k), label=f"x$_{k + 1}$ = {s:g}") for k, s in scores]
        shown = [*lines, *shown]
    if shown:
        figure.legend(handles=shown, loc="outside right upper", frameon=False, fontsize=11)
