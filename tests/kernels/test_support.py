"""The positive entries of rows, packed."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("numba")

from regmax import functional
from regmax.kernels.cpu.support import packed


def sparse(rows, d, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    y = torch.rand(rows, d, generator=g, dtype=dtype)
    return torch.where(y > 0.9, y, 0), torch.randn(rows, d, generator=g, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 15, 16, 17, 33, 300, 5001])
def test_they_are_those_of_each_row_in_order(d, dtype):
    y, x = sparse(7, d, dtype=dtype)
    y[2] = 0
    found = packed(y, x, d)
    assert found is not None
    ys, xs = found
    assert ys.shape == xs.shape == (7, max(1, int((y > 0).sum(1).max())))
    for r in range(7):
        n = int((y[r] > 0).sum())
        assert torch.equal(ys[r, :n], y[r][y[r] > 0].double())
        assert torch.equal(xs[r, :n], x[r][y[r] > 0].double())
        assert (ys[r, n:] == 0).all()
        assert (xs[r, n:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [24, 150])
def test_every_mask_of_a_register(d, dtype):
    on = (torch.arange(1, 256).unsqueeze(1) >> torch.arange(8)) % 2 == 1
    for at in (0, 8, d - 8):
        x, v = torch.full((255, d), -9.0, dtype=dtype), torch.randn(255, d, dtype=dtype)
        x[:, at : at + 8] = torch.where(on, torch.linspace(0, 0.1, 8, dtype=dtype), -9)
        chosen = x >= 0
        n = chosen.sum(1, keepdim=True)

        def centred(t, chosen=chosen, n=n):
            return torch.where(chosen, t - (t * chosen).sum(1, keepdim=True) / n, 0)

        y = functional.sparsemax(x.requires_grad_())
        expected = torch.where(chosen, centred(x.detach()) + 1 / n, 0)
        torch.testing.assert_close(y.detach(), expected)
        (jv,) = torch.autograd.grad(y, x, v)
        torch.testing.assert_close(jv, centred(v))


def test_none_where_a_row_has_too_many():
    y, x = sparse(4, 64)
    y[1] = 1 / 64
    assert packed(y, x, 63) is None
    assert packed(y, x, 64) is not None


def test_strided_rows():
    y, x = sparse(6, 100)
    wide = torch.zeros(6, 150)
    wide[:, :100] = y
    for a, b in zip(packed(wide[:, :100], x, 100), packed(y, x, 100), strict=True):
        assert torch.equal(a, b)


def test_scratch_lives_as_long_as_the_rows():
    """With each block of memory mapped by itself, what is read after it was freed is a crash."""
    code = (
        "import torch; from regmax.kernels.cpu.support import packed; torch.set_num_threads(1);"
        "y = torch.zeros(64, 32768); y[:, :5] = .2; print(packed(y, y, 9)[0].sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - 64) < 1e-4
