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
    """``numba.cfunc(signature, cache=True)(function)`` with a cache that depends on all sources.

    numba's own cache is invalid only if the file of ``function`` changes. A kernel consists of
    several files, so code of an earlier version of regmax could be loaded and read wrong memory.
    """
    options = {"nopython": True, "error_model": "numpy"}
    compiled: Any = CFunc(
        function, sigutils.normalize_signature(signature), locals={}, options=options
    )
    with contextlib.suppress(RuntimeError):  # no folder to write to: each process compiles
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
    """A digest of the Python files in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
