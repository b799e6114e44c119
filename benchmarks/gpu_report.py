"""The report of ``make gpu``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import page

SLOW = 1.5
KERNELS = page.ROOT / "regmax" / "kernels"
NOTE = (
    "Errors are over the largest number, beside the closed form in PyTorch in float64. The first "
    "call compiles. Times are medians between events on the device, the L2 cache cleared before "
    "each run; ratios are those of both passes."
)


def kernel_files() -> list[Path]:
    """The files of Triton's kernels, and those that write or launch them."""
    found = [*(KERNELS / "triton").glob("*.py"), *(KERNELS / "from_value").glob("triton_*.py")]
    return sorted(f for f in found if f.name != "__init__.py")


class Report:
    """What is known so far; ``write`` puts it into the file."""

    def __init__(self, file: Path, head: str, start: float) -> None:
        self.file, self.head, self.start, self.machine = file, head, start, ""
        self.names: list[str] = []
        self.cases: dict[str, dict[str, Any]] = {}
        self.files: list[str] = []
        self.tests: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        """Why nothing ran."""
        self.finished = False

    def note(self, line: str) -> None:
        """Take a line of JSON, of a process that runs cases; other lines are of packages."""
        try:
            found = json.loads(line)
            name = found.pop("case")
        except (ValueError, TypeError, AttributeError, KeyError):
            return
        self.machine = found.pop("machine", self.machine)
        if name:
            self.cases.setdefault(name, {}).update(found)
            self.write()

    def write(self, finished: bool = False) -> None:
        self.finished = finished
        self.file.write_text(self.text(), encoding="utf-8")

    # what each case and test is

    def _exact(self, found: dict[str, Any]) -> bool:
        return "y" in found and max(found["y"], found["gradients"]) <= found["bound"]

    def _wrong(self) -> list[tuple[str, str]]:
        rows = list(self.failures.items())
        for name, found in self.cases.items():
            if "y" in found and not self._exact(found):
                errors = f"error of y {found['y']:.1e}, of gradients {found['gradients']:.1e}"
                rows.append((name, f"{errors}, more than {found['bound']:.0e}"))
            elif "failure" in found and not found.get("failed"):
                where = "while it was timed: " if "y" in found else ""
                rows.append((name, where + found["failure"]))
        for found in self.tests.values():
            rows += found.get("failed", {}).items()
        return rows

    @property
    def wrong(self) -> bool:
        return bool(self._wrong())

    def _right(self) -> dict[str, dict[str, Any]]:
        return {k: f for k, f in self.cases.items() if self._exact(f) and not f["fell"]}

    def _ratios(self, found: dict[str, Any]) -> dict[str, tuple[float, float]]:
        """Times over those of the rivals, forward and of both passes."""
        if not found.get("times"):
            return {}
        (mine, both), *_ = found["times"].values()
        others = list(found["times"].items())[1:]
        return {name: (mine / f, both / b) for name, (f, b) in others}

    def _slow(self) -> Iterable[tuple[str, ...]]:
        for case, found in self.cases.items():
            for rival, ratios in self._ratios(found).items():
                if ratios[1] > SLOW:
                    yield case, rival, *map(page.number, ratios)

    def _not_run(self) -> Iterable[tuple[str, str]]:
        for name in self.names:
            found = self.cases.get(name)
            if found is None:
                yield name, "no time was left"
            elif not ({"y", "failure"} & found.keys()):
                yield name, "it was running when the time was over"
            elif not ({"times", "failure"} & found.keys()):
                yield f"{name}, its times", "no time was left"
            for rival, reason in (found or {}).get("failed", {}).items():
                yield f"{rival} beside {name}", reason
        for file in self.files:
            tests = self.tests.get(file, {"cut": "not yet"})
            if "cut" in tests:
                yield file, tests["cut"]

    # the text

    def text(self) -> str:
        right, wrong, slow = self._right(), self._wrong(), list(self._slow())
        fell = [(k, f["fell"]) for k, f in self.cases.items() if f.get("fell")]
        passed = sum(found.get("passed", 0) for found in self.tests.values())
        spent = f"{time.time() - self.start:.0f} seconds" + ("" if self.finished else " so far")
        parts = [
            "# regmax on a GPU", f"{self.head}, {spent}.", self.machine,
            page.table(["", ""], [
                ("right", f"{len(right)} of {len(self.names)} cases, {passed} tests"),
                ("wrong", str(len(wrong))),
                (f"slower than {SLOW} times a rival", str(len({row[0] for row in slow}))),
                ("fell back to PyTorch", str(len(fell))),
                ("not run", str(len(list(self._not_run())))),
            ]),
            self._part("Wrong", ("what", "how"), wrong),
            self._part("Fell back to PyTorch", ("case", "why"), fell),
            self._part(
                f"Slower than {SLOW} times", ("case", "rival", "forward", "both passes"), slow
            ),
            self._part(
                "Cases", ("case", "shape", "error of y", "of gradients", "first call", "forward",
                "both passes", "over the rivals"), map(self._row, self.cases.items()),
            ),
            NOTE,
            self._part("Files", ("file", "right cases", "others"), map(self._file, kernel_files())),
            self._part(
                "Tests", ("file", "passed", "failed", "skipped", "seconds"),
                ((file, str(t.get("passed", "–")), str(len(t.get("failed", {}))),
                  str(t.get("skipped", "–")), f"{t.get('seconds', 0):.0f}")
                 for file, t in self.tests.items()),
            ),
            self._part("Not run", ("what", "why"), self._not_run()),
        ]  # fmt: skip
        return "\n\n".join(filter(None, parts)) + "\n"

    def _part(self, title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
        cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
        return f"## {title}\n\n{page.table(list(head), cells)}" if cells else ""

    def _row(self, item: tuple[str, dict[str, Any]]) -> list[str]:
        name, found = item
        cells = [name, found.get("shape", "")]
        cells += [f"{found[key]:.1e}" if key in found else "–" for key in ("y", "gradients")]
        cells.append(page.seconds(found["first"]) if "first" in found else "–")
        times = next(iter(found.get("times", {}).values()), ())
        cells += [page.seconds(t) for t in times] or ["–", "–"]
        ratios = self._ratios(found).items()
        cells.append(", ".join(f"{rival} {page.number(both)}" for rival, (_, both) in ratios))
        return cells

    def _file(self, file: Path) -> list[str]:
        module = ".".join(("regmax", "kernels", file.parent.name, file.stem))
        names = [name for name, found in self.cases.items() if module in found.get("modules", ())]
        right = [name for name in names if name in self._right()]
        others = ", ".join(name for name in names if name not in right) if names else "no case ran"
        return [f"{file.parent.name}/{file.name}", str(len(right)), others]
