"""One mapping: at two scores, on a row of scores, over its hyperparameters, and all in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import analysis
from ..analysis.hyperparameters import varied
from ..domains import Domain
from ..kernels.simplex import project
from ..nn.layer import RegularizedMax
from ..regularizers.printing import brief
from ..regularizers.regularizer import Regularizer, checked
from .style import (
    FAINT,
    INK,
    PALETTE,
    QUIET,
    Omegas,
    blank,
    formula,
    frame,
    label,
    letter,
    line,
    several,
    short,
    styled,
    takes,
    title,
    weights,
)
from .three_scores import simplex, surface

Line = tuple[str, dict[str, Any], Tensor, Tensor]
"""A name, its style, max_Ω and Π_Ω."""
SHADES = ((PALETTE[5], 2.0), (PALETTE[0], 1.0), (PALETTE[1], 0.5))
"""Colours of three temperatures in units of γ."""
_REFERENCE: dict[str, Any] = {"color": QUIET, "linestyle": (0, (4, 3)), "linewidth": 1.2}
_SHARED: dict[str, Any] = {"color": "#c9c9c9", "linewidth": 6}


# -- two scores ------------------------------------------------------------------------------------


@styled
def curves(omegas: Omegas, gamma: float = 1.0, figure: Any = None) -> Any:
    """A figure of max_Ω([t, 0]) and its slope Π_Ω([t, 0])₁ over t, side by side: Niculae & Blondel
    (2017), Figure 2.

    ``omegas``: one Ω, drawn at γ/2, γ and 2γ, or several by name, drawn at γ. Equal curves share a
    line. max_Ω is shifted by γΩ(e₂), so that it tends to 0 as t → −∞, like max(t, 0). ``figure``: a
    matplotlib figure or subfigure to draw in; by default a new one. Raises ValueError if an Ω does
    not accept two entries.
    """
    found = several(omegas, 2)
    if figure is None:
        figure = blank(9, 4.1)
        figure.suptitle(title(found, gamma), fontsize=13)
    left, right = figure.subplots(1, 2)
    t = _scores(gamma)
    if len(found) == 1:
        lines = _temperatures(next(iter(found.values())), gamma, t)
    else:
        each = [(name, *_both(omega, gamma, t)) for name, omega in found.items()]
        lines = [(name, line(k), top, y) for k, (name, top, y) in enumerate(_merged(each))]
    for name, style, top, _ in lines:
        left.plot(t.tolist(), top.tolist(), linewidth=2, label=formula(name), **style)
    left.plot(t.tolist(), t.clamp(min=0).tolist(), **_REFERENCE, label="max(t, 0)")
    left.legend(loc="upper left", fontsize=11)
    left.set_title("max$_Ω$([t, 0]), up to a constant")
    left.set(xlabel="score t", xlim=(float(t[0]), float(t[-1])))
    frame(left)
    dashed = _slopes(right, lines, t, gamma)
    right.legend(handles=dashed, loc="upper left", fontsize=11)
    right.set_title("Π$_Ω$([t, 0])$_1$")
    return figure


def _scores(gamma: float) -> Tensor:
    """(points,) t from −4γ to 4γ."""
    return torch.linspace(-4 * gamma, 4 * gamma, 401, dtype=torch.float64, device="cpu")


def _temperatures(omega: Regularizer, gamma: float, t: Tensor) -> list[Line]:
    """The curves at 2γ, γ and γ/2."""
    return [
        (f"γ = {factor * gamma:g}", {"color": colour}, *_both(omega, factor * gamma, t))
        for colour, factor in SHADES
    ]


def _slopes(axis: Any, lines: list[Line], t: Tensor, gamma: float) -> list[Any]:
    """Draw Π_Ω([t, 0])₁, and softmax if it is not among the lines; return softmax's line."""
    for name, style, _, y in lines:
        axis.plot(t.tolist(), y.tolist(), linewidth=2, label=formula(name), **style)
    axis.set(xlabel="score t", xlim=(float(t[0]), float(t[-1])), ylim=(-0.03, 1.03))
    frame(axis)
    soft = (t / gamma).sigmoid()
    if any(torch.allclose(y, soft, atol=1e-9) for *_, y in lines):
        return []
    text = "softmax" if gamma == 1 else f"softmax, γ = {gamma:g}"
    drawn: list[Any] = axis.plot(t.tolist(), soft.tolist(), **_REFERENCE, label=text)
    return drawn


