"""fusedmax and oscarmax: groups to the bit, extreme λ, long rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mapping_checks import normal
from precision_checks import check_long_rows
from torch import Tensor

import regmax

F32, F64 = torch.float32, torch.float64
MAPPINGS = {"tv": "fusedmax", "oscar": "oscarmax"}
each = pytest.mark.parametrize("name", MAPPINGS)
LAMS = {"tv": (1e-4, 0.1, 10.0, 1e3), "oscar": (1e-6, 1e-4, 0.01, 3.0, 10.0)}
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


@each
def test_long_rows_in_float32(name: str) -> None:
    d = 20_000
    i = torch.arange(d)
    for lam in LAMS[name]:
        rows = [normal(d), normal(d) * 1e-4, (i % 7) * 1e-3, -i / d, -lam * (1 + 1e-5) * i]
        check_long_rows(lambda x, lam=lam: mapped(name, x, lam=lam), *rows)
        layer = regmax.RegularizedMax(regmax.regularizer(name, lam=lam))
        assert layer.solve(rows[-1].float().double()).error_bound < 1e-8
