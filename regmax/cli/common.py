"""Common to the commands: usage errors, optional packages, tables, progress."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from ..regularizers import display

_SECONDS_BETWEEN_LINES = 2.0


class UsageError(Exception):
    """Wrong usage of a command. The text says what is wrong and what is accepted."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Turn an ImportError into a UsageError with the remedy: ``pip install 'regmax[extra]'``."""
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise UsageError(
            f"{what} needs {missing}, which is not installed; run: pip install 'regmax[{extra}]'"
        ) from error


def positive(gamma: float) -> None:
    """Refuse a γ that is not > 0 and finite."""
    if not (math.isfinite(gamma) and gamma > 0):
        raise UsageError(f"--gamma must be a finite number > 0; got {gamma}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "  ") -> str:
    """Columns that fit the terminal."""
    return display.table(header, rows, indent, columns())


def columns() -> int:
    """The width of the terminal; 80 where there is none and COLUMNS does not say."""
    return max(shutil.get_terminal_size().columns, 40)


def wrapped(text: str) -> str:
    """``text`` with lines that fit the terminal; what continues a line is indented further."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        if len(line) > columns():
            options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
            options |= {"initial_indent": indent, "subsequent_indent": indent + "    "}
            line = textwrap.fill(line.strip(), columns(), **options)
        lines.append(line)
    return "\n".join(lines)


def note(text: str) -> None:
    """Print a line to stderr, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def _show(line: str, out: TextIO) -> None:
    """Print a line that the next one replaces on a terminal, where it must not wrap."""
    rewrite = out.isatty()
    line = line[: columns() - 1] if rewrite else line
    print(line, end="\r" if rewrite else "\n", file=out, flush=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show ``what`` and the elapsed time on stderr while one long call runs.

    On a terminal it updates one line, else it prints new lines at growing intervals.
    """
    out = sys.stderr
    rewrite = out.isatty()
    done = threading.Event()

    def tick() -> None:
        start, pause, width = time.monotonic(), 1.0 if rewrite else _SECONDS_BETWEEN_LINES, 0
        while not done.wait(pause):
            line = f"{what}: {time.monotonic() - start:.0f} s"
            width = max(width, len(line))
            _show(line, out)
            pause *= 1 if rewrite else 2
        if width and rewrite:
            _show(" " * width, out)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
