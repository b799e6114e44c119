"""``regmax plot --all``: pictures of each registered regularizer, and of all together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .. import plots
from ..plots.style import takes
from ..regularizers.registry import Registry
from ..regularizers.regularizer import Regularizer
from .common import UsageError, note, working
from .convergence import converge, made_up
from .names import named, with_defaults

TOGETHER = {"curves": 2, "surface": 3, "simplex": 3}
"""The kinds of picture for several Ω, and the number of entries that these must accept."""


def run(found: Registry, gamma: float, folder: Path) -> int:
    """Draw the pictures and print their paths. If a regularizer raises, go on; the status is 1."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror or error}") from error
    names = with_defaults(found)
    sound: dict[str, Regularizer] = {}
    for number, name in enumerate(names, start=1):
        try:
            _, omega = named(name)
            with working(f"drawing {name} ({number} of {len(names)})"):
                figures = alone(omega, gamma)
        except Exception as error:  # a plugin's code may raise anything; the others go on
            origin = found.origin("regularizer", name)
            note(f"regmax plot: {name} ({origin}): {type(error).__name__}: {error}")
            continue
        sound[plots.label(omega)] = omega
        for kind, figure in figures.items():
            both(figure, folder / stem(name, kind))
    for kind, entries in TOGETHER.items():
        fit = {name: omega for name, omega in sound.items() if takes(omega, entries)}
        if len(fit) < len(sound):
            left = ", ".join(name for name in sound if name not in fit)
            note(f"{kind}: without {left}, which takes rows of another number of entries")
        if fit:
            with working(f"drawing {kind} of all"):
                figure = getattr(plots, kind)(fit, gamma)
            both(figure, folder / kind)
    return 1 if len(sound) < len(names) else 0


def alone(omega: Regularizer, gamma: float) -> dict[str, Any]:
    """The pictures of one Ω by kind."""
    x = made_up(64, omega.entries or 20)
    name = plots.label(omega)
    return {
        "overview": plots.overview(omega, gamma),
        "mapping": plots.mapping(omega, gamma=gamma),
        "convergence": converge(name, omega, x, gamma, ["auto"])[0],
    }


def both(figure: Any, path: Path) -> None:
    """Write the picture as .svg and as .png, and print the paths."""
    for suffix in (".svg", ".png"):
        file = path.with_name(path.name + suffix)
        write(figure, file)
        print(file, flush=True)


def write(figure: Any, path: Path) -> None:
    """Save the figure. :class:`UsageError` if the file cannot be written."""
    try:
        plots.save(figure, path)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}") from error


def stem(*words: str) -> str:
    """A safe file name, such as ``tv-lam-0.5-path``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-")
