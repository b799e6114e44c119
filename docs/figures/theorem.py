"""The figure of docs/theorem.md: softmax, and the same scores with a penalty.

python docs/figures/theorem.py [FILE]        docs/figures/theorem.svg unless given (or a .png)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

import regmax

FILE = Path(__file__).with_suffix(".svg")
INK, ALONE = "#7b7b7b", "#8c9aa8"
# Okabe and Ito's colours, which stay apart for most eyes.
GROUPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#6b5b4a")
# no background, and an ink that reads on a light page and on a dark one
SETTINGS = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 11,
    "svg.hashsalt": "regmax",
    "svg.fonttype": "none",  # text stays text
}
SHAPE = (10, 14)


def draw(path: Path) -> None:
    """Softmax above; below, runs, clusters and patches that share one weight."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        axes = figure.subplots(2, 3, width_ratios=(1.15, 1, 1.05))
        entropy = regmax.regularizer("entropy")
        panels = (
            (0, runs(), "tv", 0.8, "fused: entropy + 0.8 · tv"),
            (1, clusters(), "oscar", 0.1, "clustered: entropy + 0.1 · oscar"),
        )
        for column, x, name, lam, title in panels:
            penalty = regmax.penalty(name)
            plain, fused = (mapping(o, x) for o in (entropy, entropy + lam * penalty))
            ids = penalty.groups(fused)
            top, bottom = axes[:, column]
            bars(top, plain, ids, "softmax")
            bars(bottom, fused, ids, title)
            outline(bottom, plain)
            for ax in (top, bottom):
                ax.set_ylim(0, 1.06 * float(plain.max()))
        x = patches()
        penalty = regmax.penalty("grid_tv", shape=SHAPE)
        plain, fused = (mapping(o, x) for o in (entropy, entropy + 0.6 * penalty))
        most = 1.3 * float(fused.max())  # darker than that is as dark
        image(axes[0, 2], plain, penalty.groups(plain), most, "softmax")
        image(axes[1, 2], fused, penalty.groups(fused), most, "on a grid: entropy + 0.6 · grid_tv")
        axes[0, 0].set_ylabel("weight")
        axes[1, 0].set_ylabel("weight")
        axes[1, 0].annotate("softmax", (17.7, float(mapping(entropy, runs())[17])), va="center")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def mapping(omega: regmax.Regularizer, x: torch.Tensor) -> torch.Tensor:
    return regmax.RegularizedMax(omega)(x)


def noise(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def runs() -> torch.Tensor:
    """Scores along a sentence: three stretches that matter, and noise."""
    level = torch.tensor([0.0] * 4 + [1.8] * 6 + [0.3] * 5 + [2.5] * 4 + [1.1] * 5 + [0.0] * 2)
    return level + 0.4 * noise(len(level), seed=19)


def clusters() -> torch.Tensor:
    """Three levels, in no order."""
    level = torch.tensor([2.2, 0.2, 1.3, 0.2, 2.2, 1.3, 0.2, 0.2, 1.3, 2.2, 0.2, 1.3, 0.2, 2.2])
    return level + 0.15 * noise(len(level), seed=16)


def patches() -> torch.Tensor:
    """Two objects in an image."""
    h, w = SHAPE
    level = torch.zeros(h, w)
    level[2:6, 2:7] = 2.2
    level[5:9, 9:12] = 1.5
    return (level + 0.5 * noise(h, w, seed=4)).flatten()


def colours(ids: torch.Tensor) -> list[str]:
    """One for each group of two or more, in the order of their first entries."""
    found: dict[int, str] = {}
    for i in ids.tolist():
        if int((ids == i).sum()) > 1 and i not in found:
            found[i] = GROUPS[len(found) % len(GROUPS)]
    return [found.get(i, ALONE) for i in ids.tolist()]


def bars(ax: Any, y: torch.Tensor, ids: torch.Tensor, title: str) -> None:
    ax.bar(range(len(y)), y.tolist(), width=0.82, color=colours(ids), linewidth=0)
    ax.set_title(title, fontsize=11, loc="left")
    ax.set_xticks([])
    ax.set_xlim(-0.7, len(y) - 0.3)
    ax.locator_params(axis="y", nbins=4)


def outline(ax: Any, y: torch.Tensor) -> None:
    """What the bars were without the penalty."""
    for i, top in enumerate(y.tolist()):
        ax.plot([i - 0.41, i + 0.41], [top, top], color=INK, linewidth=1.2)


def image(ax: Any, y: torch.Tensor, ids: torch.Tensor, most: float, title: str) -> None:
    """Weights as shades, with lines between cells of different groups."""
    h, w = SHAPE
    ax.imshow(y.reshape(h, w).numpy(), cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
    grid = ids.reshape(h, w)
    if len(ids.unique()) < len(ids):
        for i in range(h):
            for j in range(w):
                if j + 1 < w and grid[i, j] != grid[i, j + 1]:
                    ax.plot([j + 0.5] * 2, [i - 0.5, i + 0.5], color="#444444", linewidth=0.7)
                if i + 1 < h and grid[i, j] != grid[i + 1, j]:
                    ax.plot([j - 0.5, j + 0.5], [i + 0.5] * 2, color="#444444", linewidth=0.7)
    ax.set_title(title, fontsize=11, loc="left")
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="an .svg or a .png")
    draw(parser.parse_args().file)
