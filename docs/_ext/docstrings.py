"""regmax's docstrings as reStructuredText: mathematics in Unicode, sections of ``name: what``.

A docstring is plain text with double backquotes and roles. What reStructuredText would take for
markup (the bars of |y|, the star of y*) is escaped. An indented block is typeset if it is a
formula, and stands as it is if it is code. A section such as ``Parameters``, which ends at an empty
line, becomes a list of fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mathematics import is_formula, tex
from sphinx.util import inspect

# what stands as it is: ``code``, and a role with its text
MARKUP = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`)", flags=re.DOTALL)
ENTRY = re.compile(r"(?P<names>[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): (?P<text>.*)", flags=re.DOTALL)
# which chapters a chapter imports is for those who read the source
CHAPTER = re.compile(r"\s*\bThis\s+chapter\s+imports\b.*?(?=\n\n|\Z)", flags=re.DOTALL)
SECTIONS = {"Parameters": "param", "Attributes": "ivar", "Class attributes": "cvar"}


def converted(lines: list[str]) -> list[str]:
    """A docstring, line by line, as reStructuredText."""
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        first, *rest = paragraph
        if first.startswith(" ") and is_formula("\n".join(paragraph)):
            out += [row for line in paragraph for row in (".. math::", "", f"   {tex(line)}", "")]
        elif first.startswith(" "):
            out += ["::", "", *paragraph, ""]
        elif first in SECTIONS and rest and set(rest[0]) == {"-"}:
            out += [*_fields(SECTIONS[first], rest[1:]), ""]
        else:
            out += [*_escaped("\n".join(paragraph)).split("\n"), ""]
    return out


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Lines between empty ones; an indented block under a line of text is one of its own."""
    kept: list[str] = []
    section = False
    for line in [*lines, ""]:
        turns = bool(kept) and not section and kept[-1].startswith(" ") != line.startswith(" ")
        if kept and (not line.strip() or turns):
            yield kept
            kept, section = [], False
        if line.strip():
            section = section or line in SECTIONS
            kept.append(line)


def _fields(kind: str, lines: list[str]) -> list[str]:
    """``a, b: text`` as a field for a and one for b."""
    entries = re.split(r"\n(?! )", "\n".join(lines))
    found = [entry for entry in map(ENTRY.fullmatch, entries) if entry]
    if len(found) != len(entries):
        raise ValueError(f"each entry of a section is `name: what it is`; got {entries}")
    return [
        line
        for entry in found
        for name in entry["names"].split(", ")
        for line in f":{kind} {name}: {_escaped(entry['text'])}".split("\n")
    ]


def _escaped(text: str) -> str:
    pieces = MARKUP.split(text)
    pieces[::2] = [re.sub(r"[*|`\\]|_(?!\w)", r"\\\g<0>", piece) for piece in pieces[::2]]
    return "".join(pieces)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event: ``lines`` is changed in place."""
    lines[:] = converted(CHAPTER.sub("", "\n".join(lines)).split("\n"))


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, returned: str
) -> tuple[str, str] | None:
    """Sphinx's event: of a class whose calls are wrapped, the arguments of its own ``__init__``."""
    if what != "class" or not (arguments or "").startswith("(*args"):
        return None
    if obj.__init__ is object.__init__:
        return "", returned
    found = inspect.signature(obj.__init__, bound_method=True)
    text = inspect.stringify_signature(
        found, show_return_annotation=False, unqualified_typehints=True
    )
    return "" if text.startswith("(*args") else text, returned


def setup(app: Any) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "version": "1"}
