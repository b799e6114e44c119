"""``regmax list``: the installed regularizers, penalties, solvers and backends."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..regularizers import printing
from ..regularizers.errors import PluginWarning, told
from ..regularizers.penalty import Penalized, Penalty
from ..regularizers.registry import KINDS, Offer, Registry, registry
from ..regularizers.regularizer import Regularizer
from .common import note, table, wrapped


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "list",
        help="list regularizers, penalties, solvers and validation backends, with their packages",
        description="Lists every registered regularizer with its mappings in regmax.functional, "
        "its hyperparameters and their defaults, whether it has a closed form and a convex "
        "program, and its distribution; then penalties, solvers, validation backends, and plugins "
        "that could not be loaded.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the listing, with plugins at fault and contested names."""
    found = quiet_registry()
    faults = [*found.faults, *contested(found)]
    header = ["name", "mapping", "hyperparameters", "closed form", "convex program", "from"]
    rows = listed(found, "regularizer", regularizer_row, faults)
    print("regularizers")
    print(table(header, rows) if rows else "  (none: install regmax itself, pip install -e .)")
    header = ["name", "what it is", "hyperparameters", "convex program", "from"]
    rows = listed(found, "penalty", penalty_row, faults)
    print("\npenalties")
    print(table(header, rows) if rows else "  (none)")
    for kind in ("solver", "backend"):
        rows = listed(found, kind, lambda o: [o.name, summary(o.cls), o.distribution], faults)
        print(f"\n{kind}s")
        print(table(["name", "what it is", "from"], rows) if rows else "  (none)")
    if faults:
        print("\nat fault")
        print(wrapped("\n".join(f"  {fault}" for fault in faults)))
    return 0


def listed(
    found: Registry, kind: str, row: Callable[[Offer], list[str]], faults: list[str]
) -> list[list[str]]:
    """The rows of a kind; what the code of a plugin raises is added to the ``faults``."""
    rows = []
    usable = found.names(kind)  # others are contested
    for offer in (offer for offer in found.offers(kind) if offer.name in usable):
        try:
            rows.append(row(offer))
        except Exception as error:
            faults.append(
                f"{offer.name!r} of plugin {offer.plugin!r} ({offer.distribution}) "
                f"cannot be listed: {told(error)}"
            )
    return rows


def quiet_registry() -> Registry:
    """The registry, without warnings: the command prints its ``faults`` itself."""
    with warnings.catch_warnings(action="ignore", category=PluginWarning):
        return registry()


def warned_registry() -> Registry:
    """The registry, after a note for each plugin at fault and each contested name."""
    found = quiet_registry()
    for fault in [*found.faults, *contested(found)]:
        note(f"warning: {fault}")
    return found


def contested(found: Registry) -> list[str]:
    """One line for each name that several plugins offer."""
    offers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind in KINDS:
        for offer in found.offers(kind):
            offers[kind, offer.name].append(str(offer))
    return [
        f"the {kind} name {name!r} is claimed by {' and '.join(who)}; uninstall one of them"
        for (kind, name), who in offers.items()
        if len(who) > 1
    ]


def regularizer_row(offer: Offer) -> list[str]:
    """name, mappings, hyperparameters, closed form, convex program, distribution."""
    cls = offer.cls
    return [
        offer.name,
        ", ".join(offer.mappings) or "-",
        hyperparameters(cls),
        closed_form(cls),
        "yes" if issubclass(cls, Penalized) or declares(cls, "as_cvxpy") else "no",
        offer.distribution,
    ]


def penalty_row(offer: Offer) -> list[str]:
    """name, what it is, hyperparameters, convex program, distribution."""
    described = offer.cls.as_cvxpy is not Penalty.as_cvxpy
    return [
        offer.name,
        summary(offer.cls),
        hyperparameters(offer.cls),
        "yes" if described else "no",
        offer.distribution,
    ]


def hyperparameters(cls: type[Any]) -> str:
    """``lam=0.1, exact=True``; a name without a value has no default."""
    with printing.short():
        parts = [
            key if p.default is p.empty else f"{key}={printing.show(p.default)}"
            for key, p in inspect.signature(cls).parameters.items()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    return ", ".join(parts) or "-"


def closed_form(cls: type[Any]) -> str:
    """``yes``, ``no``, or ``prox``: a penalty's prox followed by the base's closed form."""
    if issubclass(cls, Penalized):
        return "prox"
    return "yes" if declares(cls, "closed_form") or declares(cls, "inverse") else "no"


def declares(cls: type[Any], method: str) -> bool:
    """Whether the class defines the method itself."""
    own = getattr(cls, method, None)
    return own not in (None, getattr(Regularizer, method), getattr(Penalized, method))


def summary(cls: type[Any]) -> str:
    """The first paragraph of the docstring, shortened to one line."""
    text = (inspect.getdoc(cls) or "-").split("\n\n")[0]
    plain = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text).replace("`", "")
    return textwrap.shorten(plain, 72, placeholder=" …").rstrip(".")
