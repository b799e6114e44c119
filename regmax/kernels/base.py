"""What a kernel is, and how one is loaded when it is first asked for."""

from __future__ import annotations

import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

import torch
from torch import Tensor

Hyper = tuple[Tensor, ...]

ASKED = ContextVar("regmax_kernels", default=True)
"""Whether kernels may be used: not inside :func:`reference`."""


@contextmanager
def reference() -> Iterator[None]:
    """``with regmax.kernels.reference():`` computes mappings by PyTorch operations alone.

    For comparisons, and to find out whether a kernel is to blame.
    """
    before = ASKED.set(False)
    try:
        yield
    finally:
        ASKED.reset(before)


def asked() -> bool:
    """Whether kernels may be used: not inside :func:`reference`."""
    return ASKED.get()


def why_none(device: str) -> str:
    """Why a kernel does not run for tensors on a device."""
    if not asked():
        return "kernels are switched off (regmax.kernels.reference)"
    package = {"cpu": "numba", "cuda": "triton"}.get(device)
    if package is None or importlib.util.find_spec(package) is not None:
        return f"there is no kernel for {device} tensors"
    return f"no kernel runs, {package} is missing (pip install 'regmax[fast]')"


class Kernel(ABC):
    """Π_Ω(x) and v ↦ Jᵀv in compiled code, for the scores as the user gives them.

    Rows: ``x``, ``y`` and ``v`` are (R, d), d ≥ 1, R ≥ 0, of a dtype in ``dtypes``, all on one
    device, without gradient; entries of a row are adjacent in memory (last stride 1), rows need not
    be. ``x`` may hold anything: −inf, and what ``mask`` (R, d) leaves out (False), NaN included,
    does not take part; a row in which a participant is NaN or +inf is NaN throughout; a row without
    participants is 0. Any finite scores are right, finfo.min among them, whatever their shift.

    ``gamma`` and each of ``theta`` (the ``hyperparameters`` of Ω, in their order) are float64, of
    shape (1,) or (R,). Out of range they are NaN, and so is the row.
    """

    name: ClassVar[str]
    """What ``explain`` calls it: "numba", "triton"."""
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.float64)
    """The dtypes it takes; others are computed in float32."""

    @abstractmethod
    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """y = Π_Ω(x), new and contiguous, and what ``backward`` must know of who takes part: a bool
        (R, d), or None where y tells enough (always, unless neighbours matter)."""

    @abstractmethod
    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        """For the gradient v with respect to y, those with respect to x and θ.

        The first is w/γ with w = Jv, like y; if ``hyper``, the others are −⟨w, ∂∇Ω(y; θ)/∂θ⟩ (for
        a penalty λR, −⟨w, u⟩ with u ∈ ∂R(y)), float64 (R,), one number per row; else None. ``mask``
        is what ``forward`` returned. Rows that are NaN, or 0 throughout, give 0 to all of them.
        """


class Lazy:
    """Kernels by device, each the ``KERNEL`` of a module that is imported when first asked for.

    ``Lazy(cpu="my_plugin._cpu", cuda="my_plugin._gpu")``.
    """

    def __init__(self, **modules: str) -> None:
        self.modules = modules
        self.loaded: dict[str, Kernel | None] = {}

    def __repr__(self) -> str:
        return f"Lazy({', '.join(f'{k}={v!r}' for k, v in self.modules.items())})"

    def get(self, device: str) -> Kernel | None:
        """The kernel for a device, or None: there is none, or a package that it needs is missing.
        Any other failure of its import is warned of, once."""
        try:
            return self.loaded[device]
        except KeyError:
            pass
        kernel: Kernel | None = None
        if device in self.modules:
            try:
                kernel = importlib.import_module(self.modules[device]).KERNEL
            except ModuleNotFoundError:
                kernel = None
            except (ImportError, RuntimeError) as error:
                warnings.warn(
                    f"the kernel {self.modules[device]} cannot be loaded, and PyTorch operations "
                    f"take its place: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self.loaded[device] = kernel
        return kernel
