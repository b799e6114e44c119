"""entmax: against bisection on its optimality condition; gradients; α through 1, 1.5 and 2."""

from __future__ import annotations

import numpy as np
import pytest
import references
import torch
from mapping_checks import normal
from torch import Tensor

import regmax
from regmax.functional import entmax


def check_digits(x: Tensor, alpha: float, v: Tensor) -> None:
    references.check_digits(
        lambda x, t: entmax(x, alpha=t), references.entmax_digits, x, alpha, v, tol32=1e-5
    )


@pytest.mark.parametrize("alpha", [0.2, 0.3, 0.5, 1.2, 1.7, 1.99, 2.01, 3.0, 5.0, 10.0, 20.0, 50.0])
def test_every_alpha(alpha: float) -> None:
    scales = (0.01, 0.3, 3.0) if alpha < 50 else (0.3,)  # 550 digits take their time
    for k, scale in enumerate(scales):
        check_digits(normal(5, seed=40 + k) * scale, alpha, normal(5, seed=50 + k))


@pytest.mark.parametrize("around", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_every_alpha_around(around: float, sign: int) -> None:
    x, v = normal(5, seed=60) * 0.7, normal(5, seed=61)
    for k in (1, 3, 5, 6, 7, 9, 12) if sign else (0,):
        check_digits(x, around + sign * 10.0**-k, v)


@pytest.mark.parametrize("alpha", [0.2, 0.9, 1 + 1e-9, 1.2, 1.49, 1.5, 1.99, 2.0, 2.001, 5.0, 20.0])
def test_the_operations_of_pytorch(alpha: float) -> None:
    """The form without kernels, for numbers and tensors α, against many digits."""
    for k, scale in enumerate((0.01, 0.3, 3.0)):
        x = normal(6, seed=90 + k) * scale
        expected, _, _ = references.entmax_digits(x.tolist(), alpha, x.tolist())
        for given in (alpha, torch.tensor(alpha, dtype=torch.float64)):
            with regmax.kernels.reference():
                y = entmax(x, alpha=given)
            np.testing.assert_allclose(y.numpy(), expected, atol=2e-15)


@pytest.mark.parametrize("alpha", [2.5, 5.0, 12.0])
def test_ties_at_the_threshold(alpha: float) -> None:
    for row in ([0.3, 0.29, 0.29, 0.29, 0.2], [0.1] * 4, [1.0, 0.9, 0.9, 0.9, 0.9, -5.0]):
        check_digits(torch.tensor(row, dtype=torch.float64), alpha, normal(len(row), seed=70))


@pytest.mark.parametrize("alpha", [3.0, 10.0, 50.0])
def test_scores_a_rounding_apart(alpha: float) -> None:
    """Differences of scores are exact, and y is steep: 1e-16 of a score is 0.4 of y at α = 50."""
    eps = torch.finfo(torch.float64).eps
    for scale in (1.0, 1e-9):
        x = scale * (1 + eps * torch.tensor([0.0, 1, 2, 5, 9], dtype=torch.float64))
        y = entmax(x, alpha=alpha)
        expected, _, _ = references.entmax_digits(x.tolist(), alpha, x.tolist())
        np.testing.assert_allclose(y.numpy(), expected, atol=1e-14)
        y32 = entmax((x - x[0]).float() * 2**50, alpha=alpha, gamma=2.0**50)
        expected, _, _ = references.entmax_digits((x - x[0]).float().tolist(), alpha, x.tolist())
        np.testing.assert_allclose(y32.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_is_nan(dtype: torch.dtype) -> None:
    """Where y^(α−2) underflows, as for many ties, J is beyond all numbers: still none is NaN."""
    for alpha in (2.0, 3.0, 20.0, 50.0, 400.0):
        for x in (torch.zeros(9), torch.tensor([0.02] + [0.0] * 40), normal(9) * 1e-30):
            score = x.to(dtype).requires_grad_()
            t, gamma = (torch.tensor(k, dtype=dtype, requires_grad=True) for k in (alpha, 1.0))
            y = entmax(score, alpha=t, gamma=gamma)
            np.testing.assert_allclose(y.sum().item(), 1, atol=1e-6)
            v = normal(len(x), seed=2, dtype=dtype)
            for g in torch.autograd.grad(y, (score, t, gamma), v):
                assert not torch.isnan(g).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_alpha_per_row_on_both_sides_of_two(dtype: torch.dtype) -> None:
    alpha = torch.linspace(0.5, 3.0, 60, dtype=dtype).unsqueeze(-1)
    alpha[::7], alpha[3::7], alpha[5::7], alpha[-1] = 1.5, 2.0, 1.0, 30.0
    x, v = (normal(60, 40, seed=80) * 2).to(dtype), normal(60, 40, seed=81, dtype=dtype)
    x.requires_grad_()
    y = entmax(x, alpha=alpha)
    (g_x,) = torch.autograd.grad(y, x, v)
    (g,) = torch.autograd.grad(entmax(x, alpha=alpha.requires_grad_()), alpha, v)
    for i in range(60):
        leaf, one = (t[i].detach().requires_grad_() for t in (x, alpha))
        row = entmax(leaf, alpha=one.item())
        assert torch.equal(y[i], row)
        assert torch.equal(torch.autograd.grad(row, leaf, v[i])[0], g_x[i])
        (right,) = torch.autograd.grad(entmax(leaf, alpha=one), one, v[i])
        torch.testing.assert_close(g[i], right, rtol=1e-13, atol=0)


def test_a_million_scores_in_float32() -> None:
    """Their sums in float32 would change the support."""
    x = 1e-3 * normal(1 << 20).view(1, -1)
    with regmax.kernels.reference():
        y, expected = entmax(x.float(), alpha=1.5), entmax(x.float().double(), alpha=1.5)
    near = 1e-7 * expected.amax().item()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=near)
