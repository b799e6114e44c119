"""fusedmax and oscarmax: groups to the bit, extreme λ, long rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import references
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


def fitted(name: str, z: references.Row, lam: float) -> tuple[references.Row, references.Row]:
    """The prox of a row, up to a shift, and ids of its groups."""
    if name == "tv":
        found = references.prox_tv(z, lam).astype(float)
        return found, references.group_ids(found)
    order = np.argsort(-z, kind="stable")
    weights = len(z) - 1 - np.arange(len(z))
    found = np.empty(len(z))
    found[order] = references.isotonic_regression(z[order] - lam * weights, increasing=False).x
    return found, references.group_ids(found, order)


@each
@both
def test_members_of_a_group_are_equal(name: str, dtype: torch.dtype) -> None:
    """To the bit; what is equal in the scores is equal in oscarmax."""
    fused = 0
    for d in (5, 12, 40, 200):
        for scale in (0.05, 1.0):
            x = (normal(4, d, seed=d) * scale).to(dtype)
            x[1] = (x[1] * 2).round() / 2
            y = mapped(name, x, lam=0.1 if name == "tv" else 0.02)
            for row, z in zip(y, x.double().numpy(), strict=True):
                _, ids = fitted(name, z - z.max(), 0.1 if name == "tv" else 0.02)
                for k in set(ids.tolist()):
                    members = row[torch.from_numpy(ids == k)]
                    if dtype == F64 or name == "tv":
                        assert len(members.unique()) == 1
                    fused += len(members) > 1 and bool(members[0] > 0)
                for value in set(z.tolist()) if name == "oscar" else ():
                    assert len(row[torch.from_numpy(z == value)].unique()) == 1
    assert fused > 20


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
