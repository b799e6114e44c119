"""The prox of every penalty has its gradient, in the vector, the step and the penalty's tensors."""

import pytest
import torch
from mapping_checks import normal
from omegas import ARGUMENTS, penalty_of
from torch.autograd import gradcheck, gradgradcheck

import regmax

F64 = torch.float64
NAMES = regmax.available("penalty")
MASK = torch.tensor([[True] * 6, [True, False, True, True, True, False], [False] * 6, [True] * 6])


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("name", NAMES)
def test_the_prox_has_its_gradient(name, mask):
    v = normal(4, 6).requires_grad_()
    step = torch.tensor([[0.05], [0.1], [0.3], [1.0]], dtype=F64, requires_grad=True)
    penalty = penalty_of(name)

    def prox(v, step):
        return penalty.prox(v, step, mask)

    assert gradcheck(prox, (v, step))
    assert gradgradcheck(prox, (v, step))
    assert gradcheck(lambda v: prox(v, 0.1), (v,))
    number = torch.tensor(0.2, dtype=F64, requires_grad=True)
    assert gradcheck(prox, (v.detach(), number))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("owl", torch.tensor(ARGUMENTS["owl"]["weights"], dtype=F64)),
        ("graph_tv", torch.tensor([0.3, 1.0, 0.5, 0.8], dtype=F64)),
    ],
)
def test_the_prox_has_the_gradient_of_weights(name, given):
    penalty, v = penalty_of(name, weights=given.requires_grad_()), normal(4, 6)
    assert gradcheck(lambda weights: penalty_of(name, weights=weights).prox(v, 0.2), (given,))
    (g,) = torch.autograd.grad(penalty.prox(v, 0.2).square().sum(), penalty.weights)
    assert g.abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("graph_tv", -0.5, "be finite and >= 0; got -0.5 at index 3"),
        ("owl", 7.0, "not increase; got 2 at index 2 and then 7"),
    ],
)
def test_weights_that_leave_their_range(name, number, said):
    w = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5, 0.0], dtype=F64)
    w = (w if name == "owl" else w[:4]).requires_grad_()
    layer = regmax.RegularizedMax(regmax.regularizer("gini") + penalty_of(name, weights=w))
    layer(normal(2, 6))
    with torch.no_grad():
        w[3] = number
    with pytest.raises(ValueError, match=f"weights must {said}"):
        layer(normal(2, 6))


def test_the_prox_of_a_multiple_has_the_gradient_of_its_factor():
    lam = torch.tensor(0.3, dtype=F64, requires_grad=True)
    assert gradcheck(lambda lam, v: (lam * penalty_of("tv")).prox(v, 0.5), (lam, normal(4, 6)))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_does_not_move_the_prox(name, dtype):
    v, penalty = normal(4, 6).to(dtype), penalty_of(name)
    plain = penalty.prox(v, 0.1, MASK)
    assert not plain.requires_grad
    leaf = v.clone().requires_grad_()
    z = penalty.prox(leaf, 0.1, MASK)
    assert z.requires_grad
    assert z.dtype == dtype
    assert torch.equal(z, plain)
    with torch.no_grad():
        assert not penalty.prox(leaf, 0.1, MASK).requires_grad
    (g,) = torch.autograd.grad(z.square().sum(), leaf)
    assert torch.isfinite(g).all()
    assert (g[~MASK] == 0).all()


def test_an_infinite_step_and_a_masked_infinity_have_gradients():
    v = normal(4, 6).requires_grad_()
    z = penalty_of("tv").prox(v, torch.inf)
    (g,) = torch.autograd.grad(z[:, 0].sum(), v)
    assert torch.allclose(g, torch.full_like(g, 1 / 6))
    low = torch.where(MASK, normal(4, 6), -torch.inf).requires_grad_()
    (g,) = torch.autograd.grad(penalty_of("tv").prox(low, 0.1, MASK).square().sum(), low)
    assert torch.isfinite(g).all()
