"""Tables and numbers, as the page writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def _cell(text: str) -> str:
    """A text without what Markdown would read as the end of a cell."""
    return text.replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> str:
    """A Markdown table; columns but the first are figures, unless ``align`` says otherwise."""
    lines = [list(head), ["---", *(align for _ in head[1:])], *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def number(value: float) -> str:
    """A ratio with as many digits as mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    if 0 < value < 0.005:
        return f"{value:.0e}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value:.0f} s"
    return f"{value / 1e-9:.3g} ns"


def quartiles(found: dict[str, float]) -> str:
    """Median and quartiles of a time."""
    low, high = seconds(found["low"]), seconds(found["high"])
    return f"{seconds(found['median'])} [{low}, {high}]"
