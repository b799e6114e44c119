"""Fusedmax and Oscarmax in Triton on hard rows, against the CPU kernels in float64.

Rows are in registers, or in blocks of 32 entries.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
triton = pytest.importorskip("triton", reason="triton is not installed")
if not CUDA and isinstance(triton.language.sum, triton.JITFunction):
    pytest.skip("triton was imported without its interpreter", allow_module_level=True)

import interpreted_scans  # noqa: E402

import regmax  # noqa: E402
import regmax.functional as F  # noqa: E402
from regmax.kernels.triton.mappings import ChainKernel  # noqa: E402
from regmax.mapping.compiled import with_gradients  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64 = torch.float32, torch.float64
DEVICE = "cuda" if CUDA else "cpu"
D = 37
PATHS = {"registers": None, "blocks": 32}


@pytest.fixture(autouse=True)
def _scans(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    interpreted_scans.use(monkeypatch)


def rows() -> dict[str, Tensor]:
    i = torch.arange(D, dtype=F64)
    x = torch.randn(D, dtype=F64)
    return {
        "random": x,
        "ties": x.round(),
        "one value": torch.full((D,), 3.0, dtype=F64),
        "ascending": i / 7,
        "descending": -i / 7,
        "alternating": (-1.0) ** i * 0.4,
        "alternating and falling": (-0.9) ** i,
        "geometric": -(2.0 ** (-i)),
        "plateaus": (i // 12) % 2 * 0.7 + 1e-9 * x,
        "steps": torch.floor(i / 5) * 0.25,
        "peaks": torch.where(i % 6 == 0, 1.0, 0.0),
        "huge": x * 1e30,
        "far": x + 2.0**20,
        "tiny": x * 1e-12,
        "wide": torch.where(i % 3 == 0, x * 1e3, x),
    }


def check(mapping: str, x: Tensor, gamma: Any, lam: Any, mask: Tensor | None, path: str) -> None:
    """Values, and the gradients of x, γ and λ."""
    penalty = "tv" if mapping == "fusedmax" else "oscar"
    kernel = ChainKernel(ranked=mapping == "oscarmax", block=PATHS[path])
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
            y = with_gradients(kernel, regmax.regularizer(penalty), rows, on, leaves)
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


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
@pytest.mark.parametrize("lam", [0.0, 0.05, 2.0])
def test_hard_rows(mapping: str, lam: float, path: str) -> None:
    x = torch.stack(list(rows().values()))
    mask = torch.rand(x.shape) > 0.25
    mask[::2] = True
    x[0, ::5] = -torch.inf
    check(mapping, x.to(F32) if lam == 0.05 else x, 1.0, lam, mask, path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
def test_one_participant_and_none(mapping: str, path: str) -> None:
    x = torch.randn(4, D, dtype=F64)
    mask = torch.zeros(4, D, dtype=torch.bool)
    mask[0, 0] = mask[1, -1] = mask[2, 20] = True
    check(mapping, x, 1.0, 0.1, mask, path)
    check(mapping, x[:, :1], 1.0, 0.1, None, path)
    check(mapping, x[:, :1], 1.0, 0.1, mask[:, :1], path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
def test_numbers_per_row(mapping: str, path: str) -> None:
    x = torch.randn(6, D, dtype=F64)
    gamma = torch.tensor([1.0, 0.1, 10.0, 1e-3, 1.0, 0.5], dtype=F64)[:, None]
    lam = torch.tensor([0.0, 1e-2, 1.0, 1e-5, 1e12, 0.3], dtype=F64)[:, None]
    check(mapping, x, gamma, lam, torch.rand(x.shape) > 0.2, path)


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
@pytest.mark.parametrize("d", [64, 700, 2500])
def test_lengths(mapping: str, d: int) -> None:
    """Tiles of several rows, of one, and blocks of a long one."""
    x = torch.randn(2, d, dtype=F64).cumsum(1) / 10
    check(mapping, x, 1.0, 1.0 / d, torch.rand(x.shape) > 0.1, "registers")
