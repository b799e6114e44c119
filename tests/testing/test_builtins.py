"""The regularizers that regmax ships, and two of a user's, keep every promise."""

import pytest
import torch
from omegas import Cubic, Weighted

import regmax
from regmax import Penalized
from regmax.testing import check_regularizer, checks_for, parametrize_with_checks

PRIOR = torch.tensor([0.4, 0.05, 0.3, 0.25], dtype=torch.float64)
BUILT_IN = [regmax.regularizer(name) for name in regmax.available()]
OTHERS = [
    *(regmax.regularizer("tsallis", alpha=alpha) for alpha in (0.5, 10.0)),
    regmax.regularizer("pnorm", p=1.2),
    *(regmax.regularizer("divergence", alpha=alpha, prior=0.1) for alpha in (0.0, 0.3, 3.0)),
    regmax.regularizer("divergence", alpha=0.5, prior=PRIOR),
    regmax.regularizer("jensen_shannon", prior=PRIOR),
    regmax.regularizer("oscar", exact=False),
]
OF_NUMBERS = (
    "check_value",
    "check_value_convex",
    "check_simplex",
    "check_optimality",
    "check_mask",
    "check_jacobian_finite_differences",
    "check_hyperparameter_gradients",
    "check_hard_inputs",
)


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


@pytest.mark.parametrize("omega", OTHERS, ids=repr)
def test_a_built_in_keeps_with_other_hyperparameters(omega):
    """What depends on them."""
    names = [check.name for check in checks_for(omega) if check.name in OF_NUMBERS]
    assert len(names) >= 6
    check_some(omega, *names)


@parametrize_with_checks([Cubic(), Quadratic()])
def test_an_omega_of_a_user_keeps(omega, check):
    check(omega)


@pytest.mark.slow
def test_an_omega_of_a_user_with_a_penalty_keeps():
    """What depends on its solver; the rest is tested without the penalty."""
    omega = Penalized(Quadratic(), regmax.penalty("tv"), 0.2)
    names = ("optimality", "jacobian_finite_differences", "hyperparameter_gradients", "mask")
    check_some(omega, *(f"check_{name}" for name in names), "check_fused_groups_equal")


def test_all_built_ins_are_here():
    assert {type(omega).name for omega in BUILT_IN} == set(regmax.available())


# those of the built-in mappings keep it above; on other bases: test_algebra.py, test_grid.py
PENALTIES = [
    regmax.penalty("owl", weights=[1.0, 0.5, 0.5, -0.2]),
    regmax.penalty("clique_tv"),
    regmax.penalty("graph_tv", edges=[(0, 2), (1, 2), (3, 0)], weights=[1.0, 0.5, 2.0], nodes=5),
    regmax.penalty("grid_tv", shape=(2, 3)),
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda R: R.name)
def test_a_penalty_keeps(penalty):
    omega = Penalized(regmax.regularizer("gini"), penalty, 0.1)
    check_some(omega, *OF_PENALTIES, "check_optimality", "check_jacobian_finite_differences")


def test_all_penalties_are_here():
    mapped = [omega.penalty for omega in BUILT_IN if isinstance(omega, Penalized)]
    here = {R.name for R in (*mapped, *PENALTIES)}
    assert here == set(regmax.available("penalty"))


OF_PENALTIES = (
    "check_mask",
    "check_as_cvxpy",
    "check_lovasz",
    "check_prox",
    "check_subgradient",
    "check_groups",
    "check_fused_groups_equal",
)


def check_some(omega, *names):
    """The checks of these names."""
    chosen = [check for check in checks_for(omega) if check.name in names]
    assert len(chosen) == len(names)
    for check in chosen:
        check(omega)


OF_TENSORS = ("check_mask", "check_hyperparameter_gradients")


@pytest.mark.parametrize(
    ("base", "penalty"),
    [
        (
            "gini",
            regmax.penalty(
                "graph_tv",
                edges=[(0, 2), (1, 2), (3, 0), (4, 0)],
                weights=torch.tensor([1.0, 0.5, 0.3, 2.0], requires_grad=True),
            ),
        ),
        ("entropy", regmax.penalty("owl", weights=torch.tensor([1.5, 1.0, 0.0, -1.0]))),
    ],
    ids=["graph_tv", "owl"],
)
def test_weights_that_learn(base, penalty):
    omega = Penalized(regmax.regularizer(base), penalty, 0.1)
    check_some(omega, "check_prox", "check_subgradient", "check_transforms", *OF_TENSORS)


def test_an_omega_of_one_size():
    check_regularizer(Weighted(torch.linspace(1, 2, 4)))  # float32


def test_hyperparameters_may_be_tensors():
    omega = regmax.regularizer("oscar", lam=torch.tensor([[0.1], [0.2]]))
    names = ("check_optimality", "check_hyperparameters_per_row", "check_double_backward")
    check_some(omega, *names, *OF_TENSORS)
