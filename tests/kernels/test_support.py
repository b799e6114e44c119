"""The positive entries of rows, packed, and put back."""

import pytest
import torch
from processes import python

pytest.importorskip("numba")

from regmax import functional


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


def test_scratch_lives_as_long_as_the_rows():
    """With each block of memory mapped by itself, what is read after it was freed is a crash."""
    code = (
        "import torch; from regmax.functional import sparsemax; torch.set_num_threads(1);"
        "x = torch.zeros(64, 32768); x[:, :5] = 1; y = sparsemax(x.requires_grad_());"
        "(y * y.detach()).sum().backward(); print(y.sum().item() + x.grad.abs().max().item())"
    )
    done = python(code, MALLOC_MMAP_THRESHOLD_=65536)
    assert abs(float(done.stdout) - 64) < 1e-4
