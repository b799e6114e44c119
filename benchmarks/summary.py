"""Ratios, means and verdicts, from the rows of figures alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import loss_steps, plan
from .inputs import describe
from .own import COMPOSED, OWN
from .peers import COPY, REFERENCE

Row = dict[str, Any]
Key = tuple[int, int, str, str]


@dataclass(frozen=True)
class Verdict:
    """A figure beside its bar; the figure is None where it could not be measured."""

    what: str
    figure: float | None
    bar: float
    at_most: bool
    worst: str = ""
    """The case that the figure is from, if it is from one."""

    @property
    def ok(self) -> bool:
        if self.figure is None:
            return False
        return self.figure <= self.bar if self.at_most else self.figure >= self.bar

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def geomean(values: Iterable[float]) -> float:
    """The mean for ratios: swapping both sides inverts it."""
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("no values")
    return math.exp(math.fsum(logs) / len(logs))


def key(row: Row) -> Key:
    """The case of a row."""
    return row["rows"], row["d"], row["dtype"], row["input"]


def label(where: Key) -> str:
    """A case in words."""
    rows, d, dtype, kind = where
    return f"{rows} × {d}, {describe(kind)}" + ("" if dtype == "float32" else f", {dtype}")


def medians(rows: Sequence[Row], name: str, phase: str = "both") -> dict[Key, float]:
    """Median seconds of one candidate, by case."""
    return {key(row): row[phase]["median"] for row in rows if row["name"] == name}


def ratios(rows: Sequence[Row], name: str, reference: str, phase: str = "both") -> dict[Key, float]:
    """Median of ``name`` over that of ``reference``, in every case that has both."""
    over, under = medians(rows, name, phase), medians(rows, reference, phase)
    return {where: over[where] / under[where] for where in over if where in under}


def worst(found: dict[Key, float]) -> tuple[Key, float]:
    """The case with the largest ratio."""
    return max(found.items(), key=lambda item: item[1])


def verdicts(device: str, sections: dict[str, list[Row]], mappings: Sequence[str]) -> list[Verdict]:
    """Every bar of the device that the sections allow to be judged."""
    found: list[Verdict] = []
    if "main" in sections:
        found += _softmax(device, sections["main"], mappings)
        if device == "cuda":
            found += _adasplash(sections["main"])
            found += _copy(sections["main"], mappings)
        else:
            found += _entmax(sections["main"], mappings)
    if "conic" in sections:
        found += _conic(sections["conic"])
    if "linear" in sections:
        found += _linear(sections["linear"])
    if "generic" in sections:
        found += _own(sections["generic"])
    if "composed" in sections:
        found += _composed(sections["composed"])
    if "losses" in sections:
        found += _losses(sections["losses"])
    return found


def _softmax(device: str, rows: list[Row], mappings: Sequence[str]) -> list[Verdict]:
    cases = {key(row) for row in rows}
    found = []
    for mapping, (mean_bar, case_bar) in plan.SOFTMAX_BARS[device].items():
        if mapping not in mappings:
            continue
        by_case = ratios(rows, f"regmax {mapping}", REFERENCE)
        what = f"{mapping} / torch.softmax"
        if set(by_case) != cases:  # a case that failed is no case that passed
            found.append(Verdict(what, None, mean_bar, at_most=True))
            continue
        where, most = worst(by_case)
        mean = geomean(by_case.values())
        found.append(Verdict(f"{what}, geometric mean", mean, mean_bar, at_most=True))
        found.append(Verdict(f"{what}, worst case", most, case_bar, True, label(where)))
    return found


def _entmax(rows: list[Row], mappings: Sequence[str]) -> list[Verdict]:
    found = []
    for mapping, bar in plan.ENTMAX_BARS.items():
        faster = ratios(rows, f"entmax {mapping}", f"regmax {mapping}")
        if mapping in mappings and faster:
            what = f"{mapping}: times faster than the entmax package"
            found.append(Verdict(what, geomean(faster.values()), bar, at_most=False))
    return found


def _adasplash(rows: list[Row]) -> list[Verdict]:
    """Against the fastest of its variants that is about as accurate."""
    found = []
    for mapping in ("sparsemax", "entmax15"):
        by_case: dict[Key, float] = {}
        for ours in (row for row in rows if row["name"] == f"regmax {mapping}"):
            rivals = [
                row["both"]["median"]
                for row in rows
                if row["family"] == "adasplash"
                and row["mapping"] == mapping
                and key(row) == key(ours)
                and row["error"] <= 2 * ours["error"]
            ]
            if rivals:
                by_case[key(ours)] = ours["both"]["median"] / min(rivals)
        if by_case:
            where, most = worst(by_case)
            what = f"{mapping} / adasplash at equal error, worst case"
            found.append(Verdict(what, most, 1.0, True, label(where)))
    return found


def shares(rows: Sequence[Row], name: str) -> dict[Key, dict[str, float]]:
    """The share of the copy bandwidth, if forward moves 2 and backward 3 tensors of x's size."""
    found: dict[Key, dict[str, float]] = {}
    for phase, tensors in (("forward", 2), ("backward", 3), ("both", 5)):
        copies = medians(rows, COPY, "forward")
        for where, seconds in medians(rows, name, phase).items():
            if where in copies and seconds > 0:
                share = tensors / 2 * copies[where] / seconds
                found.setdefault(where, {})[phase] = share
    return found


