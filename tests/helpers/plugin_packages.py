"""A plugin's package, installed into a folder of its own and run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BETWEEN = "-- validate --"
LIST_AND_VALIDATE = f"""
import sys
from regmax.cli import main
assert main(["list"]) == 0
print({BETWEEN!r})
assert main(["validate", *sys.argv[1:]]) == 0
"""


def installed(home: Path, site: Path) -> Callable[..., str]:
    """Install the package in ``home`` into ``site``; the function runs Python there with it."""

    def run(*arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, *arguments],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-build-isolation", "--target", str(site), ".")
    for module in home.glob("regmax_*.py"):
        module.unlink()  # what runs is what was installed
    return run


def passing_tests(run: Callable[..., str]) -> int:
    """How many tests of the package pass; an AssertionError if one does not."""
    told = run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    return int(told.rsplit(" passed", 1)[0].split()[-1])
