"""Heat maps of attention weights, as in Niculae & Blondel (2017), Figures 1, 4 and 7: exact zeros
are grey, neighbours of equal weight have no border, and markers show the clusters of a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..analysis import groups
from ..analysis.weights import rows_of
from ..regularizers.printing import brief
from .style import INK, blank, styled

ZERO = "#bdbdbd"
MARKS = "o^sDP*"
WIDEST = 10.0
"""The greatest width in inches of panels side by side."""

Words = Sequence[str]


@styled
def attention(
    weights: Tensor,
    source: Words | None = None,
    target: Words | None = None,
    *,
    mask: Tensor | None = None,
    clusters: bool = False,
    title: str = "",
    axes: Any = None,
) -> Any:
    """A figure of attention weights: row i shows the weights of the source for target word i.

    ``weights``: (target, source), floating, nonnegative and finite. ``source``, ``target``: the
    words, by default their positions. ``mask``: bool, broadcastable to the weights, True = takes
    part; masked cells stay white, and what they hold does not matter. ``clusters``: whether to mark
    the entries of a row with equal weights, one marker per cluster: for oscarmax. ``axes``:
    matplotlib axes to draw on, with colours up to their largest weight; by default those of a new
    figure, with colour bar and key.
    """
    if axes is None:
        only = (title,) * clusters
        return attentions({title: weights}, source, target, mask=mask, clusters=only)
    table, on = _checked(weights, "weights", mask)
    _panel(axes, table, on, source, target, title, clusters, float(table.max()))
    return axes.figure


@styled
def attentions(
    weights: Mapping[str, Tensor],
    source: Words | None = None,
    target: Words | Mapping[str, Words] | None = None,
    *,
    mask: Tensor | Mapping[str, Tensor] | None = None,
    clusters: Collection[str] = (),
) -> Any:
    """A figure of the attention of several mappings to one ``source``, in panels side by side.

    ``weights``: by name, as in :func:`attention`. ``target`` and ``mask``: common to all or by
    name. ``clusters``: the names of the mappings whose clusters are marked. All panels have one
    colour scale.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(
            f"weights must hold those of at least one mapping, by name; got {brief(weights)}"
        )
    for argument, given in (("target", target), ("mask", mask), ("clusters", {*clusters})):
        by_name = given if isinstance(given, Mapping | set) else ()
        unknown = ", ".join(repr(name) for name in by_name if name not in weights)
        if unknown:
            raise ValueError(f"{argument} must name one of {', '.join(weights)}; got {unknown}")
    tables = {}
    for name, item in weights.items():
        own = mask.get(name) if isinstance(mask, Mapping) else mask
        tables[name] = _checked(item, f"weights[{name!r}]" if name else "weights", own)
    top = max(float(table.max()) for table, _ in tables.values())
    most = max(max(table.shape) for table, _ in tables.values())
    cell = min(0.34, max(0.2, 5 / most))  # inches
    figure = blank(1, 1)  # a figure of 1 inch: its coordinates are inches
    figure.set_layout_engine("none")
    marked = False
    for name, (table, on) in tables.items():
        axis = figure.add_axes((0, 0, cell * table.shape[1], cell * table.shape[0]))
        words = target.get(name) if isinstance(target, Mapping) else target
        marked |= _panel(axis, table, on, source, words, name, name in clusters, top)
    masked = not all(bool(on.all()) for _, on in tables.values())
    _arrange(figure, top, _key(marked, masked))
    return figure


def colours() -> Any:
    """A colour map from light to dark, safe for colour-blind readers. The lightest colour differs
    from the white borders. 0, given as NaN, is grey."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    shades = colormaps["YlGnBu"]([0.15 + 0.85 * k / 255 for k in range(256)])
    return ListedColormap(shades).with_extremes(bad=ZERO)


def cells(axis: Any, weights: Tensor, ids: Tensor, top: float) -> None:
    """Draw ``weights`` (rows, columns) as squares with colours up to ``top``, 0 in grey, and white
    borders between neighbours of different ``ids``."""
    from matplotlib.collections import LineCollection

    shown = torch.where(weights > 0, weights, torch.nan)
    axis.imshow(shown.numpy(), cmap=colours(), vmin=0, vmax=top or 1, interpolation="none")
    beside = (ids[:, 1:] != ids[:, :-1]).nonzero().tolist()
    below = (ids[1:] != ids[:-1]).nonzero().tolist()
    lines = [((j + 0.5, i - 0.5), (j + 0.5, i + 0.5)) for i, j in beside]
    lines += [((j - 0.5, i + 0.5), (j + 0.5, i + 0.5)) for i, j in below]
    axis.add_collection(LineCollection(lines, colors="white", linewidths=0.9, capstyle="butt"))


# -- a panel -------------------------------------------------------------------------------------


def _checked(weights: Tensor, name: str, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights in float64 on the CPU, 0 where masked, and who takes part."""
    if not isinstance(weights, Tensor) or weights.ndim != 2 or weights.numel() == 0:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{name} must be a tensor of shape (target, source), not empty; got {got}")
    table, on = rows_of(weights.detach().double().cpu(), -1, mask, name)
    if not bool(((table >= 0) & (table < torch.inf)).all()):
        raise ValueError(
            f"{name} must be nonnegative and finite; got entries in [{table.min():g}, "
            f"{table.max():g}]"
        )
    return table, on


