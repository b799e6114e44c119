"""Compilation of C functions, cached on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import sigutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc


def compile_cached(function: Callable[..., None], signature: Any) -> Any:
    """``numba.cfunc(signature, cache=True)(function)``, whose cache knows all sources.

    numba's own is stale only when the file of ``function`` changes, and a kernel is made of several
    files: one from an earlier version of regmax would read what it must not.
    """
    options = {"nopython": True, "error_model": "numpy"}
    compiled: Any = CFunc(
        function, sigutils.normalize_signature(signature), locals={}, options=options
    )
    with contextlib.suppress(RuntimeError):  # nowhere to write: compiled anew in each process
        compiled._cache = _Cache(function)
    compiled.compile()
    return compiled


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        folder = Path(inspect.getfile(function)).parent
        stamp = (self._impl.locator.get_source_stamp(), _digest(folder), _digest(_KERNELS))
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=stamp,
        )


_KERNELS = Path(__file__).parent


@functools.cache
def _digest(folder: Path) -> str:
    """Of the Python files in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
