"""A call of an own Ω by a kernel that an earlier call made: what it computes, and what it leaves to
the solver."""

import pytest
import torch

import regmax
from regmax.losses import fenchel_young as losses
from regmax.mapping import evaluate
from regmax.mapping.methods import base, choose

pytest.importorskip("numba")

F64 = torch.float64
D = 7


class Cubic(regmax.Regularizer):
    def value(self, y):
        return (y.square() / 2 + y.pow(3) / 6).sum(-1)


class Weighted(regmax.Regularizer):
    """A weight for each entry."""

    def __init__(self):
        self.w = torch.linspace(1, 2, D, dtype=F64)

    def value(self, y):
        return (self.w * y.pow(1.5)).sum(-1)


class Coupled(Weighted):
    def value(self, y):
        form = self.w.outer(self.w) / 9 + torch.eye(D, dtype=F64)
        return super().value(y) + ((y @ form) * y).sum(-1) / 2


class Joined(Weighted):
    def value(self, y):
        return super().value(y) + torch.logsumexp(3 * y, -1)


class Entropy(regmax.Regularizer):
    def value(self, y):
        return (y * y.log()).sum(-1)


OMEGAS = [Cubic, Weighted, Coupled, Joined, Entropy]


@pytest.fixture
def alone(monkeypatch):
    """After ``alone()`` there is no other way to compute Π_Ω."""
    return lambda: monkeypatch.setattr(evaluate, "prepare", None)


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(D,), (1, D), (2, 3, D), (50, D)])
@pytest.mark.parametrize("make", OMEGAS)
def test_result_and_gradients_are_those_of_the_solver(make, shape, dtype, alone):
    layer = regmax.RegularizedMax(make(), gamma=0.7)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
    v = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)

    def results():
        y = layer(x)
        (first,) = torch.autograd.grad(y, x, v, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return y, first, second

    with regmax.kernels.reference():
        expected = results()
    layer(x)
    alone()
    for got, right in zip(results(), expected, strict=True):
        assert got.dtype == dtype
        tol = 1e-8 if dtype == F64 else 1e-6 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got, right, rtol=tol, atol=tol)


@pytest.mark.parametrize("number", [-torch.inf, torch.inf, torch.nan, 1e200])
def test_scores_that_are_not_finite_are_prepared(number):
    layer, x = regmax.RegularizedMax(Cubic()), torch.zeros(3, D, dtype=F64)
    layer(x)
    x[1, 2] = number
    with regmax.kernels.reference():
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected, equal_nan=True)


def quick(layer, x):
    """Π_Ω(x) by a kernel that an earlier call made, or None."""
    return evaluate._known(choose.known, x, layer.omega, x, layer.gamma, layer.settings)


def test_other_numbers_of_a_tensor_are_noticed():
    layer, x = regmax.RegularizedMax(Coupled()), torch.randn(3, D, dtype=F64)
    layer(x)
    layer.omega.w.data[3] += 0.5
    with regmax.kernels.reference():
        expected = layer(x)
    torch.testing.assert_close(quick(layer, x), expected, rtol=0, atol=1e-8)


STATE = {"factor": 1.0}


def factor():
    return STATE["factor"]


class Distant(regmax.Regularizer):
    """A number that no attribute shows."""

    def value(self, y):
        return factor() * y.square().sum(-1) + y.pow(3).sum(-1)


CHANGES = {
    "a number": 1 + 1e-9,
    "a tensor to learn": torch.tensor(1.0, dtype=F64, requires_grad=True),
    "the dtype": torch.tensor([1.0], dtype=torch.complex128),
    "the shape": torch.ones(2, 1, dtype=F64),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("rows", [1, 50])
def test_a_change_of_the_value_is_noticed(name, rows, monkeypatch):
    layer, x = regmax.RegularizedMax(Distant()), torch.randn(rows, D, dtype=F64)
    layer(x)
    assert quick(layer, x) is not None
    monkeypatch.setitem(STATE, "factor", CHANGES[name])
    assert quick(layer, x) is None


def test_a_row_that_is_not_certified_is_left_to_the_solver():
    layer, x = regmax.RegularizedMax(Cubic()), torch.randn(3, D, dtype=F64)
    layer(x)
    strict = regmax.RegularizedMax(Cubic(), tol=1e-30)
    assert quick(layer, x) is not None
    assert quick(strict, x) is None


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("make", [Cubic, Weighted, Coupled, Entropy])
def test_losses_are_those_of_the_solver(make, dtype, monkeypatch):
    loss = regmax.FenchelYoungLoss(make(), gamma=0.7, reduction="none")
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(60, D, dtype=dtype, generator=generator)
    x[:20, 0] += 9
    x.requires_grad_()
    target = torch.randint(D, (60,), generator=generator)
    target[:20], target[30:35] = 0, -100
    v = torch.randn(60, dtype=dtype, generator=generator)

    def results():
        value = loss(x, target)
        (first,) = torch.autograd.grad(value, x, v, create_graph=True)
        (again,) = torch.autograd.grad(value, x, v, retain_graph=True)
        (once,) = torch.autograd.grad(value, x, v)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return value, first, again, once, second

    with regmax.kernels.reference():
        expected = results()
    loss(x, target)
    computed, by_kernel = losses.from_its_value, []
    monkeypatch.setattr(
        losses, "from_its_value", lambda *args: by_kernel.append(computed(*args)) or by_kernel[-1]
    )
    found = results()
    assert by_kernel[0] is not None
    tol = 1e-9 if dtype == F64 else 1e-5
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=tol, atol=tol)
    assert torch.equal(found[0] == 0, expected[0] == 0)


def test_a_value_that_jumps_at_0_keeps_its_loss():
    class Root(regmax.Regularizer):
        """Infinitely steep at 0: at ε² it is far from 0."""

        def value(self, y):
            return -y.pow(0.05).sum(-1)

    loss = regmax.FenchelYoungLoss(Root(), reduction="none")
    x, target = torch.randn(4, D, dtype=F64), torch.arange(4)
    first = loss(x, target)
    torch.testing.assert_close(loss(x, target), first, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [Weighted, Coupled, Joined])
def test_a_first_call_saves_what_later_calls_save(make):
    base.METHODS.clear()
    layer, x = regmax.RegularizedMax(make()), torch.randn(3, D, dtype=F64, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    y.square().sum().backward()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(x.grad, expected)
