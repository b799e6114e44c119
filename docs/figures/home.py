"""The figure of README.md and docs/index.md: the same scores through five mappings.

python docs/figures/home.py [FILE]        docs/figures/home.svg unless given (or a .png)

It has no background, and an ink that reads on a light page and on a dark one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from regmax import functional
from regmax.plots import save

FILE = Path(__file__).with_suffix(".svg")
INK, ALONE = "#7b7b7b", "#8c9aa8"
GROUPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
SCORES = torch.tensor([0.1, 1.06, 1.0, 0.8, 0.2, -0.2, 0.84, 1.03, 0.05, 0.25], dtype=torch.float64)
PANELS = (
    ("softmax", functional.softmax(SCORES), "dense"),
    ("sparsemax", functional.sparsemax(SCORES), "exact zeros"),
    ("1.5-entmax", functional.entmax15(SCORES), "fewer zeros, smooth"),
    ("fusedmax", functional.fusedmax(SCORES, lam=0.1), "equal neighbours"),
    ("oscarmax", functional.oscarmax(SCORES, lam=0.04), "equal clusters"),
)


def draw(path: Path) -> None:
    """The scores, and the weights of each mapping, in one row."""
    with matplotlib.rc_context({"text.color": INK, "font.size": 11}):
        figure = Figure(figsize=(11, 1.9), dpi=150)
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.14, top=0.86, wspace=0.12)
        figure.patch.set_alpha(0)
        first, *axes = figure.subplots(1, 1 + len(PANELS))
        bars(first, SCORES, "scores x", "")
        for axis, (name, y, words) in zip(axes, PANELS, strict=True):
            bars(axis, y, name, words)
            axis.set_ylim(0, 0.36)
        save(figure, path)


def bars(axis: Any, heights: torch.Tensor, name: str, words: str) -> None:
    """One bar per entry; equal weights share a colour, and a dot marks an exact zero."""
    values = heights.tolist()
    shared = sorted({v for v in values if v > 0 and values.count(v) > 1}, reverse=True)
    colour = [GROUPS[shared.index(v)] if v in shared else ALONE for v in values]
    axis.bar(range(len(values)), values, width=0.8, color=colour)
    zeros = [i for i, v in enumerate(values) if v == 0]
    axis.plot(zeros, [0] * len(zeros), "o", color=INK, markersize=3, clip_on=False)
    axis.set_title(name, fontsize=12, fontweight="bold", color=INK)
    axis.set_xlabel(words, color=INK)
    axis.set(xticks=[], yticks=[])
    axis.patch.set_alpha(0)
    axis.spines[:].set_visible(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE, metavar="FILE")
    draw(parser.parse_args().file)
