"""Tables of results in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]
"""The content of a finished run's ``result.json``."""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns after the first are right-aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def by_name(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The seeds of each configuration."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run["name"], []).append(run)
    return grouped


def mean_sd(values: Sequence[float], digits: int = 2) -> str:
    """ "mean ± standard deviation" over seeds; the mean alone for one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def seconds(run: Run) -> float:
    """Seconds of training in the median epoch."""
    return float(statistics.median(epoch["seconds"] for epoch in run["history"]))


def timing(timed: Mapping[str, Mapping[str, float]]) -> str:
    """The table of :func:`examples.common.timing.interleaved`."""
    base = next(iter(timed))
    head = (
        "configuration",
        "ms per step",
        f"of {base}, median step",
        f"of {base}, all steps",
    )
    rows = (
        (name, f"{1000 * t['seconds']:.1f}", f"{t['ratio']:.3f}", f"{t['total']:.3f}")
        for name, t in timed.items()
    )
    return markdown(head, rows)
