"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def python(
    script: str, *arguments: object, cwd: Path | None = None, **environment: object
) -> subprocess.CompletedProcess[str]:
    """A script that ends well within five minutes, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, **{name: str(item) for name, item in environment.items()}},
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done


def with_modules(*folders: object) -> dict[str, str]:
    """The environment in which these folders are searched for modules first."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *sys.path])}
