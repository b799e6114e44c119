"""Π_Ω at three scores as surfaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .style import INK, blank, formula, styled
from .subjects import PATTERNS, Omegas, key, patterns, several, title, weights

SPAN, POINTS = 3.0, 100
"""The range of t₁ and t₂ in units of γ, and the number of each."""
FORMULA = "Π$_Ω$([t$_1$, t$_2$, 0])$_2$"


@styled
def surface(omegas: Omegas, gamma: float = 1.0, figure: Any = None) -> Any:
    """A figure of Π_Ω([t₁, t₂, 0])₂ over t₁ and t₂: Niculae & Blondel (2017), Figure 5.

    ``omegas``: one Ω, or several by name, in panels. Colours show how many weights are positive,
    and which are equal bit for bit. ``figure``: a matplotlib figure or subfigure to draw in; by
    default a new one. Raises ValueError if an Ω does not accept three entries.
    """
    found = several(omegas, 3)
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    alone = figure is None
    if figure is None:
        figure = blank(max(3.3 * columns, 5), 3.1 * rows + 1)
        figure.suptitle(title(found, gamma, FORMULA), fontsize=13, color=INK)
    first, second = grid(gamma)
    x = torch.stack([first, second, torch.zeros_like(first)], -1)
    seen = []
    for k, (name, omega) in enumerate(found.items()):
        axis = figure.add_subplot(rows, columns, k + 1, projection="3d")
        y = weights(omega, x, gamma)
        seen.append(patterns(y))
        _draw(axis, first, second, y[..., 1], seen[-1])
        axis.set_title(
            FORMULA if len(found) == 1 else formula(name), fontsize=12, color=INK, y=0.98
        )
    if alone:
        key(figure, torch.stack(seen), 3 if columns > 1 else 2)
    return figure


def grid(gamma: float) -> tuple[Tensor, Tensor]:
    """t₁ and t₂, (POINTS, POINTS) each. They are never equal and never 0: ties of scores would show
    as ties of weights."""
    t = torch.linspace(-SPAN * gamma, SPAN * gamma, POINTS, dtype=torch.float64, device="cpu")
    first, second = torch.meshgrid(t, t + 0.3 * (t[1] - t[0]), indexing="xy")
    return first, second


def _draw(axis: Any, first: Tensor, second: Tensor, height: Tensor, which: Tensor) -> None:
    from matplotlib.colors import LightSource, to_rgb

    colours = torch.tensor(
        [to_rgb(colour) for _, colour in PATTERNS], dtype=torch.float64, device="cpu"
    )
    drawn = axis.plot_surface(
        *(item.numpy() for item in (first, second, height)),
        facecolors=colours[which].numpy(),
        lightsource=LightSource(azdeg=200, altdeg=45),
        rcount=POINTS,
        ccount=POINTS,
        linewidth=0,
        antialiased=False,
        rasterized=True,
    )
    drawn.set_edgecolor("face")
    axis.set(zlim=(0, 1), xlabel="t$_1$", ylabel="t$_2$")
    axis.set(zticks=(0, 0.5, 1))
    axis.tick_params(labelsize=10, pad=-2, colors=INK)
    axis.xaxis.labelpad = axis.yaxis.labelpad = -5
    axis.locator_params(axis="x", nbins=5)
    axis.locator_params(axis="y", nbins=5)
    axis.view_init(elev=28, azim=-125)
    for side in (axis.xaxis, axis.yaxis, axis.zaxis):
        side.set_pane_color((0, 0, 0, 0))
    axis.set_box_aspect(None, zoom=0.98)
