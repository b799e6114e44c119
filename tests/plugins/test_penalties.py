"""fusedmax and oscarmax at extreme λ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mapping_checks import normal
from torch import Tensor

import regmax

F32, F64 = torch.float32, torch.float64
MAPPINGS = {"tv": "fusedmax", "oscar": "oscarmax"}
each = pytest.mark.parametrize("name", MAPPINGS)
both = pytest.mark.parametrize("dtype", [F32, F64])


def mapped(name: str, x: Tensor, **given: Any) -> Tensor:
    found: Tensor = getattr(regmax.functional, MAPPINGS[name])(x, **given)
    return found


@each
@both
def test_a_great_weight_shares_equally(name: str, dtype: torch.dtype) -> None:
    for lam in (1e9, 1e30):
        for d in (1, 2, 6, 7, 49, 3000):
            x = normal(2, d, seed=d, dtype=dtype)
            assert torch.equal(mapped(name, x, lam=lam), torch.full_like(x, 1 / d))
        x, on = normal(3, 40, seed=2, dtype=dtype) * 10, normal(3, 40, seed=3) > 0
        share = (on / on.sum(-1, keepdim=True).double()).to(dtype)
        assert torch.equal(mapped(name, x, lam=lam, mask=on), share)
        x.requires_grad_()
        theta = [torch.tensor(t, dtype=dtype, requires_grad=True) for t in (lam, 1.0)]
        y = mapped(name, x, lam=theta[0], gamma=theta[1], mask=on)
        for g in torch.autograd.grad(y, (x, *theta), normal(3, 40, seed=4, dtype=dtype)):
            assert g.abs().max() < 1e-12
