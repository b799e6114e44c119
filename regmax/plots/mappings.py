"""A mapping at two scores and on a row of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import analysis
from ..kernels.simplex import project
from ..nn.layer import RegularizedMax
from ..regularizers.regularizer import Regularizer
from .style import FAINT, INK, PALETTE, QUIET, blank, formula, frame, short, styled
from .subjects import label, takes
from .twoscores import scores, slopes, temperatures


def example(d: int = 20, seed: int = 3) -> Tensor:
    """(d,) float64 scores in runs of similar level, with noise, so that fusedmax has groups."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randn(-(-d // 4), generator=generator, dtype=torch.float64, device="cpu")
    noise = torch.randn(d, generator=generator, dtype=torch.float64, device="cpu")
    return 0.25 * levels.repeat_interleave(4)[:d] + 0.07 * noise


def one_row(x: Tensor) -> Tensor:
    """(d,) float64 scores on the CPU; ValueError for anything but one row of them."""
    if x.ndim != 1 or not bool(((x < torch.inf) & ~x.isnan()).all()):
        raise ValueError(
            f"x must be one row of scores, of shape (d,), finite or -inf; got {tuple(x.shape)}"
        )
    return x.detach().double().cpu()


@styled
def mapping(omega: Regularizer, x: Tensor | None = None, gamma: float = 1.0, name: str = "") -> Any:
    """A figure of Π_Ω: a curve at two scores, and the row ``x`` with softmax and sparsemax.

    ``x``: scores of shape (d,), −inf for a masked one; default :func:`example`. ``name``: the name
    of Π_Ω in the figure.
    """
    if x is None:
        x = example(20 if omega.entries is None else omega.entries)
    x = one_row(x)
    name, pairs = name or label(omega), takes(omega, 2)
    rows = _rows(omega, x, gamma, name)
    figure = blank(12.5 if pairs else 8.5, 1.35 * (1 + len(rows)) + 1.3)
    grid = figure.add_gridspec(1 + len(rows), 1 + pairs, width_ratios=(1, 1.75)[1 - pairs :])
    if pairs:
        _curves(figure.add_subplot(grid[:, 0]), omega, gamma)
    axes = [figure.add_subplot(grid[k, -1]) for k in range(1 + len(rows))]
    _bars(axes, x, rows)
    figure.suptitle(f"{formula(name)}, γ = {gamma:g}", fontsize=14, color=INK)
    return figure


def _rows(
    omega: Regularizer, x: Tensor, gamma: float, name: str
) -> list[tuple[str, Tensor, Tensor]]:
    """Name, weights and groups of the mappings to show: Π_Ω is last; equal others are left out."""
    with torch.no_grad():
        y = RegularizedMax(omega, gamma)(x)
        on = x > -torch.inf
        others = (("softmax", (x / gamma).softmax(-1)), ("sparsemax", project(x / gamma, on)))
    alone = torch.arange(len(x), device="cpu")
    found = [(n, z, alone) for n, z in others if not torch.allclose(y, z, atol=1e-9)]
    return [*found, (name, y, analysis.groups(y, omega, mask=on))]


def _curves(axis: Any, omega: Regularizer, gamma: float) -> None:
    """Π_Ω([t, 0])₁ for three γ, and softmax."""
    t = scores(gamma)
    slopes(axis, temperatures(omega, gamma, t), t, gamma)
    axis.set(ylabel="weight of the first score", title="two scores, t and 0")
    axis.legend(frameon=False, loc="upper left", fontsize=11)


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
    axes[0].set_title(f"a row of {int(on.sum())} scores", loc="left", fontsize=12, color=INK)
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
        axis.set_title(caption, loc="left", fontsize=12, color=INK)
        axis.set(ylabel="weight", ylim=(0, 1.12 * max(float(y.max()) for _, y, _ in rows)))
    for axis in axes:
        frame(axis)
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
