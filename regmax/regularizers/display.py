"""What objects print, and what they show in a notebook: tables and lists, as text and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

Rows = Iterable[Sequence[str]]


def table(header: Sequence[str], rows: Rows, indent: str = "", width: int | None = None) -> str:
    """Columns padded to their widest cell. In a table wider than ``width`` the header, then the
    widest cells, are wrapped.

    >>> print(table(["name", "β"], [["gini", "1"]]))
    name  β
    gini  1
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        room = width - len(indent) - 2 * (len(widths) - 1)
        if sum(widths) > room:
            lines[0] = [max(name.split() or [""], key=len) for name in header]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        while sum(widths) > room and max(widths) > 8:
            widths[widths.index(max(widths))] -= 1
        lines[0] = list(header)
    out = []
    for line in lines:
        cells = [textwrap.wrap(c, max(w, 1)) or [""] for c, w in zip(line, widths, strict=True)]
        for k in range(max(map(len, cells))):
            parts = [c[k] if k < len(c) else "" for c in cells]
            padded = (part.ljust(w) for part, w in zip(parts, widths, strict=True))
            out.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(out)


def markdown(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = [[escaped(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """``text`` in one line, and without a meaning in Markdown."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>#|$~" else c for c in " ".join(text.split()))


class Lines(str):
    """A text whose first line is a title and whose others are ``name: what``; a notebook shows it
    as a list."""

    def _repr_markdown_(self) -> str:
        title, *others = self.splitlines() or [""]
        parts = [line.partition(": ") for line in others]
        items = [
            f"- **{escaped(name)}**: {escaped(said)}" if colon else f"- {escaped(name)}"
            for name, colon, said in parts
        ]
        return "\n".join([f"**{escaped(title)}**", "", *items])
