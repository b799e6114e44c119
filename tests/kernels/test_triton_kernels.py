"""The Triton kernels against the mappings in float64: interpreted without a GPU, compiled on one.

Every test goes by rows in registers, by packed candidates, and by chunks of a row, with blocks made
small enough for short rows to need them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from devices import TRITON_DEVICES, need_triton
from torch import Tensor

need_triton()

import interpreted_scans  # noqa: E402

import regmax.functional as F  # noqa: E402
from regmax.kernels import Lazy  # noqa: E402
from regmax.kernels.triton import long_rows  # noqa: E402
from regmax.kernels.triton.mappings import ChainKernel, ThresholdKernel  # noqa: E402
from regmax.mapping.methods import base  # noqa: E402

# the interpreter is numpy, which warns where IEEE arithmetic is meant: log 0, and inf that a
# selection then leaves out
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
TOLERANCE = {F64: 2e-15, F32: 2e-7, F16: 5e-4, BF16: 4e-3}
# mapping, hyperparameter
CASES = (
    ("softmax", None),
    ("sparsemax", None),
    ("entmax", 0.6),
    ("entmax", 1.0),
    ("entmax", 1.2),
    ("entmax", 1.5),
    ("entmax", 2.0),
    ("entmax", 2.5),
    ("entmax", 3.0),
    ("pnormmax", 1.1),
    ("pnormmax", 1.5),
    ("pnormmax", 2.0),
    ("fusedmax", 0.1),
    ("oscarmax", 0.05),
)
SIMPLE = (
    ("softmax", None),
    ("sparsemax", None),
    ("entmax", 1.5),
    ("entmax", 3.0),
    ("pnormmax", 1.5),
    ("fusedmax", 0.1),
    ("oscarmax", 0.05),
)
CHAINS = ("fusedmax", "oscarmax")
PATHS = ("registers", "packed", "chunks")
D = 21
NAMES = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}
KINDS = {"softmax": "entropy", "sparsemax": "gini", "entmax": "tsallis", "pnormmax": "pnorm"}


@pytest.fixture(params=TRITON_DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    torch.manual_seed(0)
    interpreted_scans.use(monkeypatch)
    # the reference is PyTorch's: kernels of the CPU stay out
    monkeypatch.setattr(Lazy, "get", lambda lazy, device: None)
    base.METHODS.clear()
    return str(request.param)


def kernel(mapping: str, path: str = "registers") -> Any:
    """Its kernel, made to go by ``path`` where rows have D entries."""
    small = {"registers": {}, "packed": {"pack": 16}, "chunks": {"limit": 16}}[path]
    if mapping in KINDS:
        return ThresholdKernel(KINDS[mapping], **small)
    return ChainKernel(ranked=mapping == "oscarmax", block=16 if path == "chunks" else None)


def paths(mapping: str) -> tuple[str, ...]:
    return ("registers", "chunks") if mapping in CHAINS or mapping == "softmax" else PATHS


def column(value: float | Tensor | None) -> Tensor:
    value = torch.as_tensor(1.0 if value is None else value, dtype=F64)
    return value.reshape(-1, 1)


def expected(
    mapping: str, x: Tensor, gamma: Tensor, theta: Tensor, mask: Tensor | None = None
) -> Tensor:
    hyper = {NAMES[mapping]: theta} if mapping in NAMES else {}
    y: Tensor = getattr(F, mapping)(x.double(), gamma=gamma, mask=mask, **hyper)
    return y


def run(
    mapping: str,
    path: str,
    device: str,
    x: Tensor,
    gamma: float | Tensor = 1.0,
    theta: float | Tensor | None = None,
) -> Tensor:
    hyper = () if mapping not in NAMES else (column(theta).squeeze(1).to(device),)
    y, _ = kernel(mapping, path).forward(
        x.to(device), column(gamma).squeeze(1).to(device), hyper, None
    )
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.is_contiguous()
    return y.cpu()


def check(
    mapping: str,
    device: str,
    x: Tensor,
    gamma: float | Tensor = 1.0,
    theta: float | Tensor | None = None,
    tolerance: float | None = None,
) -> None:
    """Every path gives what the mapping gives in float64 for the same scores."""
    want = expected(mapping, x, column(gamma), column(theta))
    for path in paths(mapping):
        check_answer(run(mapping, path, device, x, gamma, theta), want, tolerance)


def check_answer(y: Tensor, want: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[y.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(y.double(), want, rtol=0, atol=tolerance, equal_nan=True)
    if y.dtype in (F32, F64):
        assert not bool((y[want == 0] != 0).any())
        alive = torch.isfinite(want).all(1) & (want.sum(1) > 0)
        off = (y[alive].sum(1) - 1).abs()
        assert bool((off <= 2 * torch.finfo(y.dtype).eps * y.shape[1] ** 0.5).all())


HALF = (
    ("sparsemax", None, F16),
    ("entmax", 1.5, F16),
    ("entmax", 3.0, BF16),
    ("pnormmax", 1.5, BF16),
)


@pytest.mark.parametrize(("mapping", "theta", "dtype"), HALF)
def test_half_precision(mapping: str, theta: float | None, dtype: torch.dtype, device: str) -> None:
    assert dtype in kernel(mapping).dtypes
    check(mapping, device, (2 * torch.randn(2, D)).to(dtype), 0.7, theta)


@pytest.mark.parametrize(
    ("mapping", "theta", "dtype"), [(*c, F64) for c in CASES] + [(*c, F32) for c in SIMPLE]
)
def test_forward_and_backward(
    mapping: str, theta: float | None, dtype: torch.dtype, device: str
) -> None:
    x, v = torch.randn(2, D).to(dtype), torch.randn(2, D).to(dtype)
    mask = torch.rand(2, D) > 0.2
    gamma, hyper = 0.5 + torch.rand(2, 1, dtype=F64), column(theta).expand(2, 1).clone()
    leaves = [t.requires_grad_() for t in (x.double(), gamma, hyper)]
    want = expected(mapping, *leaves, mask)
    want.backward(v.double())
    # between float32 answers J differs: relative to the size of each gradient
    tolerance = {F32: 2e-5, F64: 1e-11}[dtype]
    arguments = [t.detach().squeeze(1).to(device) for t in (gamma, hyper)]
    arguments = [arguments[0], () if theta is None else (arguments[1],)]
    for path in paths(mapping):
        k = kernel(mapping, path)
        y, part = k.forward(x.detach().to(device), *arguments, mask.to(device))
        check_answer(y.cpu(), want.detach())
        g, by_theta = k.backward(y, v.to(device), *arguments, part, True)
        assert y.dtype == g.dtype == dtype
        assert by_theta is not None
        got = [g, *(t[:, None] for t in by_theta)]
        assert len(got) == (1 if theta is None else 2)
        for have, leaf in zip(got, leaves[:1] + leaves[2:], strict=False):
            assert leaf.grad is not None
            size = 1 + leaf.grad.abs().max()
            error = (have.cpu().double() - leaf.grad).abs().max()
            assert error <= tolerance * size, path
        alone, nothing = k.backward(y, v.to(device), *arguments, part, False)
        assert nothing is None
        assert torch.equal(alone, g)


@pytest.mark.parametrize(("mapping", "theta"), SIMPLE)
def test_masks_and_values_that_are_no_scores(
    mapping: str, theta: float | None, device: str
) -> None:
    x = torch.randn(9, D)
    mask = torch.rand(9, D) > 0.3
    x[0, 3:19] = -torch.inf
    x[1] = -torch.inf
    mask[2] = False
    x[3, 5], mask[3, 5] = torch.nan, True
    x[4, 6], mask[4, 6] = torch.nan, False
    x[5, 7], mask[5, 7] = torch.inf, True
    x[6, 8], mask[6, 8] = torch.inf, False
    x[7, 9:] = torch.finfo(F32).min
    mask[8], mask[8, 20] = False, True
    want = expected(mapping, x, column(1.0), column(theta), mask)
    for path in paths(mapping):
        k = kernel(mapping, path)
        gamma = torch.ones(1, dtype=F64, device=device)
        hyper = () if theta is None else (gamma * theta,)
        y, part = k.forward(x.to(device), gamma, hyper, mask.to(device))
        check_answer(y.cpu(), want)
        v = torch.full_like(y, torch.nan).masked_fill(y > 0, 2.0)
        g, by_theta = k.backward(y, v, gamma, hyper, part, True)
        for t in (g, *by_theta):
            assert bool((t.cpu().abs() < 1e-5).all()), path  # J annihilates constants; NaN rows: 0


@pytest.mark.parametrize(("mapping", "theta"), SIMPLE)
def test_rows_of_every_kind(mapping: str, theta: float | None, device: str) -> None:
    x = torch.randn(7, D)
    x[0] = 3.0
    x[1] = x[1].round()
    x[2, 10:] = x[2, :11].clone()
    x[3] = torch.finfo(F32).min
    x[4] *= 1e-6
    x[5] *= 1e4
    x[6, 0] = torch.finfo(F32).max
    x[1, 4:7] = -torch.inf
    check(mapping, device, x, 1.0, theta)
    check(mapping, device, (x[2:3] * 64).round() / 64 + 2.0**14, 1.0, theta)
    check(mapping, device, x[5:, :1], 1.0, theta)
    check(mapping, device, x[2:3, :2], 1e-3, theta)
    check(mapping, device, x[:0], 1.0, theta)


@pytest.mark.parametrize(("mapping", "theta"), SIMPLE)
def test_hyperparameters_per_row(mapping: str, theta: float | None, device: str) -> None:
    x = torch.randn(5, D, dtype=F64)
    gamma = torch.tensor([0.3, 1.0, 2.0, torch.nan, 0.7], dtype=F64)
    thetas = {
        "softmax": [1.0] * 5,
        "sparsemax": [1.0] * 5,
        "entmax": [1.0, 1.5, 4.0, 2.0, torch.nan],
        "pnormmax": [1.2, 2.0, 1.5, 1.7, torch.nan],
        "fusedmax": [0.0, 0.1, 10.0, 0.1, torch.nan],
        "oscarmax": [0.0, 0.1, 10.0, 0.1, torch.nan],
    }[mapping]
    hyper = torch.tensor(thetas, dtype=F64)
    want = torch.full_like(x, torch.nan)
    good = 3 if mapping in NAMES else 4
    rows = [0, 1, 2, 4][:good]
    want[rows] = expected(mapping, x[rows], gamma[rows, None], hyper[rows, None])
    for path in paths(mapping):
        y = run(mapping, path, device, x, gamma, hyper)
        torch.testing.assert_close(y, want, rtol=0, atol=2e-15, equal_nan=True)


@pytest.mark.parametrize(("mapping", "theta"), [*SIMPLE, ("entmax", 1.2), ("entmax", 2.0)])
def test_hyperparameters_that_are_numbers(mapping: str, theta: float | None, device: str) -> None:
    x, v = torch.randn(2, D, dtype=F64), torch.randn(2, D, dtype=F64).to(device)
    want = expected(mapping, x, column(0.7), column(theta))
    numbers = () if theta is None else (theta,)
    tensors = tuple(torch.full((1,), t, dtype=F64, device=device) for t in (0.7, *numbers))
    for path in paths(mapping):
        k = kernel(mapping, path)
        y, part = k.forward(x.to(device), 0.7, numbers, None)
        torch.testing.assert_close(y.cpu(), want, rtol=0, atol=2e-15)
        g, by_theta = k.backward(y, v, 0.7, numbers, part, True)
        h, right = k.backward(y, v, tensors[0], tensors[1:], part, True)
        for a, b in zip((g, *by_theta), (h, *right), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("theta", [None, 1.5, 1.8])
def test_flat_rows_pack_few_entries(
    theta: float | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries of a chunk are within reach; each chunk alone excludes most."""
    held = []
    launch = long_rows.solve_chunks.__class__.__getitem__

    def noted(kernel: Any, grid: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kernel is long_rows.solve_chunks:
                held.append(args[9].clone())
            return launch(kernel, grid)(*args, **kwargs)

        return call

    monkeypatch.setattr(long_rows.solve_chunks.__class__, "__getitem__", noted)
    x = 0.1 * torch.randn(2, 3000)
    mapping = "sparsemax" if theta is None else "entmax"
    y, _ = ThresholdKernel(KINDS[mapping], limit=2048).forward(
        x.to(device), 1.0, () if theta is None else (theta,), None
    )
    want = expected(mapping, x, column(1.0), column(theta))
    torch.testing.assert_close(y.cpu().double(), want, rtol=0, atol=2e-7)
    support = int((want > 0).sum())
    alone = sum(
        int((expected(mapping, part, column(1.0), column(theta)) > 0).sum())
        for part in x.split(1024, -1)
    )
    assert support <= int(held[0].sum()) <= 1.5 * alone


@pytest.mark.parametrize(("mapping", "theta"), SIMPLE)
def test_a_row_does_not_depend_on_its_batch(mapping: str, theta: float | None, device: str) -> None:
    x = torch.randn(2, D)
    for path in paths(mapping):
        y = run(mapping, path, device, x, 0.8, theta)
        assert torch.equal(run(mapping, path, device, x[1:], 0.8, theta)[0], y[1]), path


@pytest.mark.parametrize(("mapping", "theta"), [SIMPLE[1], *SIMPLE[4:]])
def test_strided_rows(mapping: str, theta: float | None, device: str) -> None:
    x = torch.randn(2, 36)
    mask = torch.rand(2, 36) > 0.2
    view, on = x.to(device)[:, 7:28], mask.to(device)[:, 7:28]
    for path in paths(mapping):
        k = kernel(mapping, path)
        gamma = torch.ones(1, dtype=F64, device=device)
        hyper = () if theta is None else (gamma * theta,)
        y, part = k.forward(view, gamma, hyper, on)
        same, _ = k.forward(view.contiguous(), gamma, hyper, on.contiguous())
        assert torch.equal(y, same)
        v = torch.randn(2, 36).to(device)[:, 3:24]
        g, _ = k.backward(y, v, gamma, hyper, part, False)
        same, _ = k.backward(y, v.contiguous(), gamma, hyper, part, False)
        assert torch.equal(g, same)


@pytest.mark.parametrize("mapping", ["fusedmax", "oscarmax"])
def test_members_of_a_group_are_equal(mapping: str, device: str) -> None:
    x = torch.randn(4, D)
    want = expected(mapping, x, column(1.0), column(0.2))
    for path in paths(mapping):
        y = run(mapping, path, device, x, 1.0, 0.2)
        for have, row in zip(y, want, strict=True):
            for value in row[row > 0].unique():
                assert len(have[row == value].unique()) == 1


@pytest.mark.parametrize(
    ("mapping", "theta"), [("sparsemax", None), ("entmax", 1.5), ("entmax", 1.9), ("pnormmax", 1.3)]
)
def test_many_entries_near_the_threshold(mapping: str, theta: float | None, device: str) -> None:
    """Their sum moves by thousands of roundings of the threshold."""
    x = torch.full((2, 3000), -0.7)
    x[:, 0] = 0.0
    x[1] -= 1e-4 * torch.rand(3000)
    want = expected(mapping, x, column(1.0), column(theta))
    y, _ = kernel(mapping, "packed").forward(
        x.to(device),
        torch.ones(1, dtype=F64, device=device),
        () if theta is None else (column(theta).squeeze(1).to(device),),
        None,
    )
    torch.testing.assert_close(y.cpu().double(), want, rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("mapping", "theta"), [("entmax", 1.3), ("entmax", 3.0), ("pnormmax", 1.6)]
)
def test_many_candidates(mapping: str, theta: float, device: str) -> None:
    check(mapping, device, 1e-3 * torch.randn(1, 100), 1.0, theta)


@pytest.mark.parametrize("alpha", [1 - 1e-7, 1 + 1e-9, 1 + 1e-7, 1 + 1e-4, 1.01, 2 + 1e-9, 5.0])
def test_entmax_through_one_and_two(alpha: float, device: str) -> None:
    check("entmax", device, 3 * torch.randn(1, D), 0.7, alpha)
    check("entmax", device, 3 * torch.randn(1, D, dtype=F64), 0.7, alpha, tolerance=1e-14)


def _off(values: Any, ulps: int) -> Any:
    """float32 values, every other one off by some last places."""
    if values.dtype != np.float32:
        return values
    off = values * np.float32(1 + ulps * 2.0**-23)
    return np.where(np.ascontiguousarray(values).view(np.int32) & 1, off, values).astype(np.float32)


@pytest.mark.parametrize(("mapping", "theta"), [*SIMPLE[:5], ("entmax", 1.2), ("pnormmax", 1.1)])
def test_arithmetic_of_a_gpu(
    mapping: str, theta: float | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """exp, log and division of float32 are off by two last places, min and max drop NaN, and fma
    rounds once: the tolerances hold."""
    if device == "cuda":
        pytest.skip("a GPU needs no imitation")
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
        exact = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    def replace(name: str, function: Any) -> None:
        def call(builder: Any, *args: Any) -> Any:
            data = function(*(a.data for a in args))
            return TensorHandle(np.asarray(data), args[0].dtype.scalar)

        monkeypatch.setattr(InterpreterBuilder, f"create_{name}", call)

    replace("exp", lambda x: _off(np.exp(x), 2))
    replace("log", lambda x: _off(np.log(x), 2))
    replace("fdiv", lambda x, y: _off(np.asarray(x / y), 2))
    for name, function in (("minimumf", np.fmin), ("maximumf", np.fmax)):
        replace(name, function)
        replace(name.replace("imum", "num"), function)
    monkeypatch.setattr(InterpreterBuilder, "create_fma", fma)
    x = torch.randn(4, D)
    x[1] *= 5
    x[2, 3:9], x[3, 4] = -torch.inf, torch.nan
    check(mapping, device, x, 0.7, theta)
