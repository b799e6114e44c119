"""Whether numba is there and compiles these kernels, which use parts of it that may change."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import warnings
from importlib import metadata

from .. import process

TESTED = (0, 62), (0, 69)
"""From the first version to before the second."""


def require() -> None:
    """Raise ModuleNotFoundError if numba is missing or cannot compile the kernels."""
    if importlib.util.find_spec("numba") is None or not fits(metadata.version("numba")):
        raise ModuleNotFoundError(name="numba")


@functools.cache
def fits(version: str) -> bool:
    """Whether this version, which is installed, compiles the kernels: whether LLVM can be loaded,
    and where the version is not tested, whether a kernel compiles. If not, a warning says so."""
    oldest, beyond = TESTED
    try:
        process.undisturbed(lambda: importlib.import_module(".compiling", __package__))
        if not oldest <= tuple(map(int, re.findall(r"\d+", version)[:2])) < beyond:
            from .compiling import address_of

            address_of("regmax.kernels.cpu.sparse_dots", "forward", "float32")
    except Exception as error:
        warnings.warn(
            f"numba {version} cannot compile the kernels, and PyTorch operations are used instead: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