def _panel(
    axis: Any,
    table: Tensor,
    on: Tensor,
    source: Words | None,
    target: Words | None,
    title: str,
    clusters: bool,
    top: float,
) -> bool:
    """Draw a panel; whether clusters are marked in it."""
    rows, columns = table.shape
    runs = groups(table, mask=on)
    row = torch.arange(rows, device="cpu")[:, None]
    cells(axis, table, torch.where(runs < 0, runs - (~on).long(), runs + columns * row), top)
    if not bool(on.all()):
        white = torch.where(on, torch.nan, 0.0).numpy()
        axis.imshow(white, cmap="gray_r", vmin=0, vmax=1, interpolation="none")
    pixels = axis.get_window_extent()
    points = 72 / axis.figure.dpi * min(pixels.width / columns, pixels.height / rows)  # of a cell
    marked = clusters and _mark(axis, table, 0.4 * points, top)
    size = max(5.0, min(10.0, 0.55 * points))
    turned: Any = {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if source else {}
    _words(axis.xaxis, "source", source, columns, size, **turned)
    _words(axis.yaxis, "target", target, rows, size)
    axis.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False, left=False, pad=2)
    axis.spines[:].set_visible(False)
    axis.set_title(title, parse_math=False)
    return marked


def _words(axis: Any, name: str, words: Words | None, of: int, size: float, **style: Any) -> None:
    """Set the words of one axis. A $ is shown as $, and starts no formula."""
    words = [str(k) for k in range(of)] if words is None else list(words)
    if len(words) != of:
        raise ValueError(f"{name} must have {of} words, as the weights have; got {len(words)}")
    axis.set_ticks(range(of), words, fontsize=size, color=INK, parse_math=False, **style)


def _mark(axis: Any, table: Tensor, size: float, top: float) -> bool:
    """Mark the entries of each cluster of two or more; each cluster of a row has its marker.
    Whether there is one."""
    ids, any_found = groups(table, "clusters"), False
    for i, row in enumerate(ids):
        found, members = row[row >= 0].unique(return_counts=True)
        for mark, cluster in enumerate(found[members > 1]):
            at = (row == cluster).nonzero()[:, 0]
            dark = float(table[i, at[0]]) > 0.5 * top
            style = {"s": size**2, "color": "white" if dark else "#333333", "linewidths": 0}
            axis.scatter(at.tolist(), [i] * len(at), marker=MARKS[mark % len(MARKS)], **style)
            any_found = True
    return any_found


# -- a figure of panels --------------------------------------------------------------------------


def _arrange(figure: Any, top: float, key: Sequence[Any]) -> None:
    """Arrange the panels in rows with room for their words, and the colour bar and key below.
    Panels keep their size."""
    panels, gap = list(figure.axes), 0.15
    figure.draw_without_rendering()
    left, below, right, above = map(max, zip(*map(_room, panels), strict=True))
    sizes = [tuple(axis.get_position().size) for axis in panels]
    w, h = map(max, zip(*sizes, strict=True))
    across, down = left + w + right + gap, above + h + below + gap
    rows = -(-len(panels) // max(1, int(WIDEST / across)))
    columns = -(-len(panels) // rows)
    width = max(columns * across + gap, 3.6)
    lines = 1 if width > 7.5 else len(key)
    strip = 0.7 + 0.2 * lines
    height = rows * down + gap + strip

    figure.set_size_inches(width, height)
    scale = torch.tensor([width, height, width, height], device="cpu")
    for k, (axis, (wide, high)) in enumerate(zip(panels, sizes, strict=True)):
        x = gap + (k % columns) * across + left
        y = height - gap - (k // columns) * down - above - high
        axis.set_position((torch.tensor([x, y, wide, high], device="cpu") / scale).tolist())
    bar = figure.add_axes(
        (torch.tensor([0.3, strip - 0.15, 2.2, 0.12], device="cpu") / scale).tolist()
    )
    _colour_bar(bar, top)
    place = {"loc": "lower left", "bbox_to_anchor": (0.1 / width, 0.02 / height)}
    style = {"fontsize": 9, "handlelength": 1.2, "borderpad": 0.3}
    figure.legend(handles=key, ncols=len(key) // lines, **place, **style)


def _room(axis: Any) -> tuple[float, ...]:
    """Inches that the words need around the axes: left, below, right, above."""
    outer, inner = axis.get_tightbbox(), axis.get_window_extent()
    sides = (inner.x0 - outer.x0, inner.y0 - outer.y0, outer.x1 - inner.x1, outer.y1 - inner.y1)
    return tuple(side / axis.figure.dpi for side in sides)


def _colour_bar(axis: Any, top: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, top or 1), colours())
    bar = axis.figure.colorbar(scale, cax=axis, orientation="horizontal")
    bar.outline.set_visible(False)
    axis.tick_params(labelsize=8, length=2, pad=2)
    axis.set_xlabel("weight", fontsize=9, labelpad=1)


def _key(clusters: bool, masked: bool) -> list[Any]:
    """The key of greys, borders and markers."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    key = [
        Patch(facecolor=ZERO, label="weight exactly 0"),
        Patch(facecolor=colours()(0.4), label="no border between: equal weights"),
    ]
    if masked:
        key.append(Patch(facecolor="white", edgecolor=ZERO, label="white: masked out"))
    sign = Line2D([], [], linestyle="", marker="o", markersize=4, color=INK)
    sign.set_label("one sign in a row: equal weights")
    return [*key, sign] if clusters else key
