"""``regmax plot``: what a mapping does to scores, or how solvers get to it, as a picture."""

from __future__ import annotations

import argparse
import math
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import plots
from ..backends.generic import definition
from ..layer import RegularizedMax
from ..regularizer import Regularizer
from ..solution import Solution
from .common import UsageError, needs, note, table, working
from .listing import contested, quiet_registry
from .names import named
from .scores import load

SUFFIXES = (".png", ".svg", ".pdf")


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "plot",
        help="draw what a mapping does to scores, or how solvers converge to it",
        description="Draws a mapping at two scores and on a row of scores, beside softmax and "
        "sparsemax; with --convergence, the duality gap, the residual and the support size of each "
        "iteration of a solver that knows the regularizer by its value alone.",
        epilog="example: regmax plot 'tsallis(alpha=1.5) + 0.1*tv' --scores attention.npy",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a regularizer or a mapping, with hyperparameters if wanted: tv, fusedmax, "
        "tv:lam=0.5; or an expression: 'tsallis(alpha=1.5) + 0.1*tv'",
    )
    parser.add_argument(
        "--convergence", action="store_true", help="draw solvers at work, and print a table"
    )
    parser.add_argument(
        "--solver",
        metavar="LIST",
        help="with --convergence: auto or names of solvers, comma-separated (default: auto)",
    )
    parser.add_argument(
        "--scores",
        type=Path,
        metavar="FILE",
        help="your own scores, .npy, .pt or .csv, of shape (..., d) (default: made up)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="with --convergence: how many rows, evenly spread over FILE; 0 for all (default: 64)",
    )
    parser.add_argument(
        "--row", type=int, metavar="K", help="without: the row of FILE, from 0 (default: 0)"
    )
    parser.add_argument(
        "--dim", type=int, metavar="D", help="how many scores to make up (default: 20)"
    )
    parser.add_argument("--gamma", type=float, default=1.0, help="γ > 0 (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the picture goes, .png, .svg or .pdf (default: regmax-NAME.png)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the picture and print its path; status 1 if Ω, or its code, cannot be drawn."""
    check(arguments)
    found = quiet_registry()
    for fault in [*found.faults, *contested(found)]:
        note(f"warning: {fault}")
    name, omega = named(found, arguments.name)
    with needs("plot", "a plot"):
        import matplotlib.figure  # noqa: F401
    x = rows(arguments, omega)
    try:
        if arguments.convergence:
            figure = converge(arguments, name, omega, x)
        else:
            figure = plots.mapping(omega, x[0], arguments.gamma, name)
    except UsageError:
        raise
    except Exception as error:  # a plugin's code may raise anything
        note(f"regmax plot: {name}: {type(error).__name__}: {error}")
        return 1
    path = arguments.out or Path(f"{stem(name)}{'-convergence' * arguments.convergence}.png")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror or error}") from error
    print(path)
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Refuse numbers out of range, and arguments that would not be used."""
    if not (math.isfinite(arguments.gamma) and arguments.gamma > 0):
        raise UsageError(f"--gamma must be a finite number > 0; got {arguments.gamma}")
    for option, least in (("rows", 0), ("row", 0), ("dim", 1)):
        number = getattr(arguments, option)
        if number is not None and number < least:
            raise UsageError(f"--{option} must be at least {least}; got {number}")
    if arguments.dim is not None and arguments.scores is not None:
        raise UsageError("--dim is for scores that are made up: leave out --dim or --scores")
    only = ("row",) if arguments.convergence else ("solver", "rows")
    for option in only:
        if getattr(arguments, option) is not None:
            word = "without" if arguments.convergence else "with"
            raise UsageError(f"--{option} goes {word} --convergence")
    if arguments.out is not None and arguments.out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--out {arguments.out}: must end in one of {', '.join(SUFFIXES)}")
    if arguments.out is not None and not arguments.out.resolve().parent.is_dir():
        raise UsageError(f"--out {arguments.out}: its folder does not exist")


def stem(name: str) -> str:
    """``regmax-tv-lam-0.5``."""
    return f"regmax-{re.sub(r'[^A-Za-z0-9_.]+', '-', name).strip('-')}"


def rows(arguments: argparse.Namespace, omega: Regularizer) -> Tensor:
    """The scores to draw, (rows, d) float64: one row without --convergence."""
    most = 64 if arguments.rows is None else arguments.rows
    if arguments.scores is not None:
        x, total = load(arguments.scores, most if arguments.convergence else 0)
        if not arguments.convergence:
            row = arguments.row or 0
            if row >= total:
                raise UsageError(f"--row {row}: {arguments.scores} has rows 0 to {total - 1}")
            return x[row : row + 1]
        if len(x) < total:
            note(f"{arguments.scores}: {len(x)} of {total} rows, evenly spread (--rows 0: all)")
        return x
    if arguments.row is not None:
        raise UsageError("--row goes with --scores FILE")
    if most < 1:
        raise UsageError("--rows must be at least 1 without --scores FILE; got 0")
    d = arguments.dim or omega.entries or 20
    if not arguments.convergence:
        return plots.example(d)[None]
    scale = torch.tensor([0.3, 1.0, 3.0], dtype=torch.float64).repeat(most // 3 + 1)[:most, None]
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(most, d, generator=generator, dtype=torch.float64)


def converge(arguments: argparse.Namespace, name: str, omega: Regularizer, x: Tensor) -> Any:
    """Solve with each solver, print what came of it, and draw the way there."""
    solutions: dict[str, Solution] = {}
    lines = []
    for asked in solvers(arguments.solver):
        with working(f"solving {name} with {asked}"):
            solution, seconds = solved(omega, x, arguments.gamma, asked)
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
    title = f"{name}, γ = {arguments.gamma:g}: {len(x)} rows of {x.shape[-1]} scores"
    print(f"{title}; Ω by its value; iterations of the median row, and the most of any")
    print(table(header, lines))
    figure = plots.convergence(solutions)
    figure.suptitle(title)
    return figure


def solvers(wanted: str | None) -> list[str]:
    """The names asked for, each once."""
    names = list(dict.fromkeys(n.strip() for n in (wanted or "auto").split(",") if n.strip()))
    known = ["auto", *quiet_registry().solvers()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = ", ".join(map(repr, unknown)) or repr(wanted)
        raise UsageError(f"--solver must name solvers: {', '.join(known)}; got {got}")
    return names


def solved(
    omega: Regularizer, x: Tensor, gamma: float, solver: str
) -> tuple[Solution | str, float]:
    """A traced solution of Ω by its value alone, and the seconds that it takes untraced; or why the
    solver refuses."""
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
