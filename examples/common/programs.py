"""The steps of every experiment: time or train its configurations, and report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from . import tables
from .processes import Process, process
from .runs import Trainee, settings, train, write_json
from .timing import interleaved


def carry_out(
    args: argparse.Namespace,
    makes: Mapping[str, Callable[[int], Trainee]],
    in_name: Sequence[str],
    process: Process,
) -> None:
    """Train ``makes[name](seed)`` for every seed and name. With ``--timing``, only write
    ``timing.json``. ``in_name``: the options that a configuration's name contains."""
    if args.timing:
        timed = interleaved(
            {name: partial(make, 0) for name, make in makes.items()}, args.timing, process
        )
        if process.main:
            args.out.mkdir(parents=True, exist_ok=True)
            write_json(args.out / "timing.json", timed)
        return
    described = settings(args, without=in_name)
    for seed in args.seeds:
        for name, make in makes.items():
            train(partial(make, seed), name, seed, args.epochs, args.out, process, described)


def conduct(
    args: argparse.Namespace,
    training: Callable[[argparse.Namespace, Process], None],
    report: Callable[[Path], None],
) -> None:
    """Train, except with ``--report-only``; then one process reports on ``args.out``."""
    if not args.report_only:
        with process(args.device) as here:
            training(args, here)
            if not here.main:
                return
    report(args.out)


def publish(out: Path, name: str, parts: Sequence[str]) -> None:
    """Write the tables ``parts``, and that of ``timing.json`` if it exists, to ``NAME.md``, and
    print them."""
    timed = out / "timing.json"
    if timed.exists():
        parts = [*parts, tables.timing(json.loads(timed.read_text()))]
    (out / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")
    print("\n".join(parts))
