"""What holds for the CPU kernels of Gini plus a penalty: a class of tests to inherit.

A subclass says which regularizer (``name``), its definition (``reference``) and weights (``lams``),
and has a ``test_ties`` of its own, as a test of hypothesis cannot be inherited twice.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import references
import torch
from hypothesis import settings
from hypothesis import strategies as st
from mapping_checks import normal
from torch import Tensor

import regmax
from regmax.kernels.simplex import project

F32, F64 = torch.float32, torch.float64
SOME = settings(max_examples=150, deadline=None, derandomize=True)
BOTH = pytest.mark.parametrize("dtype", [F32, F64])
SIZES = (1, 2, 3, 15, 16, 17, 64, 130, 700)


def number(value: float | Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=F64).reshape(-1)


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


class PenaltyKernelChecks:
    name: ClassVar[str]
    reference: ClassVar[Callable[..., references.Row]]
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

    @BOTH
    def test_the_definition(self, dtype: torch.dtype) -> None:
        for d in (1, 2, 5, 40):
            for scale in (0.1, 1.0, 4.0):
                x = (normal(2, d, seed=d + 1) * scale).to(dtype)
                for lam in self.lams:
                    right = references.rows(lambda z, lam=lam: type(self).reference(z, lam), x, 0.7)
                    error = np.abs(self.y(x, lam, 0.7).double().numpy() - right).max()
                    assert error <= (1e-13 if dtype == F64 else 1e-7)

    def check_ties(self, data: st.DataObject) -> None:
        """Scores on a coarse grid, with a mask: values, and gradients next to ``restated``."""
        d = data.draw(st.integers(1, 40))
        x = torch.tensor([data.draw(st.lists(st.integers(-6, 6), min_size=d, max_size=d))]) / 4
        on = data.draw(st.lists(st.sampled_from([True, True, False]), min_size=d, max_size=d))
        on[data.draw(st.integers(0, d - 1))] = True
        mask = torch.tensor([on])
        lam = data.draw(st.sampled_from([0.0, *self.lams]))
        gamma = data.draw(st.sampled_from([0.25, 1.0, 3.0]))
        y = self.y(x.double(), lam, gamma, mask)
        torch.testing.assert_close(y, self.slow(x, lam, gamma, mask), rtol=0, atol=1e-14)
        self.check_gradients(x.double(), number(gamma), number(lam), mask)

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

    @BOTH
    def test_constants_have_no_gradient(self, dtype: torch.dtype) -> None:
        x = normal(5, 60, seed=1).to(dtype)
        for lam in self.lams:
            y, part = self.kernel.forward(x, number(1), (number(lam),), None)
            for level in (1.0, 1e6 / 3):
                v = torch.full_like(x, level)
                g = self.kernel.backward(y, v, number(1), (number(lam),), part, False)[0]
                assert g.abs().max() <= 4 * eps(F64) * level

    @BOTH
    def test_a_masked_row_is_the_shorter_row(self, dtype: torch.dtype) -> None:
        for d in (1, 7, 40, 300):
            x = normal(6, d, seed=d).to(dtype)
            mask = torch.rand(6, d, generator=torch.Generator().manual_seed(d)) < 0.6
            mask[0], mask[1, 1:], mask[1, 0] = False, False, True
            for lam in self.lams:
                for hidden in (torch.nan, torch.inf, -torch.inf, 9.0):
                    filled = torch.where(mask, x, hidden)
                    y, part = self.kernel.forward(filled, number(1), (number(lam),), mask)
                    low = torch.where(mask, x, -torch.inf)
                    assert torch.equal(y, self.y(low, lam))
                    assert (y[~mask] == 0).all()
                    v = normal(6, d, seed=2).to(dtype)
                    args = number(1), (number(lam),)
                    g = self.kernel.backward(y, torch.where(mask, v, hidden), *args, part, True)
                    for r in range(1, 6):
                        on = mask[r]
                        if not on.any():
                            assert (y[r] == 0).all()
                            assert (g[0][r] == 0).all()
                            assert g[1][0][r] == 0
                            continue
                        short, own = self.kernel.forward(x[r][on][None], *args, None)
                        torch.testing.assert_close(y[r][on], short[0], rtol=0, atol=2 * eps(dtype))
                        assert torch.equal(y[r][on] == 0, short[0] == 0)
                        right = self.kernel.backward(short, v[r][on][None], *args, own, True)
                        for a, b in (
                            (g[0][r][on], right[0][0]),
                            (g[1][0][r], right[1][0][0]),
                        ):
                            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
                    assert (y[0] == 0).all()
                    assert (g[0][0] == 0).all()

    def test_who_takes_part_is_told_where_y_does_not_tell(self) -> None:
        raise NotImplementedError

    @BOTH
    def test_spoilt_rows_spoil_no_other(self, dtype: torch.dtype) -> None:
        for d in (1, 5, 40, 200):
            x = normal(9, d, seed=d).to(dtype)
            for lam in self.lams:
                clean = self.y(x, lam)
                for bad in (torch.nan, -torch.nan, torch.inf):
                    spoilt = x.clone()
                    spoilt[2, d // 2] = bad
                    spoilt[7, d - 1] = bad
                    spoilt[7, 0] = -torch.inf if d > 1 else bad
                    y, part = self.kernel.forward(spoilt, number(1), (number(lam),), None)
                    whole = torch.tensor([r not in (2, 7) for r in range(9)])
                    assert y[~whole].isnan().all()
                    assert torch.equal(y[whole], clean[whole])
                    args = number(1), (number(lam),), part, True
                    g, (dlam,) = self.kernel.backward(y, torch.ones_like(y), *args)
                    assert (g[~whole] == 0).all()
                    assert (dlam[~whole] == 0).all()

    def test_hyperparameters_that_are_nan(self) -> None:
        x = normal(3, 20)
        for lam in (0.0, self.lams[0]):
            good = self.y(x, lam)
            y = self.y(x, lam, number([1, torch.nan, 1]))
            assert y[1].isnan().all()
            assert torch.equal(y[[0, 2]], good[[0, 2]])
            y = self.y(x, number([lam, torch.nan, lam]))
            assert y[1].isnan().all()
            assert torch.equal(y[[0, 2]], good[[0, 2]])

    def test_shapes(self) -> None:
        lam = self.lams[0]
        assert self.y(normal(0, 5), lam).shape == (0, 5)
        assert torch.equal(self.y(normal(4, 1), lam), torch.ones(4, 1, dtype=F64))
        empty = torch.full((2, 3), -torch.inf)
        assert (self.y(empty, lam) == 0).all()
        wide = normal(6, 90, seed=3).float()
        part = wide[:, 5:42]
        assert torch.equal(self.y(part, lam), self.y(part.contiguous(), lam))
        nothing = self.kernel.backward(
            normal(0, 5), normal(0, 5), number(1), (number(lam),), None, True
        )
        assert [t.shape for t in (nothing[0], nothing[1][0])] == [(0, 5), (0,)]

    @BOTH
    def test_rows_do_not_depend_on_their_batch(self, dtype: torch.dtype) -> None:
        for d in (3, 64, 600):
            x = (normal(12, d, seed=d) * torch.logspace(-2, 1, 12)[:, None]).to(dtype)
            for lam in self.lams:
                y = self.y(x, lam)
                for r in range(12):
                    assert torch.equal(y[r], self.y(x[r : r + 1], lam)[0])

    def test_large_tensors(self) -> None:
        """Their memory is 0 to begin with, and not all of it is written: no entry is left out."""
        d = 40_000
        x, v = normal(4, d, seed=1).float(), normal(4, d, seed=2).float()
        x[1] *= 40
        x[2, 5:] = -torch.inf
        x[3, 7] = torch.nan
        mask = normal(4, d, seed=3) > -1
        for lam in (0.0, *self.lams):
            args = number(1), (number(lam),)
            for on in (None, mask):
                y, part = self.kernel.forward(x, *args, on)
                g, (dlam,) = self.kernel.backward(y, v, *args, part, True)
                many = None if on is None else on.repeat(60, 1)
                ys, parts = self.kernel.forward(x.repeat(60, 1), *args, many)
                gs, (dlams,) = self.kernel.backward(ys, v.repeat(60, 1), *args, parts, True)
                for few, lot in ((y, ys), (g, gs), (dlam[:, None], dlams[:, None])):
                    lot = lot.view(60, 4, -1)
                    assert torch.equal(lot.nan_to_num(9), few.nan_to_num(9).expand_as(lot))

    def test_threads(self) -> None:
        x, v = normal(300, 700, seed=1).float(), normal(300, 700, seed=2).float()
        args = number(1), (number(self.lams[1]),)
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y, part = self.kernel.forward(x, *args, None)
            g, (dlam,) = self.kernel.backward(y, v, *args, part, True)
            found.append((y, g, dlam))
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))

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
    def test_extremes_of_gamma(self, dtype: torch.dtype) -> None:
        for gamma in (1e-6, 1e-3, 1e3, 1e6):
            for scale in (gamma, 1.0):
                x = (normal(3, 30, seed=2) * scale).to(dtype)
                for lam in self.lams:
                    right = self.slow(x, lam, gamma)
                    bound = 1e-12 if dtype == F64 else 1e-7
                    assert (self.y(x, lam, gamma).double() - right).abs().max() <= bound

    @BOTH
    @pytest.mark.parametrize("d", [3, 100, 3000, 100_000])
    def test_rows_sum_to_one(self, dtype: torch.dtype, d: int) -> None:
        for scale in (1e-6, 1e-3, 1.0, 10.0):
            x = (normal(2, d, seed=d) * scale).to(dtype)
            for lam in (*self.lams, 1e-7):
                off = (self.y(x, lam).double().sum(-1) - 1).abs().max()
                assert off <= 2 * eps(dtype) * math.sqrt(d)