def _both(omega: Regularizer, gamma: float, t: Tensor) -> tuple[Tensor, Tensor]:
    """max_Ω([t, 0]) + γΩ(e₂), and Π_Ω([t, 0])₁."""
    pairs = torch.stack([t, torch.zeros_like(t)], -1)
    layer = RegularizedMax(omega, gamma)
    with torch.no_grad():
        end = omega.value(omega.lifted(torch.tensor([0.0, 1.0], dtype=t.dtype, device="cpu")))
        return layer.max(pairs) + gamma * end, layer(pairs)[:, 0]


def _merged(each: list[tuple[str, Tensor, Tensor]]) -> list[tuple[str, Tensor, Tensor]]:
    """Equal curves once, with all of their names."""
    found: list[tuple[str, Tensor, Tensor]] = []
    for name, top, y in each:
        for k, (names, _, other) in enumerate(found):
            if torch.allclose(y, other, atol=1e-9):
                found[k] = (f"{names},\n{name}", top, y)  # a line each: a key is narrow
                break
        else:
            found.append((name, top, y))
    return found


# -- a row of scores -------------------------------------------------------------------------------


def example(d: int = 20, seed: int = 3) -> Tensor:
    """(d,) float64 scores in runs of similar level, with noise, so that fusedmax has groups."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randn(-(-d // 4), generator=generator, dtype=torch.float64, device="cpu")
    noise = torch.randn(d, generator=generator, dtype=torch.float64, device="cpu")
    return 0.25 * levels.repeat_interleave(4)[:d] + 0.07 * noise


def _one_row(x: Tensor) -> Tensor:
    """(d,) float64 scores on the CPU; ValueError for anything but one row of them."""
    if not isinstance(x, Tensor) or x.ndim != 1 or not bool((x < torch.inf).all()):
        raise ValueError(
            f"x must be one row of scores, a tensor of shape (d,), finite or -inf; got {brief(x)}"
        )
    return x.detach().double().cpu()


@styled
def mapping(
    omega: Regularizer,
    x: Tensor | None = None,
    gamma: float = 1.0,
    name: str = "",
    *,
    domain: Domain | None = None,
) -> Any:
    """A figure of Π_Ω: a curve at two scores, and the row ``x`` with softmax and sparsemax.

    ``x``: scores of shape (d,), −inf for a masked one; default :func:`example`. ``name``: the name
    of Π_Ω in the figure. ``domain``: as for :class:`regmax.RegularizedMax`, for the row alone.
    """
    d = checked(omega).entries
    x = example(20 if d is None else d) if x is None else _one_row(x)
    name = _on_domain(name or label(omega), domain)
    pairs = domain is None and takes(omega, 2)
    rows = _compared(omega, x, gamma, name, domain)
    figure = blank(12.5 if pairs else 8.5, 1.35 * (1 + len(rows)) + 1.3)
    grid = figure.add_gridspec(1 + len(rows), 1 + pairs, width_ratios=(1, 1.75)[1 - pairs :])
    if pairs:
        axis, t = figure.add_subplot(grid[:, 0]), _scores(gamma)
        _slopes(axis, _temperatures(omega, gamma, t), t, gamma)
        axis.set(ylabel="weight of the first score", title="two scores, t and 0")
        axis.legend(loc="upper left", fontsize=11)
    axes = [figure.add_subplot(grid[k, -1]) for k in range(1 + len(rows))]
    _bars(axes, x, rows)
    figure.suptitle(f"{formula(name)}, γ = {gamma:g}", fontsize=14)
    return figure


def _on_domain(name: str, domain: Domain | None) -> str:
    return name if domain is None else f"{name}, {short(str(domain), 60)}"


def _compared(
    omega: Regularizer, x: Tensor, gamma: float, name: str, domain: Domain | None
) -> list[tuple[str, Tensor, Tensor]]:
    """Name, weights and groups of the mappings to show: Π_Ω is last; equal others are left out."""
    y, on = weights(omega, x, gamma, domain), x > -torch.inf
    others = (("softmax", (x / gamma).softmax(-1)), ("sparsemax", project(x / gamma, on)))
    alone = torch.arange(len(x), device="cpu")
    found = [(n, z, alone) for n, z in others if not torch.allclose(y, z, atol=1e-9)]
    return [*found, (name, y, analysis.groups(y, omega, mask=on))]


def _bars(axes: Sequence[Any], x: Tensor, rows: Sequence[tuple[str, Tensor, Tensor]]) -> None:
    """The scores, and below them the weights of each mapping."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    at, on = torch.arange(len(x), device="cpu"), x > -torch.inf
    axes[0].axhline(0, color=FAINT, linewidth=0.8)
    axes[0].vlines(at[on].tolist(), 0, x[on].tolist(), color=FAINT)
    size = max(1.5, min(4.0, 150 / len(x)))
    axes[0].plot(at[on].tolist(), x[on].tolist(), "o", color=INK, markersize=size)
    axes[0].set(ylabel="score")
    row = f"a row of {int(on.sum())} score{'s' * (int(on.sum()) != 1)}"
    axes[0].set_title(row, loc="left")
    fused = False
    for axis, (name, y, ids) in zip(axes[1:], rows, strict=True):
        colours, count = _coloured(y, ids)
        fused = fused or count > 0
        axis.bar(at.tolist(), y.tolist(), width=0.8, color=colours)
        zero = at[on & (y == 0)].tolist() if len(x) <= 100 else []
        circle: Any = {"marker": "o", "linestyle": "", "fillstyle": "none", "color": INK}
        if zero:  # matplotlib cannot lay out an unclipped line without points
            axis.plot(zero, [0] * len(zero), markersize=size, clip_on=False, **circle)
        caption = f"{short(formula(name), 48)}: {int((y > 0).sum())} above 0"
        caption += f", {count} fused group{'s' * (count > 1)}" if count else ""
        axis.set_title(caption, loc="left")
        axis.set(ylabel="weight", ylim=(0, 1.12 * max(float(y.max()) for _, y, _ in rows)))
    for axis in axes:
        frame(axis)
        for k in at[~on].tolist():
            axis.axvspan(k - 0.5, k + 0.5, color=FAINT, zorder=0)
        axis.set(xlim=(-0.7, len(x) - 0.3))
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set(xlabel="entry")
    key: list[Any] = [Patch(facecolor=QUIET, label="an entry of its own weight")]
    if fused:
        key = [Patch(facecolor=PALETTE[0], label="one colour: a fused group"), *key]
    if len(x) <= 100 and any(bool((on & (y == 0)).any()) for _, y, _ in rows):
        key.append(Line2D([], [], label="exactly 0", markersize=4, **circle))
    if not bool(on.all()):
        key.append(Patch(facecolor=FAINT, label="masked out"))
    place: Any = {"loc": "outside lower right", "ncols": len(key)}
    axes[0].figure.legend(handles=key, **place)


