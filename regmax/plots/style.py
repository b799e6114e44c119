"""Common to all figures: colours, axes, saving. No figure needs a display."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

P = ParamSpec("P")

# Okabe & Ito: safe for colour-blind readers
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
# the ink reads on a light page and on a dark one
INK, QUIET, FAINT = "#7b7b7b", "#8c9aa8", "#8888884d"
LOOK = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 12,
    "axes.titlecolor": INK,
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 11,
    "ytick.color": INK,
    "ytick.labelsize": 11,
}
LETTERS = {"alpha": "α", "gamma": "γ", "lam": "λ"}


def styled(draw: Callable[P, Any]) -> Callable[P, Any]:
    """A function that draws, with our colours and no background."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            from matplotlib import rc_context
        except ImportError:  # the function says so, if its arguments are right
            return draw(*args, **kwargs)
        with rc_context(LOOK):
            return draw(*args, **kwargs)

    return drawn


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
    axis.tick_params(colors=INK)


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


def formula(text: str) -> str:
    """``fusedmax:lam=0.2`` as ``fusedmax, λ = 0.2``, ``gini + 0.1*tv`` as ``gini + 0.1 · tv``."""
    text = re.sub(r":(?=\w+=)", ", ", text).replace("*", " · ")
    return re.sub(r"\b(\w+)=", lambda found: f"{letter(found[1])} = ", text)


def letter(name: str) -> str:
    """``lam`` as ``λ``, ``base.alpha`` as ``base.α``."""
    return re.sub(r"\w+$", lambda found: LETTERS.get(found[0], found[0]), name)
