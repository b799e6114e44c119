"""``regmax validate``: cross-check regularizers, on built-in scores or the user's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..regularizers.errors import PluginError, told
from ..regularizers.registry import Registry
from ..regularizers.regularizer import Regularizer
from ..testing.crosscheck import crosscheck
from ..testing.report import Report
from .common import UsageError, columns, note, positive, table, working, wrapped
from .listing import warned_registry
from .names import add_domain, add_names, add_scores, chosen, domain
from .scores import LONGEST, builtin, load

DEFAULT_AGAINST = ("generic", "cvxpylayers")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "validate",
        help="cross-check regularizers: closed form, generic solver, convex solvers",
        description="Computes each mapping and its vector-Jacobian products by independent methods "
        "and compares them, with the certified error of each. Exit status 1 if any verdict fails, "
        "2 for wrong usage.",
        epilog="example: regmax validate tv tsallis:alpha=1.3 --scores attention.npy --gamma 0.5",
    )
    add_names(parser, "default: all regularizers")
    add_scores(parser, "built-in ones")
    parser.add_argument(
        "--rows",
        type=int,
        default=64,
        metavar="N",
        help="use at most N rows of FILE, evenly spread; 0 for all of them (default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        metavar="LIST",
        help="validation backends, comma-separated (default: generic,cvxpylayers)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default="float64")
    add_domain(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the reports here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one table per regularizer and the verdicts. The status is 1 if any verdict fails."""
    found = warned_registry()
    positive(arguments.gamma)
    if arguments.rows < 0:
        raise UsageError(f"--rows must be at least 0; got {arguments.rows}")
    if arguments.json is not None and not arguments.json.resolve().parent.is_dir():
        raise UsageError(f"--json {arguments.json}: its folder does not exist")
    omegas = chosen(found, arguments.names)
    if not omegas:
        raise UsageError("no regularizer is installed: install regmax itself (pip install -e .)")
    against = backends(found, arguments.against)
    device = usable_device(arguments.device, DTYPES[arguments.dtype])
    given = None if arguments.scores is None else load(arguments.scores, arguments.rows)[0]

    def rows(omega: Regularizer) -> Tensor:
        fit = omega.entries if omega.entries and omega.entries <= LONGEST else 12
        return (builtin(fit) if given is None else given).to(device, DTYPES[arguments.dtype])

    outcomes = check(omegas, rows, against, arguments.gamma, domain(arguments.domain))
    if arguments.json is not None:
        document = {
            "ok": all(ok(outcome) for _, outcome in outcomes),
            "gamma": arguments.gamma,
            "domain": arguments.domain,
            "dtype": arguments.dtype,
            "device": str(device),
            "against": list(against),
            "reports": {label: to_dict(label, outcome) for label, outcome in outcomes},
        }
        try:
            arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--json {arguments.json}: {error.strerror or error}") from error
    return summarize(outcomes)


Outcome = Report | Exception
"""A report, or the exception that prevented it."""


def check(
    omegas: Sequence[tuple[str, Regularizer | Exception]],
    rows: Callable[[Regularizer], Tensor],
    against: Sequence[str],
    gamma: float,
    domain: Domain | None = None,
) -> list[tuple[str, Outcome]]:
    """Cross-check each regularizer on its ``rows`` and print its table. If one raises, go on."""
    outcomes: list[tuple[str, Outcome]] = []
    for number, (label, omega) in enumerate(omegas, start=1):
        outcome: Outcome
        try:
            if isinstance(omega, Exception):
                raise omega
            with working(f"validating {label} ({number} of {len(omegas)})"):
                outcome = crosscheck(omega, rows(omega), against, gamma, domain=domain)
            text = outcome.table(columns())
        except Exception as error:  # a plugin's code may raise anything; the others go on
            outcome, text = error, f"{label}: FAILED\n  {type(error).__name__}: {told(error)}"
        outcomes.append((label, outcome))
        print(wrapped(text) + "\n", flush=True)
    return outcomes


def summarize(outcomes: Sequence[tuple[str, Outcome]]) -> int:
    """Print one verdict per regularizer, and return the exit status."""
    rows = [[label, "ok" if ok(outcome) else "FAILED", why(outcome)] for label, outcome in outcomes]
    print(table(["regularizer", "verdict", ""], rows, indent=""))
    failed = sum(not ok(outcome) for _, outcome in outcomes)
    print(f"\n{len(outcomes) - failed} of {len(outcomes)} agree by every method")
    return 1 if failed else 0


def ok(outcome: Outcome) -> bool:
    """Whether there is a report and every verdict in it holds."""
    return isinstance(outcome, Report) and outcome.ok


def why(outcome: Outcome) -> str:
    """The methods that disagree with the rest, or the exception."""
    if isinstance(outcome, Report):
        otherwise = "the methods disagree" if outcome.pairs else "nothing to compare with"
        return "" if outcome.ok else ", ".join(outcome.culprits) or otherwise
    return f"{type(outcome).__name__}: {told(outcome).partition(chr(10))[0]}"


def to_dict(label: str, outcome: Outcome) -> dict[str, Any]:
    """Plain JSON data; infinite numbers are null."""
    if isinstance(outcome, Report):
        data: dict[str, Any] = json.loads(outcome.to_json())
        return data
    return {"name": label, "ok": False, "error": f"{type(outcome).__name__}: {told(outcome)}"}


def backends(found: Registry, wanted: str | None) -> list[str]:
    """The requested backends, or those of the default backends that are installed."""
    known = found.names("backend")
    if wanted is None:
        names = []
        for name in DEFAULT_AGAINST:
            name = name if name in known else f"regmax.{name}"  # another has the name too
            try:
                missing = found.get("backend", name)().missing()
            except Exception as error:  # a plugin's code may raise anything
                missing = told(error)
            if missing is None:
                names.append(name)
            else:
                note(f"warning: not validated against {name}: {missing}")
        return names
    names = list(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    if not names:
        raise UsageError(f"--against names no backend; accepted: {', '.join(known)}")
    for name in names:
        try:
            missing = found.get("backend", name)().missing()
        except PluginError as error:
            raise UsageError(f"--against: {error}") from error
        if missing is not None:
            raise UsageError(f"--against {name}: {missing}")
    return names


def usable_device(text: str, dtype: torch.dtype) -> torch.device:
    """The device, after a test that it can hold a tensor."""
    try:
        device = torch.device(text)
        torch.zeros(1, device=device, dtype=dtype)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {text}: not usable on this machine: {reason}") from error
    return device
