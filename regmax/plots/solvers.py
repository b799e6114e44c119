"""The convergence of solvers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..optimality.solution import Solution
from ..regularizers.printing import brief
from .style import INK, MARKERS, PALETTE, blank, formula, frame, styled

FLOOR = 1e-18
"""Smaller values, such as exact zeros, are drawn at this height on a logarithmic axis."""


@styled
def convergence(solutions: Solution | Mapping[str, Solution], axes: Any = None) -> Any:
    """A figure of traced solutions: the duality gap, the residual and the support size of each
    iteration, for the median row and for the worst.

    ``solutions``: the result of ``layer.solve(x, trace=True)``, or several by name. ``axes``: three
    matplotlib axes to draw on; by default those of a new figure.
    """
    several = {solutions.path: solutions} if isinstance(solutions, Solution) else solutions
    named = isinstance(several, Mapping) and several
    if not (named and all(isinstance(item, Solution) for item in several.values())):
        raise TypeError(
            "solutions must be what layer.solve(x, trace=True) returns, or several by name; got "
            f"{brief(solutions)}"
        )
    for name, solution in several.items():
        if not solution.trace:
            why = f"took {solution.path}" if solution.trace is not None else "has no trace"
            raise ValueError(f"{name} {why}: solve(x, trace=True) with a solver makes one")
    figure = blank(12.5, 4.3) if axes is None else axes[0].figure
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
        frame(axis)
    axes[2].set_ylim(bottom=0)
    axes[2].yaxis.get_major_locator().set_params(integer=True)
    _key(figure, list(several), any(s.y[..., 0].numel() > 1 for s in several.values()))
    return figure


def _style(k: int, of: int) -> dict[str, Any]:
    """The style of the kth of ``of`` lines. Later lines are thinner, as lines may overlap."""
    width = 2 + 2.5 * (of - 1 - k) / max(of - 1, 1) if of > 1 else 2
    return {"color": PALETTE[k % len(PALETTE)], "linewidth": width, "marker": MARKERS[k % 6]}


def _count(axis: Any, last: int) -> None:
    """Ticks of iterations from 0 to the last; a symlog axis if there are many."""
    ticks = [0, *(n * 10**e for e in range(7) for n in (1, 2, 5))]
    if last > 12:
        axis.set_xscale("symlog", linthresh=5, linscale=1.2)
    axis.set_xticks([t for t in ticks if t <= max(last, 1)] if last > 8 else range(last + 1))
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter("{x:.0f}")


def _descent(axis: Any, kept: Tensor, style: dict[str, Any], changes: dict[int, str]) -> None:
    """Draw the median and the worst row per iteration, and the name of each later solver."""
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

    lines = [
        Line2D([], [], label=formula(name), **_style(k, len(names))) for k, name in enumerate(names)
    ]
    if several:
        lines.append(Line2D([], [], color=INK, linewidth=2, label="median row"))
        lines.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=":", label="worst row"))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))
