"""The pictures of docs/gallery.md, and one for each regularizer and penalty, in docs/gallery/.

python docs/figures/gallery.py [--out FOLDER] [--digits] [NAME ...]

Each is drawn by the command that the page gives, as .svg and as .png. The attention maps on digits
are those of `regmax demo`, which trains for a minute: they are drawn with --digits alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image

import regmax
from regmax.cli import main
from regmax.plots import save
from regmax.plots.heatmaps import cells
from regmax.plots.style import INK

FOLDER = Path(__file__).parents[1] / "gallery"
SIX = ("softmax", "sparsemax", "entmax15", "pnormmax", "fusedmax:lam=0.2", "oscarmax:lam=0.2")
COMMANDS = {
    "curves": (*SIX[:5], "oscarmax:lam=0.4", "--kind", "curves"),
    "surface": (*SIX, "--kind", "surface"),
    "simplex": (*SIX, "--kind", "simplex"),
    "path": ("fusedmax:lam=0.2", "--kind", "path"),
    "path-clusters": ("oscarmax:lam=0.1", "--kind", "path"),
    "path-alpha": ("entmax15", "--kind", "path", "--over", "gamma,alpha"),
    "mapping": ("tsallis(alpha=1.5) + 0.1*tv",),
    "convergence": ("tsallis", "--kind", "convergence", "--solver", "auto,newton,fista"),
    "entropy": ("softmax", "--kind", "overview"),
    "gini": ("sparsemax", "--kind", "overview"),
    "pnorm": ("pnormmax", "--kind", "overview"),
    "tsallis": ("entmax15", "--kind", "overview"),
    "tv": ("fusedmax:lam=0.2", "--kind", "overview"),
    "oscar": ("oscarmax:lam=0.2", "--kind", "overview"),
    "clique_tv": ("entropy + 0.1*clique_tv", "--kind", "overview"),
    "owl": ("gini + 0.4*owl(weights=[1, 0, 0])", "--kind", "overview"),
    "graph_tv": ("gini + 0.2*graph_tv(edges=[(0, 1), (0, 2)])", "--kind", "overview"),
}
SHAPE = (10, 14)


def draw(name: str, folder: Path) -> None:
    """``name``.svg and ``name``.png."""
    for file in (folder / f"{name}.svg", folder / f"{name}.png"):
        if name == "grid_tv":
            save(image(), file)
        else:
            command(COMMANDS[name], file)
        if file.suffix == ".png":
            smaller(file)
    print(folder / name)


def command(arguments: tuple[str, ...], file: Path) -> None:
    """``regmax plot``, without a word."""
    with contextlib.redirect_stdout(io.StringIO()):
        status = main(["plot", *arguments, "--out", str(file)])
    if status:
        sys.exit(status)


def smaller(file: Path) -> None:
    """The picture in 256 colours, with its transparency."""
    with Image.open(file) as picture:
        few = picture.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE)
    few.save(file, optimize=True)


def image() -> Figure:
    """Scores of an image's cells, and what a penalty of the grid makes of sparsemax."""
    h, w = SHAPE
    level = torch.zeros(h, w, dtype=torch.float64)
    level[2:6, 2:7] = 0.3
    level[5:9, 9:12] = 0.25
    noise = torch.randn(h, w, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    x = (level + 0.08 * noise).flatten()
    figure = Figure(figsize=(9.6, 2.7), dpi=150, layout="constrained", facecolor="none")
    first, *axes = figure.subplots(1, 4)
    first.imshow(x.reshape(SHAPE).numpy(), cmap="Greys", interpolation="none")
    first.set_title("scores x", fontsize=13, color=INK)
    for axis, lam in zip(axes, (0.0, 0.02, 0.06), strict=True):
        penalty = regmax.penalty("grid_tv", shape=SHAPE)
        y = regmax.RegularizedMax(regmax.regularizer("gini") + lam * penalty)(x)
        ids = torch.where(y > 0, penalty.groups(y), -1)
        cells(axis, (y / y.max()).reshape(SHAPE), ids.reshape(SHAPE), 1)
        groups = len(ids[ids >= 0].unique())
        axis.set_title(f"gini + {lam:g} · grid_tv" if lam else "gini", fontsize=13, color=INK)
        axis.set_xlabel(
            f"{int((y > 0).sum())} cells above 0, {groups} groups", fontsize=11, color=INK
        )
    for axis in (first, *axes):
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure


def digits(folder: Path) -> None:
    """attention-maps.png, by ``regmax demo``."""
    if status := main(["demo", "--out", str(folder)]):
        sys.exit(status)
    smaller(folder / "attention-maps.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures (default: all)")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--digits", action="store_true", help="the attention maps, and no other")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.digits:
        digits(arguments.out)
    for picture in [] if arguments.digits else arguments.names or [*COMMANDS, "grid_tv"]:
        draw(picture, arguments.out)
