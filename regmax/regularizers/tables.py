"""Tables as text and as Markdown, for what objects print and show in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Rows = Iterable[Sequence[str]]


def plain(header: Sequence[str], rows: Rows, indent: str = "") -> str:
    """Columns padded to their widest cell.

    >>> print(plain(["name", "β"], [["gini", "1"]]))
    name  β
    gini  1
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        (indent + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def markdown(header: Sequence[str], rows: Rows, title: str = "") -> str:
    """A Markdown table below a bold title."""
    lines = [list(header), ["---"] * len(header), *(list(row) for row in rows)]
    text = "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)
    return f"**{escaped(title)}**\n\n{text}" if title else text


def escaped(text: str) -> str:
    """``text`` without a meaning in Markdown; line breaks become spaces."""
    if set(text) == {"-"}:
        return text
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|$" else c for c in " ".join(text.split()))
