"""``regmax plot``: pictures of a mapping, or of the convergence of solvers."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import plots
from ..analysis.hyperparameters import varied
from ..plots.style import takes
from ..regularizers.regularizer import Regularizer
from . import gallery
from .common import UsageError, needs, note
from .convergence import converge, made_up, solvers
from .listing import contested, quiet_registry
from .names import named
from .scores import MOST, load

SUFFIXES = (".png", ".svg", ".pdf")
LONGEST = 1 << 16
KINDS = {
    "mapping": "Π_Ω at two scores, and on a row of scores with softmax and sparsemax",
    "curves": "max_Ω and Π_Ω at two scores",
    "surface": "Π_Ω at three scores",
    "simplex": "zero and equal weights of three scores, and Π_Ω on the simplex",
    "path": "the weights of a row over γ and each hyperparameter",
    "overview": "curves, surface, simplex and path in one picture",
    "convergence": "solvers on the value-only Ω, with a table",
}
# options that only some kinds use
ONLY = {
    "scores": ("mapping", "path", "convergence"),
    "dim": ("mapping", "path", "convergence"),
    "row": ("mapping", "path"),
    "over": ("path",),
    "rows": ("convergence",),
    "solver": ("convergence",),
}


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "plot",
        help="draw a mapping, or the convergence of solvers",
        description="Draws a regularizer's mapping. Kinds: "
        + "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
        + ".",
        epilog="example: regmax plot 'tsallis(alpha=1.5) + 0.1*tv' --scores attention.npy",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a regularizer or a mapping, or an expression: tv, fusedmax, 'tv(lam=0.5)' (in short "
        "tv:lam=0.5), 'tsallis(alpha=1.5) + 0.1*tv'; several for one picture of kind "
        f"{', '.join(gallery.TOGETHER)}",
    )
    parser.add_argument(
        "--kind", choices=KINDS, metavar="KIND", help=f"{', '.join(KINDS)} (default: mapping)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every registered regularizer, alone and together, as .svg and .png into --out FOLDER",
    )
    parser.add_argument(
        "--over",
        metavar="LIST",
        help="with --kind path: gamma or hyperparameters, comma-separated (default: all)",
    )
    parser.add_argument(
        "--solver",
        metavar="LIST",
        help="with --kind convergence: auto or names of solvers, comma-separated (default: auto)",
    )
    parser.add_argument(
        "--scores",
        type=Path,
        metavar="FILE",
        help="your own scores, .npy, .pt or .csv, of shape (..., d) (default: generated)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="with --kind convergence: how many rows, evenly spread over FILE; 0 for all "
        "(default: 64)",
    )
    parser.add_argument(
        "--row",
        type=int,
        metavar="K",
        help="with other kinds: the row of FILE, from 0 (default: 0)",
    )
    parser.add_argument(
        "--dim", type=int, metavar="D", help="how many scores to generate (default: 20)"
    )
    parser.add_argument("--gamma", type=float, default=1.0, help="γ > 0 (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the picture file, .png, .svg or .pdf (default: regmax-NAME.png); with --all a folder "
        "(default: regmax-gallery)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the picture and print its path. The status is 1 if Ω raises."""
    kind: str = arguments.kind or "mapping"
    check(arguments, kind)
    found = quiet_registry()
    for fault in [*found.faults, *contested(found)]:
        note(f"warning: {fault}")
    with needs("plot", "a plot"):
        import matplotlib.figure  # noqa: F401
    if arguments.all:
        return gallery.run(found, arguments.gamma, arguments.out or Path("regmax-gallery"))
    omegas = dict(named(text) for text in arguments.names)
    text = ", ".join(omegas)
    x = rows(arguments, kind, next(iter(omegas.values())))
    try:
        figure, lines = draw(arguments, kind, omegas, x)
    except UsageError:
        raise
    except Exception as error:  # a plugin's code may raise anything
        note(f"regmax plot: {text}: {type(error).__name__}: {error}")
        return 1
    name = gallery.stem("regmax", *omegas, *([] if kind == "mapping" else [kind]))
    path = arguments.out or Path(f"{name}.png")
    gallery.write(figure, path)
    print(*lines, path, sep="\n")
    return 0


