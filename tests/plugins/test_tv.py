"""fusedmax: against the path of the fused lasso and every pattern; gradients; common properties."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import references
import torch
from mapping_checks import MappingChecks, cases, check_gradients, check_road, check_values, normal

import regmax
from regmax.functional import fusedmax, sparsemax


@pytest.mark.parametrize("lam", [0.0, 0.02, 0.1, 1.0])
def test_values(lam: float) -> None:
    check_values(
        functools.partial(fusedmax, lam=lam), functools.partial(references.fusedmax, lam=lam)
    )


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_the_definition_alone(d: int) -> None:
    for seed in range(3):
        z = (normal(d, seed=seed) * [0.3, 1.0, 2.0][seed]).numpy()
        for lam in (0.05, 0.3):
            expected = references.by_enumeration(z, lam, "tv")
            y = fusedmax(torch.from_numpy(z * 0.7), lam=lam, gamma=0.7).numpy()
            np.testing.assert_allclose(y, expected, atol=1e-13)


def test_extremes_of_lam() -> None:
    x = normal(6, 9, seed=1)
    assert torch.equal(fusedmax(x, lam=0), sparsemax(x))
    assert torch.equal(fusedmax(x, lam=1e9), torch.full_like(x, 1 / 9))


def test_fused_entries_are_equal_and_zeros_zero() -> None:
    fused = 0
    for x in cases():
        for dtype in (torch.float32, torch.float64):
            y = fusedmax(x.to(dtype), lam=0.1)
            for row, z in zip(y.flatten(0, -2), x.to(dtype).flatten(0, -2), strict=True):
                prox = references.prox_tv(z.double().numpy() - float(z.max()), 0.1)
                same = torch.from_numpy(np.diff(prox) == 0)
                fused += int((same & (row[1:] > 0)).sum())
                assert torch.equal(row[1:][same], row[:-1][same])
    assert fused > 100


def test_gradients() -> None:
    check_gradients("tv", {"lam": 0.15})


@pytest.mark.parametrize("claims", [True, False])
def test_solvers(claims: bool) -> None:
    check_road("tv", {"lam": 0.15}, "fista", claims)


def test_jacobians() -> None:
    """J = J_{P_Δ} · group averaging (2017, Prop. 3), and ∂y/∂λ = t_S − mean(t_S) with
    t_G = (s_a − s_b)/|G| (2017, Lemma 1)."""
    seen = 0
    for seed in range(20):
        x, gamma, lam = normal(9, seed=seed), 0.8, 0.12
        z = references.prox_tv(x.numpy() / gamma, lam).astype(float)
        ids = references.group_ids(z)
        s = (references.sparsemax(z) > 0).astype(float)
        j = references.support_jacobian(s) @ references.averaging(ids)
        sign = np.concatenate([[0], np.sign(z[:-1] - z[1:]) * (np.diff(ids) != 0), [0]])
        t = np.array([(sign[:-1] - sign[1:])[ids == k].sum() / (ids == k).sum() for k in ids])
        dlam = np.where(s > 0, t - (t * s).sum() / s.sum(), 0)
        jx, jl, jg = torch.autograd.functional.jacobian(
            lambda x, lam, gamma: fusedmax(x, lam=lam, gamma=gamma),
            (x, *(torch.tensor(v, dtype=torch.float64) for v in (lam, gamma))),
        )
        np.testing.assert_allclose(jx.numpy(), j / gamma, atol=1e-13)
        np.testing.assert_allclose(jl.numpy(), dlam, atol=1e-13)
        np.testing.assert_allclose(jg.numpy(), -j @ x.numpy() / gamma**2, atol=1e-13)
        seen += len(set(ids)) < 9 and s.sum() < 9
    assert seen > 5


def test_neighbours_are_neighbours_among_participants() -> None:
    x = torch.tensor([[0.5, -9.0, 0.52, 0.1], [0.5, torch.nan, 0.52, 0.1]], dtype=torch.float64)
    mask = torch.tensor([True, False, True, True])
    y = fusedmax(x, lam=0.1, mask=mask)
    assert torch.equal(y[0], y[1])
    assert y[0, 0] == y[0, 2]
    np.testing.assert_allclose(
        y[0][mask].numpy(), fusedmax(x[0][mask], lam=0.1).numpy(), atol=1e-15
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_sparsemax(dtype: torch.dtype) -> None:
    for d in (1, 2, 9, 3000):
        for gamma in (1e-6, 0.3, 7.0, torch.tensor([[0.3], [1.7]])):
            for scale in (1e-3, 1.0, 1e9):
                x = normal(2, d, seed=d, dtype=dtype) * scale
                for lam in (0.0, torch.zeros(2, 1)):
                    assert torch.equal(fusedmax(x, lam=lam, gamma=gamma), sparsemax(x, gamma=gamma))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_great_weight_shares_equally(dtype: torch.dtype) -> None:
    for lam in (1e9, 1e30):
        for d in (1, 2, 6, 7, 49, 3000):
            x = normal(2, d, seed=d, dtype=dtype)
            assert torch.equal(fusedmax(x, lam=lam), torch.full_like(x, 1 / d))
        x, on = normal(3, 40, seed=2, dtype=dtype) * 10, normal(3, 40, seed=3) > 0
        share = (on / on.sum(-1, keepdim=True).double()).to(dtype)
        assert torch.equal(fusedmax(x, lam=lam, mask=on), share)
        x.requires_grad_()
        theta = [torch.tensor(t, dtype=dtype, requires_grad=True) for t in (lam, 1.0)]
        y = fusedmax(x, lam=theta[0], gamma=theta[1], mask=on)
        for g in torch.autograd.grad(y, (x, *theta), normal(3, 40, seed=4, dtype=dtype)):
            assert g.abs().max() < 1e-3


@pytest.mark.parametrize("lam", [1e-4, 0.1, 10.0, 1e3])
def test_long_rows_in_float32(lam: float) -> None:
    """Next to the float64 mapping of the same scores, and certified."""
    d = 20_000
    i = torch.arange(d)
    layer = regmax.RegularizedMax(regmax.regularizer("tv", lam=lam))
    for x in (normal(d), normal(d) * 1e-4, (i % 7) * 1e-3, -i / d, -lam * (1 + 1e-5) * i):
        x = x.float()
        expected = fusedmax(x.double(), lam=lam)
        torch.testing.assert_close(fusedmax(x, lam=lam).double(), expected, rtol=0, atol=1e-7)
    assert layer.solve(x.double()).error_bound < 1e-8


def test_the_penalty_row_by_row() -> None:
    """R(y) = ⟨u, y⟩ for u ∈ ∂R(y), whose means over groups are those by autograd; under vmap."""
    penalty = regmax.regularizer("tv").penalty
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


class TestProperties(MappingChecks):
    name, mapping = "tv", "fusedmax"
    solvers = ("fista",)
    hyper = {"lam": 0.1}  # noqa: RUF012
    refused = {"lam": (-1e-3, -1.0)}  # noqa: RUF012
