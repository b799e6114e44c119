"""The template of CPU kernels: a mapping of which only e', e'' and p are given."""

from __future__ import annotations

import math

import pytest
import torch
from mapping_checks import normal

pytest.importorskip("numba", reason="the CPU kernels need numba")

from regmax.kernels.cpu.losses import CompiledLosses

KERNEL = CompiledLosses("described", theta=0.0, losses="described")
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [2, 7, 300])
def test_losses(d: int, dtype: torch.dtype) -> None:
    """max_Ω(x) + γΩ(t) − ⟨t, x⟩ of vertices and of distributions, and what moves γ."""
    x = (normal(20, d, seed=d) * torch.logspace(-3, 2, 20).unsqueeze(-1)).to(dtype)
    k = torch.arange(20) % d
    k[5:9] = x[5:9].argmax(-1)
    vertices = torch.eye(d, dtype=torch.float64)[k]
    soft = (3 * normal(20, d, seed=1)).softmax(-1).to(dtype)
    wide, gamma = x.double(), float(GAMMA)
    y = KERNEL.forward(wide, GAMMA, (), None)[0]

    def omega(t: torch.Tensor) -> torch.Tensor:
        return (t.square() / 2 + t**3 / 6).sum(-1)

    for target, t in ((k.unsqueeze(-1), vertices), (soft, soft.double())):
        t = t / t.sum(-1, keepdim=True)
        found = KERNEL.loss(x, target, GAMMA, (), None, 0.0)
        assert found is not None
        value, dx = found
        right = ((y - t) * wide).sum(-1) + gamma * (omega(t) - omega(y))
        eps = torch.finfo(dtype).eps
        near = 16 * eps * (1 + float(wide.abs().max()))
        assert bool((value >= 0).all())
        torch.testing.assert_close(value, right, rtol=4 * eps, atol=near)
        torch.testing.assert_close(dx.double(), y - t, rtol=0, atol=near)
        slopes = KERNEL.loss_slopes(dx, x, target, GAMMA, (), None, 0.0)
        assert slopes is not None
        torch.testing.assert_close(slopes[:, 0], omega(t) - omega(y), rtol=0, atol=near)
