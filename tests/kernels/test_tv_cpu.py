"""The CPU kernel of fusedmax: what holds for both penalties, and long rows."""

from __future__ import annotations

import pytest
import torch
from mapping_checks import normal
from penalty_kernel_checks import BOTH, F64, PenaltyKernelChecks, eps, number


class TestFusedmax(PenaltyKernelChecks):
    name = "tv"
    lams = (0.1, 0.003, 1.0, 30.0)

    def test_who_takes_part_is_told_where_y_does_not_tell(self) -> None:
        x = normal(3, 9)
        lam = (number(0.1),)
        assert self.kernel.forward(x, number(1), lam, None)[1] is None
        on = torch.ones(3, 9, dtype=torch.bool)
        assert self.kernel.forward(x, number(1), lam, on)[1] is None
        on[1, 4] = False
        x[2, 3] = -torch.inf
        part = self.kernel.forward(x, number(1), lam, on)[1]
        assert torch.equal(part, on & (x != -torch.inf))

    @BOTH
    @pytest.mark.parametrize("d", [1000, 30_000])
    def test_long_rows(self, dtype: torch.dtype, d: int) -> None:
        """Rows all of whose entries matter, next to the prox of the whole row."""
        i = torch.arange(d, dtype=F64)
        kinds = {
            "random": normal(d, seed=1),
            "sawtooth": (i % 17) / 17 + (i % 2),
            "ramp": i / d,
            "parabola": ((i - d / 2) / d) ** 2 * 4,
            "steps": torch.floor(i / 100) % 7,
            "walk": normal(d, seed=2).cumsum(0) / d**0.5,
        }
        for kind, x in kinds.items():
            for scale in (1.0, 1e-2, 1e-5):
                z = (x * scale).to(dtype)[None]
                for lam in (0.1 * scale, 0.1, 10.0, 1e-3 / d):
                    y, right = self.y(z, lam), self.slow(z, lam)
                    bound = 1e-12 + (eps(dtype) / 2 if dtype != F64 else 0)
                    assert (y.double() - right).abs().max() <= bound, (kind, scale, lam)
