"""Whether numba is there and compiles these kernels, which use parts of it that may change."""

from __future__ import annotations

import functools
import importlib.util
import re
import warnings
from importlib import metadata

TESTED = (0, 62), (0, 69)
"""From the first version to before the second."""


def require() -> None:
    """Raise ModuleNotFoundError if numba is missing or cannot compile the kernels."""
    if importlib.util.find_spec("numba") is None or not fits(metadata.version("numba")):
        raise ModuleNotFoundError(name="numba")


@functools.cache
def fits(version: str) -> bool:
    """Whether this version, which is installed, compiles the kernels. One that is not tested
    compiles a kernel beforehand; if that fails, a warning says so."""
    oldest, beyond = TESTED
    if oldest <= tuple(map(int, re.findall(r"\d+", version)[:2])) < beyond:
        return True
    try:
        from .compiling import address_of

        address_of("regmax.kernels.cpu.packing", "forward", "float32")
    except Exception as error:
        warnings.warn(
            f"numba {version} cannot compile the kernels, and PyTorch operations are used instead: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
