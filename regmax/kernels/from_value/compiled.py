"""Functions of generated source, compiled by numba and cached on disk."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from torch import Tensor

from ..cpu.compiling import loaded, version
from ..folders import module
from ..sources import written

_HEAD = "import math\n\nimport numpy as np\n{}\n\n"
_USED = "common", "elementary", "memory", "simd"
_OURS = "\nfrom regmax.kernels.cpu import " + ", ".join(_USED) + "  # {}\n"


class Function:
    """A compiled function of entries; ``path`` is its source. Its code is freed with it."""

    def __init__(self, source: str) -> None:
        name = source.split("(")[0].removeprefix("def ")
        ours = any(f"{module}." in source for module in _USED)
        used = _OURS.format(version("regmax.kernels.cpu.common")) if ours else ""
        text = _HEAD.format(used) + source
        self.path, kept = written(name, text)

        def make() -> bytes:
            from numba import types

            from ..cpu import jit

            numbers = types.CPointer(types.float64)
            kinds = types.int64, numbers, numbers, numbers, types.int64, numbers
            found = module(self.path)
            sys.modules.pop(found.__name__)
            return jit.function(getattr(found, name), kinds)

        self.address = loaded(self.path.stem, text, [self.path.parent] if kept else [], make)
        self._call: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 6)(self.address)

    def __call__(
        self, n: int, y: Tensor, numbers: Tensor, vectors: Tensor, stride: int, out: Tensor
    ) -> None:
        """Run the function."""
        at = [t.data_ptr() for t in (y, numbers, vectors)]
        self._call(n, *at, stride, out.data_ptr())
