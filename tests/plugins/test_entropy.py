"""softmax: torch.softmax, its operator, long rows, the printed Jacobian."""

from __future__ import annotations

import pytest
import torch
from mapping_checks import normal

import regmax
from regmax.functional import softmax


def test_finite_scores_take_torchs_operator() -> None:
    x = normal(5, 6, seed=1).requires_grad_()
    y = softmax(x)
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "SoftmaxBackward0"
    masked = x.detach().clone()
    masked[0], masked[1, 2], masked[2, :3] = -torch.inf, torch.nan, -torch.inf
    masked.requires_grad_()
    y = softmax(masked)
    y.backward(normal(5, 6, seed=2))
    with regmax.kernels.reference():
        again = masked.detach().requires_grad_()
        right = softmax(again)
        right.backward(normal(5, 6, seed=2))
    torch.testing.assert_close(y, right, rtol=0, atol=1e-15, equal_nan=True)
    torch.testing.assert_close(masked.grad, again.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("d", [4097, 9001])
def test_long_rows_of_float32(d: int) -> None:
    """The digits, the zeros and the subnormal numbers of float64; losses too."""
    x = (10 * normal(9, d, seed=3)).float()
    x[0] -= 60
    x[0, 7], x[1, 3], x[2, 5], x[3] = 30.0, torch.nan, torch.inf, -torch.inf
    x[4, ::2], x[5] = -torch.inf, 0.0
    mask = torch.rand(9, d, generator=torch.Generator().manual_seed(1)) > 0.3
    gamma = torch.linspace(0.5, 2, 9, dtype=torch.float64).unsqueeze(-1)
    for given in (
        {},
        {"mask": mask},
        {"gamma": gamma},
        {"gamma": 0.7, "mask": mask},
        {"gamma": 1e-40},
    ):
        y = softmax(x, **given)
        with regmax.kernels.reference():
            right = softmax(x.double(), **given).float()
        torch.testing.assert_close(y, right, rtol=2e-5, atol=2e-45, equal_nan=True)
        assert torch.equal(y == 0, right == 0)
    rows = x[4:].clone().requires_grad_()
    target = torch.tensor([1, 0, 3, 5, 7])
    for smoothing in (0.0, 0.1):
        loss = regmax.FenchelYoungLoss(regmax.regularizer("entropy"), label_smoothing=smoothing)
        (slope,) = torch.autograd.grad(loss(rows, target), rows)
        wide = rows.detach().double().requires_grad_()
        with regmax.kernels.reference():
            right = loss(wide, target)
            (expected,) = torch.autograd.grad(right, wide)
        torch.testing.assert_close(loss(rows, target).double(), right, rtol=1e-6, atol=0)
        torch.testing.assert_close(slope.double(), expected, rtol=2e-5, atol=1e-9)
