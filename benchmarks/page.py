"""Markdown tables, and the page that holds them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from .timing import Figure

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "numba", "triton", "entmax", "POT", "cvxpylayers", "adasplash", "liger-kernel")
FEW = 3
"""So many cases at most stand in the table itself; more are folded away."""
Figures = Mapping[str, Mapping[str, Figure]]
"""By candidate, then by case."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fold(summary: str, text: str) -> str:
    """Text that a click opens."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def ratios(figures: Figures, errors: Mapping[str, float], reference: str, forward: bool) -> str:
    """Times of the reference; times of the others over it. Forward, if asked for, and both.

    Many cases are folded away, under a table of their mean and the worst.
    """
    cases = list(dict.fromkeys(case for found in figures.values() for case in found))
    base, lines = figures.get(reference, {}), []
    for name in sorted(figures, key=lambda name: name != reference):
        found = {c: f for c, f in figures[name].items() if c in base}
        both = [f.both / base[c].both for c, f in found.items()]
        line = [name, *(map(number, (geomean(both), max(both))) if both else "––")]
        for c in cases:
            cell = "–"
            if name == reference and c in found:
                cell = ", ".join(map(seconds, (found[c].forward, found[c].both)[not forward :]))
            elif c in found:
                over = (found[c].forward / base[c].forward, found[c].both / base[c].both)
                cell = ", ".join(map(number, over[not forward :]))
            line.append(cell)
        lines.append([*line, f"{errors[name]:.0e}" if name in errors else ""])
    every = table(["", "mean", "worst", *cases, "error"], lines)
    if len(cases) <= FEW:
        return every
    short = table(["", "mean", "worst", "error"], [[*line[:3], line[-1]] for line in lines])
    return f"{short}\n\n{fold('Every case', every)}"


def geomean(values: Sequence[float]) -> float:
    """The mean for ratios: swapping both sides inverts it."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def number(value: float) -> str:
    """A ratio with three digits at most."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    if 0 < value < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def write(page: Path, device: str, text: str) -> None:
    """Put the text into the part of the page that belongs to the device; keep the rest."""
    begin, end = f"<!-- {device}: written by python -m benchmarks -->", f"<!-- end of {device} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    if begin not in old:
        old = f"{old}\n{begin}\n{end}\n"
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def origin(device: str) -> str:
    """The commit, the machine and the versions."""
    commit = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    if _git("status", "--porcelain"):
        commit += " with changes"
    cpu = re.search(r"model name\s*:\s*(.*)", _read("/proc/cpuinfo"))
    facts = [cpu[1] if cpu else platform.machine(), f"{os.cpu_count()} cores"]
    facts.append(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    if device == "cuda":
        facts.insert(0, torch.cuda.get_device_name())
    facts.append(f"python {platform.python_version()}")
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts.append(f"{package} {importlib.metadata.version(package)}")
    return f"Commit {commit}. {', '.join(facts)}"


def _read(file: str) -> str:
    return Path(file).read_text() if Path(file).exists() else ""


def _git(*arguments: str) -> str:
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
