"""Fusedmax and Oscarmax in Triton on hard rows, against the CPU kernels in float64.

Rows are in registers, or in blocks of 32 or 16 entries, half of which are solved in registers.
"""

from __future__ import annotations

from collections import Counter
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
from regmax.kernels.triton import chain, long_chain  # noqa: E402
from regmax.kernels.triton.mappings import ChainKernel  # noqa: E402
from regmax.mapping import function  # noqa: E402
from regmax.mapping.methods.base import method  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64 = torch.float32, torch.float64
DEVICE = "cuda" if CUDA else "cpu"
D = 37
PATHS = {"registers": None, "short blocks": 16}


@pytest.fixture(autouse=True)
def _scans() -> Iterator[None]:
    torch.manual_seed(0)
    with interpreted.used():
        yield


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
@pytest.mark.parametrize("d", [64, 700, 2500])
def test_lengths(mapping: str, d: int) -> None:
    """Tiles of several rows, of one, and blocks of a long one."""
    x = torch.randn(2 if d < 2500 else 1, d, dtype=F64).cumsum(1) / 10
    check(mapping, x, 1.0, 1.0 / d, torch.rand(x.shape) > 0.1, "registers")


LONG = 100


def long_rows() -> dict[str, Tensor]:
    """Rows of a few entries that matter, at the borders of blocks of 16 and tiles of 32, and of
    many."""
    i = torch.arange(LONG, dtype=F64)
    x = torch.randn(LONG, dtype=F64)
    at = torch.tensor([0, 1, 15, 16, 31, 32, 33, 63, 64, 80, LONG - 1])
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
        "one value": torch.full((LONG,), -2.0, dtype=F64),
        "two values": torch.where(i < 60, 0.001, 0.0),
        "two levels": torch.where(i % 50 < 3, 0.2 + x / 50, 0.0),
        "walk": x.cumsum(0) / 9,
        "steps": torch.floor(i / 11) * 0.01,
    }


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
@pytest.mark.parametrize(("lam", "masked"), [(0.0, True), (2e-4, False), (0.05, True)])
def test_long_rows(mapping: str, lam: float, masked: bool) -> None:
    x = torch.stack(list(long_rows().values()))
    mask = torch.rand(x.shape) > 0.3 if masked else None
    check(mapping, x, 1.0, lam, mask, "short blocks")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the parts of the kernels of long rows run."""
    found: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("answer", "swept", "sort", "products", "ranked_products", "swept_products"):
        monkeypatch.setattr(long_chain, name, counted(name, getattr(long_chain, name)))
    return found


@pytest.mark.skipif(CUDA, reason="counts calls of the interpreter")
@pytest.mark.parametrize(("more", "few"), [(0, True), (1, False)])
def test_few_entries_are_solved_in_registers(calls: Counter[str], more: int, few: bool) -> None:
    """Eight entries, half a block: with total variation two of them beside a run of the others."""
    x = torch.full((1, LONG), -9.0, dtype=F64)
    x[0, 28 : 34 + more] = 3 + torch.linspace(0, 0.05, 6 + more, dtype=F64)
    check("fusedmax", x, 1.0, 1e-3, None, "short blocks")
    forward, backward = ("answer", "products") if few else ("swept", "swept_products")
    assert calls == {forward: 1, backward: 1}
    calls.clear()
    x[0, 80:82] = 3.01
    check("oscarmax", x, 1.0, 1e-4, None, "short blocks")
    if few:
        assert calls == {"answer": 1, "ranked_products": 1}
    else:  # the least value of y is not packed
        assert calls == {"sort": 1, "swept": 1, "ranked_products": 1}


@pytest.mark.skipif(CUDA, reason="counts calls of the interpreter")
def test_one_block_is_not_sorted(calls: Counter[str]) -> None:
    """By its range, or by its mean and its variance."""
    i = torch.linspace(-1, 1, LONG, dtype=F64)
    normal = torch.erfinv(i * 0.999)
    for x, lam in ((i, 0.05), (normal, 0.06)):
        check("oscarmax", x[None], 1.0, lam, None, "short blocks")
        assert set(calls) == {"ranked_products"}
    assert float(2 * (normal.max() - normal.min())) > 0.06 * LONG  # not by its range
    check("oscarmax", normal[None], 1.0, 0.03, None, "short blocks")
    assert calls["sort"] == 1


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
def test_programs_reuse_their_memory(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the same bits in every batch, and NaN and +inf stay in their row."""
    monkeypatch.setattr(chain, "STATE", 1)
    monkeypatch.setattr(chain, "PROGRAMS", 2)
    x = torch.stack(list(long_rows().values()))[::2].to(F32).to(DEVICE)
    x[1, 5], x[3, 7] = torch.nan, torch.inf
    kernel = ChainKernel(ranked=mapping == "oscarmax", block=16)
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
