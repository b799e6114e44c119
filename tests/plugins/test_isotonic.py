"""Decreasing isotonic regression against scipy: both implementations, masks, long rows."""

import numpy as np
import pytest
import torch
from row_checks import DTYPES, hard_rows
from scipy.optimize import isotonic_regression

from regmax_oscar.isotonic import isotonic_decreasing, isotonic_decreasing_reference


@pytest.mark.parametrize("fit", [isotonic_decreasing, isotonic_decreasing_reference])
@DTYPES
@pytest.mark.parametrize("d", [3, 64, 100_000])
def test_against_scipy(fit, dtype, d):
    for row in hard_rows(d).values():
        v, on = row.to(dtype), torch.arange(d) % 3 != 1
        for mask in (None, on):
            part = slice(None) if mask is None else mask
            z = fit(v, mask)[part]
            exact = isotonic_regression(v[part].double().numpy(), increasing=False).x
            off = np.abs(z.double().numpy() - exact).max()
            assert off <= 2 * max(torch.finfo(dtype).eps, d * 1e-16) * v.abs().max()
            assert (z.diff() <= 0).all()
