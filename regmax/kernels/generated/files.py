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


def folder() -> Path:
    """Where sources and compiled code are kept: $REGMAX_CACHE_DIR, or ~/.cache/regmax."""
    given = os.environ.get("REGMAX_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regmax"


def loaded(name: str, text: str, version: str) -> tuple[ModuleType, Path, bool]:
    """The module with this source, its file, and whether that is in the cache."""
    stamp = hashlib.sha256((text + version).encode()).hexdigest()[:24]
    path, kept = _written(f"{name}_{stamp}.py", text)
    spec = importlib.util.spec_from_file_location(f"regmax_{name}_{stamp}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba loads cached code by the name of its module
    spec.loader.exec_module(module)
    return module, path, kept


def _written(name: str, text: str) -> tuple[Path, bool]:
    """The file with this source, and whether it is in the cache."""
    place = folder()
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
