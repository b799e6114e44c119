"""Decreasing isotonic regression: against scipy, blocks, masks, isolation, hard inputs."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from regmax_oscar import isotonic
from regmax_oscar.isotonic import isotonic_decreasing, isotonic_decreasing_reference, kernel

BOTH = pytest.mark.parametrize("fit", [isotonic_decreasing, isotonic_decreasing_reference])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def hard_rows(d: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(d)
    i = torch.arange(d, dtype=torch.float64)
    normal = torch.randn(d, generator=g, dtype=torch.float64)
    return {
        "normal": normal,
        "ties": torch.randint(-2, 3, (d,), generator=g).double(),
        "plateaus": normal[(i // 7).long()],
        "constant": torch.full((d,), 0.1, dtype=torch.float64),
        "sawtooth": 1 - 2 * (i % 2),
        "teeth": i % 5 - i / 9,
        "ramp": i / 8,
        "fall": -i / 3,
        "parabola": (i - d / 2) ** 2 / d,
        "hill": -((i - d / 2) ** 2) / d,
        "noisy fall": normal - i / 4,
        "sorted": normal.sort(descending=True).values,
        "geometric": 2.0 ** -(i % 40),
    }


def check_optimal(v: torch.Tensor, z: torch.Tensor) -> None:
    """Decreasing, block means in exact summation, and sum_{a..k} (v_i - z_i) <= 0 in a block."""
    vs, zs = v.double().numpy(), z.double().numpy()
    eps = torch.finfo(v.dtype).eps
    assert (np.diff(zs) <= 0).all()
    cut = np.flatnonzero(np.diff(zs))
    bounds = [-1, *cut.tolist(), len(vs) - 1]
    for k in range(min(len(bounds) - 1, 300)):
        part = vs[bounds[k] + 1 : bounds[k + 1] + 1]
        value = zs[bounds[k + 1]]
        scale = np.abs(part).max()
        assert abs(value - math.fsum(part) / len(part)) <= 2 * eps * scale
        if len(part) == 1:
            assert value == part[0]
        head = np.cumsum(part.astype(np.longdouble) - value)
        assert head.max() <= len(part) * eps * scale * 2
    expected = isotonic_regression(vs, increasing=False).x
    assert np.abs(zs - expected).max() <= 2 * max(eps, len(vs) * 1e-16) * np.abs(vs).max()


@BOTH
@DTYPES
@pytest.mark.parametrize("d", [1, 2, 3, 10, 64, 257])
def test_optimality_on_hard_inputs(fit, dtype, d):
    for row in hard_rows(d).values():
        for scale in (1e-3, 1.0, 1e6):
            for shift in (0.0, 1e6):
                v = (row * scale + shift).to(dtype)
                z = fit(v)
                assert z.dtype == dtype
                check_optimal(v, z)


@BOTH
@DTYPES
def test_long_rows(fit, dtype):
    for row in hard_rows(100_000).values():
        v = row.to(dtype)
        check_optimal(v, fit(v))


@DTYPES
@pytest.mark.parametrize("d", [1, 2, 3, 5, 33, 64, 300])
def test_kernel_and_reference_agree(dtype, d):
    g = torch.Generator().manual_seed(0)
    for v in (torch.randn(300, d, generator=g), torch.randint(-3, 4, (300, d), generator=g)):
        v = v.to(dtype) - torch.linspace(0, 5, d).to(dtype)
        a, b = isotonic_decreasing(v), isotonic_decreasing_reference(v)
        torch.testing.assert_close(a, b, rtol=0, atol=8 * torch.finfo(dtype).eps)


@BOTH
def test_decreasing_rows_are_left_alone(fit):
    v = torch.randn(30, 50, generator=torch.Generator().manual_seed(1)).sort(descending=True).values
    assert torch.equal(fit(v), v)
    v[:, 10:20] = v[:, 10:11]
    assert torch.equal(fit(v), v)


@BOTH
@DTYPES
def test_mask_is_the_shorter_row(fit, dtype):
    g = torch.Generator().manual_seed(3)
    v = torch.randn(40, 29, generator=g).to(dtype)
    mask = torch.rand(40, 29, generator=g) < torch.linspace(0, 1, 40)[:, None]
    mask[0], mask[-1] = False, True
    dirty = torch.where(mask, v, torch.tensor([math.nan, math.inf, 3.0])[torch.arange(29) % 3])
    z = fit(dirty.to(dtype), mask)
    assert (z[~mask] == 0).all()
    for k in range(40):
        assert torch.equal(z[k, mask[k]], fit(v[k, mask[k]]))


@BOTH
@DTYPES
def test_bad_rows_are_nan_and_alone(fit, dtype):
    v = torch.randn(5, 13, generator=torch.Generator().manual_seed(4)).to(dtype)
    clean = fit(v)
    mask = torch.ones_like(v, dtype=torch.bool)
    mask[1, 0] = mask[4, 5] = False
    v[1, 4], v[2, 0], v[3, 12], v[4, 5] = math.nan, math.inf, -math.inf, math.nan
    z = fit(v, mask)
    assert torch.equal(z[0], clean[0])
    assert z[1, 0] == 0
    assert z[1, 1:].isnan().all()
    assert z[2:4].isnan().all()
    assert z[4].isfinite().all()
    assert z[4, 5] == 0


@BOTH
def test_a_row_does_not_depend_on_its_batch(fit):
    v = torch.randn(50, 45, generator=torch.Generator().manual_seed(5)) * 10
    z = fit(v)
    for k in range(50):
        assert torch.equal(z[k], fit(v[k]))
    assert torch.equal(z.reshape(5, 10, 45), fit(v.reshape(5, 10, 45)))


@BOTH
@DTYPES
def test_shapes_and_strides(fit, dtype):
    for shape in ((0, 4), (3, 0), (0,), (2, 0, 5)):
        z = fit(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.bool))
        assert z.shape == shape
        assert z.dtype == dtype
    v = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(6)).to(dtype)
    before = v.clone()
    z = fit(v.requires_grad_().permute(2, 1, 0)[:, ::2, ::2])
    assert not z.requires_grad
    assert torch.equal(v, before)
    assert torch.equal(z, fit(before.permute(2, 1, 0)[:, ::2, ::2].contiguous()))


@BOTH
def test_errors(fit):
    v = torch.zeros(2, 3)
    with pytest.raises(TypeError, match="float32"):
        fit(v.half())
    with pytest.raises(TypeError, match="bool"):
        fit(v, v)
    with pytest.raises(ValueError, match="mask"):
        fit(v, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="dimension"):
        fit(torch.tensor(1.0))


def test_kernel_choice(monkeypatch):
    pytest.importorskip("numba")
    v = torch.randn(3, 8)
    assert kernel(v) == "numba"
    assert kernel(v.to("meta")) == "torch"
    monkeypatch.setattr(isotonic, "_compiled", lambda: None)
    assert kernel(v) == "torch"
    assert torch.equal(isotonic_decreasing(v), isotonic_decreasing_reference(v))


def test_numba_is_imported_at_the_first_call_only():
    code = "import sys, regmax_oscar.isotonic as c; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
