"""Checks of accuracy that mappings share: against many digits, a printed Jacobian, in long rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import references
import torch
from torch import Tensor


def check_digits(
    f: Callable[[Tensor, Tensor], Tensor],
    digits: Callable[..., tuple[references.Row, ...]],
    x: Tensor,
    value: float,
    v: Tensor,
    tol32: float,
) -> None:
    """y, J v and dy/dθ of f(x, θ): 1e-11 of the largest in float64, ``tol32`` in float32."""
    for dtype, tol in ((torch.float64, 1e-11), (torch.float32, tol32)):
        score = x.to(dtype).requires_grad_()
        theta = torch.tensor(value, dtype=dtype)
        w = v.to(dtype)
        y = f(score, theta)
        (jv,) = torch.autograd.grad(y, score, w)
        (slope,) = torch.autograd.functional.jacobian(
            lambda t, score=score: f(score.detach(), t), (theta,)
        )
        expected = digits(score.tolist(), theta.item(), w.tolist())
        for got, right in zip((y, jv, slope), expected, strict=True):
            error = np.abs(got.detach().double().numpy() - right).max()
            assert error <= tol * (1 + np.abs(right).max()), (dtype, value, x.tolist(), error)


def check_long_rows(f: Callable[[Tensor], Tensor], *rows: Tensor) -> None:
    """float32 next to the float64 mapping of the same scores: many entries that are differences of
    nearby numbers have a sum in error."""
    for x in rows:
        single = x.float()
        torch.testing.assert_close(f(single).double(), f(single.double()), rtol=0, atol=1e-7)
