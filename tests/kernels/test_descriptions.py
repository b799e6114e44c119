"""The template of CPU kernels: a mapping of which only e', e'' and p are given."""

from __future__ import annotations

import math

import pytest
import torch
from mapping_checks import normal

pytest.importorskip("numba", reason="the CPU kernels need numba")

from regmax.kernels.cpu.rows import CompiledRows

KERNEL = CompiledRows("described")
GAMMA = torch.tensor([0.7], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 7, 64, 300, 3000])
def test_optimality_and_jacobian(d: int, dtype: torch.dtype) -> None:
    x = (normal(20, d, seed=d) * torch.logspace(-6, 2, 20).unsqueeze(-1)).to(dtype)
    mask = normal(20, d, seed=d + 1) > -1
    mask[:, 0] = True
    eps = torch.finfo(dtype).eps
    for given in (None, mask):
        y, _ = KERNEL.forward(x, GAMMA, (), given)
        part = torch.ones_like(mask) if given is None else given
        on, wide = y > 0, y.double()
        assert bool((y >= 0).all())
        assert not bool((on & ~part).any())
        assert float((wide.sum(-1) - 1).abs().max()) <= 2 * math.sqrt(d) * eps
        z = x.double().where(part, -torch.inf)
        rest = (z - z.amax(-1, keepdim=True)) / GAMMA - wide - wide.square() / 2
        tau = rest.where(on, -torch.inf).amax(-1, keepdim=True)
        slack = 8 * eps * (1 + rest.where(on, 0).abs().amax(-1, keepdim=True))
        assert bool(((rest - tau).abs() <= slack)[on].all())
        assert bool((rest <= tau + slack)[part].all())
        v = normal(20, d, seed=2).to(dtype)
        g, _ = KERNEL.backward(y, v, GAMMA, (), None, False)
        s = torch.where(on, 1 / (1 + wide), 0)
        mean = (s * v).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
        torch.testing.assert_close(g.double(), s * (v - mean) / GAMMA, rtol=0, atol=64 * eps)