def _copy(rows: list[Row], mappings: Sequence[str]) -> list[Verdict]:
    found = []
    for mapping in plan.COPY_MAPPINGS:
        share = {where: s["both"] for where, s in shares(rows, f"regmax {mapping}").items()}
        if mapping in mappings and share:
            where, least = min(share.items(), key=lambda item: item[1])
            what = f"{mapping}: share of the copy bandwidth, worst case"
            found.append(Verdict(what, least, plan.COPY_BAR, False, label(where)))
    return found


def conic_speedups(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By mapping: times faster on the same rows, and per row at each one's better batch."""
    found = {}
    for theirs in (row for row in rows if row["family"] == "cvxpylayers"):
        mapping = theirs["mapping"]
        own = {r["rows"]: r["both"]["median"] for r in rows if r["name"] == f"regmax {mapping}"}
        if theirs["rows"] in own and len(own) == 2:
            few, many = theirs["rows"], max(own)
            seconds = theirs["both"]["median"]
            found[mapping] = {
                "same": seconds / own[few],
                "per row": (seconds / few) / (own[many] / many),
                "error": theirs["error"],
            }
    return found


def _conic(rows: list[Row]) -> list[Verdict]:
    return [
        Verdict(
            f"{mapping}: times faster than cvxpylayers, per row",
            s["per row"],
            plan.CONIC_BAR,
            False,
        )
        for mapping, s in conic_speedups(rows).items()
    ]


def growth(rows: Sequence[Row]) -> dict[str, float]:
    """By input: time per score of the long row over that of the short row."""
    by_input: dict[str, dict[int, float]] = {}
    for row in rows:
        per_score = row["both"]["median"] / (row["rows"] * row["d"])
        by_input.setdefault(row["input"], {})[row["d"]] = per_score
    return {
        kind: by_d[max(by_d)] / by_d[min(by_d)] for kind, by_d in by_input.items() if len(by_d) > 1
    }


def _linear(rows: list[Row]) -> list[Verdict]:
    return [
        Verdict(
            f"fusedmax, time per score of long rows over short, {kind}", g, plan.LINEAR_BAR, True
        )
        for kind, g in growth(rows).items()
    ]


def own(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By Ω: the certificate, seconds per row, and ratios to the closed form and cvxpylayers."""
    found: dict[str, dict[str, Any]] = {}
    for row in (row for row in rows if "certified" in row):
        name, n = row["mapping"], row["rows"]
        figures = {key: row[key] for key in ("certified", "iterations", "most", "path")}
        figures |= {phase: row[phase]["median"] / n for phase in ("forward", "both")}
        for other in rows:
            both = other["both"]["median"] / other["rows"]
            if other["mapping"] == name and other["family"] == "cvxpylayers":
                figures["conic both"], figures["conic error"] = both, other["error"]
                figures["conic"] = both / figures["both"]
            if other["mapping"] == OWN[name].closed:
                figures["closed"] = figures["both"] / both
        found[name] = figures
    return found


def _own(rows: list[Row]) -> list[Verdict]:
    found = []
    figures = own(rows)
    for name, omega in OWN.items():
        what, got = f"{omega.label}, by its value", figures.get(name, {})
        bars = [
            ("certified error, worst row", "certified", plan.OWN_ERROR_BAR, True),
            ("iterations, median", "iterations", plan.OWN_ITERATIONS_BAR, True),
            ("times faster than cvxpylayers, per row", "conic", omega.faster, False),
        ]
        if omega.closed:
            bars.append(("time over its closed form", "closed", plan.OWN_CLOSED_BAR, True))
        found += [Verdict(f"{what}: {text}", got.get(key), bar, at) for text, key, bar, at in bars]
    return found


def composed(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By composition: seconds of regmax ("ours") and "by hand", by phase."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        side = "ours" if row["family"] == "regmax" else "by hand"
        times = {phase: row[phase]["median"] for phase in ("forward", "both")}
        found.setdefault(row["mapping"], {})[side] = times
    return {name: sides for name, sides in found.items() if len(sides) == 2}


def _composed(rows: list[Row]) -> list[Verdict]:
    figures = composed(rows)
    found = []
    for name in COMPOSED:
        for phase in ("forward", "both"):
            sides = figures.get(name)
            ratio = sides["ours"][phase] / sides["by hand"][phase] if sides else None
            what = f"{name} / prox and base by hand, {phase}"
            found.append(Verdict(what, ratio, plan.COMPOSED_BAR, at_most=True))
    return found


def _losses(rows: list[Row]) -> list[Verdict]:
    """The worst case with the most classes."""
    most = max((row["d"] for row in rows), default=0)
    rows = [row for row in rows if row["d"] == most]
    cases = {key(row) for row in rows}
    found = []
    for name in loss_steps.NAMES:
        by_case = ratios(rows, name, loss_steps.CROSS_ENTROPY)
        what = f"{name.removeprefix('regmax ')} / CrossEntropyLoss, {most:,} classes"
        if not cases or set(by_case) != cases:
            found.append(Verdict(what, None, plan.LOSS_BAR, at_most=True))
            continue
        where, ratio = worst(by_case)
        found.append(Verdict(f"{what}, worst case", ratio, plan.LOSS_BAR, True, where[3]))
    return found
