"""The figure of docs/domains.md: three sets on the triangle, and two transport plans.

python docs/figures/domains.py [FILE]        docs/figures/domains.svg unless given (or a .png)
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

import regmax

FILE = Path(__file__).with_suffix(".svg")
THEOREM = runpy.run_path(str(Path(__file__).with_name("theorem.py")))
SETTINGS, INK, (BLUE, ORANGE, *_) = (THEOREM[name] for name in ("SETTINGS", "INK", "GROUPS"))
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
SCORES = torch.tensor([0.2, 1.0, 0.5], dtype=torch.float64)


def draw(path: Path) -> None:
    """Left, how sharper scores move weights in a set; right, plans of the same scores."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 2.9), layout="constrained")
        axes = figure.subplots(1, 5)
        sets = {
            "the simplex": regmax.Simplex(),
            "no weight above 0.6": regmax.Simplex(upper=0.6),
            "each at least 0.15": regmax.Simplex(lower=0.15),
        }
        for ax, (title, domain) in zip(axes[:3], sets.items(), strict=True):
            triangle(ax, domain)
            ax.set_title(title, fontsize=10)
        x = 2 * THEOREM["noise"](10, 10, seed=3)
        for ax, name in zip(axes[3:], ("entropy", "gini"), strict=True):
            plan(ax, x, regmax.regularizer(name))
        axes[3].set_title("softmax, Transport()", fontsize=10)
        axes[4].set_title("sparsemax, Transport()", fontsize=10)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def triangle(ax: Any, domain: regmax.Simplex) -> None:
    """The set, and the paths of softmax and sparsemax as γ falls."""
    turn = torch.linspace(0, 2 * torch.pi, 400, dtype=torch.float64)
    ways = torch.stack([turn.cos(), (turn + 2.1).cos(), (turn + 4.2).cos()], -1)
    edge = (regmax.functional.sparsemax(1e3 * ways, domain=domain) @ CORNERS).numpy()
    ax.fill(*edge.T, facecolor=INK, alpha=0.2)
    ax.plot(*CORNERS[[0, 1, 2, 0]].numpy().T, color=INK, lw=0.8)
    scores = torch.linspace(0, 3, 200, dtype=torch.float64).exp().sub(1).unsqueeze(-1) * SCORES
    for f, color in ((regmax.functional.softmax, BLUE), (regmax.functional.sparsemax, ORANGE)):
        ax.plot(
            *(f(scores, domain=domain) @ CORNERS).numpy().T, color=color, lw=2, label=f.__name__
        )
    if domain.plain:
        ax.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.05), ncol=2)
    ax.set_aspect("equal")
    ax.axis("off")


def plan(ax: Any, x: torch.Tensor, omega: regmax.Regularizer) -> None:
    """The plan, with nothing where it is 0."""
    y = regmax.RegularizedMax(omega, domain=regmax.Transport())(x)
    ax.imshow(torch.where(y > 0, y, torch.nan).sqrt().numpy(), cmap="Blues", vmin=-0.2, vmax=1)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel(f"{float((y == 0).double().mean()):.0%} zeros")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    draw(parser.parse_args().file)
