"""A user's own Ω, given by its value alone: nested parameters, vertices, the default device."""

import numpy as np
import pytest
import torch
from mapping_checks import normal
from omegas import omega_of
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.mapping.methods import base

F64 = torch.float64


def spd(d, seed=0):
    b = np.random.default_rng(seed).normal(size=(d, d)) / d**0.5
    return b @ b.T + 0.3 * np.eye(d)


def test_gradient_of_a_nested_module():
    class Nested(Regularizer):
        def __init__(self):
            self.inner = nn.Linear(4, 2).double()

        def value(self, y):
            return y.square().sum(-1) / 2 + self.inner(y).logsumexp(-1)

    torch.manual_seed(0)
    omega, x = Nested(), normal(1, 4, scale=0.4)
    layer = RegularizedMax(omega)
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["omega.inner.weight", "omega.inner.bias"]
    weight, bias = (p.detach().clone().requires_grad_() for p in omega.inner.parameters())

    def f(weight, bias):
        values = {"inner.weight": weight, "inner.bias": bias}
        return RegularizedMax(omega.with_tensors(values))(x)

    assert gradcheck(f, (weight, bias), atol=1e-6)
    assert gradgradcheck(f, (weight, bias), atol=1e-5)
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_a_norm_is_certified_at_a_vertex(power):
    """It does not bend along y: at a vertex, where every edge leads down, convexity is enough."""

    norm = omega_of(lambda y: torch.linalg.vector_norm(y, power, dim=-1))
    x = torch.tensor([[3.0, 0.0, -1.0], [0.5, 0.3, 0.0]], dtype=torch.float64)
    solution = regmax.RegularizedMax(norm, on_failure="raise").solve(x)
    assert solution.y[0].tolist() == [1, 0, 0]
    assert (solution.y[1] > 0).sum() > 1
    assert (solution.error_bound < 1e-13).all()


@pytest.mark.parametrize("kink", [0.0, 0.4])
def test_the_default_device_changes_nothing(kink):
    """Not where Ω, with a matrix and a kink, is new either."""
    x, found = normal(3, 5), []

    def value(y, a):
        smooth = (y @ a).square().sum(-1) / 2
        return smooth + kink * y.amax(-1) + (1 - kink) * y.pow(3).sum(-1)

    for device in ("cpu", "meta"):
        base.METHODS.clear()
        with torch.device(device):
            leaf = x.clone().requires_grad_()
            layer = RegularizedMax(omega_of(value, a=torch.from_numpy(spd(5))))
            solution = layer.solve(leaf)
            (g,) = torch.autograd.grad(solution.y.square().sum(), leaf)
        found.append((solution.y, solution.error_bound, g, layer(x), layer.max(x)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
