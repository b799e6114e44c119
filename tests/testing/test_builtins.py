"""The regularizers that regmax ships, and two of a user's, keep every promise."""

import pytest
import torch

import regmax
from regmax import Penalized
from regmax.testing import check_regularizer, parametrize_with_checks

BUILT_IN = [
    *(regmax.regularizer(name) for name in regmax.available()),
    *(regmax.regularizer("tsallis", alpha=alpha) for alpha in (0.5, 1.0, 1.3, 3.0, 10.0)),
    *(regmax.regularizer("pnorm", p=p) for p in (1.2, 2.0)),
    regmax.regularizer("tv", lam=0.0),
    regmax.regularizer("oscar", lam=0.05),
    regmax.regularizer("oscar", exact=False),
]


class Cubic(regmax.Regularizer):
    """Known by its value alone."""

    def value(self, y):
        return y.pow(3).sum(-1) / 6 + y.square().sum(-1) / 2


class Quadratic(regmax.Regularizer):
    """Ω(y) = ½ yᵀQy, on three entries."""

    def __init__(self):
        b = torch.tensor([[1.0, 0.4, -0.2], [0.0, 0.9, 0.3], [0.1, 0.0, 1.1]])
        self.q = (b @ b.T).double()

    def value(self, y):
        return ((y @ self.q.to(y)) * y).sum(-1) / 2


@parametrize_with_checks(BUILT_IN)
def test_a_built_in_keeps(omega, check):
    check(omega)


@parametrize_with_checks([Cubic(), Quadratic()])
def test_an_omega_of_a_user_keeps(omega, check):
    check(omega)


def test_all_built_ins_are_here():
    assert {type(omega).name for omega in BUILT_IN} == set(regmax.available())


@pytest.mark.parametrize("base", [regmax.regularizer("entropy"), Quadratic()], ids=repr)
def test_a_penalty_on_another_base(base):
    check_regularizer(regmax.Penalized(base, regmax.regularizer("tv").penalty, 0.2))


PENALTIES = [
    regmax.penalty("tv"),
    regmax.penalty("oscar"),
    regmax.penalty("clique_tv"),
    regmax.penalty("owl", weights=[1.0, 0.5, 0.5, -0.2]),
    regmax.penalty("graph_tv", edges=[(0, 2), (1, 2), (3, 0)], weights=[1.0, 0.5, 2.0], nodes=5),
    regmax.penalty("grid_tv", shape=(2, 3)),
]


@parametrize_with_checks([Penalized(regmax.regularizer("pnorm"), R, 0.1) for R in PENALTIES])
def test_a_penalty_keeps(omega, check):
    check(omega)


def test_all_penalties_are_here():
    assert {R.name for R in PENALTIES} == set(regmax.available("penalty"))


def test_weights_that_learn():
    weights = torch.tensor([1.0, 0.5, 0.3, 2.0], requires_grad=True)
    graph = regmax.penalty("graph_tv", edges=[(0, 2), (1, 2), (3, 0), (4, 0)], weights=weights)
    check_regularizer(Penalized(regmax.regularizer("gini"), graph, 0.1))
    owl = regmax.penalty("owl", weights=torch.tensor([1.5, 1.0, 0.0, -1.0]))
    check_regularizer(Penalized(regmax.regularizer("entropy"), owl, 0.1))


@pytest.mark.parametrize("n", [4, 5])
def test_an_omega_of_one_size(n):
    class Priced(regmax.Regularizer):
        w = torch.linspace(1, 2, n)  # float32

        def value(self, y):
            return (self.w * y.square()).sum(-1) / 2

    check_regularizer(Priced())


def test_hyperparameters_may_be_tensors():
    omega = regmax.regularizer("oscar", lam=torch.tensor([[0.1], [0.2]]))
    check_regularizer(omega)
