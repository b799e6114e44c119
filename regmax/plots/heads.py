"""The attention heads of a model: Figures 2 to 6 of Correia et al. (2019), for any model.

Values are tensors or nested lists of numbers. Blocks ("encoder self-attention", …) and models have
names, which the figures show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..regularizers import arguments
from ..regularizers.printing import brief
from .style import MARKERS, PALETTE, blank, frame, line, styled

Numbers = Tensor | Sequence[Any]


@styled
def trajectories(
    steps: Sequence[int], values: Mapping[str, Numbers], ylabel: str = "α", xlabel: str = "step"
) -> Any:
    """A figure of hyperparameters during training (Figure 2).

    ``values``: by label, (steps,) for one line, or (steps, …) for several lines of one colour, such
    as the heads of a layer in :class:`regmax.analysis.Trajectories`.
    """
    _named(values)
    at = arguments.table("steps", steps).reshape(-1).tolist()
    figure = blank(8, 4.5)
    axis = figure.subplots()
    for k, (label, item) in enumerate(values.items()):
        table = _table(f"values[{label!r}]", item)
        if len(table) != len(at):
            raise ValueError(
                f"values[{label!r}] must have one entry for each of the {len(at)} steps; got "
                f"{len(table)}"
            )
        lines = axis.plot(at, table.reshape(len(at), -1).numpy(), linewidth=1.5, **line(k))
        lines[0].set_label(label)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    frame(axis)
    figure.legend(loc="outside right upper")
    return figure


@styled
def histograms(
    values: Mapping[str, Numbers | Mapping[str, Numbers]],
    xlabel: str = "α",
    ylabel: str = "heads",
    span: tuple[float, float] = (1.0, 2.0),
    bins: int = 20,
) -> Any:
    """A figure of histograms, one row per block (Figure 3: the α of all heads; Figure 4: the
    densities of all heads and sentences, with ``span=(0, 1)``).

    ``values``: by block, numbers of any shape, or by block and model, with one column per model.
    Numbers outside of ``span`` count in the first or last bin.
    """
    ends = arguments.table("span", span).reshape(-1).tolist()
    if len(ends) != 2 or not ends[0] < ends[1] or not isinstance(bins, int) or bins < 1:
        raise ValueError(
            "span must be two increasing numbers, and bins an int of at least 1; got "
            f"span={brief(span)}, bins={brief(bins)}"
        )
    nested = {
        block: v if isinstance(v, Mapping) else {"": v} for block, v in _named(values).items()
    }
    figure, axes = _grid(nested, 1.6)
    for (block, model), axis in axes.items():
        inside = _cell(nested, block, model).reshape(-1).clamp(*span)
        counts, edges = torch.histogram(inside.cpu(), bins, range=span)
        axis.stairs(counts.tolist(), edges.tolist(), fill=True, color=PALETTE[0])
        axis.set(xlim=span)
        axis.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        frame(axis)
    figure.supxlabel(xlabel, fontsize=11)
    figure.supylabel(ylabel, fontsize=11)
    return figure


@styled
def head_densities(values: Mapping[str, Mapping[str, Numbers]]) -> Any:
    """A figure of the densities of the heads by layer (Figure 5).

    ``values``: by block and model, (layers, heads). Line k joins the kth sparsest heads of the
    layers.
    """
    figure, axes = _grid(values, 1.9)
    for (block, model), axis in axes.items():
        heads = _cell(values, block, model).sort(-1).values
        look: Any = {"color": PALETTE[0], "linewidth": 1.2, "marker": "o", "markersize": 3}
        axis.plot(_layers(axis, heads), heads.numpy(), **look)
        axis.set(ylim=(-0.03, 1.03))
        frame(axis)
    figure.supxlabel("layer", fontsize=11)
    figure.supylabel("density", fontsize=11)
    return figure


@styled
def diversity_by_layer(values: Mapping[str, Mapping[str, Numbers]]) -> Any:
    """A figure of the Jensen–Shannon divergence between heads by layer (Figure 6).

    ``values``: by block and model, (layers,).
    """
    _nested(values)
    figure = blank(6.5, 1.9 * len(values) + 1.0)
    axes = figure.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    names = list(dict.fromkeys(model for by_model in values.values() for model in by_model))
    for axis, (block, by_model) in zip(axes, values.items(), strict=True):
        for model in by_model:
            layers, k = _cell(values, block, model), names.index(model)
            style = {**line(k), "linewidth": 1.5, "marker": MARKERS[k % len(MARKERS)]}
            axis.plot(_layers(axis, layers), layers.tolist(), label=model, **style)
        axis.set_title(block, loc="left", fontsize=10.5)
        axis.margins(y=0.15)
        frame(axis)
    figure.supxlabel("layer", fontsize=11)
    figure.supylabel("Jensen–Shannon divergence", fontsize=11)
    found = {line.get_label(): line for axis in axes for line in axis.lines}
    handles = [found[name] for name in names]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def _grid(
    values: Mapping[str, Mapping[str, Any]], height: float
) -> tuple[Any, dict[tuple[str, str], Any]]:
    """A figure of axes by block (rows) and model (columns)."""
    _nested(values)
    models = list(dict.fromkeys(model for by_model in values.values() for model in by_model))
    figure = blank(max(3.2 * len(models), 5) + 0.8, height * len(values) + 0.8)
    grid = figure.subplots(len(values), len(models), sharex=True, sharey="row", squeeze=False)
    axes = {}
    for row, (block, by_model) in zip(grid, values.items(), strict=True):
        for model, axis in zip(models, row, strict=True):
            axis.set_title(", ".join(filter(None, (block, model))), loc="left", fontsize=10.5)
            if model in by_model:
                axes[block, model] = axis
            else:
                axis.set_axis_off()
    return figure, axes


def _named(values: Any, name: str = "values") -> Any:
    """Numbers by label, block or model, as they are."""
    if not isinstance(values, Mapping) or not values:
        raise TypeError(f"{name} must be a dict of numbers by name, not empty; got {brief(values)}")
    return values


def _nested(values: Any) -> None:
    """Refuse what are no numbers by block and model."""
    for block, by_model in _named(values).items():
        _named(by_model, f"values[{block!r}]")


def _table(name: str, item: Numbers) -> Tensor:
    return torch.atleast_1d(arguments.table(name, item))  # type: ignore[no-any-return]


def _cell(values: Mapping[str, Mapping[str, Numbers]], block: str, model: str) -> Tensor:
    name = f"values[{block!r}]" + (f"[{model!r}]" if model else "")
    return _table(name, values[block][model])


def _layers(axis: Any, table: Tensor) -> list[int]:
    """1, 2, …, also set as the ticks of ``axis``."""
    layers = list(range(1, len(table) + 1))
    axis.set_xticks(layers)
    return layers
