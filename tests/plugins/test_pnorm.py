"""sq-pnorm-max: against bisection on its optimality condition; gradients; the common properties."""

from __future__ import annotations

import functools
import random

import numpy as np
import precision_checks
import pytest
import references
import torch
from mapping_checks import MappingChecks, check_solver_choice, check_values, normal
from torch import Tensor

from regmax.functional import pnormmax, sparsemax

POWERS = [1.2, 1.5, 1.8, 2.0]


@pytest.mark.parametrize("p", POWERS)
def test_values(p: float) -> None:
    check_values(functools.partial(pnormmax, p=p), functools.partial(references.pnorm, p=p))


@pytest.mark.parametrize("p", [1.2, 1.5, 1.8])
def test_optimality(p: float) -> None:
    """x/γ − ‖y‖_p^(2−p) y^(p−1) is constant on the support and nowhere above that constant."""
    x, gamma = normal(20, 9, seed=1).numpy(), 0.6
    y = pnormmax(torch.from_numpy(x), p=p, gamma=gamma).numpy()
    slope = (y**p).sum(-1, keepdims=True) ** ((2 - p) / p) * y ** (p - 1)
    r = x / gamma - slope
    tau = r.max(-1, keepdims=True)
    assert (r - tau <= 1e-13).all()
    assert np.abs(np.where(y > 1e-9, r - tau, 0)).max() < 1e-12


def test_two_is_sparsemax() -> None:
    x = normal(20, 9, seed=2)
    torch.testing.assert_close(pnormmax(x, p=2), sparsemax(x), rtol=0, atol=1e-15)
    near = pnormmax(x, p=torch.tensor(2 - 1e-9, dtype=torch.float64))
    torch.testing.assert_close(near, sparsemax(x), rtol=0, atol=1e-7)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("solver", ["fista", "interior"])
def test_solvers(solver: str, declared: bool) -> None:
    check_solver_choice("pnorm", {"p": 1.5}, solver, declared)


def test_jacobian() -> None:
    """(I + A(B − I)) J = A with B = diag((p−1) t^(p−2)) + (2−p) t^(p−1)(t^(p−1))ᵀ, t = y/‖y‖_p
    (2017, Prop. 1 and §3.1), on the support."""
    p, gamma = 1.5, 0.7
    x = normal(7, seed=2).requires_grad_()
    j = torch.autograd.functional.jacobian(lambda x: pnormmax(x, p=p, gamma=gamma), x).numpy()
    y = references.rows(functools.partial(references.pnorm, p=p), x, gamma)
    on = y > 0
    assert 1 < on.sum() < 7
    t = y[on] / (y[on] ** p).sum() ** (1 / p)
    b = np.diag((p - 1) * t ** (p - 2)) + (2 - p) * np.outer(t ** (p - 1), t ** (p - 1))
    n = on.sum()
    a = np.eye(n) - 1 / n
    expected = np.zeros((7, 7))
    expected[np.ix_(on, on)] = np.linalg.solve(np.eye(n) + a @ (gamma * b - np.eye(n)), a)
    np.testing.assert_allclose(j, expected, atol=1e-12)


def test_gradient_in_p() -> None:
    """Against central differences of the reference in extended precision."""
    x = normal(3, 6, seed=4)
    for value in (1.2, 1.5, 1.9):
        p = torch.tensor(value, dtype=torch.float64)
        j = torch.autograd.functional.jacobian(lambda p: pnormmax(x, p=p), p).numpy()
        step = 1e-6
        up, down = (
            references.rows(functools.partial(references.pnorm, p=value + s), x)
            for s in (step, -step)
        )
        np.testing.assert_allclose(j, (up - down) / (2 * step), atol=1e-8)


# -- against fifty digits ----------------------------------------------------------------------


def check_digits(x: Tensor, p: float, v: Tensor) -> None:
    precision_checks.check_digits(
        lambda x, t: pnormmax(x, p=t), references.pnorm_digits, x, p, v, tol32=1e-4
    )


@pytest.mark.parametrize("p", [1 + 2.0**-20, 1.001, 1.01, 1.1, 1.7, 1.99, 2 - 1e-6, 2.0])
def test_every_p(p: float) -> None:
    for k, scale in enumerate((p - 1, 3 * (p - 1), 0.5)):
        check_digits(normal(5, seed=40 + k) * scale, p, normal(5, seed=50 + k))


def test_powers_and_scores_at_random() -> None:
    for seed in range(5):
        draw = random.Random(seed)
        p = 1 + 10 ** draw.uniform(-4, 0)
        x = normal(5, seed=seed) * (p - 1) ** draw.random() * 10 ** draw.uniform(-1, 0.5)
        check_digits(x, p, normal(5, seed=seed + 1))


@pytest.mark.parametrize("p", [1.5, 2 - 1e-3, 2 - 1e-7, 2.0])
def test_second_gradient_in_p(p: float) -> None:
    """d/dp of J v and of dy/dp, against one-sided differences of theirs."""
    x, v = normal(4, seed=91) * 0.1, normal(4, seed=92)
    score, t = x.clone().requires_grad_(), torch.tensor(p, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad((pnormmax(score, p=t) * v).sum(), (score, t), create_graph=True)
    second = [torch.autograd.grad(g, t, retain_graph=True)[0].item() for g in (*first[0], first[1])]
    step = 1e-5

    def at(p: float) -> references.Row:
        _, jv, dp = references.pnorm_digits(x.tolist(), p, v.tolist())
        return np.append(jv, dp @ v.numpy())

    expected = (3 * at(p) - 4 * at(p - step) + at(p - 2 * step)) / (2 * step)
    np.testing.assert_allclose(second, expected, atol=1e-7)


@pytest.mark.parametrize("p", [1.001, 1.5, 1.9, 1.999, 2.0])
def test_long_rows_in_float32(p: float) -> None:
    i = torch.arange(30_000)
    rows = [(i == 0) * 0.5, (i % 7) * 1e-3, normal(30_000), -i / 30_000, torch.zeros(30_000)]
    precision_checks.check_long_rows(lambda x: pnormmax(x, p=p), *rows)


class TestProperties(MappingChecks):
    name, mapping = "pnorm", "pnormmax"
    hyper = {"p": 1.5}  # noqa: RUF012
