"""``python -m benchmarks``: measure, and write the tables into the page."""

from __future__ import annotations

import argparse
import datetime
import inspect
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from . import page
from .sections import CPU_ONLY, SECTIONS, Bench


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures regmax beside PyTorch and other packages, and writes the tables into "
        "DIR/benchmarks.md, in place of those of the same device. Exit status 1 if a candidate of "
        "regmax failed to run.",
    )
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    found.add_argument("--out", type=Path, default=Path("build/bench"), metavar="DIR")
    found.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME"
    )
    found.add_argument("--threads", type=int, default=2, help="of the CPU; default: %(default)s")
    found.add_argument("--quick", action="store_true", help="the smallest sizes, to test the code")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser().parse_args(given)
    if asked.threads < 1:
        parser().error(f"--threads must be at least 1; got {asked.threads}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"no CUDA device: torch {torch.__version__} finds none", file=sys.stderr)
        return 2
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser().error(f"--out {asked.out}: {error.strerror or error}")
    torch.set_num_threads(asked.threads)
    start, origin = time.perf_counter(), page.origin(asked.device)
    bench, parts = Bench(asked.device, asked.threads, asked.quick), []
    for name, section in SECTIONS.items():
        if name in asked.only and not (name in CPU_ONLY and asked.device != "cpu"):
            print(f"{time.perf_counter() - start:4.0f} s  {name}", file=sys.stderr, flush=True)
            title, _, note = inspect.getdoc(section).partition("\n\n")  # type: ignore[union-attr]
            parts.append(f"### {title}\n\n{note}\n\n{section(bench)}")
    if bench.left_out:
        parts.append(f"### Not measured\n\n{page.table(('what', 'reason'), bench.left_out)}")
    command = shlex.join(["python", "-m", "benchmarks", *given])
    date, took = datetime.datetime.now(datetime.UTC).date(), time.perf_counter() - start
    run = page.fold("Command, machine and versions", f"`{command}`, {took:.0f} seconds. {origin}.")
    head = f"## {asked.device.upper()}, {date}\n\n{run}"
    if asked.quick:
        head += "\n\n**A quick run: the figures mean nothing.**"
    written = asked.out / "benchmarks.md"
    page.write(written, asked.device, "\n\n".join([head, *parts]))
    print(written)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
