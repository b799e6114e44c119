"""The CPU kernel of oscarmax: what holds for both penalties, ties, and each way to spare a sort."""

from __future__ import annotations

import numpy as np
import pytest
import references
import torch
from mapping_checks import normal
from penalty_kernel_checks import BOTH, F32, F64, PenaltyKernelChecks, eps, number

pytest.importorskip("numba")
from regmax.kernels.cpu.rows import CompiledRows


def exact(x: torch.Tensor, lam: float) -> np.ndarray:
    """P_Δ of the regression by its minimax formula's blocks, in extended precision."""
    z = np.sort(x.double().numpy().astype(np.longdouble))[::-1]
    order = np.argsort(-x.double().numpy(), kind="stable")
    g = (z - z[0]) + np.longdouble(lam) * np.arange(len(z))
    sums: list[np.longdouble] = []
    sizes: list[int] = []
    for t in g:
        total, size = t, 1
        while sums and sums[-1] / sizes[-1] <= total / size:
            total, size = total + sums.pop(), size + sizes.pop()
        sums.append(total)
        sizes.append(size)
    y = np.empty(len(z), np.longdouble)
    y[order] = references.sparsemax(np.repeat(np.array(sums) / np.array(sizes), sizes))
    return y.astype(np.float64)


class TestOscarmax(PenaltyKernelChecks):
    name = "oscar"
    lams = (0.01, 0.0003, 0.1, 3.0)

    def test_who_takes_part_is_told_where_y_does_not_tell(self) -> None:
        x = normal(3, 9)
        x[2, 3] = -torch.inf
        assert self.kernel.forward(x, number(1), (number(0.1),), x > 0)[1] is None

    @BOTH
    @pytest.mark.parametrize("d", [64, 200, 512, 1500, 4096])
    def test_long_rows(self, dtype: torch.dtype, d: int) -> None:
        """Single blocks, blocks with few entries beside them, few survivors, and sorted rows."""
        seen = set()
        for scale in (1e-3, 0.3, 1.0, 2.0, 4.0, 30.0):
            for kind in range(3):
                x = normal(d, seed=d + kind)
                if kind == 1:
                    x = x.round(decimals=1)
                if kind == 2:
                    x = x.abs().log()
                x = (x * scale).to(dtype)
                for lam in (1e-4, 1e-3, 0.01, 0.03, 0.1):
                    y, right = self.y(x[None], lam)[0], exact(x, lam)
                    bound = 1e-14 * (1 + lam * d) + (eps(F32) / 2 if dtype == F32 else 0)
                    assert np.abs(y.double().numpy() - right).max() <= bound, (scale, kind, lam)
                    levels = len(np.unique(y))
                    seen.add((levels == 1, levels < 10, int((y > 0).sum()) > d // 2))
        assert len(seen) > 3

    @BOTH
    def test_where_no_sort_is_spared(self, dtype: torch.dtype) -> None:
        """Scores a little more than λ apart: all are in the support, none are pooled."""
        for d in (100, 1000):
            lam = 0.25 / d**2
            x = -lam * (1 + 1 / 128) * torch.arange(d, dtype=F64)
            x = x[torch.randperm(d, generator=torch.Generator().manual_seed(d))].to(dtype)
            y = self.y(x[None], lam)[0]
            bound = 1e-12 if dtype == F64 else eps(F32) / d
            assert np.abs(y.double().numpy() - exact(x, lam)).max() <= bound
            if dtype == F64:
                assert len(y.unique()) == d
            self.check_gradients(x[None], number(1), number(lam))

    @BOTH
    def test_what_is_equal_stays_equal(self, dtype: torch.dtype) -> None:
        for d in (12, 300, 2000):
            x = (normal(3, d, seed=d) * 8).round().to(dtype) / 8
            for lam in self.lams:
                for row, z in zip(self.y(x, lam), x, strict=True):
                    order = z.argsort(descending=True, stable=True)
                    ties = z[order][1:] == z[order][:-1]
                    assert torch.equal(row[order][1:][ties], row[order][:-1][ties])
                    assert (row[order].diff() <= 0).all()

    @pytest.mark.parametrize("d", [1, 7, 16, 64, 127, 128])
    def test_short_rows_together(self, d: int) -> None:
        """Rows of float32 in lanes: the answers of the general functions, and the bits of a row
        alone."""
        general = CompiledRows("regmax_oscar._numba")
        generator = torch.Generator().manual_seed(d)
        x = torch.randn(37, d, generator=generator)
        x[::3] = (x[::3] * 8).round() / 8
        x[5], x[6, 0], x[9] = -torch.inf, torch.nan, 0.0
        mask = torch.rand(37, d, generator=generator) > 0.2
        gamma, lam = (10 ** torch.rand(37, dtype=F64, generator=generator) - 0.5 for _ in range(2))
        v = torch.randn(37, d, generator=generator)
        for on, weight in ((None, lam / d), (mask, lam), (mask, 0 * lam), (None, 1e200 * lam)):
            y, found = self.kernel.forward(x, gamma, (weight,), on)[0], torch.empty_like(x)
            general.run(0, x, gamma, weight, on, found)
            torch.testing.assert_close(y, found, rtol=0, atol=1e-7, equal_nan=True)
            dx, (dlam,) = self.kernel.backward(y, v, gamma, (weight,), on, True)
            right, rate = torch.empty_like(x), torch.empty_like(lam)
            general.run(1, y, v, gamma, weight, right, rate)
            torch.testing.assert_close(dx, right, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(dlam, rate, rtol=1e-9, atol=1e-9)
            for reach in (number(800), number(1.5)):
                z = self.kernel.prox(x, gamma, weight, reach, on)[0]
                general.run(0, x, gamma, weight, on, found, reach)
                low = (-reach * gamma * 0.999).unsqueeze(-1)
                z, found = (torch.where(t < low, -torch.inf, t) for t in (z, found))
                torch.testing.assert_close(z, found, rtol=1e-6, atol=0, equal_nan=True)
            for r in range(len(x)):
                row = slice(r, r + 1)
                own = None if on is None else on[row]
                alone = self.kernel.forward(x[row], gamma[row], (weight[row],), own)[0]
                assert torch.equal(alone.nan_to_num(-1), y[row].nan_to_num(-1))
                back = self.kernel.backward(y[row], v[row], gamma[row], (weight[row],), own, False)[
                    0
                ]
                assert torch.equal(back, dx[row])
