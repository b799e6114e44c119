"""A picture of attention maps: one row per mapping, one column per digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..plots.heatmaps import ZERO, cells, colours
from .common import needs
from .pooling import SIDE, Digits, Trained

COLUMNS = 10


def draw(results: Sequence[Trained], data: Digits, path: Path) -> None:
    """Write the maps of ``results`` to ``path`` as PNG.

    Colours show the weight relative to the largest of the map; exact zeros are grey. Pixels of a
    fused group have no line between them. The outline of the digit is on top.
    """
    with needs("demo", "the demo"):
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

    shown = examples(results, data)
    columns, rows = len(shown), len(results) + 1
    # inches: the cells and the margins
    cell, left, right, top, bottom = 1.12, 2.15, 0.15, 0.8, 1.0
    width, height = columns * cell + left + right, rows * cell + top + bottom
    figure = Figure(figsize=(width, height), dpi=150)
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": left / width,
            "right": 1 - right / width,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "wspace": 0.09,
            "hspace": 0.09,
        },
    )
    for column, index in enumerate(shown):
        image = data.test_x[index].reshape(SIDE, SIDE)
        axes[0][column].imshow(image.numpy(), cmap="Greys", vmin=0, vmax=1.15)
        axes[0][column].set_title(f"a {int(data.test_y[index])}", fontsize=12, pad=4)
        for row, result in enumerate(results, start=1):
            axis = axes[row][column]
            _map(axis, result.weights[index], result.groups[index])
            _outline(axis, image)
            if not bool(result.correct[index]):
                _note(axis, f"read as {int(result.predicted[index])}")
    _label(axes[0][0], "the image", "8 × 8 pixels")
    for row, result in enumerate(results, start=1):
        _label(
            axes[row][0],
            result.mapping,
            f"{100 * result.accuracy:.1f} % right\n{result.support:.1f} of {SIDE * SIDE} pixels"
            + (f"\nin {result.group_count:.1f} groups" if result.fused else ""),
        )
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.suptitle(
        "Where a digit classifier looks: attention over pixels, by mapping",
        fontsize=16,
        y=1 - 0.15 / height,
        va="top",
    )
    bar = figure.add_axes((left / width, 0.62 / height, 3 * cell / width, 0.14 / height))
    figure.colorbar(
        ScalarMappable(Normalize(0, 1), colours()),
        cax=bar,
        orientation="horizontal",
        label="weight / largest of the map",
    )
    figure.legend(
        handles=[
            Patch(facecolor=ZERO, label="weight exactly 0"),
            Patch(facecolor=colours()(0.5), label="no line between pixels: one fused group"),
            Patch(facecolor="none", edgecolor="black", label="outline of the digit"),
        ],
        loc="lower right",
        bbox_to_anchor=(1 - right / width, 0.22 / height),
        ncols=3,
        frameon=False,
        fontsize=10.5,
        columnspacing=1.5,
    )
    figure.savefig(path)


def examples(results: Sequence[Trained], data: Digits) -> list[int]:
    """One test image of each digit, which most mappings classify correctly."""
    correct = torch.stack([result.correct for result in results]).sum(0)
    shown = []
    for digit in range(COLUMNS):
        candidates = (data.test_y == digit).nonzero().flatten()
        if len(candidates):
            shown.append(int(candidates[correct[candidates].argmax()]))
    return shown


def _map(axis: Any, weights: Tensor, groups: Tensor) -> None:
    """The weights as coloured cells, with white lines between cells of different groups."""
    ids = torch.where(weights > 0, groups, -1)
    share = weights / weights.max()
    cells(axis, share.reshape(SIDE, SIDE), ids.reshape(SIDE, SIDE), top=1)


def _outline(axis: Any, image: Tensor) -> None:
    """The contour of the digit at half ink, closed at the edge of the image."""
    fine = F.interpolate(
        F.pad(image, (1, 1, 1, 1))[None, None], scale_factor=8, mode="bicubic", align_corners=False
    )[0, 0]
    at = ((torch.arange(len(fine), device="cpu") + 0.5) / 8 - 1.5).numpy()
    axis.contour(at, at, fine.numpy(), levels=[0.5], colors="black", linewidths=1.0)
    axis.set(xlim=(-0.55, SIDE - 0.45), ylim=(SIDE - 0.45, -0.55))


def _note(axis: Any, text: str) -> None:
    """A few words in the corner of a map."""
    box = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    axis.text(0.03, 0.03, text, transform=axis.transAxes, fontsize=8, bbox=box)


def _label(axis: Any, name: str, detail: str) -> None:
    """The name of a row in bold, with its figures below."""
    place = {"transform": axis.transAxes, "ha": "right"}
    axis.text(-0.12, 0.66, name, va="bottom", fontsize=13, fontweight="bold", **place)
    axis.text(-0.12, 0.6, detail, va="top", fontsize=10, color="#333333", **place)