def check(arguments: argparse.Namespace, kind: str) -> None:
    """Refuse numbers out of range, and options without effect."""
    if not (math.isfinite(arguments.gamma) and arguments.gamma > 0):
        raise UsageError(f"--gamma must be a finite number > 0; got {arguments.gamma}")
    for option, least in (("rows", 0), ("row", 0), ("dim", 1)):
        number = getattr(arguments, option)
        if number is not None and number < least:
            raise UsageError(f"--{option} must be at least {least}; got {number}")
    if arguments.all:
        for option in ("names", "kind", *ONLY):
            if getattr(arguments, option) not in (None, []):
                word = "names" if option == "names" else f"--{option}"
                raise UsageError(f"--all draws all regularizers with defaults: leave out {word}")
        return
    if not arguments.names:
        raise UsageError("name a regularizer (regmax list shows them), or use --all")
    if len(arguments.names) > 1 and kind not in gallery.TOGETHER:
        several = ", ".join(gallery.TOGETHER)
        got = len(arguments.names)
        raise UsageError(f"--kind {kind} takes one regularizer; got {got} (several: {several})")
    for option, kinds in ONLY.items():
        if getattr(arguments, option) is not None and kind not in kinds:
            raise UsageError(f"--{option} goes with --kind {' or '.join(kinds)}; got {kind}")
    if arguments.dim is not None and arguments.scores is not None:
        raise UsageError("--dim is for generated scores: leave out --dim or --scores")
    if arguments.row is not None and arguments.scores is None:
        raise UsageError("--row goes with --scores FILE")
    if arguments.rows == 0 and arguments.scores is None:
        raise UsageError("--rows must be at least 1 without --scores FILE; got 0")
    if arguments.out is not None and arguments.out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--out {arguments.out}: must end in one of {', '.join(SUFFIXES)}")
    if arguments.out is not None and not arguments.out.resolve().parent.is_dir():
        raise UsageError(f"--out {arguments.out}: its folder does not exist")


def rows(arguments: argparse.Namespace, kind: str, omega: Regularizer) -> Tensor | None:
    """The scores to draw: (rows, d) float64 for solvers, else one row (d,), or None for the
    figure's default."""
    many = kind == "convergence"
    most = 64 if arguments.rows is None else arguments.rows
    d = arguments.dim or omega.entries or 20
    if arguments.scores is None and (d > LONGEST or (many and most * d > MOST)):
        raise UsageError(
            f"a plot is of rows of at most {LONGEST} scores, {MOST} in all; got rows of {d}"
        )
    if arguments.scores is None:
        if many:
            return made_up(most, d)
        return None if arguments.dim is None else plots.example(arguments.dim)
    row = arguments.row or 0
    x, total = load(arguments.scores, most, None if many else row)
    if not many:
        if row >= total:
            raise UsageError(f"--row {row}: {arguments.scores} has rows 0 to {total - 1}")
        return x[0]
    if len(x) < total:
        note(f"{arguments.scores}: {len(x)} of {total} rows, evenly spread (--rows 0: all)")
    return x


def draw(
    arguments: argparse.Namespace, kind: str, omegas: dict[str, Regularizer], x: Tensor | None
) -> tuple[Any, list[str]]:
    """The figure, and lines to print before its path."""
    gamma: float = arguments.gamma
    if kind in gallery.TOGETHER:
        entries = gallery.TOGETHER[kind]
        for name, omega in omegas.items():
            if not takes(omega, entries):
                raise UsageError(
                    f"--kind {kind} is for rows of {entries} entries; {name} is made for rows of "
                    f"{omega.entries or 'another number'}"
                )
        return getattr(plots, kind)(omegas, gamma), []
    ((name, omega),) = omegas.items()
    if kind == "mapping":
        return plots.mapping(omega, x, gamma, name), []
    if kind == "overview":
        return plots.overview(omega, gamma, name), []
    if kind == "path":
        return plots.path(omega, x, over(arguments.over, omega), gamma=gamma, name=name), []
    assert x is not None
    figure, table = converge(name, omega, x, gamma, solvers(arguments.solver))
    return figure, [table]


def over(wanted: str | None, omega: Regularizer) -> list[str]:
    """The requested names: γ and hyperparameters."""
    try:
        return varied(omega, wanted and [part.strip() for part in wanted.split(",")])
    except ValueError as error:
        raise UsageError(f"--{error}") from error
