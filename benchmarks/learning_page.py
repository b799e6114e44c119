"""The parts of the page about losses and about attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import summary
from .attention_steps import MATH
from .loss_steps import CROSS_ENTROPY
from .summary import Key, Row
from .words import number, quartiles, table

TIMES = ("forward", "backward", "both", "runs")


def _losses(rows: list[Row], result: dict[str, Any]) -> str:
    keys = _keys(rows)
    peaks = {row["name"]: row["memory"] for row in rows if "memory" in row}
    lines = []
    for name in _names(rows):
        used = peaks.get(name)
        memory = f"{used['forward']:.2f}, {used['both']:.2f}" if used else "–"
        lines.append([name, *_ratios(rows, name, CROSS_ENTROPY, keys), memory])
    head = ["", *(f"{k[0]} × {k[1]}, {k[3]}" for k in keys), "peak memory"]
    n, d = keys[-1][:2]
    note = (
        "The mean over rows of logits, targets drawn uniformly, and its gradient: both passes, in "
        "units of `torch.nn.CrossEntropyLoss` on the same. A case: rows × classes, and the logits, "
        f"{keys[0][2]}. p = 1.5; the α that is learnt is 1.5, one for all rows. Peak memory beyond "
        f"the logits, {n} × {d} from N(0, 1), in units of their size: forward, both; the gradient "
        "counts, so that 1 is the least there can be. Zeros and errors are of the gradient of each "
        "row's loss. The entmax package as it comes: Entmax15Loss sorts the 100 largest first."
    )
    times = [
        [
            f"{row['rows']} × {row['d']}, {row['input']}",
            *_times(row),
            f"{row['zeros']:.1%}",
            f"{row['error']:.0e}",
        ]
        for row in rows
    ]
    figures = table(("case", "", *TIMES, "zeros", "error"), times)
    return _part("Losses, in units of CrossEntropyLoss", note, table(head, lines), figures)


def _attention(rows: list[Row], result: dict[str, Any]) -> str:
    keys = _keys(rows)
    lines = [[name, *_ratios(rows, name, MATH, keys)] for name in _names(rows)]
    head = ["", *(k[3] for k in keys)]
    note = (
        "`regmax.nn.attention`, both passes, in units of "
        "`torch.nn.functional.scaled_dot_product_attention` (SDPA) with its plain backend, which "
        "keeps the weights as regmax does; its default need not keep them. A case: sequences × "
        f"heads × length × width, {keys[0][2]}, all from N(0, 1). entmax learns one α per head. "
        "Errors are of the result."
    )
    times = [[row["input"], *_times(row), f"{row['error']:.0e}"] for row in rows]
    figures = table(("case", "", *TIMES, "error"), times)
    return _part("Attention, in units of PyTorch's", note, table(head, lines), figures)


def _part(title: str, note: str, ratios: str, times: str) -> str:
    """Ratios in sight, and times behind a click."""
    return "\n".join(
        [
            f"### {title}",
            "",
            note,
            "",
            ratios,
            "",
            "<details><summary>Times and errors of every case</summary>",
            "",
            times,
            "",
            "</details>",
        ]
    )


def _ratios(rows: list[Row], name: str, reference: str, keys: Sequence[Key]) -> list[str]:
    found = summary.ratios(rows, name, reference)
    return [number(found[k]) if k in found else "–" for k in keys]


def _times(row: Row) -> list[str]:
    phases = (quartiles(row[phase]) for phase in ("forward", "backward", "both"))
    return [row["name"], *phases, str(row["both"]["n"])]


def _keys(rows: list[Row]) -> list[Key]:
    return list(dict.fromkeys(summary.key(row) for row in rows))


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["name"] for row in rows))


WRITERS = {"losses": _losses, "attention": _attention}
