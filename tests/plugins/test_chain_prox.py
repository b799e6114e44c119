"""The proximal operator of TV on a chain: optimality, groups, masks, isolation, hard inputs."""

import math

import numpy as np
import pytest
import torch
from row_checks import DTYPES, STRETCHED, hard_rows

from regmax_tv.chain import prox_chain_tv, prox_chain_tv_reference

BOTH = pytest.mark.parametrize("prox", [prox_chain_tv, prox_chain_tv_reference])


def check_optimal(v: torch.Tensor, w: float, z: torch.Tensor) -> None:
    """u_k = sum_{i<=k} (v_i - z_i):  |u| <= w,  u_k = w sign(z_k - z_{k+1}) at jumps,  u_d = 0;

    and the value of each group, mean(v_G) + (u_b - u_{a-1}) / |G|, in exact summation.
    """
    vs, zs = v.double().numpy(), z.double().numpy()
    eps = torch.finfo(v.dtype).eps
    rounding = eps if v.dtype == torch.float32 else 0.0
    top = np.abs(vs).max()
    spread = float(np.abs(vs - vs.mean()).sum())
    tol = 1e-15 * (min(w, spread) + spread) * 8 + len(vs) * max(rounding, 2e-16) * top
    u = np.cumsum(vs.astype(np.longdouble) - zs)
    assert abs(u[-1]) <= tol
    assert np.abs(u[:-1]).max(initial=0) <= w + tol
    jump = np.flatnonzero(np.diff(zs))
    if len(jump) and math.isfinite(w):
        assert np.abs(u[jump] + w * np.sign(np.diff(zs))[jump]).max() <= tol
    bounds = [-1, *jump.tolist(), len(vs) - 1]
    signs = [0.0, *(-np.sign(np.diff(zs))[jump]).tolist(), 0.0]
    for k in range(min(len(bounds) - 1, 300)):
        a, b = bounds[k] + 1, bounds[k + 1]
        turn = signs[k] - signs[k + 1]
        exact = math.fsum([*vs[a : b + 1], w * turn if turn else 0.0]) / (b - a + 1)
        # groups equal up to rounding leave their common jump out: allow the rounding of u
        scale = max(abs(exact), np.abs(vs[a : b + 1]).max())
        assert abs(zs[a] - exact) <= 4 * eps * scale + tol / (b - a + 1) * 1e-2
        if a == b and turn == 0:
            assert zs[a] == vs[a]


@BOTH
@DTYPES
@pytest.mark.parametrize("d", [1, 2, 10, 130])
def test_optimality_on_hard_inputs(prox, dtype, d):
    for row in hard_rows(d).values():
        for scale, shift in STRETCHED:
            v = (row * scale + shift).to(dtype)
            weights = torch.tensor([1e-9, 0.01, 0.3, 1.0, 7.5, 100.0, 1e9, math.inf]).double()
            weights = torch.cat([weights[:-1] * scale, weights[-1:]])
            z = prox(v.expand(len(weights), d), weights[:, None])
            assert z.dtype == dtype
            for w, out in zip(weights.tolist(), z, strict=True):
                check_optimal(v, w, out)


@BOTH
@DTYPES
@pytest.mark.parametrize("d", [1000, 30_000, 100_000])  # ties whose means differ by roundings
def test_long_rows(prox, dtype, d):
    for row in hard_rows(d).values():
        v = row.to(dtype)
        check_optimal(v, 2.5, prox(v, 2.5))


@BOTH
@DTYPES
def test_limits_of_the_weight(prox, dtype):
    v = torch.randn(4, 37, generator=torch.Generator().manual_seed(2)).to(dtype) * 100
    w = torch.tensor([[0.0], [math.inf], [1e30], [1e-30]])
    z = prox(v, w)
    mean = v.double().mean(-1).to(dtype)
    assert torch.equal(z[0], v[0])
    for k in (1, 2):
        assert (z[k] == z[k, 0]).all()
        torch.testing.assert_close(z[k, 0], mean[k])
    torch.testing.assert_close(z[3], v[3], rtol=0, atol=100 * torch.finfo(dtype).eps)


@BOTH
@DTYPES
def test_a_weight_for_each_row(prox, dtype):
    """A bad one is alone; a masked row has its own; one for each of several dimensions."""
    g = torch.Generator().manual_seed(4)
    v, w = torch.randn(7, 13, generator=g).to(dtype), torch.rand(7, 1, generator=g)
    clean, mask = prox(v, w), torch.rand(7, 13, generator=g) < 0.6
    masked = prox(v, w, mask)
    for k in range(7):
        assert torch.equal(masked[k, mask[k]], prox(v[k, mask[k]], w[k]))
    w[4], w[5] = -1.0, math.nan
    z = prox(v, w)
    assert z[4:6].isnan().all()
    assert torch.equal(z[:4], clean[:4])
    assert torch.equal(z[6], clean[6])
    each = torch.tensor([[0.2], [0.6]])
    many = v[:6].reshape(3, 2, 13)
    assert torch.equal(prox(many, each), prox(many, each.expand(3, 2, 1)))
    with pytest.raises(ValueError, match="weight"):
        prox(v, torch.ones(3, 1))
