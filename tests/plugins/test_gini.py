"""sparsemax: against a sort-free projection; gradients; the common properties."""

from __future__ import annotations

import numpy as np
import pytest
import references
import torch
from mapping_checks import MappingChecks, check_gradients, check_road, check_values, normal

import regmax
from regmax.functional import sparsemax


def test_values() -> None:
    check_values(sparsemax, references.sparsemax)


def test_known_values() -> None:
    x = torch.tensor([[0.5, 0.2, -3.0], [2.0, 0.0, 0.0], [0.1, 0.1, 0.1]], dtype=torch.float64)
    expected = [[0.65, 0.35, 0.0], [1.0, 0.0, 0.0], [1 / 3] * 3]
    np.testing.assert_allclose(sparsemax(x).numpy(), expected, atol=1e-15)


def test_gradients() -> None:
    check_gradients("gini", {})


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("solver", ["dual", "fista", "interior"])
def test_solvers(solver: str, claims: bool) -> None:
    check_road("gini", {}, solver, claims)


def test_jacobian() -> None:
    """2019, Prop. 1 with α = 2: s is the support's indicator; and ∂y/∂γ = −J x/γ."""
    x = normal(7, seed=2).requires_grad_()
    gamma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    jx, jg = torch.autograd.functional.jacobian(
        lambda x, gamma: sparsemax(x, gamma=gamma), (x, gamma)
    )
    s = (references.rows(references.sparsemax, x, 0.8) > 0).astype(float)
    assert 1 < s.sum() < 7
    expected = references.support_jacobian(s) / 0.8
    np.testing.assert_allclose(jx.numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(jg.numpy(), -expected @ x.detach().numpy() / 0.8, atol=1e-14)


def test_large_scores_keep_their_accuracy() -> None:
    x = torch.round(normal(5, 20, seed=4) * 1024) / 1024
    for shift in (1e6, -1e6, 2.0**40):
        assert torch.equal(sparsemax(x + shift), sparsemax(x))


def test_the_smooth_maximum() -> None:
    x = normal(6, 9, seed=3).requires_grad_()
    layer = regmax.RegularizedMax(regmax.regularizer("gini"), gamma=0.5)
    m = layer.max(x)
    y = references.rows(references.sparsemax, x, 0.5)
    expected = (y * x.detach().numpy()).sum(-1) - 0.25 * (y**2).sum(-1)
    np.testing.assert_allclose(m.detach().numpy(), expected, atol=1e-14)
    (g,) = torch.autograd.grad(m.sum(), x)
    np.testing.assert_allclose(g.numpy(), y, atol=1e-14)


class TestProperties(MappingChecks):
    name, mapping = "gini", "sparsemax"
    solvers = ("dual", "fista", "interior")
