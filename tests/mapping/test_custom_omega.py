"""A user's own Ω, given by its value alone: optimum, certificate, gradients."""

import numpy as np
import pytest
import torch
from posed import Kinks, Smooth, pose
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.mapping.methods import base

F64 = torch.float64


class Cubic(Regularizer):
    def value(self, y):
        return y.pow(3).sum(-1) / 6


class QuadraticCubic(Regularizer):
    def __init__(self, q):
        self.q = q

    def value(self, y):
        return ((y @ self.q) * y).sum(-1) / 2 + y.pow(3).sum(-1)


class EntropyQuadratic(Regularizer):
    def __init__(self, q):
        self.q = q

    def value(self, y):
        return torch.xlogy(y, y).sum(-1) + ((y @ self.q) * y).sum(-1) / 2


class Power(Regularizer):
    def __init__(self, a):
        self.a = a

    def value(self, y):
        return (y.pow(self.a).sum(-1) - 1) / (self.a * (self.a - 1))


class Weighted(Regularizer):
    def __init__(self, w):
        self.w = w

    def value(self, y):
        return (self.w * y * y).sum(-1) / 2


class LogSumExp(Regularizer):
    def __init__(self, a):
        self.a = a

    def value(self, y):
        return (y @ self.a).logsumexp(-1) + y.square().sum(-1) / 2


def spd(d, seed=0):
    b = np.random.default_rng(seed).normal(size=(d, d)) / d**0.5
    return b @ b.T + 0.3 * np.eye(d)


def case(name, d):
    """Ω as a user writes it, and ∇Ω, ∇²Ω in numpy, written by hand."""
    q = spd(d)
    w = np.random.default_rng(1).uniform(0.5, 2, d)
    a = np.random.default_rng(2).normal(size=(d, 4))

    def soft(y):
        e = np.exp(y @ a - (y @ a).max())
        return e / e.sum()

    def power(p):
        return Power(p), lambda y: y ** (p - 1) / (p - 1), lambda y: np.diag(y ** (p - 2))

    tq = torch.tensor(q)
    return {
        "cubic": lambda: (Cubic(), lambda y: y * y / 2, np.diag),
        "quadratic+cubic": lambda: (
            QuadraticCubic(tq),
            lambda y: q @ y + 3 * y * y,
            lambda y: q + np.diag(6 * y),
        ),
        "entropy+quadratic": lambda: (
            EntropyQuadratic(tq),
            lambda y: np.log(y) + 1 + q @ y,
            lambda y: np.diag(1 / y) + q,
        ),
        "tsallis 1.5": lambda: power(1.5),
        "tsallis 0.7": lambda: power(0.7),
        "weighted": lambda: (Weighted(torch.tensor(w)), lambda y: w * y, lambda y: np.diag(w)),
        "logsumexp": lambda: (
            LogSumExp(torch.tensor(a)),
            lambda y: a @ soft(y) + y,
            lambda y: a @ (np.diag(soft(y)) - np.outer(soft(y), soft(y))) @ a.T + np.eye(d),
        ),
    }[name]()


NAMES = (
    "cubic",
    "quadratic+cubic",
    "entropy+quadratic",
    "tsallis 1.5",
    "tsallis 0.7",
    "weighted",
    "logsumexp",
)
STEEP = ("entropy+quadratic", "tsallis 0.7")


def known(name, grad, hess, rows, d):
    """Scores and their answers."""
    rng, smooth = np.random.default_rng(d), Smooth(grad, hess, 1.0, name in STEEP)
    made = [pose(smooth, Kinks(), d, rng) for _ in range(rows)]
    x, y = (np.array([getattr(row, name) for row in made], float) for name in ("x", "y"))
    return torch.from_numpy(x), torch.from_numpy(y)


def scores(rows, d, scale, seed=0):
    return scale * torch.randn(
        rows, d, dtype=F64, generator=torch.Generator().manual_seed(seed + d)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [1, 2, 10])
def test_optimum(name, d):
    omega, grad, hess = case(name, d)
    x, y = known(name, grad, hess, 6, d)
    sol = RegularizedMax(omega).solve(x)
    error = (sol.y - y).norm(dim=-1)
    assert (error <= 1e-9).all()
    assert (error <= sol.error_bound + 2e-14).all()  # the rounding of the scores
    assert (sol.error_bound <= 1e-8).all()
    assert sol.converged.all()
    assert (sol.y >= 0).all()
    assert ((sol.y.sum(-1) - 1).abs() <= 2 * 2.3e-16 * max(d, 4) ** 0.5).all()


# -- gradients ---------------------------------------------------------------------------------


def test_gradient_of_a_nested_module():
    class Nested(Regularizer):
        def __init__(self):
            self.inner = nn.Linear(4, 2).double()

        def value(self, y):
            return y.square().sum(-1) / 2 + self.inner(y).logsumexp(-1)

    torch.manual_seed(0)
    omega, x = Nested(), scores(1, 4, 0.4)
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


# -- masks, layouts, dtypes --------------------------------------------------------------------


@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_a_norm_is_certified_at_a_vertex(power):
    """It does not bend along y: at a vertex, where every edge leads down, convexity is enough."""

    class Norm(regmax.Regularizer):
        def value(self, y):
            return torch.linalg.vector_norm(y, power, dim=-1)

    x = torch.tensor([[3.0, 0.0, -1.0], [0.5, 0.3, 0.0]], dtype=torch.float64)
    solution = regmax.RegularizedMax(Norm(), on_failure="raise").solve(x)
    assert solution.y[0].tolist() == [1, 0, 0]
    assert (solution.y[1] > 0).sum() > 1
    assert (solution.error_bound < 1e-13).all()


class Coupled(Regularizer):
    """With a matrix, and a kink."""

    def __init__(self, kink):
        self.a, self.kink = torch.from_numpy(spd(5)), kink

    def value(self, y):
        smooth = (y @ self.a).square().sum(-1) / 2
        return smooth + self.kink * y.amax(-1) + (1 - self.kink) * y.pow(3).sum(-1)


@pytest.mark.parametrize("kink", [0.0, 0.4])
def test_the_default_device_changes_nothing(kink):
    """Not where Ω is new either."""
    x, found = scores(3, 5, 1.0), []
    for device in ("cpu", "meta"):
        base.METHODS.clear()
        with torch.device(device):
            leaf = x.clone().requires_grad_()
            layer = RegularizedMax(Coupled(kink))
            solution = layer.solve(leaf)
            (g,) = torch.autograd.grad(solution.y.square().sum(), leaf)
        found.append((solution.y, solution.error_bound, g, layer(x), layer.max(x)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
