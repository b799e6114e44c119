"""The page: Markdown from the JSON of the runs, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from . import learning_page, own_page, plan, summary
from .inputs import KINDS, describe
from .peers import REFERENCE
from .summary import Key, Row
from .words import number, quartiles, seconds, table

Results = dict[str, Any]
FOLDER = "benchmarks"
"""Where the JSON files and the plots lie, beside the page."""

INTRO = """# Benchmarks

Written by `python -m benchmarks`; do not edit. A ratio is time over the time of `torch.softmax` in
the same rounds: 1 is as fast as softmax, 2 takes twice as long. Candidates of a case run by turns
in one process; figures are medians, with quartiles in brackets where there is room. "Both" is a
forward pass that builds the graph and the backward pass after it. Zeros are the share of the output
that is exactly 0. Errors are the largest distance to the same mapping of regmax in float64, over
the first 64 rows. entmax learns one α per row, between 1.25 and 1.75; the others have their
hyperparameters fixed: p = 1.5 (pnormmax), λ = 0.1 (fusedmax), λ = 0.01 (oscarmax).
"""


def dumps(result: Results) -> str:
    """JSON with four digits of each figure, and one line for each row of figures."""

    def line(item: Any) -> str:
        return json.dumps(_rounded(item), ensure_ascii=False, allow_nan=False)

    def block(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, dict) and indent in ("", " "):
            body = [f"{inner}{line(k)}: {block(v, inner)}" for k, v in value.items()]
            return "{\n" + ",\n".join(body) + "\n" + indent + "}" if body else "{}"
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(inner + line(v) for v in value) + "\n" + indent + "]"
        return line(value)

    return block(result, "") + "\n"


def _rounded(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _rounded(value) for key, value in item.items()}
    if isinstance(item, list):
        return [_rounded(value) for value in item]
    return float(f"{item:.4g}") if isinstance(item, float) else item


def render(results: Sequence[Results]) -> str:
    """The page of one or more runs."""
    return "\n".join([INTRO, *(_part(result) for result in results)]).rstrip() + "\n"


def _part(result: Results) -> str:
    sections, device = result["sections"], result["device"]
    hardware = result["hardware"]
    machine = hardware.get("gpu") or hardware["cpu"]
    lines = [f"## {'CUDA' if device == 'cuda' else 'CPU'}: {machine}", ""]
    if result["quick"]:
        lines += ["**A quick run on sizes that mean nothing.**", ""]
    lines += [_provenance(result), ""]
    if result["verdicts"]:
        lines += ["### Bars", "", _verdicts(result["verdicts"]), ""]
    for name, write in WRITERS.items():
        if sections.get(name):
            lines += [write(sections[name], result), ""]
    if result["roads"]:
        paths = table(("mapping", "path"), result["roads"].items(), align="---")
        lines += ["### Which path ran", "", paths, ""]
    if result["left_out"]:
        out = ((o["what"], o["reason"]) for o in result["left_out"])
        left = table(("what", "reason"), out, align="---")
        lines += ["### What was left out", "", left, ""]
    return "\n".join(lines)


def _provenance(result: Results) -> str:
    hardware, versions = result["hardware"], result["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    threads = result["threads"]
    return (
        f"`{result['command']}` on {result['date']}, commit {result['commit']}, "
        f"{result['seconds']:.0f} seconds. {hardware['cpu']}, {hardware['cores']} cores, "
        f"{threads} thread{'s' if threads > 1 else ''}, {hardware['system']}. {packages}."
    )


def _verdicts(verdicts: Sequence[dict[str, Any]]) -> str:
    rows = []
    for v in verdicts:
        figure = "–" if v["figure"] is None else number(v["figure"])
        if v["worst"]:
            figure += f" ({v['worst']})"
        bar = f"{'≤' if v['at_most'] else '≥'} {v['bar']:g}"
        rows.append([v["what"], figure, bar, "yes" if v["ok"] else "**no**"])
    return table(("what", "figure", "bar", "met"), rows)


def _main(rows: list[Row], result: Results) -> str:
    keys = _keys(rows)
    names = _names(rows)
    bars = plan.SOFTMAX_BARS[result["device"]]
    head = ["", *(summary.label(k) for k in keys), "mean", "worst", "bars"]
    lines = []
    for name in names:
        found = summary.ratios(rows, name, REFERENCE)
        if not found or name.endswith(" copy"):
            continue
        cells = [number(found[k]) if k in found else "–" for k in keys]
        mean = number(summary.geomean(found.values()))
        own = bars.get(name.removeprefix("regmax "))
        bar = f"{own[0]:g}, {own[1]:g}" if own and name.startswith("regmax ") else ""
        lines.append([name, *cells, mean, number(summary.worst(found)[1]), bar])
    text = [
        "### Forward and backward, in units of torch.softmax",
        "",
        "A case: rows × scores in a row, and the input. Bars: for the geometric mean, the worst.",
        "",
        table(head, lines),
        "",
        *_faster(rows, keys),
        *(_bandwidth(rows, keys) if result["device"] == "cuda" else []),
        "<details><summary>Times, zeros and errors of every case</summary>",
        "",
        _times(rows),
        "",
        "</details>",
    ]
    return "\n".join(text)


def _faster(rows: list[Row], keys: Sequence[Key]) -> list[str]:
    lines = []
    for name in _names(rows):
        family, mapping = name.split(" ")[:2]
        if family in ("torch", "regmax"):
            continue
        found = summary.ratios(rows, name, f"regmax {mapping}")
        if found:
            cells = [number(found[k]) if k in found else "–" for k in keys]
            lines.append([name, *cells, number(summary.geomean(found.values()))])
    if not lines:
        return []
    head = ["slower than regmax by", *(summary.label(k) for k in keys), "mean"]
    return ["### Against other packages, forward and backward", "", table(head, lines), ""]


def _bandwidth(rows: list[Row], keys: Sequence[Key]) -> list[str]:
    lines = []
    for name in _names(rows):
        found = summary.shares(rows, name)
        if name.startswith(("regmax ", "torch softmax")) and found:
            cells = [
                f"{found[k]['forward']:.0%}, {found[k]['both']:.0%}" if k in found else "–"
                for k in keys
            ]
            lines.append([name, *cells])
    head = ["", *(summary.label(k) for k in keys)]
    return [
        "### Share of the copy bandwidth: forward, both",
        "",
        "With the least traffic there can be: two tensors of x's size forward, three backward.",
        "",
        table(head, lines),
        "",
    ]


def _times(rows: list[Row]) -> str:
    lines = [
        [
            summary.label(summary.key(row)),
            row["name"],
            quartiles(row["forward"]),
            quartiles(row["backward"]),
            quartiles(row["both"]),
            str(row["both"]["n"]),
            f"{row['zeros']:.1%}",
            f"{row['error']:.0e}",
        ]
        for row in rows
    ]
    head = ("case", "", "forward", "backward", "both", "runs", "zeros", "error")
    return table(head, lines)


def _sweep(title: str, note: str, axis: str, plot: str) -> Any:
    def write(rows: list[Row], result: Results) -> str:
        keys = _keys(rows)
        index = {"d": 1, "rows": 0}[axis]
        lines = []
        for name in _names(rows):
            found = summary.medians(rows, name)
            lines.append([name, *(seconds(found[k]) if k in found else "–" for k in keys)])
        head = [axis, *(f"{k[index]:,}" for k in keys)]
        picture = f"![{title}]({FOLDER}/{result['device']}-{plot}.svg)"
        return "\n".join([f"### {title}", "", note, "", picture, "", table(head, lines)])

    return write


def _inputs(rows: list[Row], result: Results) -> str:
    keys = _keys(rows)
    lines = []
    for kind in KINDS:
        where = next((k for k in keys if k[3] == kind), None)
        if where is None:
            continue
        cells = [describe(kind)]
        for name in _names(rows):
            if name == REFERENCE:
                continue
            found = summary.ratios(rows, name, REFERENCE)
            zeros = {summary.key(r): r["zeros"] for r in rows if r["name"] == name}
            cells.append(f"{number(found[where])} ({zeros[where]:.0%})" if where in found else "–")
        lines.append(cells)
    head = ["input", *(n.removeprefix("regmax ") for n in _names(rows) if n != REFERENCE)]
    shape = f"{keys[0][0]} × {keys[0][1]}"
    picture = f"![ratios by input]({FOLDER}/{result['device']}-inputs.svg)"
    note = f"{shape}, both, in units of torch.softmax on the same input; zeros in brackets."
    return "\n".join(
        ["### Random and adversarial inputs", "", note, "", picture, "", table(head, lines)]
    )


def _linear(rows: list[Row], result: Results) -> str:
    short, long = min(r["d"] for r in rows), max(r["d"] for r in rows)
    growth = summary.growth(rows)
    lines = []
    for kind, factor in growth.items():
        per = {
            r["d"]: r["both"]["median"] / (r["rows"] * r["d"]) for r in rows if r["input"] == kind
        }
        lines.append([describe(kind), seconds(per[short]), seconds(per[long]), number(factor)])
    head = ("input", f"d = {short:,}", f"d = {long:,}", "factor")
    note = "Time per score, both passes, with the same number of scores in all."
    return "\n".join(["### fusedmax on long rows", "", note, "", table(head, lines)])


def _memory(rows: list[Row], result: Results) -> str:
    kinds = list(dict.fromkeys(r["input"] for r in rows))
    lines = []
    for name in _names(rows):
        by_kind = {r["input"]: r for r in rows if r["name"] == name}
        cells = [
            f"{by_kind[k]['forward']:.2f}, {by_kind[k]['both']:.2f}" if k in by_kind else "–"
            for k in kinds
        ]
        lines.append([name, *cells])
    note = (
        f"{rows[0]['rows']} × {rows[0]['d']} float32, in units of the scores' own size: forward, "
        "both. The output and the gradient count, so that 1 and 2 are the least there can be."
    )
    head = ["", *(describe(k) for k in kinds)]
    return "\n".join(["### Peak memory beyond the scores", "", note, "", table(head, lines)])


def _conic(rows: list[Row], result: Results) -> str:
    found = summary.conic_speedups(rows)
    theirs = {r["mapping"]: r for r in rows if r["family"] == "cvxpylayers"}
    if not theirs:
        return ""
    few = next(iter(theirs.values()))["rows"]
    many = max(r["rows"] for r in rows)
    lines = [
        [
            mapping,
            seconds(theirs[mapping]["both"]["median"] / few),
            number(s["same"]),
            number(s["per row"]),
            f"{s['error']:.0e}",
        ]
        for mapping, s in found.items()
    ]
    head = ("", "its time per row", "same rows", "per row", "its error")
    note = (
        f"d = {rows[0]['d']}, float64, both passes, {few} rows; it solves one row after the other. "
        f'Times faster on the same {few} rows, and "per row" with {many} rows for regmax.'
    )
    return "\n".join(["### Against cvxpylayers", "", note, "", table(head, lines)])


def _first(rows: list[Row], result: Results) -> str:
    lines = [
        [r["mapping"], *(seconds(r[k]) for k in ("import", "cold", "warm", "later"))] for r in rows
    ]
    head = ("", "import regmax", "first, empty cache", "first, full cache", "later")
    note = (
        f"{rows[0]['rows']} × {rows[0]['d']}, both passes, each in a fresh process after "
        "`import torch`; the cache holds compiled kernels."
    )
    return "\n".join(["### First calls", "", note, "", table(head, lines)])


WRITERS = {
    "main": _main,
    "size": _sweep(
        "Cost against the length of a row",
        "Both passes, N(0, 1), the number of scores kept.",
        "d",
        "size",
    ),
    "rows": _sweep("Cost against the number of rows", "Both passes, N(0, 1).", "rows", "rows"),
    "inputs": _inputs,
    "linear": _linear,
    "memory": _memory,
    "conic": _conic,
    **own_page.WRITERS,
    **learning_page.WRITERS,
    "first": _first,
}


def _keys(rows: Sequence[Row]) -> list[Key]:
    return list(dict.fromkeys(summary.key(row) for row in rows))


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["name"] for row in rows))
