"""Fusedmax and Oscarmax in Triton on hard rows, against the CPU kernels in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
triton = pytest.importorskip("triton", reason="triton is not installed")
if not CUDA and isinstance(triton.language.sum, triton.JITFunction):
    pytest.skip("triton was imported without its interpreter", allow_module_level=True)

import interpreted  # noqa: E402

import regmax  # noqa: E402
import regmax.functional as F  # noqa: E402
from regmax.kernels.triton.chain import ChainKernel  # noqa: E402
from regmax.mapping import function  # noqa: E402
from regmax.mapping.methods.base import method  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64 = torch.float32, torch.float64
DEVICE = "cuda" if CUDA else "cpu"


@pytest.fixture(autouse=True)
def _scans() -> Iterator[None]:
    torch.manual_seed(0)
    with interpreted.used():
        yield


def check(mapping: str, x: Tensor, gamma: Any, lam: Any, mask: Tensor | None) -> None:
    """Values, and the gradients of x, γ and λ."""
    penalty = "tv" if mapping == "fusedmax" else "oscar"
    kernel = ChainKernel(ranked=mapping == "oscarmax")
    v = torch.randn(x.shape, dtype=F64)
    found = []
    for device in ("cpu", DEVICE):
        leaves = [
            torch.as_tensor(t, dtype=F64).expand(len(x), 1).clone().to(device).requires_grad_()
            for t in (gamma, lam)
        ]
        rows = x.double() if not found else x.to(device)
        rows = rows.clone().requires_grad_()
        on = None if mask is None else mask.to(device)
        if not found:
            y = getattr(F, mapping)(rows, gamma=leaves[0], lam=leaves[1], mask=on)
        else:
            own, tensors = method(kernel, regmax.regularizer(penalty), leaves)
            y = function.argmax(own, rows, on, tensors)
        y.backward(v.to(y))
        found.append([y.detach(), rows.grad, *(t.grad for t in leaves)])
    (want, *wanted), (y, *got) = found
    y = y.cpu().double()
    close = {F32: 2e-7, F64: 2e-15}[x.dtype]
    torch.testing.assert_close(y, want, rtol=0, atol=close, equal_nan=True)
    assert not bool((y[want == 0] != 0).any())
    alike = []  # float32 may make equal what differs in float64; backward takes equals as a group
    for have, row in zip(y, want, strict=True):
        for value in row[row > 0].unique():
            assert len(have[row == value].unique()) == 1
        alike.append(len(have.unique()) == len(row.unique()))
    assert all(alike) or x.dtype == F32
    for have, expected in zip(got, wanted, strict=True):
        have, expected = have[alike], expected[alike]
        size = 1 + expected.abs().nan_to_num(0.0).max()
        off = (have.cpu().double() - expected).abs().max()
        assert off <= {F32: 2e-5, F64: 1e-11}[x.dtype] * size


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
@pytest.mark.parametrize("d", [64, 700])
def test_lengths(mapping: str, d: int) -> None:
    """Tiles of several rows, and of one."""
    x = torch.randn(2, d, dtype=F64).cumsum(1) / 10
    check(mapping, x, 1.0, 1.0 / d, torch.rand(x.shape) > 0.1)


D = 100


def hard_rows() -> dict[str, Tensor]:
    """Rows of a few entries that matter, and of many."""
    i = torch.arange(D, dtype=F64)
    x = torch.randn(D, dtype=F64)
    at = torch.tensor([0, 1, 15, 16, 31, 32, 33, 63, 64, 80, D - 1])
    peaks, one = x - 9, x - 9
    peaks = peaks.index_fill(0, at[::2], 3.0)
    runs = (x - 9).index_put((at,), 1 + x[: len(at)] / 9)
    # with λ = 0.05 entries 1.2 below the largest are cut, in exact arithmetic
    bound = torch.where(i % 7 == 0, 8.8, torch.where(i % 7 == 1, 8.8 - 1e-12, 9.0 + 1e-9 * x))
    bound[70:73] = torch.tensor([10.0, 8.8 + 1e-12, 9.0])
    return {
        "peaks": peaks,
        "one peak": one.index_fill(0, at[4:5], 3.0),
        "runs": runs,
        "at the bound": bound,
        "flat": x / 30,
        "flat and tied": (x * 3).round() / 128,
        "one value": torch.full((D,), -2.0, dtype=F64),
        "two values": torch.where(i < 60, 0.001, 0.0),
        "two levels": torch.where(i % 50 < 3, 0.2 + x / 50, 0.0),
        "walk": x.cumsum(0) / 9,
        "steps": torch.floor(i / 11) * 0.01,
    }


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
@pytest.mark.parametrize(("lam", "masked"), [(0.0, True), (2e-4, False), (0.05, True)])
def test_hard_rows(mapping: str, lam: float, masked: bool) -> None:
    x = torch.stack(list(hard_rows().values()))
    mask = torch.rand(x.shape) > 0.3 if masked else None
    check(mapping, x, 1.0, lam, mask)


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
def test_rows_are_independent(mapping: str) -> None:
    """A row has the same bits in every batch, and NaN and +inf stay in their row."""
    x = torch.stack(list(hard_rows().values()))[::2].to(F32).to(DEVICE)
    x[1, 5], x[3, 7] = torch.nan, torch.inf
    kernel = ChainKernel(ranked=mapping == "oscarmax")
    v = torch.randn(x.shape, device=DEVICE)

    def both(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y, part = kernel.forward(x, 1.0, (2e-4,), None)
        return y, kernel.backward(y, v, 1.0, (2e-4,), part, False)[0]

    y, g = both(x, v)
    assert y.isnan().all(-1).tolist() == [False, True, False, True, False, False]
    assert y.isnan().any(-1).sum() == 2
    for r in range(len(x)):
        alone = both(x[r : r + 1], v[r : r + 1])
        torch.testing.assert_close(
            (y[r : r + 1], g[r : r + 1]), alone, rtol=0, atol=0, equal_nan=True
        )
