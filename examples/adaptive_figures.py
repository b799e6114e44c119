"""The table and the figures of :mod:`examples.adaptive_transformer`, from its runs' results."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .common.runs import results
from .common.tables import markdown, mean_sd
from .common.transformer import BLOCKS

Runs = dict[str, list[dict[str, Any]]]
"""The runs of each kind of attention."""


def report(out: Path) -> None:
    """Write ``results.md`` and the figures of the finished runs in ``out``; print the table."""
    runs: Runs = {}
    for run in results(out):
        runs.setdefault(run["name"], []).append(run)
    if runs:
        text = table(runs, _timing(out))
        (out / "results.md").write_text(text)
        print(text)


def table(runs: Runs, timing: dict[str, Any]) -> str:
    """Markdown: a row for each kind of attention, means with standard deviations over seeds."""
    head = ["attention", "seeds", "BLEU", "accuracy", "seconds an epoch", "step over the first's"]
    head += [f"density, {block}" for block in BLOCKS]
    head += [f"α, {block}: min / median / max" for block in BLOCKS]
    return markdown(head, [_row(name, some, timing) for name, some in runs.items()])


def _row(name: str, runs: list[dict[str, Any]], timing: dict[str, Any]) -> list[str]:
    found = [run["result"] for run in runs]
    best = [run["history"][run["best"]]["score"] for run in runs]
    seconds = [statistics.median(e["seconds"] for e in run["history"]) for run in runs]
    row = [name, str(len(runs)), mean_sd([r["bleu"] for r in found])]
    row += [mean_sd(best, 3), mean_sd(seconds, 1)]
    row += [f"{timing[name]['ratio']:.2f}" if name in timing else "–"]
    row += [mean_sd([statistics.fmean(_flat(r["density"][b])) for r in found]) for b in BLOCKS]
    return row + [_spread([a for r in found for a in _flat(r["alpha"].get(b, []))]) for b in BLOCKS]


def _spread(alpha: list[float]) -> str:
    if not alpha:
        return "–"
    return f"{min(alpha):.2f} / {statistics.median(alpha):.2f} / {max(alpha):.2f}"


def _flat(layers: Iterable[Iterable[float]]) -> list[float]:
    return list(itertools.chain.from_iterable(layers))


def _timing(out: Path) -> dict[str, Any]:
    path = out / "timing.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}
