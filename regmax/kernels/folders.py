"""Where compiled and generated code is kept."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder() -> Path:
    """$REGMAX_CACHE_DIR, or ~/.cache/regmax."""
    given = os.environ.get("REGMAX_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regmax"


def folders(home: Path) -> list[Path]:
    """Where the object files of a folder's modules may be: beside them, so that they serve every
    user of an installation, or where the user may write."""
    given = [os.environ[k] for k in ("REGMAX_CACHE_DIR", "NUMBA_CACHE_DIR") if os.environ.get(k)]
    return [Path(given[0])] if given else [home / "__pycache__", user_folder()]
