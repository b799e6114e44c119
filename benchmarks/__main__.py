"""``python -m benchmarks``: measure, write the figures, draw them, write the page."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import plan, report, sections, summary, system, timing, words

DEVICES = ("cpu", "cuda")


class Progress:
    """One line on stderr that says what runs; a line per section where nobody watches."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.section = ""
        self.live = sys.stderr.isatty()

    def begin(self, section: str) -> None:
        self.section = section
        if not self.live:
            print(f"{self.seconds:4.0f} s  {section}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.live:
            line = f"{self.seconds:4.0f} s  {self.section}  {text}"
            print(f"\r\033[K{line[:110]}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures regmax beside torch.softmax and other packages. Writes benchmarks.md "
        "and benchmarks/<device>.json with plots into DIR. Exit status 1 if a mapping of regmax "
        "failed to run; a bar that is missed is reported, and is no error.",
    )
    found.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    found.add_argument(
        "--out",
        type=Path,
        default=Path("build/bench"),
        metavar="DIR",
        help="default: %(default)s; docs for the committed page",
    )
    found.add_argument(
        "--only",
        nargs="+",
        choices=plan.SECTIONS,
        default=list(plan.SECTIONS),
        metavar="SECTION",
        help=f"of {', '.join(plan.SECTIONS)}",
    )
    found.add_argument(
        "--threads", type=int, default=2, metavar="N", help="of the CPU; default: %(default)s"
    )
    found.add_argument("--quick", action="store_true", help="sizes that mean nothing, in seconds")
    found.add_argument(
        "--render", action="store_true", help="measure nothing: the page from the JSON in DIR"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser().parse_args(given)
    if asked.threads < 1:
        parser().error(f"--threads must be at least 1; got {asked.threads}")
    if asked.render:
        print(write_page(asked.out))
        return 0
    if asked.device == "cuda" and not torch.cuda.is_available():
        print(
            f"no CUDA device: torch {torch.__version__} finds none, so nothing was measured",
            file=sys.stderr,
        )
        return 2
    try:
        (asked.out / report.FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser().error(f"--out {asked.out}: {error.strerror or error}")
    command = shlex.join(["python", "-m", "benchmarks", *given])
    result, failed = measure(asked, command)
    target = asked.out / report.FOLDER / f"{asked.device}.json"
    target.write_text(report.dumps(result), encoding="utf-8")
    try:
        from . import plots

        plots.draw(result, target.parent)
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
    page = write_page(asked.out)
    missed = [v for v in result["verdicts"] if not v["ok"]]
    print(f"{len(result['verdicts']) - len(missed)} of {len(result['verdicts'])} bars met")
    for verdict in missed:
        figure = "not measured" if verdict["figure"] is None else words.number(verdict["figure"])
        print(f"  {verdict['what']}: {figure}, bar {verdict['bar']:g}")
    print(page)
    return 1 if failed else 0


def measure(asked: argparse.Namespace, command: str) -> tuple[dict[str, Any], bool]:
    """All that is asked for, as the JSON will hold it; and whether a mapping of regmax failed."""
    commit, date = system.commit(), datetime.datetime.now(datetime.UTC).date().isoformat()
    torch.set_num_threads(asked.threads)
    progress = Progress()
    wanted = plan.plan(asked.device, asked.quick)
    bench = sections.Bench(
        asked.device, wanted, timing.watch(asked.device), asked.threads, progress.say
    )
    found = sections.run(bench, asked.only, progress.begin)
    paths = sections.roads(bench)
    progress.end()
    verdicts = summary.verdicts(asked.device, found, wanted.mappings)
    result = {
        "device": asked.device,
        "quick": asked.quick,
        "command": command,
        "date": date,
        "commit": commit,
        "seconds": round(progress.seconds, 1),
        "threads": asked.threads,
        "hardware": system.hardware(asked.device),
        "versions": system.versions(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "roads": paths,
        "left_out": bench.left_out,
        "sections": found,
    }
    return result, bench.failed


def write_page(out: Path) -> Path:
    """``benchmarks.md`` from the JSON of each device that has been measured into ``out``."""
    files = [out / report.FOLDER / f"{device}.json" for device in DEVICES]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    if not results:
        raise SystemExit(f"no figures in {out / report.FOLDER}: measure first")
    page = out / "benchmarks.md"
    page.write_text(report.render(results), encoding="utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
