"""Tensors that Ω depends on and that are not its attributes: constants, or refused. Under
``torch.func`` and forward mode: test_function.py."""

import functools

import pytest
import torch
from mapping_checks import normal
from torch import nn

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.regularizers.identity import may_hide_tensors

F64 = torch.float64


def moved(w, y):
    return (w * y * y).sum(-1) / 2


class Holding(Regularizer):
    """Its tensor is in something that it holds."""

    def __init__(self, held):
        self.held = held

    def value(self, y):
        return self.held(y) if callable(self.held) else moved(self.held[0], y)


class Own(Regularizer):
    """It keeps a function of itself, which a copy with other tensors does not follow."""

    def __init__(self, w):
        self.w = w
        self.f = lambda y: moved(self.w, y)

    def value(self, y):
        return self.f(y)


class Shifted(Regularizer):
    """Its minimum alone depends on the tensor."""

    def __init__(self, w):
        self.held = [w]

    def value(self, y):
        return y.square().sum(-1) + self.held[0].sum()


def in_global(w):
    class InGlobal(Regularizer):
        def value(self, y):
            return moved(WEIGHTS, y)

    global WEIGHTS
    WEIGHTS = w
    return InGlobal()


def by_default(w):
    class ByDefault(Regularizer):
        def value(self, y, weights=w):
            return moved(weights, y)

    return ByDefault()


def in_class(w):
    return type("InClass", (Regularizer,), {"w": w, "value": lambda self, y: moved(self.w, y)})()


def in_module(w):
    inner = nn.Linear(4, 1, bias=False).double()
    inner.weight = nn.Parameter(w.detach()[None]).requires_grad_(w.requires_grad)
    return Holding([inner.weight])


class Declared(Holding):
    hyperparameters = ()

    def grad(self, y):
        return self.held[0] * y


HIDDEN = {
    "beside declarations": lambda w: Declared([w]),
    "list": lambda w: Holding([w]),
    "function": lambda w: Holding(lambda y: moved(w, y)),
    "partial": lambda w: Holding(functools.partial(moved, w)),
    "global": in_global,
    "default": by_default,
    "class": in_class,
    "parameter in a list": in_module,
    "function of itself": Own,
    "constant term": Shifted,
    "term": lambda w: Holding([w]) + 0.5 * regmax.regularizer("gini"),
    "multiple": lambda w: torch.tensor(2.0, dtype=F64, requires_grad=True) * Holding([w]),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_hidden_tensor_that_requires_grad_is_refused(how):
    w, x = torch.tensor([0.7, 1.0, 1.5, 2.0], dtype=F64), normal(3, 4) / 2
    targets = torch.tensor([0, 1, 2])
    for f in (
        lambda omega: RegularizedMax(omega)(x),
        lambda omega: RegularizedMax(omega, certify=True)(x),
        lambda omega: RegularizedMax(omega, solver="fista")(x),
        lambda omega: RegularizedMax(omega).max(x),
        lambda omega: RegularizedMax(omega).solve(x).y,
        lambda omega: regmax.FenchelYoungLoss(omega, reduction="none")(x, targets),
    ):
        omega = HIDDEN[how](w.clone().requires_grad_())
        with pytest.raises(regmax.RegularizerError, match=r"requires grad and is not one of its"):
            f(omega)
        with torch.no_grad():
            expected = f(omega)
        assert torch.equal(f(HIDDEN[how](w)), expected)


def test_a_tensor_of_the_computation_is_not_hidden():
    """Autograd inside of ``value``, and an attribute that is a function of a parameter."""

    class Weighted(Regularizer):
        def __init__(self, w):
            self.w = w

        def value(self, y):
            return moved(self.w, y)

    class Bregman(Regularizer):
        def __init__(self, w):
            self.inner = Weighted(w)

        def value(self, y):
            return (self.inner.grad(y) * y).sum(-1) / 2

    w = torch.tensor([0.7, 1.0, 1.5, 2.0], dtype=F64, requires_grad=True)
    for dtype in (F64, torch.float32):
        x = normal(3, 4).to(dtype) / 2
        got, expected = (
            torch.autograd.grad(RegularizedMax(omega)(x).pow(3).sum(), w)[0]
            for omega in (Bregman(2 * w), Weighted(2 * w))
        )
        assert (expected != 0).any()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 if dtype == F64 else 1e-5)


def test_what_cannot_hide_a_tensor_is_not_evaluated():
    """The classes of the plugins that define kernels, and what is made of them."""
    a, tv = torch.tensor(1.3, requires_grad=True), regmax.penalty("tv")
    for name in ("entropy", "gini", "pnorm", "tsallis", "tv", "oscar"):
        assert not may_hide_tensors(regmax.regularizer(name))
    entmax = regmax.regularizer("tsallis", alpha=a)
    for omega in (2 * entmax, entmax + regmax.regularizer("gini"), entmax + a * tv, entmax + tv):
        assert not may_hide_tensors(omega)
    for omega in (Holding([a]), 2 * Holding([a]), Holding([a]) + entmax, Holding([a]) + 0.1 * tv):
        assert may_hide_tensors(omega)
    cls = type(entmax)
    assert not may_hide_tensors(type("Mine", (cls,), {})())
    mine = type("Mine", (cls,), {"alpha": property(lambda self: a), "__init__": lambda self: None})
    x = normal(2, 3)
    (expected,) = torch.autograd.grad(RegularizedMax(entmax)(x).pow(3).sum(), a)
    (got,) = torch.autograd.grad(RegularizedMax(mine())(x).pow(3).sum(), a)
    torch.testing.assert_close(got, expected)
    with (
        regmax.kernels.reference(),
        pytest.raises(regmax.RegularizerError, match="is not one of its attributes"),
    ):
        RegularizedMax(mine())(x)
