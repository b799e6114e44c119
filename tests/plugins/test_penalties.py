"""fusedmax and oscarmax: the definition by every pattern, groups, printed Jacobians, extreme λ."""

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
from regmax.functional import sparsemax

F32, F64 = torch.float32, torch.float64
MAPPINGS = {"tv": "fusedmax", "oscar": "oscarmax"}
each = pytest.mark.parametrize("name", MAPPINGS)
LAMS = {"tv": (1e-4, 0.1, 10.0, 1e3), "oscar": (1e-6, 1e-4, 0.01, 3.0, 10.0)}
both = pytest.mark.parametrize("dtype", [F32, F64])


def mapped(name: str, x: Tensor, **given: Any) -> Tensor:
    found: Tensor = getattr(regmax.functional, MAPPINGS[name])(x, **given)
    return found


@each
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_definition_alone(name: str, d: int) -> None:
    for seed in range(3):
        z = (normal(d, seed=seed) * [0.3, 1.0, 2.0][seed]).numpy()
        for lam in (0.05, 0.3):
            expected = references.by_enumeration(z, lam, name)
            y = mapped(name, torch.from_numpy(z * 0.7), lam=lam, gamma=0.7).numpy()
            np.testing.assert_allclose(y, expected, atol=1e-13)


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
def test_jacobians(name: str) -> None:
    """J = J_{P_Δ} · group averaging (2017, Prop. 3), and ∂y/∂λ = t_S − mean(t_S) with
    t_G = (s_a − s_b)/|G| of neighbours (2017, Lemma 1), or −mean of w over the group."""
    seen = 0
    for seed in range(20):
        x, gamma, lam = normal(9, seed=seed), 0.8, 0.12 if name == "tv" else 0.05
        z, ids = fitted(name, x.numpy() / gamma, lam)
        s = (references.sparsemax(z) > 0).astype(float)
        a = references.averaging(ids)
        j = references.support_jacobian(s) @ a
        if name == "tv":
            sign = np.concatenate([[0], np.sign(z[:-1] - z[1:]) * (np.diff(ids) != 0), [0]])
            t = a @ (sign[:-1] - sign[1:])
        else:
            t = -a @ np.argsort(np.argsort(x.numpy())).astype(float)
        dlam = np.where(s > 0, t - (t * s).sum() / s.sum(), 0)
        jx, jl, jg = torch.autograd.functional.jacobian(
            lambda x, lam, gamma: mapped(name, x, lam=lam, gamma=gamma),
            (x, *(torch.tensor(v, dtype=F64) for v in (lam, gamma))),
        )
        np.testing.assert_allclose(jx.numpy(), j / gamma, atol=1e-13)
        np.testing.assert_allclose(jl.numpy(), dlam, atol=1e-13)
        np.testing.assert_allclose(jg.numpy(), -j @ x.numpy() / gamma**2, atol=1e-13)
        seen += len(set(ids)) < 9 and s.sum() < 9
    assert seen > 5


def test_neighbours_are_neighbours_among_participants() -> None:
    x = torch.tensor([[0.5, -9.0, 0.52, 0.1], [0.5, torch.nan, 0.52, 0.1]], dtype=F64)
    mask = torch.tensor([True, False, True, True])
    y = mapped("tv", x, lam=0.1, mask=mask)
    assert torch.equal(y[0], y[1])
    assert y[0, 0] == y[0, 2]
    np.testing.assert_allclose(
        y[0][mask].numpy(), mapped("tv", x[0][mask], lam=0.1).numpy(), atol=1e-15
    )


@each
@both
def test_no_weight_is_sparsemax(name: str, dtype: torch.dtype) -> None:
    for d in (1, 2, 9, 3000):
        for gamma in (1e-6, 0.3, 7.0, 1e6, torch.tensor([[0.3], [1.7]])):
            for scale in (1e-3, 1.0, 1e9):
                x = normal(2, d, seed=d, dtype=dtype) * scale
                for lam in (0.0, torch.zeros(2, 1)):
                    for mask in (None, x > -scale):
                        y = mapped(name, x, lam=lam, gamma=gamma, mask=mask)
                        assert torch.equal(y, sparsemax(x, gamma=gamma, mask=mask))


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


@each
def test_the_penalty_row_by_row(name: str) -> None:
    """R(y) = ⟨u, y⟩, u ∈ ∂R(y), whose means over groups are those by autograd; under vmap."""
    penalty = regmax.regularizer(name).penalty
    y = (normal(9, 7, seed=5).abs() * 4).round() / 4
    some = normal(9, 7, seed=6) > -0.5
    for mask in (None, some):
        given = (y,) if mask is None else (y, mask)
        for f in (penalty.value, penalty.groups, penalty.any_subgradient):
            assert torch.equal(torch.func.vmap(f)(*given), f(*given))
        u = penalty.any_subgradient(*given)
        taking_part = y if mask is None else torch.where(mask, y, 0)
        torch.testing.assert_close((u * taking_part).sum(-1), penalty.value(*given))
        by_autograd = torch.func.grad(lambda y, mask=mask: penalty.value(y, mask).sum())(y)
        mean, right = (penalty.average(t, y, mask) for t in (u, by_autograd))
        torch.testing.assert_close(mean, right)
