"""J on the support: the same in every batch, and that of the bordered system."""

import pytest
import torch

from regmax.regularizers.curvature import Dense


def problems(seed):
    """Matrices, supports of every size in one batch, and vectors."""
    g = torch.Generator().manual_seed(seed)
    n, d = (int(torch.randint(low, high, (), generator=g)) for low, high in ((1, 12), (1, 40)))
    b = torch.randn(n, d, d, generator=g, dtype=torch.float64)
    h = b @ b.mT / d + torch.eye(d)
    share = 1.3 * torch.rand(n, 1, generator=g)
    return h, torch.rand(n, d, generator=g) < share, torch.randn(n, d, generator=g).double()


@pytest.mark.parametrize("seed", range(0, 100, 10))
def test_supports_of_different_sizes_in_one_batch(seed):
    for h, support, v in map(problems, range(seed, seed + 10)):
        inverse = Dense(h).inverse(support)
        found, expected = inverse(v), Dense(h).jacobian(v, support)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        low = Dense(h).min_eigenvalue(support)
        assert ((inverse.min_eigenvalue <= low * (1 + 1e-9)) | torch.isinf(low)).all()
        for i in range(len(h)):
            one, row = Dense(h[i : i + 1]), slice(i, i + 1)
            alone = one.inverse(support[row])
            assert torch.equal(alone(v[row]), found[row])
            assert torch.equal(alone.min_eigenvalue, inverse.min_eigenvalue[row])
            assert torch.equal(one.jacobian(v[row], support[row]), expected[row])
            assert torch.equal(one.min_eigenvalue(support[row]), low[row])
