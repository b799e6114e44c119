"""oscarmax: against scipy's isotonic regression and every pattern; the paper's approximation."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import references
import torch
from mapping_checks import (
    away_from_kinks,
    cases,
    check_solver_choice,
    check_values,
    normal,
)
from precision_checks import PenaltyChecks
from torch.autograd import gradcheck

from regmax.functional import oscarmax


@pytest.mark.parametrize("lam", [0.0, 0.003, 0.02, 0.3])
def test_values(lam: float) -> None:
    check_values(
        functools.partial(oscarmax, lam=lam), functools.partial(references.oscarmax, lam=lam)
    )


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_definition_alone(d: int) -> None:
    for seed in range(3):
        z = (normal(d, seed=seed) * [0.3, 1.0, 2.0][seed]).numpy()
        for lam in (0.05, 0.3):
            expected = references.by_enumeration(z, lam, "oscar")
            y = oscarmax(torch.from_numpy(z * 0.7), lam=lam, gamma=0.7).numpy()
            np.testing.assert_allclose(y, expected, atol=1e-13)


def test_negative_scores() -> None:
    x = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    np.testing.assert_allclose(oscarmax(x, lam=0.3).numpy(), [0.6, 0, 0.4], atol=1e-15)


def test_fused_entries_are_equal() -> None:
    fused = 0
    for x in cases():
        for dtype in (torch.float32, torch.float64):
            y = oscarmax(x.to(dtype), lam=0.02)
            for row, z in zip(y.flatten(0, -2), x.to(dtype).flatten(0, -2), strict=True):
                order = z.argsort(descending=True, stable=True)
                expected = references.oscarmax(z.double().numpy() - float(z.max()), 0.02)
                near = torch.from_numpy(np.abs(np.diff(expected[order.numpy()])) < 1e-14)
                near = near & (row[order][1:] > 0)
                if dtype == torch.float64:
                    assert torch.equal(row[order][1:][near], row[order][:-1][near])
                    fused += int(near.sum())
                # what is equal in the scores is equal in the answer
                ties = z[order][1:] == z[order][:-1]
                assert torch.equal(row[order][1:][ties], row[order][:-1][ties])
    assert fused > 100


@pytest.mark.parametrize("declared", [True, False])
def test_solvers(declared: bool) -> None:
    check_solver_choice("oscar", {"lam": 0.15}, "fista", declared)


def test_jacobians() -> None:
    """J = J_{P_Δ} · group averaging (2017, Prop. 3), and ∂y/∂λ = t_S − mean(t_S) with
    t_G = −mean of w over the group."""
    seen = 0
    for seed in range(20):
        x, gamma, lam = normal(9, seed=seed), 0.8, 0.05
        order = np.argsort(-x.numpy())
        w = np.empty(9)
        w[order] = 8 - np.arange(9)
        fitted = references.isotonic_regression(
            (x.numpy() / gamma - lam * w)[order], increasing=False
        )
        z = np.empty(9)
        z[order] = fitted.x
        ids = references.group_ids(z, order)
        s = (references.sparsemax(z) > 0).astype(float)
        a = references.averaging(ids)
        j = references.support_jacobian(s) @ a
        t = -a @ w
        dlam = np.where(s > 0, t - (t * s).sum() / s.sum(), 0)
        jx, jl, jg = torch.autograd.functional.jacobian(
            lambda x, lam, gamma: oscarmax(x, lam=lam, gamma=gamma),
            (x, *(torch.tensor(v, dtype=torch.float64) for v in (lam, gamma))),
        )
        np.testing.assert_allclose(jx.numpy(), j / gamma, atol=1e-13)
        np.testing.assert_allclose(jl.numpy(), dlam, atol=1e-13)
        np.testing.assert_allclose(jg.numpy(), -j @ x.numpy() / gamma**2, atol=1e-13)
        seen += len(set(ids)) < 9 and s.sum() < 9
    assert seen > 5


# -- exact=False: P_Δ ∘ P_OSC ------------------------------------------------------------------


def composition(x: references.Row, lam: float, gamma: float = 1.0) -> references.Row:
    return references.sparsemax(references.prox_oscar(x / gamma, lam)).astype(float)


def test_the_papers_composition() -> None:
    apart = 0
    for seed, d in enumerate([1, 2, 3, 5, 9, 40]):
        for shift in (0.0, 3.0, -3.0):
            x = normal(4, d, seed=seed) + shift
            for gamma, lam in ((1.0, 0.05), (0.6, 0.02), (1.0, 0.3)):
                y = oscarmax(x, lam=lam, gamma=gamma, exact=False).numpy()
                expected = [composition(row, lam, gamma) for row in x.numpy()]
                np.testing.assert_allclose(y, expected, atol=1e-12)
                exact = oscarmax(x, lam=lam, gamma=gamma).numpy()
                apart += bool(np.abs(exact - y).max() > 1e-3)
    assert apart > 5


def test_the_papers_composition_depends_on_the_zero_of_the_scores() -> None:
    x = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y = oscarmax(x, lam=0.3, exact=False)
    np.testing.assert_allclose(y.numpy(), [0.525, 0, 0.475], atol=1e-15)
    assert not torch.allclose(y, oscarmax(x + 5, lam=0.3, exact=False), atol=1e-2)
    far = oscarmax(x + 5, lam=0.3, exact=False)
    torch.testing.assert_close(far, oscarmax(x, lam=0.3), rtol=0, atol=1e-14)


def test_the_papers_jacobian() -> None:
    """P_OSC's: sign(z_i z_j)/|G| for |z_i| = |z_j| ≠ 0 (2017, Prop. 3)."""
    x = torch.tensor([1.0, -1.1, 0.5, 0.45, 0.05], dtype=torch.float64)
    lam = 0.03
    z = references.prox_oscar(x.numpy(), lam)
    size = np.abs(z)
    same = (np.abs(size[:, None] - size[None, :]) < 1e-12) & (size > 0)[:, None]
    a = np.sign(z[:, None] * z[None, :]) * same / np.maximum(same.sum(1, keepdims=True), 1)
    s = (references.sparsemax(z) > 0).astype(float)
    j = torch.autograd.functional.jacobian(lambda x: oscarmax(x, lam=lam, exact=False), x)
    np.testing.assert_allclose(j.numpy(), references.support_jacobian(s) @ a, atol=1e-13)


def test_the_papers_gradients() -> None:
    lam = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    gamma = torch.tensor(0.8, dtype=torch.float64)

    def f(x: torch.Tensor, lam: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return oscarmax(x, lam=lam, gamma=gamma, exact=False)

    x = away_from_kinks(lambda x: f(x, lam, gamma), 2, 2, 4)
    assert gradcheck(f, [t.clone().requires_grad_() for t in (x, lam, gamma)])


def test_the_papers_composition_masked() -> None:
    x = normal(3, 7, seed=3)
    mask = torch.tensor([True, False, True, True, False, True, True])
    y = oscarmax(x.masked_fill(~mask, torch.nan), lam=0.1, exact=False, mask=mask)
    assert (y[:, ~mask] == 0).all()
    short = oscarmax(x[:, mask], lam=0.1, exact=False)
    torch.testing.assert_close(y[:, mask], short, rtol=0, atol=1e-14)


class TestProperties(PenaltyChecks):
    name, mapping = "oscar", "oscarmax"
    hyper = {"lam": 0.05}  # noqa: RUF012
    lams = (1e-6, 1e-4, 0.01, 3.0, 10.0)
