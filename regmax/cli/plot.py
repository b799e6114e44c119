"""``regmax plot``: pictures of a mapping, of the convergence of solvers, of every regularizer."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import plots
from ..analysis.hyperparameters import varied
from ..nn.layer import RegularizedMax
from ..optimality.solution import Solution
from ..plots.style import INK, formula, takes
from ..regularizers.registry import Registry, suggestion
from ..regularizers.regularizer import Regularizer
from ..testing.backends.generic import definition
from .common import UsageError, needs, note, positive, table, working
from .listing import quiet_registry, warned_registry
from .names import add_domain, add_names, add_scores, domain, named, with_defaults
from .scores import LONGEST, MOST, load, made_up

SUFFIXES = (".png", ".svg", ".pdf")
TOGETHER = {"curves": 2, "surface": 3, "simplex": 3}
"""The kinds of picture for several Ω, and the number of entries that these must accept."""
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
    "domain": ("mapping", "path"),
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
    add_names(parser, f"several for one picture of kind {', '.join(TOGETHER)}")
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
    add_scores(parser, "generated")
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
    add_domain(parser)
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
    found = warned_registry()
    with needs("plot", "a plot"):
        import matplotlib.figure  # noqa: F401
    if arguments.all:
        return every(found, arguments.gamma, arguments.out or Path("regmax-gallery"))
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
    name = stem("regmax", *omegas, *([] if kind == "mapping" else [kind]))
    path = arguments.out or Path(f"{name}.png")
    write(figure, path)
    print(*lines, path, sep="\n")
    return 0


def check(arguments: argparse.Namespace, kind: str) -> None:
    """Refuse numbers out of range, and options without effect."""
    positive(arguments.gamma)
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
    if len(arguments.names) > 1 and kind not in TOGETHER:
        several = ", ".join(TOGETHER)
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
    if arguments.scores is None:
        if d > LONGEST or (many and most * d > MOST):
            raise UsageError(
                f"a plot is of rows of at most {LONGEST} scores, {MOST} in all; got rows of {d}"
            )
        if many:
            return made_up(most, d)
        return None if arguments.dim is None else plots.example(arguments.dim)
    row = arguments.row or 0
    x, total = load(arguments.scores, most, None if many else row)
    if not many and row >= total:
        raise UsageError(f"--row {row}: {arguments.scores} has rows 0 to {total - 1}")
    return x if many else x[0]


def draw(
    arguments: argparse.Namespace, kind: str, omegas: dict[str, Regularizer], x: Tensor | None
) -> tuple[Any, list[str]]:
    """The figure, and lines to print before its path."""
    gamma: float = arguments.gamma
    if kind in TOGETHER:
        entries = TOGETHER[kind]
        for name, omega in omegas.items():
            if not takes(omega, entries):
                raise UsageError(
                    f"--kind {kind} is for rows of {entries} entries; {name} is made for rows of "
                    f"{omega.entries or 'another number'}"
                )
        return getattr(plots, kind)(omegas, gamma), []
    ((name, omega),) = omegas.items()
    if kind == "mapping":
        return plots.mapping(omega, x, gamma, name, domain=domain(arguments.domain)), []
    if kind == "overview":
        return plots.overview(omega, gamma, name), []
    if kind == "path":
        given: Any = {"gamma": gamma, "name": name, "domain": domain(arguments.domain)}
        return plots.path(omega, x, over(arguments.over, omega), **given), []
    assert x is not None
    figure, text = converge(name, omega, x, gamma, solvers(arguments.solver))
    return figure, [text]


def over(wanted: str | None, omega: Regularizer) -> list[str]:
    """The requested names: γ and hyperparameters."""
    try:
        return varied(omega, wanted and [part.strip() for part in wanted.split(",")])
    except ValueError as error:
        raise UsageError(f"--{error}") from error


# -- convergence -----------------------------------------------------------------------------------


def converge(
    name: str, omega: Regularizer, x: Tensor, gamma: float, wanted: list[str]
) -> tuple[Any, str]:
    """A picture of the convergence of each solver, and a table of the results."""
    solutions: dict[str, Solution] = {}
    lines = []
    for asked in wanted:
        with working(f"solving {name} with {asked}"):
            solution, seconds = solved(omega, x, gamma, asked)
        if isinstance(solution, str):
            lines.append([asked, "refused", "", "", "", solution])
            continue
        label = f"auto: {solution.path.replace('solver ', '')}" if asked == "auto" else asked
        solutions[label] = solution
        steps = solution.iterations.double()
        lines.append(
            [
                label,
                f"{int(solution.converged.sum())} of {solution.converged.numel()}",
                f"{steps.median():g}",
                f"{steps.max():g}",
                f"{solution.error_bound.max():.1e}",
                f"{seconds:.3f}",
            ]
        )
    if not solutions:
        reasons = "; ".join(f"{line[0]}: {line[-1]}" for line in lines)
        raise UsageError(f"--solver: none can take {name} ({reasons}); auto chooses one that can")
    header = ["solver", "converged", "iterations", "most", "worst certified error", "seconds"]
    title = f"{name}, γ = {gamma:g}: {len(x)} rows of {x.shape[-1]} scores"
    caption = f"{title}; value-only Ω; iterations of the median row, and the most of any row"
    figure = plots.convergence(solutions)
    figure.suptitle(formula(title), fontsize=14, color=INK)
    return figure, f"{caption}\n{table(header, lines)}"


def solvers(wanted: str | None) -> list[str]:
    """The requested solvers, each once."""
    names = list(
        dict.fromkeys(
            n.strip() for n in ("auto" if wanted is None else wanted).split(",") if n.strip()
        )
    )
    known = ["auto", *quiet_registry().names("solver")]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = ", ".join(map(repr, unknown)) or repr(wanted)
        like = suggestion(unknown[0], known) if unknown else ""
        raise UsageError(f"--solver must name solvers: {', '.join(known)}; got {got}{like}")
    return names


def solved(
    omega: Regularizer, x: Tensor, gamma: float, solver: str
) -> tuple[Solution | str, float]:
    """A traced solution for the value-only Ω, and the seconds of an untraced solve; or the solver's
    reason to refuse."""
    layer = RegularizedMax(definition(omega), gamma, solver=solver, on_failure="ignore")
    with torch.no_grad():
        try:
            solution = layer.solve(x, trace=True)
        except ValueError as error:
            if "cannot take" not in str(error):
                raise
            return str(error).partition(": ")[2].partition(";")[0], 0.0
        start = time.perf_counter()
        layer(x)
        return solution, time.perf_counter() - start


# -- every regularizer -----------------------------------------------------------------------------


def every(found: Registry, gamma: float, folder: Path) -> int:
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
