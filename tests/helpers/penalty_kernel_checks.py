"""What holds for the CPU kernels of Gini plus a penalty: a class of tests to inherit.

A subclass says which regularizer (``name``) and weights (``lams``). What holds for every mapping is
in kernels/test_kernels.py.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, ClassVar

import pytest
import torch
from mapping_checks import normal
from torch import Tensor

import regmax
from regmax.kernels.simplex import project

F32, F64 = torch.float32, torch.float64
BOTH = pytest.mark.parametrize("dtype", [F32, F64])
SIZES = (1, 2, 3, 15, 16, 17, 64, 130, 700)


def number(value: float | Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=F64).reshape(-1)


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


class PenaltyKernelChecks:
    name: ClassVar[str]
    lams: ClassVar[tuple[float, ...]]

    @property
    def kernel(self) -> Any:
        pytest.importorskip("numba", reason="compiled with numba")
        return importlib.import_module(f"regmax_{self.name}._cpu").KERNEL

    @property
    def penalty(self) -> Any:
        return regmax.regularizer(self.name).penalty

    def y(
        self,
        x: Tensor,
        lam: float | Tensor,
        gamma: float | Tensor = 1.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        found: Tensor = self.kernel.forward(x, number(gamma), (number(lam),), mask)[0]
        assert found.dtype == x.dtype
        assert found.is_contiguous()
        return found

    def slow(self, x: Tensor, lam: float, gamma: float = 1.0, mask: Tensor | None = None) -> Tensor:
        """P_Δ of the prox, in float64; x has participants only, or a mask."""
        z = x.double() if mask is None else torch.where(mask, x.double(), -torch.inf)
        z = (z - z.amax(-1, keepdim=True)) / gamma
        z = torch.where(z.isfinite(), z, 0)
        v = self.penalty.prox(z, lam, mask)
        y = project(v, mask)
        return y if mask is None else torch.where(mask, y, 0)

    def restated(
        self, x: Tensor, gamma: Tensor, lam: Tensor, y: Tensor, mask: Tensor | None
    ) -> Tensor:
        """y, as a differentiable function: z − λu averaged over groups, less a constant (2017,
        Prop. 3 and Lemma 1)."""
        y = y.double().detach()
        u = self.penalty.any_subgradient(y, mask)
        z = self.penalty.average(x / gamma - lam * (u - u.mean(-1, keepdim=True)), y, mask)
        on = y > 0
        size = on.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(on, z - (torch.where(on, z, 0).sum(-1, keepdim=True) - 1) / size, 0)

    @BOTH
    def test_values(self, dtype: torch.dtype) -> None:
        """Next to P_Δ of the prox, at every size, scale, γ and λ."""
        for d in SIZES:
            for scale in (1e-3, 0.1, 1.0, 4.0, 100.0):
                x = (normal(3, d, seed=d) * scale + 3).to(dtype)
                for lam in self.lams:
                    for gamma in (0.3, 1.0, 20.0):
                        y = self.y(x, lam, gamma)
                        right = self.slow(x, lam, gamma)
                        slack = 1e-14 * (10 + scale / gamma + lam * d)
                        bound = slack + (eps(F32) / 2 if dtype == F32 else 0)
                        assert (y.double() - right).abs().max() <= bound, (d, scale, lam, gamma)
                        assert torch.equal(y == 0, right.to(dtype) == 0)

    def check_gradients(
        self, x: Tensor, gamma: Tensor, lam: Tensor, mask: Tensor | None = None
    ) -> None:
        kernel = self.kernel
        y, part = kernel.forward(x, gamma, (lam,), mask)
        v = normal(*x.shape, seed=7).to(x.dtype)
        g, (dlam,) = kernel.backward(y, v, gamma, (lam,), part, True)
        again, nothing = kernel.backward(y, v, gamma, (lam,), part, False)
        assert torch.equal(g, again)
        assert nothing is None
        assert g.dtype == x.dtype
        rows = len(x)
        leaf = x.double().requires_grad_()
        each = lam.expand(rows).clone().reshape(-1, 1).requires_grad_()
        restated = self.restated(leaf, gamma.expand(rows).reshape(-1, 1), each, y, part)
        right = torch.autograd.grad(restated, (leaf, each), v.double())
        tol = 1e-12 if x.dtype == F64 else 1e-6
        size = 1 + float(right[0].abs().max())
        torch.testing.assert_close(g.double(), right[0], rtol=0, atol=tol * size)
        assert dlam.shape == (rows,)
        assert dlam.dtype == F64
        assert ((dlam - right[1].squeeze(-1)).abs() <= tol * (1 + x.shape[1]) ** 2).all()

    @BOTH
    def test_gradients(self, dtype: torch.dtype) -> None:
        for d in SIZES:
            for scale in (0.01, 1.0, 4.0):
                x = (normal(4, d, seed=d) * scale).to(dtype)
                mask = torch.rand(4, d, generator=torch.Generator().manual_seed(d)) < 0.7
                mask[:, 0] = True
                for lam in self.lams:
                    per_row = number([lam, 2 * lam, lam / 3, lam])
                    for on in (None, mask):
                        self.check_gradients(x, number(0.7), number(lam), on)
                        self.check_gradients(x, number([0.5, 1, 2, 30]), per_row, on)

    def test_who_takes_part_is_told_where_y_does_not_tell(self) -> None:
        raise NotImplementedError

    @BOTH
    def test_great_scores(self, dtype: torch.dtype) -> None:
        """Shifts keep the answer where they keep the scores' differences; finfo.min is a score."""
        x = (normal(4, 50, seed=1) * 64).round() / 64
        for lam in self.lams:
            right = self.y(x.to(dtype), lam)
            for shift in (2.0**10, -(2.0**16)) + ((1e6, 2.0**40) if dtype == F64 else ()):
                assert torch.equal(self.y((x + shift).to(dtype), lam), right)
            for scale in (1e6, 1e20, 1e30):
                y = self.y((x * scale).to(dtype), lam)
                assert torch.equal(y, self.y((x * scale).to(dtype), 0.0)), scale
            lowest = torch.finfo(dtype).min
            for gamma in (1.0, 1e-6, 1e6):
                two = torch.tensor([[0.5, lowest, 0.25, 0.25], [lowest] * 4], dtype=dtype)
                y = self.y(two, lam, gamma)
                clamped = torch.tensor([[0.5, -1e12, 0.25, 0.25], [0.0] * 4])
                torch.testing.assert_close(
                    y, self.slow(clamped, lam, gamma).to(dtype), rtol=0, atol=1e-6
                )
            far = torch.tensor([[torch.finfo(dtype).max, lowest, 0.0]], dtype=dtype)
            assert torch.equal(self.y(far, lam), torch.tensor([[1, 0, 0]], dtype=dtype))

    @BOTH
    @pytest.mark.parametrize("d", [3, 100, 3000, 100_000])
    def test_rows_sum_to_one(self, dtype: torch.dtype, d: int) -> None:
        for scale in (1e-6, 1e-3, 1.0, 10.0):
            x = (normal(2, d, seed=d) * scale).to(dtype)
            for lam in (*self.lams, 1e-7):
                off = (self.y(x, lam).double().sum(-1) - 1).abs().max()
                assert off <= 2 * eps(dtype) * math.sqrt(d)
