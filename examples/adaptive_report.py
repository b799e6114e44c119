"""The tables and figures of :mod:`examples.adaptive_transformer`, from its results.

The figures are Figures 2 to 6 of Correia et al. (2019), and heat maps of some heads.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regmax import plots

from .common import tables
from .common.programs import publish
from .common.runs import results
from .common.transformer import BLOCKS

NAMES = {
    "encoder": "encoder self-attention",
    "context": "context attention",
    "decoder": "decoder self-attention",
}
Runs = dict[str, list[tables.Run]]
"""The seeds of each mapping."""


def report(out: Path) -> None:
    """Write and print ``adaptive_transformer.md``, and draw the figures of the runs in ``out``."""
    runs = _ordered(tables.by_name(results(out)))
    parts = [_table(runs), _learned(runs)] if runs else []
    publish(out, "adaptive_transformer", list(filter(None, parts)))
    for name, figure in figures(runs):
        for kind in ("svg", "png"):
            figure.savefig(out / f"{name}.{kind}")


def _ordered(runs: Runs) -> Runs:
    """Softmax first, mappings with a learned α last."""
    return dict(sorted(runs.items(), key=lambda item: (item[0] != "softmax", _learns(item[1]))))


def _learns(seeds: list[tables.Run]) -> bool:
    return bool(seeds[0]["result"]["alpha"])


# -- tables --------------------------------------------------------------------------------------


def _table(runs: Runs) -> str:
    def row(name: str, seeds: list[tables.Run]) -> list[str]:
        found = [run["result"] for run in seeds]
        return [
            name,
            tables.mean_sd([result["bleu"] for result in found]),
            tables.mean_sd([run["history"][run["best"]]["score"] for run in seeds]),
            *(tables.mean_sd([_mean(r["density"][block]) for r in found]) for block in BLOCKS),
            *(tables.mean_sd([_mean([r["diversity"][b]]) for r in found]) for b in BLOCKS),
            tables.mean_sd([tables.seconds(run) for run in seeds], 1),
            str(len(seeds)),
        ]

    head = ["attention", "BLEU", "words right, %"]
    head += [f"{what}, {block}" for what in ("density", "diversity") for block in BLOCKS]
    return tables.markdown([*head, "s per epoch", "seeds"], itertools.starmap(row, runs.items()))


def _learned(runs: Runs) -> str:
    """The spread of the heads' α over all seeds, and their distance from the start."""
    rows = [
        [f"{name}, {NAMES[block]}", *_spread(_alpha(seeds, block)), _moved(seeds, block)]
        for name, seeds in runs.items()
        if _learns(seeds)
        for block in BLOCKS
    ]
    head = [
        "α of the heads",
        "smallest",
        "first quartile",
        "median",
        "third quartile",
        "largest",
    ]
    head.append("mean distance from the start")
    return tables.markdown(head, rows) if rows else ""


def _spread(alpha: Tensor) -> list[str]:
    quantiles = torch.quantile(alpha, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    return [f"{alpha:.2f}" for alpha in quantiles.tolist()]


def _moved(seeds: list[tables.Run], block: str) -> str:
    first = torch.tensor([run["result"]["trajectories"][block][0] for run in seeds]).flatten()
    return f"{float((_alpha(seeds, block) - first).abs().mean()):.2f}"


def _alpha(seeds: list[tables.Run], block: str) -> Tensor:
    return torch.tensor([run["result"]["alpha"][block] for run in seeds]).flatten()


def _mean(layers: list[list[float]]) -> float:
    return statistics.fmean(itertools.chain.from_iterable(layers))


# -- figures -------------------------------------------------------------------------------------


def figures(runs: Runs) -> Iterator[tuple[str, Any]]:
    """Name and figure, for each figure that has runs."""
    if not runs:
        return
    learned = next((seeds for seeds in runs.values() if _learns(seeds)), None)
    if learned is not None:
        first = learned[0]["result"]
        yield "trajectories", plots.trajectories(first["steps"], _trajectories(first))
        yield "alphas", plots.histograms({NAMES[b]: _alpha(learned, b) for b in BLOCKS})
    dense = {name: seeds for name, seeds in runs.items() if name != "softmax"}
    if dense:
        yield "densities", _densities(dense)
        yield "head-densities", plots.head_densities(_by_block(dense, "density"))
    yield "diversity", plots.diversity_by_layer(_by_block(runs, "diversity"))
    for block in BLOCKS:
        yield f"heads-{block}", _heads(runs, block)


def _trajectories(result: dict[str, Any]) -> dict[str, Tensor]:
    """For each block, the heads with the largest and the smallest final α."""
    lines = {}
    for block in BLOCKS:
        alpha = torch.tensor(result["trajectories"][block])  # (steps, layers, heads)
        for k in (int(alpha[-1].argmax()), int(alpha[-1].argmin())):
            layer, head = divmod(k, alpha.shape[-1])
            lines[f"{block}, layer {layer + 1}, head {head + 1}"] = alpha[:, layer, head]
    return lines


def _densities(runs: Runs) -> Any:
    """Histograms of density over heads, sentences and seeds."""
    values: dict[str, dict[str, Tensor]] = {NAMES[block]: {} for block in BLOCKS}
    for name, seeds in runs.items():
        for block in BLOCKS:
            counts = torch.tensor([run["result"]["histogram"][block] for run in seeds]).sum(0)
            middles = (torch.arange(len(counts)) + 0.5) / len(counts)
            values[NAMES[block]][name] = middles.repeat_interleave(counts)
            bins = len(counts)
    labels = {"xlabel": "density", "ylabel": "heads × sentences"}
    return plots.histograms(values, **labels, span=(0.0, 1.0), bins=bins)


def _by_block(runs: Runs, key: str) -> dict[str, dict[str, Any]]:
    """The first seed of each mapping, by block: heads of different seeds do not correspond."""
    return {NAMES[b]: {n: seeds[0]["result"][key][b] for n, seeds in runs.items()} for b in BLOCKS}


def _heads(runs: Runs, block: str) -> Any:
    """For each mapping, the heads with the most and the least concentrated weights."""
    results = {name: seeds[0]["result"] for name, seeds in runs.items()}
    words = next(iter(results.values()))
    panels = {}
    for k, (name, result) in itertools.product(range(2), results.items()):
        head = result["heads"][block][k]
        panels[_title(name, result, block, head)] = torch.tensor(head["weights"])
    source = words["target" if block == "decoder" else "source"]
    return plots.attentions(panels, source, words["source" if block == "encoder" else "target"])


def _title(name: str, result: dict[str, Any], block: str, head: dict[str, Any]) -> str:
    layer, k = head["layer"], head["head"]
    alpha = f", α = {result['alpha'][block][layer][k]:.2f}" if result["alpha"] else ""
    return f"{name}: layer {layer + 1}, head {k + 1}{alpha}"
