"""Which tensors Triton kernels take, and what happens where Triton cannot launch."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from regmax.kernels import Lazy
from regmax.kernels.triton import powers, rows
from regmax.kernels.triton.mappings import ThresholdKernel


def test_devices() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter takes tensors of the CPU")
    with pytest.raises(ValueError, match="CUDA"):
        ThresholdKernel(powers.LINEAR).forward(torch.zeros(1, 2), 1.0, (), None)


def test_a_launch_that_fails_leaves_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a C compiler, which Triton needs at its first launch."""

    class Broken:
        def __getitem__(self, grid: object) -> Any:
            raise subprocess.CalledProcessError(1, "cc")

    monkeypatch.setattr(rows, "_nothing", Broken())
    with pytest.raises(RuntimeError, match="Triton cannot launch kernels"):
        rows.probe()
    module = types.ModuleType("regmax_no_compiler")
    module.__getattr__ = lambda name: rows.probe()  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.warns(RuntimeWarning, match="Triton cannot launch kernels"):
        assert Lazy(cuda=module.__name__).get("cuda") is None
