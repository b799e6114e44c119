"""Pictures: what a mapping does to scores, and how solvers get to it. Needs matplotlib (extra
``plot``); no display."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .layer import RegularizedMax
from .penalty import Penalized
from .regularizer import Regularizer
from .simplex import project
from .solution import Solution

# Okabe & Ito: safe for colour-blind readers
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, QUIET, FAINT = "#333333", "#8c8c8c", "#dddddd"
FLOOR = 1e-18
"""What is smaller, exact zeros for instance, is drawn here on a logarithmic axis."""


def example(d: int = 20, seed: int = 3) -> Tensor:
    """(d,) float64 scores in runs of about the same level, with noise: something to fuse."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randn(-(-d // 4), generator=generator, dtype=torch.float64)
    noise = torch.randn(d, generator=generator, dtype=torch.float64)
    return 0.25 * levels.repeat_interleave(4)[:d] + 0.07 * noise


def mapping(omega: Regularizer, x: Tensor | None = None, gamma: float = 1.0, name: str = "") -> Any:
    """A figure of Π_Ω: at two scores as a curve, and on the row ``x`` beside softmax and sparsemax.

    ``x``: scores of shape (d,), −inf for one that takes no part; default :func:`example`.
    ``name``: how the figure calls Π_Ω.
    """
    if x is None:
        x = example(20 if omega.entries is None else omega.entries)
    if x.ndim != 1 or not bool(((x < torch.inf) & ~x.isnan()).all()):
        raise ValueError(
            f"x must be one row of scores, of shape (d,), finite or -inf; got {tuple(x.shape)}"
        )
    x = x.detach().double().cpu()
    name, pairs = name or repr(omega), omega.entries in (None, 2)
    rows = _rows(omega, x, gamma, name)
    figure = _figure(12.5 if pairs else 8.5, 1.35 * (1 + len(rows)) + 1.3)
    grid = figure.add_gridspec(1 + len(rows), 1 + pairs, width_ratios=(1, 1.75)[1 - pairs :])
    if pairs:
        _curves(figure.add_subplot(grid[:, 0]), omega, gamma, name)
    axes = [figure.add_subplot(grid[k, -1]) for k in range(1 + len(rows))]
    _bars(axes, x, rows)
    figure.suptitle(f"{name}, γ = {gamma:g}", fontsize=14, color=INK)
    return figure


def convergence(solutions: Solution | Mapping[str, Solution], axes: Any = None) -> Any:
    """A figure of what traced solutions passed: the duality gap, the residual and the support size
    of each iteration, in the median row and in the worst.

    ``solutions``: what ``layer.solve(x, trace=True)`` returned, or several by name. ``axes``: three
    axes of matplotlib to draw on; by default those of a new figure.
    """
    several = {solutions.path: solutions} if isinstance(solutions, Solution) else dict(solutions)
    for name, solution in several.items():
        if not solution.trace:
            why = f"took {solution.path}" if solution.trace is not None else "has no trace"
            raise ValueError(f"{name} {why}: solve(x, trace=True) with a solver makes one")
    figure = _figure(12.5, 4.3) if axes is None else axes[0].figure
    axes = figure.subplots(1, 3) if axes is None else axes
    for axis in axes[:2]:
        axis.set_yscale("log")
    for k, solution in enumerate(several.values()):
        trace, style = solution.trace, _style(k, len(several))
        assert trace is not None
        steps = enumerate(itertools.pairwise(trace.solvers))
        changes = {i + 1: after for i, (before, after) in steps if before != after}
        for axis, kept in zip(axes, (trace.gap, trace.residual, trace.support), strict=True):
            _descent(axis, kept, style, changes)
    labels = ("duality gap", "residual ‖(r − τ) on the support‖", "entries above 0")
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="iteration", title=label)
        _count(axis, max(len(s.trace or ()) for s in several.values()) - 1)
        _frame(axis)
    axes[2].set_ylim(bottom=0)
    axes[2].yaxis.get_major_locator().set_params(integer=True)
    _key(figure, list(several), any(s.y[..., 0].numel() > 1 for s in several.values()))
    return figure


