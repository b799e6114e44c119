"""The cache of generated source."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from ..folders import user_folder


def loaded(name: str, text: str, version: str) -> tuple[ModuleType, Path, bool]:
    """The module with this source, its file, and whether that is in the cache."""
    path, kept = written(name, text, version)
    return module(path), path, kept


def written(name: str, text: str, version: str = "") -> tuple[Path, bool]:
    """The file with this source, and whether it is in the cache."""
    stamp = hashlib.sha256((text + version).encode()).hexdigest()[:24]
    return _written(f"{name}_{stamp}.py", text)


def module(path: Path) -> ModuleType:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(f"regmax_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # Triton reads the source of its functions
    spec.loader.exec_module(found)
    return found


def _written(name: str, text: str) -> tuple[Path, bool]:
    """The file with this source, and whether it is in the cache."""
    place = user_folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        path = place / name
        if not path.exists() or path.read_text() != text:
            handle, temporary = tempfile.mkstemp(dir=place, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(temporary).replace(path)
        return path, True
    except OSError:
        return _fallback() / name, _wrote(_fallback() / name, text)


@functools.cache
def _fallback() -> Path:
    return Path(tempfile.mkdtemp(prefix="regmax"))


def _wrote(path: Path, text: str) -> bool:
    path.write_text(text)
    return False
