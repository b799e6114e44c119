"""Checks of accuracy that mappings share: against many digits, in long rows, with penalties."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import references
import torch
from mapping_checks import MappingChecks, normal
from torch import Tensor

import regmax
from regmax.functional import sparsemax

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


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


class PenaltyChecks(MappingChecks):
    """What holds for Gini plus a penalty. Set ``lams``, weights for long rows, besides."""

    lams: ClassVar[tuple[float, ...]]

    @property
    def mapped(self) -> Callable[..., Tensor]:
        found: Callable[..., Tensor] = getattr(regmax.functional, self.mapping)
        return found

    @BOTH
    def test_no_weight_is_sparsemax(self, dtype: torch.dtype) -> None:
        for d in (1, 2, 9, 3000):
            for gamma in (1e-6, 0.3, 7.0, 1e6, torch.tensor([[0.3], [1.7]])):
                for scale in (1e-3, 1.0, 1e9):
                    x = normal(2, d, seed=d, dtype=dtype) * scale
                    for lam in (0.0, torch.zeros(2, 1)):
                        for mask in (None, x > -scale):
                            y = self.mapped(x, lam=lam, gamma=gamma, mask=mask)
                            assert torch.equal(y, sparsemax(x, gamma=gamma, mask=mask))

    @BOTH
    def test_a_great_weight_shares_equally(self, dtype: torch.dtype) -> None:
        for lam in (1e9, 1e30):
            for d in (1, 2, 6, 7, 49, 3000):
                x = normal(2, d, seed=d, dtype=dtype)
                assert torch.equal(self.mapped(x, lam=lam), torch.full_like(x, 1 / d))
            x, on = normal(3, 40, seed=2, dtype=dtype) * 10, normal(3, 40, seed=3) > 0
            share = (on / on.sum(-1, keepdim=True).double()).to(dtype)
            assert torch.equal(self.mapped(x, lam=lam, mask=on), share)
            x.requires_grad_()
            theta = [torch.tensor(t, dtype=dtype, requires_grad=True) for t in (lam, 1.0)]
            y = self.mapped(x, lam=theta[0], gamma=theta[1], mask=on)
            for g in torch.autograd.grad(y, (x, *theta), normal(3, 40, seed=4, dtype=dtype)):
                assert g.abs().max() < 1e-12

    def test_long_rows_in_float32(self) -> None:
        d = 20_000
        i = torch.arange(d)
        for lam in self.lams:
            rows = [normal(d), normal(d) * 1e-4, (i % 7) * 1e-3, -i / d, -lam * (1 + 1e-5) * i]
            check_long_rows(lambda x, lam=lam: self.mapped(x, lam=lam), *rows)
            layer = regmax.RegularizedMax(regmax.regularizer(self.name, lam=lam))
            assert layer.solve(rows[-1].float().double()).error_bound < 1e-8

    def test_the_penalty_row_by_row(self) -> None:
        """R(y) = ⟨u, y⟩, u ∈ ∂R(y), whose means over groups are those by autograd; under vmap."""
        penalty = regmax.regularizer(self.name).penalty
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
