"""Common to all figures: colours, axes, saving. No figure needs a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Okabe & Ito: safe for colour-blind readers
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
INK, QUIET, FAINT = "#333333", "#8c8c8c", "#dddddd"


def blank(width: float, height: float) -> Any:
    """An empty figure, sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"a plot needs {error.name}, which is not installed; run: pip install 'regmax[plot]'",
            name=error.name,
        ) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def frame(axis: Any) -> None:
    """Show only the left and bottom axis, and light horizontal lines."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)


def line(k: int) -> dict[str, Any]:
    """The style of the kth line: its own colour, with another dash after the last colour."""
    dash = ("-", "--", ":", "-.")[k // len(PALETTE) % 4]
    return {"color": PALETTE[k % len(PALETTE)], "linestyle": dash}


def save(figure: Any, path: Path) -> None:
    """Write a figure as .png, .svg or .pdf. Equal figures give equal bytes."""
    from matplotlib import rc_context

    dates = {".svg": "Date", ".pdf": "CreationDate"}
    undated = {key: None for suffix, key in dates.items() if path.suffix.lower() == suffix}
    with rc_context({"svg.hashsalt": "regmax"}):
        figure.savefig(path, metadata=undated)


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