def groups(omega: Regularizer, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """The group of each entry: as Ω's penalty fuses them, else entries of the very same weight."""
    if isinstance(omega, Penalized):
        return omega.penalty.groups(weights, mask)
    ordered, where = weights.sort(-1)
    new = F.pad((ordered[..., 1:] != ordered[..., :-1]).long(), (1, 0)).cumsum(-1)
    return torch.empty_like(new).scatter_(-1, where, new)


# -- a mapping -----------------------------------------------------------------------------------


def _rows(
    omega: Regularizer, x: Tensor, gamma: float, name: str
) -> list[tuple[str, Tensor, Tensor]]:
    """Name, weights and groups of the mappings to show: Π_Ω last, and no other that is the same."""
    with torch.no_grad():
        y = RegularizedMax(omega, gamma)(x)
        on = x > -torch.inf
        others = (("softmax", (x / gamma).softmax(-1)), ("sparsemax", project(x / gamma, on)))
    alone = torch.arange(len(x))
    found = [(n, z, alone) for n, z in others if not torch.allclose(y, z, atol=1e-9)]
    return [*found, (name, y, groups(omega, y, on))]


def _curves(axis: Any, omega: Regularizer, gamma: float, name: str) -> None:
    """Π_Ω([t, 0])₁ for three γ, and softmax."""
    t = torch.linspace(-4 * gamma, 4 * gamma, 801, dtype=torch.float64)
    pairs = torch.stack([t, torch.zeros_like(t)], -1)
    who = name if len(name) <= 20 else "Π"
    shades = (("#9ecae1", 2.0), ("#0072B2", 1.0), ("#08306b", 0.5))
    for colour, factor in shades:
        with torch.no_grad():
            y = RegularizedMax(omega, factor * gamma)(pairs)[:, 0]
        label = f"{who}, γ = {factor * gamma:g}"
        axis.plot(t.tolist(), y.tolist(), color=colour, linewidth=2, label=label)
        if factor == 1:
            same = torch.allclose(y, (t / gamma).sigmoid(), atol=1e-9)
    if not same:
        soft, label = (t / gamma).sigmoid(), f"softmax, γ = {gamma:g}"
        axis.plot(t.tolist(), soft.tolist(), color=QUIET, linestyle="--", label=label)
    axis.set(xlabel="t", ylabel="weight of the first score", title="two scores, t and 0")
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    axis.set(xlim=(float(t[0]), float(t[-1])), ylim=(-0.03, 1.03))
    _frame(axis)


def _bars(axes: Sequence[Any], x: Tensor, rows: Sequence[tuple[str, Tensor, Tensor]]) -> None:
    """The scores, and below them the weights of each mapping."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    at, on = torch.arange(len(x)), x > -torch.inf
    axes[0].axhline(0, color=FAINT, linewidth=0.8)
    axes[0].vlines(at[on].tolist(), 0, x[on].tolist(), color=FAINT)
    size = max(1.5, min(4.0, 150 / len(x)))
    axes[0].plot(at[on].tolist(), x[on].tolist(), "o", color=INK, markersize=size)
    axes[0].set(ylabel="score")
    axes[0].set_title(f"a row of {int(on.sum())} scores", loc="left", fontsize=10.5, color=INK)
    fused = False
    for axis, (name, y, ids) in zip(axes[1:], rows, strict=True):
        colours, count = _coloured(y, ids)
        fused = fused or count > 0
        axis.bar(at.tolist(), y.tolist(), width=0.8, color=colours)
        zero = at[on & (y == 0)].tolist() if len(x) <= 100 else []
        circle: Any = {"marker": "o", "linestyle": "", "fillstyle": "none", "color": INK}
        if zero:  # a line without points, and not clipped, has no place in a layout
            axis.plot(zero, [0] * len(zero), markersize=size, clip_on=False, **circle)
        said = f"{_short(name, 48)}: {int((y > 0).sum())} above 0"
        said += f", {count} fused group{'s' * (count > 1)}" if count else ""
        axis.set_title(said, loc="left", fontsize=10.5, color=INK)
        axis.set(ylabel="weight", ylim=(0, 1.12 * max(float(y.max()) for _, y, _ in rows)))
    for axis in axes:
        _frame(axis)
        for k in at[~on].tolist():
            axis.axvspan(k - 0.5, k + 0.5, color=FAINT, zorder=0)
        axis.set(xlim=(-0.7, len(x) - 0.3))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set(xlabel="entry")
    key: list[Any] = [Patch(facecolor=QUIET, label="an entry of its own weight")]
    if fused:
        key = [Patch(facecolor=PALETTE[0], label="one colour: a fused group"), *key]
    if len(x) <= 100 and any(bool((on & (y == 0)).any()) for _, y, _ in rows):
        key.append(Line2D([], [], label="exactly 0", markersize=4, **circle))
    if not bool(on.all()):
        key.append(Patch(facecolor=FAINT, label="masked out"))
    place: Any = {"loc": "outside lower right", "ncols": len(key), "frameon": False}
    axes[0].figure.legend(handles=key, **place)


def _coloured(y: Tensor, ids: Tensor) -> tuple[list[str], int]:
    """A colour for each entry, and how many groups have more than one entry above 0."""
    colours = [QUIET] * len(y)
    seen: dict[int, list[int]] = {}
    for k, group in enumerate(ids.tolist()):
        if float(y[k]) > 0:
            seen.setdefault(group, []).append(k)
    fused = [members for members in seen.values() if len(members) > 1]
    for n, members in enumerate(fused):
        for k in members:
            colours[k] = PALETTE[n % len(PALETTE)]
    return colours, len(fused)


# -- convergence ---------------------------------------------------------------------------------


MARKERS = "osD^vP"


def _style(k: int, of: int) -> dict[str, Any]:
    """Of the kth line of several: they get thinner, as one may lie on another."""
    width = 2 + 2.5 * (of - 1 - k) / max(of - 1, 1) if of > 1 else 2
    return {"color": PALETTE[k % len(PALETTE)], "linewidth": width, "marker": MARKERS[k % 6]}


def _count(axis: Any, last: int) -> None:
    """Iterations, from 0 to the last: few and many in one picture."""
    ticks = [0, *(n * 10**e for e in range(7) for n in (1, 2, 5))]
    if last > 12:
        axis.set_xscale("symlog", linthresh=5, linscale=1.2)
    axis.set_xticks([t for t in ticks if t <= max(last, 1)] if last > 8 else range(last + 1))
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter("{x:.0f}")


def _descent(axis: Any, kept: Tensor, style: dict[str, Any], changes: dict[int, str]) -> None:
    """The median row and the worst of each point; where another solver begins, its name."""
    kept = kept.detach().double().cpu().reshape(len(kept), -1)
    kept = kept if axis.get_yscale() == "linear" else kept.clamp_min(FLOOR)
    median, worst = kept.nanmedian(-1).values, torch.nan_to_num(kept, nan=0.0).amax(-1)
    every, colour = max(1, len(kept) // 25), style["color"]
    for first, end in itertools.pairwise((0, *changes, len(kept))):
        at = list(range(first, end))
        size = style["linewidth"] + 2.5
        axis.plot(at, median[first:end].tolist(), markersize=size, markevery=every, **style)
        axis.plot(at, worst[first:end].tolist(), color=colour, linewidth=1.2, linestyle=":")
    for first, solver in changes.items():
        axis.axvline(first - 0.5, color=colour, linewidth=0.8, alpha=0.5)
        place = {"transform": axis.get_xaxis_transform(), "va": "bottom", "fontsize": 8}
        axis.text(first - 0.4, 0.02, f"then {solver}", color=colour, **place)


def _key(figure: Any, names: list[str], several: bool) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=name, **_style(k, len(names))) for k, name in enumerate(names)]
    if several:
        lines.append(Line2D([], [], color=INK, linewidth=2, label="median row"))
        lines.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=":", label="worst row"))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)


# -- both ----------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"a plot needs {error.name}, which is not installed; run: pip install 'regmax[plot]'",
            name=error.name,
        ) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _frame(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
