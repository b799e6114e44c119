"""README.md and the home page: one table of figures, those of the benchmarks."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax", "pnormmax", "fusedmax", "oscarmax")
HOME = ["README.md", "docs/index.md"]


def table(page: str, heading: str, column: str = "|") -> list[list[str]]:
    """The cells of the first table after a heading that has a column, without its rule."""
    after = page.split(f"{heading}\n", 1)[1]
    tables = re.findall(r"(?:^\|.*\n)+", after, flags=re.MULTILINE)
    lines = next(found for found in tables if column in found.split("\n", 1)[0]).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def measured() -> dict[str, list[float]]:
    """Of each mapping: over softmax, and the entmax package and cvxpylayers over regmax."""
    means = {row[0]: float(row[1]) for row in table(BENCHMARKS, "### Mappings")[1:]}
    head, *rows = table(BENCHMARKS, "### Mappings beside cvxpylayers", "oscarmax")
    convex = dict(zip(head, next(row for row in rows if row[0].startswith("cvxpy")), strict=True))
    found = {}
    for name in MAPPINGS:
        ours, theirs = means[f"regmax {name}"], means.get(f"entmax {name}")
        both = convex[name].split(", ")[1].replace(",", "") if name in convex else ""
        found[name] = [ours, theirs / ours if theirs else None, float(both) if both else None]
    return found


def rounded(text: str) -> float | None:
    return float(text.replace(",", "")) if text else None


@pytest.mark.parametrize("page", HOME)
def test_the_figures_are_those_of_the_benchmarks_to_two_digits(page):
    _, *rows = table((ROOT / page).read_text(encoding="utf-8"), "## Speed")
    said = {re.match(r"`(\w+)`", row[0])[1]: [rounded(cell) for cell in row[1:]] for row in rows}
    assert list(said) == list(MAPPINGS)
    for name, numbers in measured().items():
        for number, figure in zip(said[name], numbers, strict=True):
            assert (number is None) == (figure is None), name
            assert figure is None or number == pytest.approx(figure, rel=0.05), name


def test_the_targets_stand_beside_the_figures():
    figures = {row[0]: row[1:3] for row in table(BENCHMARKS, "### Mappings")[1:]}
    for name, mean, target, worst, most in table(BENCHMARKS, "# Benchmarks")[1:]:
        for said, limit in ((mean, target), (worst, most)):
            missed = bool(limit) and float(said.strip("*")) > float(limit)
            assert missed == said.startswith("**"), name
        plain = [mean.strip("*"), worst.strip("*")]
        assert plain == figures[f"regmax {name.split(',')[0]}"], name


def test_the_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "home.py"))
    script["draw"](tmp_path / "home.svg")
    assert (tmp_path / "home.svg").stat().st_size > 10_000
