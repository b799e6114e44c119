"""The devices of a test, as parameters of pytest; a GPU that is missing skips with its reason."""

from __future__ import annotations

import interpreted
import pytest
import torch

CUDA = torch.cuda.is_available()
ON_GPU = (pytest.mark.cuda, pytest.mark.skipif(not CUDA, reason="there is no CUDA device"))
GPU = pytest.param("cuda", marks=ON_GPU)
DEVICES = ("cpu", GPU)
TRITON_DEVICES = (
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="compiled, on the GPU")),
    GPU,
)
"""Where Triton's kernels run: its interpreter is on the CPU, and only without a GPU."""


def need_triton(*, interpreter: bool = not CUDA) -> None:
    """Skip a test, or the module that calls it on import, where Triton's kernels cannot run."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    if interpreter and isinstance(triton.language.sum, triton.JITFunction):
        pytest.skip("triton was imported without its interpreter", allow_module_level=True)
    if interpreter:
        interpreted.quickened()
