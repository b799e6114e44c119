"""Calls whose hyperparameters are tensors, by the method that an earlier call found. Along another
dimension it is not used, and the answer has the same bits."""

import gc
import weakref

import pytest
import torch

import regmax
from regmax import functional
from regmax.mapping.methods import base, choose

NAMES = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def numbers(name, shape, dtype):
    """Hyperparameters between 0.2 and 0.7 for a penalty, between 1.2 and 1.7 for an exponent."""
    t = 0.2 + 0.5 * torch.rand(shape, dtype=dtype)
    return (t if NAMES[name] == "lam" else 1 + t).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8), (8,), (0, 8)], ids=str)
@pytest.mark.parametrize("kind", ["one", "rows"])
@pytest.mark.parametrize("gaps", [False, True])
def test_the_bits_of_the_general_way(name, dtype, shape, kind, gaps):
    torch.manual_seed(0)
    mapping, key, batch = getattr(functional, name), NAMES[name], shape[:-1]
    x, v = torch.randn(2, *shape, dtype=dtype)
    if gaps:
        x[..., 2::3] = -torch.inf
    theta = numbers(name, () if kind == "one" else (*batch, 1), dtype)
    found = []
    for dim in (-1, 0):
        laid = x.movedim(-1, dim).clone().requires_grad_()
        own = theta if kind == "one" else theta.movedim(-1, dim)
        y = mapping(laid, **{key: own}, dim=dim)
        back = torch.autograd.grad(y, (laid, theta), v.movedim(-1, dim), retain_graph=True)
        (alone,) = torch.autograd.grad(y, theta, v.movedim(-1, dim))
        found.append((y.movedim(dim, -1), back[0].movedim(dim, -1), back[1], alone))
    for by_method, general in zip(*found, strict=True):
        assert by_method.dtype == dtype
        assert torch.equal(by_method, general)


def test_derivatives_of_derivatives(name):
    torch.manual_seed(0)
    mapping, key = getattr(functional, name), NAMES[name]
    x, v = torch.randn(2, 3, 5, dtype=torch.float64)
    theta = numbers(name, (3, 1), torch.float64)
    found = []
    for dim in (-1, 0):
        laid = x.movedim(-1, dim).clone().requires_grad_()
        y = mapping(laid, **{key: theta.movedim(-1, dim)}, dim=dim)
        at = laid, theta
        back = v.movedim(-1, dim)
        first = torch.autograd.grad(y, at, back, create_graph=True)
        total = first[0].square().sum() + first[1].sum()
        second = (None, None)
        if total.requires_grad:  # the derivatives of oscarmax are constant
            second = torch.autograd.grad(total, at, retain_graph=True, allow_unused=True)
        batched = torch.autograd.grad(y, at, torch.stack((back, -back)), is_grads_batched=True)
        assert torch.allclose(batched[1][0], first[1])
        assert torch.allclose(batched[0][1], -first[0])
        found.append((first[0].movedim(dim, -1), first[1], second[0], second[1]))
    for k, (by_method, general) in enumerate(zip(*found, strict=True)):
        if by_method is None:
            assert general is None
            continue
        assert torch.allclose(by_method, general.movedim(0, -1) if k == 2 else general)


def test_numbers_are_checked_at_every_call(name):
    mapping, key, x = getattr(functional, name), NAMES[name], torch.randn(4, 8)
    theta = numbers(name, (4, 1), torch.float32)
    mapping(x, **{key: theta})
    with torch.no_grad():
        theta[2] = -1.0
    with pytest.raises(ValueError, match=rf"{key} must be .*; got -1 at index \(2, 0\)"):
        mapping(x, **{key: theta})
    with pytest.raises(ValueError, match=f"{key} must broadcast to x"):
        mapping(x, **{key: theta[:2]})


def test_a_layer_learns(name):
    torch.manual_seed(0)
    key, x, v = NAMES[name], torch.randn(4, 8), torch.randn(4, 8)
    theta = torch.nn.Parameter(numbers(name, (), torch.float32).detach())
    omega = {"entmax": "tsallis", "pnormmax": "pnorm", "fusedmax": "tv", "oscarmax": "oscar"}[name]
    layer = regmax.RegularizedMax(regmax.regularizer(omega, **{key: theta}))
    for _ in range(2):
        theta.grad = None
        layer(x).backward(v)
        (right,) = torch.autograd.grad(getattr(functional, name)(x, **{key: theta}), theta, v)
        assert torch.equal(theta.grad, right)
        with torch.no_grad():
            theta -= 0.05
    assert choose.known_kernel(layer.omega, x, 1.0)[1] == (theta,)


def test_a_method_keeps_no_tensor_of_a_call(name):
    mapping, key, x = getattr(functional, name), NAMES[name], torch.randn(4, 9)
    theta = numbers(name, (4, 1), torch.float32)
    gone = weakref.ref(theta)
    base.METHODS.clear()
    mapping(x, **{key: theta})
    assert base.METHODS
    del theta
    gc.collect()
    assert gone() is None
