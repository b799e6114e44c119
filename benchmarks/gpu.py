"""``make gpu``: what is right on this machine's GPU, what is slow, what fell back; in one report.

The cases of :mod:`.gpu_cases` come first, then the GPU tests, each in processes of their own: one
that a kernel kills, or that does not end, is noted, and the next goes on. The report is written
anew after each step. What has not run when the time is over is listed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from . import page
from .gpu_report import Report

ROOT = page.ROOT
MARKED = ("-m", "cuda")
WAYS = ("-k", "registers or packed or chunks")
TESTS: dict[str, tuple[str, ...]] = {
    "tests/kernels/test_triton_attention.py": MARKED,
    "tests/kernels/test_from_value_triton.py": MARKED,
    "tests/losses/test_loss_inputs.py": MARKED,
    "tests/mapping/test_autocast.py": MARKED,
    "tests/nn/test_matmul.py": MARKED,
    "tests/kernels/test_rows.py": WAYS,
    "tests/kernels/test_losses.py": WAYS,
}
"""The files with tests of a GPU, and which of their tests these are."""
CASES = (sys.executable, "-m", "benchmarks.gpu_cases")
SHARE = 0.6
"""Of the time, for the cases."""
OPTIONS = ("-v", "-rfE", "--tb=short", "--maxfail=10", "-p", "no:cacheprovider")
OTHER_VERSIONS = ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning")
"""Warnings that are no errors here: of versions of packages that the tests do not know."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Writes DIR/gpu.md. Exit status 1 if a result is wrong, a kernel fails or a "
        "test fails; not for a time, or for what fell back to PyTorch.",
    )
    found.add_argument("--out", type=Path, default=Path("build/bench"), metavar="DIR")
    found.add_argument("--minutes", type=float, default=10, help="default: %(default)s")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cuda",
                       help="cpu: Triton's interpreter on tiny rows, to test the code")  # fmt: skip
    found.add_argument("--only", nargs="+", metavar="CASE", help="default: every case")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser().parse_args(given)
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"no CUDA device: torch {torch.__version__} finds none", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    command = shlex.join(["python", "-m", "benchmarks.gpu", *given])
    head = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, `{command}`"
    report = Report(asked.out / "gpu.md", head, start)
    with tempfile.TemporaryDirectory() as folder:
        env = environment(asked.device, Path(folder))
        cases(report, asked.device, start + 60 * SHARE * asked.minutes, env, asked.only)
        tests(report, start + 60 * asked.minutes - 10, env)
    report.write(finished=True)
    print(report.text(), report.file, sep="\n")
    return int(report.wrong)


def environment(device: str, folder: Path) -> dict[str, str]:
    """Of the processes: an empty cache, and regmax of this clone, installed or not."""
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    try:
        importlib.metadata.distribution("regmax")
    except importlib.metadata.PackageNotFoundError:  # its plugins are found by their entry points
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        points = project["entry-points"]["regmax"].items()
        made = folder / "regmax-0.dist-info"
        made.mkdir()
        lines = ["[regmax]", *(f"{name} = {module}" for name, module in points), ""]
        (made / "entry_points.txt").write_text("\n".join(lines))
        (made / "METADATA").write_text("Metadata-Version: 2.1\nName: regmax\nVersion: 0\n")
        paths.append(str(folder))
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    more = {"TRITON_CACHE_DIR": str(folder / "triton"), "PYTHONUNBUFFERED": "1", "COLUMNS": "300"}
    return {**env, **more, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def cases(
    report: Report, device: str, until: float, env: dict[str, str], only: list[str] | None
) -> None:
    """Run the cases, in as few processes as can be."""
    done = subprocess.run([*CASES, "list"], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        report.failures["the cases"] = _last(done.stderr)
        return
    left = only or json.loads(done.stdout.splitlines()[-1])
    report.names = list(left)
    # each process begins a case at least, or is the last one
    while left and time.time() < until:
        command = [*CASES, device, str(until), *left]
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process:
                limit = threading.Timer(until + 30 - time.time(), process.kill)
                limit.start()
                assert process.stdout is not None
                for line in process.stdout:
                    report.note(line)
                limit.cancel()
            errors.seek(0)
            said = errors.read()
        begun = [name for name in left if name in report.cases]
        left = [name for name in left if name not in report.cases]
        if begun and "ended" not in report.cases[begun[-1]] and time.time() < until:
            found = report.cases[begun[-1]]
            found.setdefault("failure", f"its process ended ({process.returncode}): {_last(said)}")
        if not begun:
            report.failures["the cases"] = _last(said)
            break
    report.write()


def tests(report: Report, until: float, env: dict[str, str]) -> None:
    """Run the files of tests, some at a time."""
    report.files = list(TESTS)
    with ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 2))) as pool:
        for done in as_completed([pool.submit(tested, file, until, env) for file in TESTS]):
            file, found = done.result()
            report.tests[file] = found
            report.write()


def tested(file: str, until: float, env: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """What pytest says of a file: how many tests passed and were skipped, which failed and why."""
    start = time.time()
    if start >= until - 5:
        return file, {"cut": "the time was over"}
    options = [*OPTIONS, *(f"-Wdefault::{kind}" for kind in OTHER_VERSIONS)]
    command = [sys.executable, "-m", "pytest", *options, file, *TESTS[file]]
    found: dict[str, Any] = {"passed": 0, "skipped": 0, "failed": {}}
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT,
                timeout=until - start,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code, found["cut"] = 0, "the time was over"
        output.seek(0)
        said = output.read()
    found["seconds"] = time.time() - start
    for name, status in re.findall(r"^(\S+?::.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", said, re.M):
        if status in ("FAILED", "ERROR"):
            reason = re.search(rf"^{status} {re.escape(name)} - (.*)$", said, re.M)
            found["failed"][name] = reason[1] if reason else "no message"
        else:
            found[status.lower()] += 1
    if found["failed"] or code in (0, 5):
        return file, found
    missing = re.findall(r"No module named '?(\w+)", said)
    if missing and not found["passed"]:
        found["cut"] = f"{missing[-1]} is not installed"
    else:
        found["failed"][file] = f"pytest ended with {code}: {_last(said)}"
    return file, found


def _last(said: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Timeout|Fatal|Exception)", line)]
    return (telling or lines or ["no message"])[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
