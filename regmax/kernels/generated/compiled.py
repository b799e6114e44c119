"""Functions of generated source, compiled by numba and cached on disk."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numba
from numba import types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from torch import Tensor

from .files import loaded

_HEAD = "import math\n\nimport numpy as np\n\n\n"
_NUMBERS = types.CPointer(types.float64)
_SIGNATURE = types.void(types.int64, _NUMBERS, _NUMBERS, _NUMBERS, types.int64, _NUMBERS)


class Function:
    """A compiled function of entries; ``path`` is its source."""

    def __init__(self, source: str) -> None:
        name = source.split("(")[0].removeprefix("def ")
        text = _HEAD + source
        module, self.path, kept = loaded(name, text, numba.__version__)
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
