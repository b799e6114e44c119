"""The parts of the page about an Ω given by its value, and about compositions."""

from __future__ import annotations

from typing import Any

from . import summary
from .own import COMPOSED, DENSE, OWN
from .summary import Row
from .words import number, seconds, table

FOLDER = "benchmarks"


def _generic(rows: list[Row], result: dict[str, Any]) -> str:
    n, d = max(row["rows"] for row in rows), rows[0]["d"]
    few = min(row["rows"] for row in rows)
    found = summary.own(rows)
    lines = []
    for name, figures in found.items():
        both = figures.get("conic both")
        conic = (
            [seconds(both), number(figures["conic"]), f"{figures['conic error']:.0e}"]
            if both
            else ["–"] * 3
        )
        closed = number(figures["closed"]) if "closed" in figures else ""
        lines.append(
            [
                OWN[name].label,
                figures["path"].removeprefix("solver "),
                f"{figures['certified']:.0e}",
                f"{figures['iterations']:g}, {figures['most']:g}",
                seconds(figures["forward"]),
                seconds(figures["both"]),
                closed,
                *conic,
            ]
        )
    head = (
        "Ω(y)",
        "solver",
        "certified error",
        "iterations: median, most",
        "forward, per row",
        "both, per row",
        "over closed form",
        "cvxpylayers, both, per row",
        "times faster, per row",
        "its error",
    )
    note = (
        f"A class with `value` and nothing else; Q = AAᵀ/d + 0.1·I with A from N(0, 1). {n} × {d}, "
        "float64, N(0, 1). The certified error is a bound on ‖y − y*‖, the worst of all rows. "
        f"cvxpylayers as it comes (DIFFCP) on {few} rows, which it solves one after the other."
    )
    return "\n".join(["### An Ω by its value alone", "", note, "", table(head, lines)])


def _size(rows: list[Row], result: dict[str, Any]) -> str:
    sizes = sorted({row["d"] for row in rows})
    lines = []
    for name in dict.fromkeys(row["mapping"] for row in rows):
        by_d = {row["d"]: row for row in rows if row["mapping"] == name}
        cells = [
            f"{seconds(by_d[d]['both']['median'] / by_d[d]['rows'])} ({by_d[d]['iterations']:g})"
            if d in by_d
            else "–"
            for d in sizes
        ]
        lines.append([OWN[name].label, *cells])
    worst = max(row["certified"] for row in rows)
    title = "Cost of an Ω by its value against the length of a row"
    picture = f"![{title}]({FOLDER}/{result['device']}-generic-size.svg)"
    note = (
        "Time per row, both passes, float64, N(0, 1), the number of scores kept; the median of the "
        f"iterations in brackets. The worst certified error of all is {worst:.0e}. The Hessian of "
        f"an Ω that is not separable is found once up to d = {DENSE}, and beyond column by column "
        "on the support of each row; fewer rows are measured there."
    )
    head = ["d", *(f"{d:,}" for d in sizes)]
    return "\n".join([f"### {title}", "", note, "", picture, "", table(head, lines)])


def _composed(rows: list[Row], result: dict[str, Any]) -> str:
    lines = []
    for name, figures in summary.composed(rows).items():
        ours, hand = figures["ours"], figures["by hand"]
        lines.append(
            [
                f"{name}, λ = {COMPOSED[name].lam:g}",
                *(seconds(side[phase]) for side in (ours, hand) for phase in ("forward", "both")),
                *(number(ours[phase] / hand[phase]) for phase in ("forward", "both")),
            ]
        )
    head = ("", "forward", "both", "by hand, forward", "both", "ratio, forward", "both")
    n, d, dtype, _ = summary.key(rows[0])
    note = (
        f"base + λ·penalty, {n} × {d} {dtype}, N(0, 1), beside the penalty's prox and the base's "
        "mapping put together by hand (an autograd function whose backward averages over the "
        "groups). The grid is 8 high. α = 1.5, p = 1.5."
    )
    return "\n".join(["### Compositions", "", note, "", table(head, lines)])


WRITERS = {"generic": _generic, "generic-size": _size, "composed": _composed}
