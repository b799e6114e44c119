"""Functions of generated source, compiled by numba and cached on disk."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from torch import Tensor

_HEAD = "import math\n\nimport numpy as np\n\n\n"
_NUMBERS = types.CPointer(types.float64)
_SIGNATURE = types.void(types.int64, _NUMBERS, _NUMBERS, _NUMBERS, types.int64, _NUMBERS)


def folder() -> Path:
    """Where sources and compiled code are kept: $REGMAX_CACHE_DIR, or ~/.cache/regmax."""
    given = os.environ.get("REGMAX_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regmax"


class Function:
    """A compiled function of entries; ``path`` is its source."""

    def __init__(self, source: str) -> None:
        name = source.split("(")[0].removeprefix("def ")
        text = _HEAD + source
        stamp = hashlib.sha256((text + numba.__version__).encode()).hexdigest()[:24]
        self.path, kept = _written(f"{name}_{stamp}.py", text)
        spec = importlib.util.spec_from_file_location(f"regmax_{name}_{stamp}", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # numba loads cached code by the name of its module
        spec.loader.exec_module(module)
        function = getattr(module, name)
        options = {"nopython": True, "error_model": "numpy"}
        compiled: Any = CFunc(function, (_SIGNATURE.args, types.void), {}, options)
        if kept:
            with contextlib.suppress(RuntimeError, OSError):
                compiled._cache = FunctionCache(function)
        try:
            compiled.compile()
        except Exception:  # files of the cache are damaged
            compiled._cache.flush()
            compiled.compile()
        self._kept, self.address = compiled, int(compiled.address)
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 6)(self.address)

    def __call__(
        self, n: int, y: Tensor, numbers: Tensor, vectors: Tensor, stride: int, out: Tensor
    ) -> None:
        """Run the function."""
        at = [t.data_ptr() for t in (y, numbers, vectors)]
        self._call(n, *at, stride, out.data_ptr())


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
