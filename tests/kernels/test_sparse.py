"""Products with weights of which few are not 0, beside dense ones."""

import pytest
import torch

pytest.importorskip("numba")

from regmax.kernels.cpu.sparse import averages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "keys", "width"), [(1, 9, 1), (3, 33, 16), (2, 300, 131)])
def test_equal_to_dense_products(heads, keys, width, dtype):
    g = torch.Generator().manual_seed(0)
    rows, depth = 4 * heads, 5
    y = torch.rand(rows, keys, generator=g, dtype=dtype)
    y = torch.where(y > 0.9, y, 0)
    y[1] = 0
    k, v, q, g = (
        torch.randn(*shape, generator=g, dtype=dtype)
        for shape in ((heads, keys, depth), (heads, keys, width), (rows, depth), (rows, width))
    )
    found = averages(y, v, 2)
    assert found is not None
    out, kept = found
    by_head = y.view(heads, 4, keys)
    torch.testing.assert_close(out.view(heads, 4, width), by_head @ v)
    columns = kept.index.long()
    inside = torch.arange(columns.shape[1]) < kept.counts
    assert torch.equal(kept.counts.squeeze(1).long(), (y > 0).sum(1))
    packed = torch.where(inside, y.gather(1, columns * inside), 0)
    dots = (g.view(heads, 4, width) @ v.mT).view(rows, keys)
    expected = torch.where(inside, dots.gather(1, columns * inside), -1.0)
    torch.testing.assert_close(kept.dots(g, v, -1.0), expected)
    dk, dv = torch.ones_like(k), torch.zeros_like(v)
    dq = kept.add_gradients(packed, packed, q, g, k, dk, dv)
    torch.testing.assert_close(dq.view(heads, 4, depth), by_head @ k)
    torch.testing.assert_close(dk, 1 + by_head.mT @ q.view(heads, 4, depth))
    torch.testing.assert_close(dv, by_head.mT @ g.view(heads, 4, width))


def test_none_where_many_are_not_zero():
    y = torch.full((4, 64), 1 / 64)
    assert averages(y, torch.randn(2, 64, 3), 8) is None
    y[:, 8:] = 0
    assert averages(y, torch.randn(2, 64, 3), 8) is not None
    y[0] = torch.nan
    assert averages(y, torch.randn(2, 64, 3), 8) is None
