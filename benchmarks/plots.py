"""Pictures of a run: log–log, lines labelled at their ends, torch.softmax as the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from . import summary
from .inputs import KINDS, describe
from .own import OWN
from .peers import REFERENCE
from .summary import Row

# Okabe and Ito's colours, which stay apart for most eyes.
COLOURS = {
    "sparsemax": "#0072b2",
    "entmax15": "#009e73",
    "entmax": "#56b4e9",
    "pnormmax": "#cc79a7",
    "fusedmax": "#e69f00",
    "oscarmax": "#d55e00",
    "softmax": "#777777",
    "tsallis15": "#009e73",
    "quadratic": "#0072b2",
    "quartic": "#d55e00",
}
SETTINGS = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "svg.hashsalt": "regmax",
    "svg.fonttype": "none",  # text stays text
}


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Every picture that the sections of a run allow."""
    import matplotlib

    sections, device = result["sections"], result["device"]
    written = []
    with matplotlib.rc_context(SETTINGS):
        for name, axis in (("size", "d"), ("rows", "rows"), ("generic-size", "d")):
            if sections.get(name):
                written.append(folder / f"{device}-{name}.svg")
                _sweep(sections[name], axis, written[-1])
        if sections.get("inputs"):
            written.append(folder / f"{device}-inputs.svg")
            _inputs(sections["inputs"], written[-1])
    return written


def _sweep(rows: list[Row], axis: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    ax = figure.subplots()
    ends: list[tuple[str, float, str]] = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        x = [row[axis] for row in own]
        scale = [1e3 if axis == "rows" else 1e9 / (row["rows"] * row["d"]) for row in own]
        middle, low, high = (
            [s * row["both"][k] for row, s in zip(own, scale, strict=True)]
            for k in ("median", "low", "high")
        )
        colour, style, width = _look(own[0])
        ax.plot(x, middle, style, color=colour, linewidth=width, marker="o", markersize=3)
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        ends.append((_label(own[0]), middle[-1], colour))
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="scores in a row" if axis == "d" else f"rows of {rows[0]['d']} scores",
        ylabel="forward + backward, ns per score" if axis == "d" else "forward + backward, ms",
    )
    ax.grid(alpha=0.25, linewidth=0.5)
    _name_lines(ax, ends, max(row[axis] for row in rows))
    figure.savefig(path, metadata={"Date": None})


def _inputs(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if any(row["input"] == kind for row in rows)]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax = figure.subplots()
    ends: list[tuple[str, float, str]] = []
    for name in dict.fromkeys(row["name"] for row in rows if row["name"] != REFERENCE):
        found = {k[3]: r for k, r in summary.ratios(rows, name, REFERENCE).items()}
        mapping = name.removeprefix("regmax ")
        shown = [kind for kind in kinds if kind in found]
        at = [kinds.index(kind) for kind in shown]
        ratios = [found[kind] for kind in shown]
        ax.plot(at, ratios, "o-", color=COLOURS[mapping], linewidth=0.6, markersize=5)
        if ratios:
            ends.append((mapping, ratios[-1], COLOURS[mapping]))
    ax.axhline(1, color="black", linewidth=1.4)
    ax.set(yscale="log", ylabel="forward + backward over torch.softmax")
    ax.set_xticks(range(len(kinds)), [describe(k) for k in kinds], rotation=25, ha="right")
    ax.grid(alpha=0.25, linewidth=0.5)
    ends.append(("torch.softmax", 1.0, "black"))
    _name_lines(ax, ends, len(kinds) - 1)
    figure.savefig(path, metadata={"Date": None})


def _name_lines(ax: Any, ends: Sequence[tuple[str, float, str]], right: float) -> None:
    """A label (text, value, colour) beside the end of each line."""
    low, high = ax.get_ylim()
    places = spaced([value for _, value, _ in ends], low, high)
    for (text, value, colour), place in zip(ends, places, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
        ax.annotate(
            text,
            (right, value),
            xytext=(1.03, _fraction(place, low, high)),
            textcoords="axes fraction",
            color=colour,
            va="center",
            arrowprops=leader,
        )
    ax.set_ylim(low, high)


def _look(row: Row) -> tuple[str, str, float]:
    if row["name"] == REFERENCE:
        return "black", "-", 2.2
    style = "-" if row["family"] == "regmax" else "--"
    return COLOURS[row["mapping"]], style, 1.3 if style == "-" else 0.9


def _label(row: Row) -> str:
    if row["family"] == "regmax":
        return OWN[row["mapping"]].label if row["mapping"] in OWN else str(row["mapping"])
    if row["name"] == REFERENCE:
        return "torch.softmax"
    return f"{row['mapping']} ({row['family'].replace('entmax', 'entmax pkg')})"


def _fraction(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def spaced(values: Sequence[float], low: float, high: float, gap: float = 0.055) -> list[float]:
    """The values, moved as little as it takes on a log axis for no two labels to touch."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    blocks: list[list[float]] = []  # isotonic regression of the places without their gaps
    for rank, i in enumerate(order):
        blocks.append([_fraction(values[i], low, high) - rank * gap])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    top = max(0.0, 1 - gap * (len(values) - 1))
    level = [min(max(mean(block), 0.0), top) for block in blocks for _ in block]
    moved = [0.0] * len(values)
    for rank, i in enumerate(order):
        moved[i] = low * (high / low) ** (level[rank] + rank * gap)
    return moved
