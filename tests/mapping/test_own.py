"""A call of an own Ω after others: what a kernel that an earlier call made may not miss."""

import pytest
import torch
from omegas import omega_of

import regmax

F64 = torch.float64
D = 5


def test_a_value_that_jumps_at_0_keeps_its_loss():
    """Infinitely steep at 0: at ε² it is far from 0."""
    root = omega_of(lambda y: -y.pow(0.05).sum(-1))
    loss = regmax.FenchelYoungLoss(root, reduction="none")
    x, target = torch.randn(4, D, dtype=F64), torch.arange(4)
    first = loss(x, target)
    torch.testing.assert_close(loss(x, target), first, rtol=0, atol=1e-12)


class Weighted(regmax.Regularizer):
    """Weights of each row, or of each entry of each row, with a quadratic form."""

    def __init__(self, w, q=None):
        self.w, self.q = torch.nn.Parameter(w), q

    def value(self, y):
        form = 0 if self.q is None else ((y @ self.q.T).square() / 2).sum(-1)
        return (self.w * y.square() / 2 + y.pow(3) / 6).sum(-1) + form


SHAPES = [((20, D), (20, 1)), ((20, D), (20, D)), ((D, D), (D, D)), ((2, 3, D), (3, D))]


@pytest.mark.parametrize(("form", "dtype"), [(False, F64), (True, F64), (True, torch.float32)])
@pytest.mark.parametrize(("shape", "own"), [*SHAPES, ((2, 3, D), (2, 1, 1))])
def test_numbers_of_each_row(shape, own, form, dtype):
    """Beside a matrix of (R, d) too, which keeps its meaning."""
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(D, D, generator=generator, dtype=F64).to(dtype) if form else None
    omega = Weighted((0.5 + torch.rand(own, generator=generator)).to(dtype), q)
    layer, mask = regmax.RegularizedMax(omega), torch.rand(shape, generator=generator) < 0.8
    x, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    x.requires_grad_()

    def results():
        y = layer(x, mask)
        return y, *torch.autograd.grad(y, (x, omega.w), v)

    found = results()
    assert "forward: kernel from the value" in layer.explain(x.detach(), mask)
    with regmax.kernels.reference():
        expected = results()
    tol = 1e-8 if dtype == F64 else 2e-6
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=tol, atol=tol)
    rows = zip(x.detach().view(-1, D), mask.view(-1, D), strict=True)
    each = omega.w.detach().expand(*shape[:-1], -1).reshape(-1, 1, own[-1])
    alone = [
        regmax.RegularizedMax(Weighted(w, q))(row[None], on[None])
        for w, (row, on) in zip(each, rows, strict=True)
    ]
    torch.testing.assert_close(found[0].view(-1, D), torch.cat(alone), rtol=tol, atol=tol)


def test_a_matrix_as_large_as_the_batch_is_no_batch():
    layer = regmax.RegularizedMax(Weighted(torch.ones(D, dtype=F64), torch.eye(D, dtype=F64)))
    x = torch.randn(D, D, dtype=F64)
    whole = layer(x)
    assert all(torch.equal(layer(x[i : i + 1])[0], whole[i]) for i in range(D))
