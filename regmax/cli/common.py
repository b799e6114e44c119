"""Common to the commands: usage errors, optional packages, tables, progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

T = TypeVar("T")

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


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "  ") -> str:
    """Columns padded to their widest cell.

    >>> print(table(["name", "β"], [["gini", "1"]], indent=""))
    name  β
    gini  1
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        (indent + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def note(text: str) -> None:
    """Print a line to stderr, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def progress(items: Sequence[T], what: str, stream: TextIO | None = None) -> Iterator[T]:
    """The items, with progress on stderr: a tqdm bar on a terminal, else a line every 2 s."""
    out = stream or sys.stderr
    if tqdm is not None and out.isatty():
        yield from tqdm(items, desc=what, file=out, leave=False, delay=0.5)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            print(f"{what}: {done}/{len(items)}", file=out, flush=True)
            last = now
        yield item


@contextmanager
def working(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show ``what`` and the elapsed time on stderr while one long call runs.

    On a terminal it updates one line, else it prints new lines at growing intervals.
    """
    out = stream or sys.stderr
    rewrite = out.isatty()
    done = threading.Event()

    def tick() -> None:
        start, pause, width = time.monotonic(), 1.0 if rewrite else _SECONDS_BETWEEN_LINES, 0
        while not done.wait(pause):
            line = f"{what}: {time.monotonic() - start:.0f} s"
            width = max(width, len(line))
            print(line, end="\r" if rewrite else "\n", file=out, flush=True)
            pause *= 1 if rewrite else 2
        if width and rewrite:
            print(" " * width, end="\r", file=out, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
