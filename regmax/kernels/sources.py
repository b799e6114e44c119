"""The cache of generated source."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path
from types import ModuleType

from .folders import module, read, user_folder, write


def loaded(name: str, text: str, version: str) -> tuple[ModuleType, Path, bool]:
    """The module with this source, its file, and whether that is in the cache."""
    path, kept = written(name, text, version)
    return module(path), path, kept


def written(name: str, text: str, version: str = "") -> tuple[Path, bool]:
    """The file with this source, and whether it is in the cache."""
    stamp = hashlib.sha256((text + version).encode()).hexdigest()[:24]
    name, content = f"{name}_{stamp}.py", text.encode()
    try:
        path = user_folder() / name
        if read(path) != content:
            write(path, content)
        return path, True
    except OSError:
        path = _fallback() / name
        write(path, content)
        return path, False


@functools.cache
def _fallback() -> Path:
    return Path(tempfile.mkdtemp(prefix="regmax"))
