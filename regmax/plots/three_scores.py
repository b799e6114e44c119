"""Π_Ω at three scores: as a surface, and on the simplex, drawn as a triangle."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..regularizers.regularizer import Regularizer
from .style import INK, PALETTE, Omegas, blank, formula, several, styled, title, weights

PATTERNS = (
    ("three entries above 0", "#cfe1f2"),
    ("three, two of them fused", "#fdd49e"),
    ("three, all fused", PALETTE[1]),
    ("two entries above 0", "#6aaed6"),
    ("two, fused", PALETTE[4]),
    ("one entry above 0", "#08519c"),
)
"""The patterns of three weights with their colours: orange if fused, else blue."""
SECOND, ARGMAX = "Π$_Ω$([t$_1$, t$_2$, 0])$_2$", "Π$_Ω$(x)"
WIDTH, POINTS = 3.0, 100
"""Of a surface: the extent of t₁ and t₂ in units of γ, and the number of each."""
SPAN, PIXELS = 2.4, 240
"""The extent of the plane of scores in units of γ; the triangle's corners have distance 1 from the
centre."""
CORNERS = torch.tensor(
    [[math.cos(a), math.sin(a)] for a in (math.pi * 7 / 6, -math.pi / 6, math.pi / 2)],
    dtype=torch.float64,
    device="cpu",
)


# -- a surface -------------------------------------------------------------------------------------


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
        figure.suptitle(title(found, gamma, SECOND), fontsize=13)
    first, second = grid(gamma)
    x = torch.stack([first, second, torch.zeros_like(first)], -1)
    seen = []
    for k, (name, omega) in enumerate(found.items()):
        axis = figure.add_subplot(rows, columns, k + 1, projection="3d")
        y = weights(omega, x, gamma)
        seen.append(patterns(y))
        _draw(axis, first, second, y[..., 1], seen[-1])
        axis.set_title(SECOND if len(found) == 1 else formula(name), y=0.98)
    if alone:
        key(figure, torch.stack(seen), 3 if columns > 1 else 2)
    return figure


def grid(gamma: float) -> tuple[Tensor, Tensor]:
    """t₁ and t₂, (POINTS, POINTS) each. They are never equal and never 0: ties of scores would show
    as ties of weights."""
    t = torch.linspace(-WIDTH * gamma, WIDTH * gamma, POINTS, dtype=torch.float64, device="cpu")
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


# -- the simplex -----------------------------------------------------------------------------------


@styled
def simplex(omegas: Omegas, gamma: float = 1.0, figure: Any = None) -> Any:
    """A figure of Π_Ω on three scores: the pattern of zeros and equal weights for each x, and the
    place of Π_Ω(x) in the simplex Δ.

    Left, the scores: x is drawn at Σ xᵢ cᵢ, where cᵢ are the corners of a triangle. So x and x +
    c·1, which have the same answer, are one point. The outline is γΔ. Right, Δ over the level sets
    of Ω: a dot at Π_Ω(x) for each x of a lattice. A dot is larger if more x share it.

    ``omegas``: one Ω, or several by name, with the answers below the scores and fewer dots.
    ``figure``: a matplotlib figure or subfigure to draw in; by default a new one. Raises ValueError
    if an Ω does not accept three entries.
    """
    found = several(omegas, 3)
    columns = min(3, len(found))
    rows = 2 * -(-len(found) // columns) if len(found) > 1 else 1
    if figure is None:
        figure = blank(3.3 * columns if rows > 1 else 7.2, 3.2 * rows + 1.3)
        figure.get_layout_engine().set(h_pad=0.14)  # inches: no panel's title reaches the figure's
        heading = f"x by the pattern of {ARGMAX}, and {ARGMAX} on the simplex"
        figure.suptitle(title(found, gamma, heading), fontsize=13)
    axes = figure.subplots(rows, columns if rows > 1 else 2, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    seen = []
    for k, (name, omega) in enumerate(found.items()):
        upper, column = 2 * (k // columns), k % columns
        left = axes[upper, column]
        right = axes[upper + 1, column] if rows > 1 else axes[0, 1]
        seen.append(_scores(left, omega, gamma))
        _answers(right, omega, gamma, lattice(0.2 if len(found) == 1 else 0.36))
        alone = f"scores x, by the pattern of {ARGMAX}"
        left.set_title(formula(name) if rows > 1 else alone)
        if rows == 1:
            right.set_title(f"{ARGMAX} of a lattice of x, over Ω")
    key(figure, torch.stack(seen), 3)
    return figure


def scores_at(points: Tensor) -> Tensor:
    """(..., 2) points of the plane -> (..., 3) scores that sum to 0."""
    return 2 / 3 * points @ CORNERS.T


def lattice(step: float) -> Tensor:
    """(n, 3) scores, evenly over the plane in units of γ. No two scores of a row are equal."""
    n = int(2 * SPAN / step)
    k = torch.arange(-n, n + 1, dtype=torch.float64, device="cpu")
    i, j = torch.meshgrid(k, k, indexing="ij")
    points = step * torch.stack([i + j / 2, math.sqrt(3) / 2 * j], -1).reshape(-1, 2)
    turn = torch.tensor(
        [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]], device="cpu"
    )
    points = points @ turn.to(points) + 0.031
    return scores_at(points[points.norm(dim=-1) <= SPAN])


def _scores(axis: Any, omega: Regularizer, gamma: float) -> Tensor:
    """Draw the plane of scores in the colours of the patterns, and return the patterns."""
    from matplotlib.colors import ListedColormap

    at = torch.linspace(-SPAN, SPAN, PIXELS, dtype=torch.float64, device="cpu")
    across, up = torch.meshgrid(at, at + 1e-4, indexing="xy")  # off the lines of equal scores
    y = weights(omega, gamma * scores_at(torch.stack([across, up], -1)), gamma)
    which = patterns(y)
    image: Any = {"extent": (-SPAN, SPAN, -SPAN, SPAN), "origin": "lower"}
    colours = ListedColormap([colour for _, colour in PATTERNS])
    shown = {"cmap": colours, "vmin": -0.5, "vmax": len(PATTERNS) - 0.5, "interpolation": "none"}
    axis.imshow(which.numpy(), **image, **shown)
    coarse = slice(None, None, 4)
    heights = (at[coarse], at[coarse], y.amax(-1)[coarse, coarse])
    axis.contour(*heights, (0.4, 0.6, 0.8), colors="white", linewidths=0.5)
    _outline(axis)
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    for k, corner in enumerate(CORNERS):
        ends = (corner * r for r in (1.65, 1.05))
        axis.annotate(
            "", *(end.tolist() for end in ends), arrowprops={"arrowstyle": "->", "color": "#333333"}
        )
        axis.text(
            *(1.85 * corner).tolist(),
            f"x$_{k + 1}$",
            color="#333333",
            bbox=box,
            ha="center",
            va="center",
            fontsize=12,
        )
    axis.set(xlim=(-SPAN, SPAN), ylim=(-SPAN, SPAN), aspect="equal")
    place: Any = {"transform": axis.transAxes, "ha": "center", "va": "top", "fontsize": 10.5}
    axis.text(0.5, -0.02, "white: largest weight 0.4, 0.6, 0.8", **place)
    return which


def _answers(axis: Any, omega: Regularizer, gamma: float, x: Tensor) -> None:
    """Draw dots at Π_Ω(x) over the level sets of Ω."""
    _levels(axis, omega)
    _outline(axis)
    y = weights(omega, gamma * x, gamma)
    near = torch.cat([(1e3 * y).round(), patterns(y)[:, None]], -1)
    places, shared = near.unique(dim=0, return_counts=True)
    points, found = 1e-3 * places[:, :3] @ CORNERS, places[:, 3]
    for size in shared.unique().tolist():
        for k, (_, colour) in enumerate(PATTERNS):
            here = points[(shared == size) & (found == k)]
            if len(here):
                look: Any = {"markersize": 3.3 * size**0.3, "color": colour, "markeredgecolor": INK}
                at = here.T.tolist()
                axis.plot(*at, "o", markeredgewidth=0.25, clip_on=False, zorder=3, **look)
    for k, (x, up) in enumerate(CORNERS.tolist()):
        place: Any = {"ha": "center", "va": "bottom" if up > 0 else "top", "fontsize": 12}
        axis.text(x, up + (0.07 if up > 0 else -0.08), f"y$_{k + 1}$ = 1", **place)
    axis.set(xlim=(-1.1, 1.1), ylim=(-0.8, 1.25), aspect="equal")


def _levels(axis: Any, omega: Regularizer) -> None:
    """Draw Ω on the triangle; darker is larger."""
    across = torch.linspace(-0.9, 0.9, 200, dtype=torch.float64, device="cpu")
    up = torch.linspace(-0.5, 1.0, 200, dtype=torch.float64, device="cpu")
    y = scores_at(torch.stack(torch.meshgrid(across, up, indexing="xy"), -1)) + 1 / 3
    with torch.no_grad():
        value = omega.value(omega.lifted(y.clamp(min=0)))
    value = torch.where((y >= 0).all(-1), value, torch.nan)
    shaded = axis.contourf(across, up, value.numpy(), levels=12, cmap="Greys", alpha=0.4)
    shaded.set_rasterized(True)


def _outline(axis: Any) -> None:
    """Draw the triangle."""
    axis.plot(*CORNERS[[0, 1, 2, 0]].T.tolist(), color=INK, linewidth=1)


# -- patterns --------------------------------------------------------------------------------------


def patterns(y: Tensor) -> Tensor:
    """(..., 3) weights -> the index of each row's pattern in :data:`PATTERNS`, int64."""
    equal = ((y == y.roll(1, -1)) & (y > 0)).sum(-1)
    table = torch.tensor([[5, 5, 5, 5], [3, 4, 5, 5], [0, 1, 2, 2]], device="cpu")
    return table[(y > 0).sum(-1).clamp(1, 3) - 1, equal]


def key(figure: Any, shown: Tensor, columns: int) -> None:
    """Add a key of the patterns in ``shown`` below the figure."""
    from matplotlib.patches import Patch

    found = [PATTERNS[k] for k in shown.unique().tolist()]
    patches = [Patch(facecolor=colour, label=text) for text, colour in found]
    place: Any = {"loc": "outside lower center", "fontsize": 10, "columnspacing": 1}
    figure.legend(handles=patches, ncols=min(columns, len(found)), **place)
