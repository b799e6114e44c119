"""sq-pnorm-max: against bisection on its optimality condition; gradients; the common properties."""

from __future__ import annotations

import numpy as np
import pytest
import references
import torch
from mapping_checks import normal
from torch import Tensor

from regmax.functional import pnormmax


def check_digits(x: Tensor, p: float, v: Tensor) -> None:
    references.check_digits(
        lambda x, t: pnormmax(x, p=t), references.pnorm_digits, x, p, v, tol32=1e-4
    )


@pytest.mark.parametrize("p", [1 + 2.0**-20, 1.001, 1.01, 1.1, 1.7, 1.99, 2 - 1e-6, 2.0])
def test_every_p(p: float) -> None:
    for k, scale in enumerate((p - 1, 3 * (p - 1), 0.5)):
        check_digits(normal(5, seed=40 + k) * scale, p, normal(5, seed=50 + k))


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