def _coloured(y: Tensor, ids: Tensor) -> tuple[list[str], int]:
    """A colour for each entry, and how many groups have more than one entry above 0."""
    colours = [QUIET] * len(y)
    numbers, members = ids[y > 0].unique(return_counts=True)
    fused = numbers[members > 1].tolist()
    for k, group in enumerate(ids.tolist()):
        if group in fused and float(y[k]) > 0:
            colours[k] = PALETTE[fused.index(group) % len(PALETTE)]
    return colours, len(fused)


# -- over hyperparameters --------------------------------------------------------------------------


@styled
def path(
    omega: Regularizer,
    x: Tensor | None = None,
    over: str | Sequence[str] | None = None,
    values: Sequence[float] | Tensor | None = None,
    *,
    gamma: float = 1.0,
    name: str = "",
    domain: Domain | None = None,
    figure: Any = None,
) -> Any:
    """A figure of Π_Ω(x) over γ and over each hyperparameter of Ω, with one line per entry: the
    numbers of :func:`regmax.analysis.path`.

    A wide grey line lies below entries that are equal bit for bit. A dotted line marks the present
    value. Each panel varies one hyperparameter.

    ``x``: scores of shape (d,), −inf for a masked one; by default six, or as many as Ω is made for.
    ``over``: ``"gamma"``, or the name of a declared hyperparameter, dotted in nested Ω
    (``"base.alpha"``), or several names; by default all, γ first. ``values``: of the one name in
    ``over``; by default 400 around the present value. ``name``: the name of Π_Ω in the figure.
    ``domain``: as for :class:`regmax.RegularizedMax`. ``figure``: a matplotlib figure or subfigure
    to draw in; by default a new one. Raises ValueError for an unknown name, for a value out of
    range, and for x that is not one row.
    """
    names = varied(omega, over)
    x = default_row(omega) if x is None else _one_row(x)
    if values is not None and len(names) > 1:
        raise ValueError(f"values go with one name in over; got {', '.join(names)}")
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    if figure is None:
        figure = blank(max(4 * columns, 5) + 1, 3.2 * rows + 0.4)
        others = "" if names == ["gamma"] else f", γ = {gamma:g}"
        name = _on_domain(name or label(omega), domain)
        figure.suptitle(formula(f"{name}{others}"), fontsize=14)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    fused = [
        _weights_over(axis, analysis.path(omega, x, one, values, gamma=gamma, domain=domain), x)
        for one, axis in zip(names, axes.flat, strict=False)
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


def _weights_over(axis: Any, found: analysis.RegularizationPath, x: Tensor) -> bool:
    """Draw the lines over γ or a hyperparameter, and return whether some entries are fused."""
    at, y, ids = found.values, found.y, found.groups
    fused, marker = False, "o" if len(at) == 1 else None
    for k in (x > -torch.inf).nonzero()[:, 0].tolist():
        same = ((ids == ids[:, k : k + 1]) & (ids >= 0)).sum(-1) > 1
        fused = fused or bool(same.any())
        shared = torch.where(same, y[:, k], torch.nan)
        axis.plot(at.tolist(), shared.tolist(), **_SHARED, zorder=1)
        axis.plot(at.tolist(), y[:, k].tolist(), linewidth=1.5, marker=marker, **line(k))
    axis.axvline(found.present, color=QUIET, linewidth=1, linestyle=":")
    over, low, high = found.over, float(at.min()), float(at.max())
    axis.set(xlabel="temperature γ" if over == "gamma" else letter(over))
    axis.set(ylim=(-0.03, 0.03 + max(1.0, float(found.y.max()))))
    axis.set_xscale("log" if high > 4 * low > 0 else "linear")
    if low < high:
        axis.set_xlim(low, high)
    axis.xaxis.set_major_formatter("{x:g}")
    frame(axis)
    return fused


def _key(figure: Any, x: Tensor, fused: bool) -> None:
    """A key of the score of each line, for up to eight scores, and of the grey lines."""
    from matplotlib.lines import Line2D

    shown = [Line2D([], [], **_SHARED, label="equal weights")] if fused else []
    if len(x) <= 8:
        scores = [(k, item) for k, item in enumerate(x.tolist()) if item > -torch.inf]
        lines = [Line2D([], [], **line(k), label=f"x$_{k + 1}$ = {s:g}") for k, s in scores]
        shown = [*lines, *shown]
    if shown:
        figure.legend(handles=shown, loc="outside right upper", fontsize=11)


# -- all in one ------------------------------------------------------------------------------------


@styled
def overview(omega: Regularizer, gamma: float = 1.0, name: str = "") -> Any:
    """A figure with :func:`curves` at two scores, :func:`surface` and :func:`simplex` at three, and
    the :func:`path` over γ and each hyperparameter.

    An Ω for one number of entries has only the parts for that number, and the path. ``name``: the
    name of Π_Ω in the figure.
    """
    parts = {}
    if takes(checked(omega), 2):
        parts["curves"] = 3.0
    if takes(omega, 3):
        parts["three"] = 3.5
    parts["path"] = 2.9 * -(-len(varied(omega, None)) // 3)
    figure = blank(9.6, sum(parts.values()) + 0.5)
    places = figure.subfigures(len(parts), 1, squeeze=False, height_ratios=list(parts.values()))
    for part, place in zip(parts, places[:, 0], strict=True):
        if part == "curves":
            curves(omega, gamma, place)
        elif part == "three":
            left, right = place.subfigures(1, 2, width_ratios=(1, 1.9))
            surface(omega, gamma, left)
            simplex(omega, gamma, right)
        else:
            path(omega, gamma=gamma, figure=place)
    figure.suptitle(formula(f"{name or label(omega)}, γ={gamma:g}"), fontsize=14)
    return figure
