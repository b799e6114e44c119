"""Common to all figures: colours, axes, names, the Ω to draw, saving. No figure needs a display."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch import Tensor

from ..domains import Domain
from ..nn.layer import RegularizedMax
from ..regularizers import arguments, printing
from ..regularizers.regularizer import Regularizer

P = ParamSpec("P")
Omegas = Regularizer | Mapping[str, Regularizer]
"""One Ω, or several by name."""

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
    "legend.frameon": False,
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


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as .png, .svg or .pdf. Equal figures give equal bytes."""
    from matplotlib import rc_context

    path = Path(path)
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


def label(omega: Regularizer) -> str:
    """``fusedmax(lam=0.1)``: the mapping with its hyperparameters, or str(Ω) without a mapping."""
    names = [omega.mapping] if isinstance(omega.mapping, str) else list(omega.mapping)
    if not names:
        return str(omega)
    with printing.short():
        inner = omega.extra_repr()
    return f"{names[0]}({inner})" if inner else names[0]


def several(omegas: Omegas, entries: int) -> dict[str, Regularizer]:
    """Ω by name. ValueError if one is made for rows of another length."""
    alone = label(omegas) if isinstance(omegas, Regularizer) else "omegas"
    found = dict(omegas) if isinstance(omegas, Mapping) else {alone: omegas}
    if not found:
        raise ValueError("omegas must hold at least one regularizer; got none")
    for name, omega in found.items():
        if not isinstance(omega, Regularizer):
            raise TypeError(
                f"{name} must be a regmax.Regularizer, or a dict of several by name; got "
                f"{type(omega).__name__} {printing.brief(omega)}"
            )
        if not takes(omega, entries):
            raise ValueError(
                f"{name} is made for rows of {omega.entries or 'another number of'} entries; this "
                f"picture is of {entries}: draw its mapping or path at a row of its own"
            )
    return found


def takes(omega: Regularizer, entries: int) -> bool:
    """Whether Ω accepts rows of that many entries. An Ω that does not declare ``entries`` is
    tried."""
    if omega.entries is not None:
        return omega.entries == entries
    try:
        weights(omega, torch.zeros(entries, dtype=torch.float64, device="cpu"), 1.0)
    except ValueError as error:
        return "takes rows of" not in str(error)
    except Exception:  # a plugin's code may raise anything; the drawing will say so
        return True
    return True


def weights(omega: Regularizer, x: Tensor, gamma: float, domain: Domain | None = None) -> Tensor:
    """Π_Ω(x), without gradients."""
    with torch.no_grad():
        y: Tensor = RegularizedMax(omega, gamma, domain=domain)(x)
        return y


def title(found: dict[str, Regularizer], gamma: float, of_several: str = "") -> str:
    """``sparsemax, γ = 1``."""
    gamma = float(arguments.hyperparameter("gamma", gamma, *arguments.POSITIVE))
    name = next(iter(found)) if len(found) == 1 else of_several
    return f"{formula(name)}, γ = {gamma:g}" if name else f"γ = {gamma:g}"
