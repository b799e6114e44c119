"""Decreasing isotonic regression: against scipy, blocks, masks, isolation, hard inputs."""

import math

import numpy as np
import pytest
import torch
from row_checks import DTYPES, STRETCHED, RowChecks, hard_rows
from scipy.optimize import isotonic_regression

from regmax_oscar import isotonic
from regmax_oscar.isotonic import isotonic_decreasing, isotonic_decreasing_reference

BOTH = pytest.mark.parametrize("fit", [isotonic_decreasing, isotonic_decreasing_reference])


def check_optimal(v: torch.Tensor, z: torch.Tensor) -> None:
    """Decreasing, block means in exact summation, and sum_{a..k} (v_i - z_i) <= 0 in a block."""
    vs, zs = v.double().numpy(), z.double().numpy()
    eps = torch.finfo(v.dtype).eps
    assert (np.diff(zs) <= 0).all()
    cut = np.flatnonzero(np.diff(zs))
    bounds = [-1, *cut.tolist(), len(vs) - 1]
    for k in range(min(len(bounds) - 1, 300)):
        part = vs[bounds[k] + 1 : bounds[k + 1] + 1]
        value = zs[bounds[k + 1]]
        scale = np.abs(part).max()
        assert abs(value - math.fsum(part) / len(part)) <= 2 * eps * scale
        if len(part) == 1:
            assert value == part[0]
        head = np.cumsum(part.astype(np.longdouble) - value)
        assert head.max() <= len(part) * eps * scale * 2
    expected = isotonic_regression(vs, increasing=False).x
    assert np.abs(zs - expected).max() <= 2 * max(eps, len(vs) * 1e-16) * np.abs(vs).max()


@BOTH
@DTYPES
@pytest.mark.parametrize("d", [1, 2, 3, 10, 64, 257])
def test_optimality_on_hard_inputs(fit, dtype, d):
    for row in hard_rows(d).values():
        for scale, shift in STRETCHED:
            v = (row * scale + shift).to(dtype)
            z = fit(v)
            assert z.dtype == dtype
            check_optimal(v, z)


@BOTH
@DTYPES
def test_long_rows(fit, dtype):
    for row in hard_rows(100_000).values():
        v = row.to(dtype)
        check_optimal(v, fit(v))


@BOTH
def test_decreasing_rows_are_left_alone(fit):
    v = torch.randn(30, 50, generator=torch.Generator().manual_seed(1)).sort(descending=True).values
    assert torch.equal(fit(v), v)
    v[:, 10:20] = v[:, 10:11]
    assert torch.equal(fit(v), v)


class TestRows(RowChecks):
    module = isotonic
    functions = (isotonic_decreasing, isotonic_decreasing_reference)
