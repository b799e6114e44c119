"""fusedmax: against the path of the fused lasso and every pattern; gradients; common properties."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import references
import torch
from mapping_checks import cases, check_solver_choice, check_values, normal
from precision_checks import PenaltyChecks

from regmax.functional import fusedmax


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


@pytest.mark.parametrize("declared", [True, False])
def test_solvers(declared: bool) -> None:
    check_solver_choice("tv", {"lam": 0.15}, "fista", declared)


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


class TestProperties(PenaltyChecks):
    name, mapping = "tv", "fusedmax"
    hyper = {"lam": 0.1}  # noqa: RUF012
    lams = (1e-4, 0.1, 10.0, 1e3)
