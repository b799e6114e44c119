"""Tables of results in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns after the first are set to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows)) + "\n"


def mean_sd(values: Sequence[float], digits: int = 2) -> str:
    """ "mean ± standard deviation" over seeds; the mean alone for one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
