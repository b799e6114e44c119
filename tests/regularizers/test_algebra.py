"""Sums and multiples of regularizers and penalties: values, gradients, state, what is refused."""

import numpy as np
import pytest
import torch
from mapping_checks import normal
from omegas import Weighted, omega_of
from torch import nn

import regmax
from regmax import Penalized, RegularizedMax, Regularizer
from regmax.regularizers.algebra import Scaled, ScaledPenalty, Sum
from regmax.testing import check_regularizer

F64 = torch.float64


def omega(name, **kwargs):
    return regmax.regularizer(name, **kwargs)


def tv():
    return regmax.penalty("tv")


def oscar():
    return regmax.penalty("oscar")


def number(value, learnt=True):
    t = torch.tensor(value, dtype=F64)
    return nn.Parameter(t) if learnt else t


class Symmetric(Regularizer):
    """By its value alone, and said to be symmetric."""

    permutation_invariant = True

    def value(self, y):
        return y.square().sum(-1) / 2 + y.pow(3).sum(-1) / 3


EXPRESSIONS = {
    "entropy + oscar": lambda: omega("entropy") + 0.02 * oscar(),
    "gini + tv": lambda: omega("gini") + 0.1 * tv(),
    "2 entropy": lambda: 2 * omega("entropy"),
    "entropy + gini": lambda: omega("entropy") + 0.5 * omega("gini"),
    "c tsallis": lambda: number(1.7) * omega("tsallis", alpha=1.4),
    "c (tsallis + λ tv)": lambda: number(1.3) * (omega("tsallis") + number(0.1) * tv()),
    "entropy + pnorm + oscar": lambda: sum([omega("entropy"), omega("pnorm"), 0.02 * oscar()]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["entropy + oscar", "entropy + gini", "c (tsallis + λ tv)"])
def test_conformance(name):
    """One of each kind: on another base, a multiple, a sum, all nested with numbers that learn."""
    check_regularizer(EXPRESSIONS[name]())


@pytest.mark.parametrize("name", ["gini + tv", "c tsallis", "entropy + pnorm + oscar"])
def test_against_conic_solvers(name):
    """What the kit does not compare with them."""
    made, x = EXPRESSIONS[name](), normal(3, 5, seed=3)
    report = regmax.crosscheck(made, x, against=("generic", "cvxpy", "cvxpylayers"))
    assert report.ok, report.table()
    assert not report.skipped


def layers_agree(a, b, x, atol=1e-12):
    torch.testing.assert_close(a(x), b(x), atol=atol, rtol=0)
    torch.testing.assert_close(a.max(x), b.max(x), atol=atol, rtol=0)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    grads = [
        torch.autograd.grad(layer(leaf).pow(3).sum(), leaf)[0]
        for layer, leaf in zip((a, b), leaves, strict=True)
    ]
    torch.testing.assert_close(*grads, atol=100 * atol, rtol=0)


@pytest.mark.parametrize(
    ("left", "gamma", "right", "at"),
    [
        (lambda: 2 * omega("entropy"), 1.0, lambda: omega("entropy"), 2.0),
        (lambda: number(0.5) * omega("tsallis"), 3.0, lambda: omega("tsallis"), 1.5),
        (lambda: omega("entropy") + omega("entropy"), 1.0, lambda: omega("entropy"), 2.0),
        (lambda: omega("entropy") + 0, 0.7, lambda: omega("entropy"), 0.7),
        (lambda: sum([omega("gini")]), 0.7, lambda: omega("gini"), 0.7),
        (lambda: omega("gini") + 0.1 * tv(), 0.7, lambda: omega("tv", lam=0.1), 0.7),
        (lambda: omega("gini") + 0.02 * oscar(), 1.0, lambda: omega("oscar", lam=0.02), 1.0),
        (lambda: 2 * omega("tv", lam=0.1), 1.0, lambda: omega("tv", lam=0.1), 2.0),
        (lambda: omega("entropy") + 0 * tv(), 1.0, lambda: omega("entropy"), 1.0),
        (
            lambda: (omega("entropy") + 0.1 * tv()) + omega("entropy") + 0.2 * tv(),
            1.0,
            lambda: Penalized(omega("entropy"), tv(), 0.15),
            2.0,
        ),
        (
            lambda: 2 * (0.5 * (omega("entropy") + omega("gini"))),
            1.0,
            lambda: omega("gini") + omega("entropy"),
            1.0,
        ),
        (
            lambda: number(2.0) * Penalized(omega("tsallis"), tv(), number(0.1)),
            1.0,
            lambda: Penalized(omega("tsallis"), tv(), 0.1),
            2.0,
        ),
    ],
)
def test_identities(left, gamma, right, at):
    x = normal(4, 7, seed=5)
    layers_agree(RegularizedMax(left(), gamma=gamma), RegularizedMax(right(), gamma=at), x)


def test_what_becomes_of_expressions():
    entropy, gini, chain = omega("entropy"), omega("gini"), tv()
    assert isinstance(2 * entropy, Scaled)
    assert isinstance(entropy + gini + entropy * 0.5, Sum)
    assert len((entropy + gini + (omega("pnorm") + omega("tsallis"))).terms) == 4
    assert (1 * entropy) is entropy
    assert isinstance(0.5 * chain, ScaledPenalty)
    assert (2 * (0.5 * chain)).penalty is chain
    for expression in (
        entropy + chain,
        chain + entropy,
        0.1 * chain + entropy,
        entropy + 0.1 * chain + gini,
        2 * (entropy + 0.1 * chain),
        omega("tv") + gini,
        number(2.0) * omega("tv"),
        sum([0.1 * chain, entropy]),
    ):
        assert isinstance(expression, Penalized)
        assert not isinstance(expression.base, Penalized)
    assert (np.float32(2) * entropy).c == (np.float64(2) * entropy).c == 2.0


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: omega("tsallis", alpha=1.5) + 0.1 * tv(), "Tsallis(alpha=1.5) + 0.1*ChainTV()"),
        (lambda: omega("entropy") + tv(), "Entropy() + ChainTV()"),
        (lambda: 2 * (omega("entropy") + 0.5 * omega("gini")), "2.0*(Entropy() + 0.5*Gini())"),
        (lambda: 3 * omega("tv", lam=0.25), "3.0*Gini() + 0.75*ChainTV()"),
        (lambda: omega("tv", lam=0.1), "TV(lam=0.1)"),
        (lambda: number(0.5) * omega("tv", lam=number(0.1)), "0.5*Gini() + 0.5*(0.1*ChainTV())"),
        (lambda: torch.ones(3, 1) * omega("gini"), "tensor(shape=(3, 1))*Gini()"),
    ],
)
def test_formulas(made, text):
    assert str(made()) == text
    assert text in str(RegularizedMax(made()))


def test_explain():
    x = normal(3, 6)
    text = RegularizedMax(omega("gini") + 0.1 * tv()).explain(x)
    assert "Gini() + 0.1*ChainTV()" in text
    assert "Π_Ω is fusedmax" in text
    assert "kernel of Gini" in text
    assert "Π_Ω is oscarmax" in RegularizedMax(omega("gini") + 0.1 * oscar()).explain(x)
    text = RegularizedMax(omega("tsallis") + 0.1 * tv()).explain(x)
    assert "forward: prox, then closed form" in text
    assert "kernel of Tsallis" in text
    assert "Π_Ω is" not in text
    assert "Π_Ω is" not in RegularizedMax(2 * omega("tv")).explain(x)
    text = RegularizedMax(Symmetric() + 0.1 * tv()).explain(x)
    assert "forward: prox, then kernel from the value" in text
    with regmax.kernels.reference():
        text = RegularizedMax(Symmetric() + 0.1 * tv()).explain(x)
    assert "forward: prox, then solver" in text
    assert "Symmetric is permutation-invariant" in text
    text = RegularizedMax(Weighted(torch.ones(6, dtype=F64)) + 0.1 * tv()).explain(x)
    assert "prox, then" not in text
    assert "declared by Entropy + Gini" in RegularizedMax(omega("entropy") + omega("gini")).explain(
        x
    )


# -- derivatives -----------------------------------------------------------------------------------


def test_a_term_used_twice_learns_once():
    tsallis = omega("tsallis", alpha=number(1.5))
    c = torch.full((2, 1), 0.5, dtype=F64)
    layer = RegularizedMax(c * tsallis + tsallis)
    x = normal(2, 5)
    assert len(list(layer.parameters())) == 1
    torch.testing.assert_close(layer(x), RegularizedMax(1.5 * tsallis)(x), atol=1e-8, rtol=0)
    grads = []
    for expression in (layer.omega, 1.5 * tsallis):
        tsallis.zero_grad()
        RegularizedMax(expression)(x).pow(3).sum().backward()
        grads.append(tsallis.alpha.grad.clone())
    torch.testing.assert_close(*grads, atol=1e-6, rtol=0)


# -- rows ------------------------------------------------------------------------------------------


def test_per_head_numbers_along_another_dim():
    c = torch.tensor([0.5, 2.0], dtype=F64).view(2, 1, 1)
    lam = torch.tensor([0.1, 0.2, 0.3], dtype=F64)
    x = normal(30, 4, seed=1).view(2, 3, 5, 4).movedim(2, 1)  # (2, 5, 3, 4), rows along dim 1
    y = RegularizedMax(c.view(2, 1, 1, 1) * omega("tsallis") + lam.view(3, 1) * tv(), dim=1)(x)
    for i in range(2):
        for j in range(3):
            one = c[i].item() * omega("tsallis") + lam[j].item() * tv()
            torch.testing.assert_close(
                y[i, :, j], RegularizedMax(one, dim=0)(x[i, :, j]), atol=1e-13, rtol=0
            )


def test_claims_follow_from_the_terms():
    entropy, gini, pnorm = omega("entropy"), omega("gini"), omega("pnorm", p=1.5)
    both = entropy + 0.5 * gini
    assert both.strong_convexity == 1.5
    assert both.permutation_invariant
    assert both.separable
    assert both.support_radius() == entropy.support_radius() + 0.5
    assert (both + pnorm).strong_convexity == 2.0
    assert (both + pnorm).separable is None
    assert (Symmetric() + gini).strong_convexity == 1.0
    assert (2 * Symmetric()).strong_convexity is None
    assert not (Weighted(torch.ones(3)) + gini).permutation_invariant
    assert (3 * pnorm).strong_convexity == 1.5
    assert both.min_positive(1e-300) < 1e-299


# -- state and training ----------------------------------------------------------------------------


def learnable():
    c, lam = number(1.2), number(0.1)
    return RegularizedMax(c * (omega("tsallis", alpha=number(1.5)) + lam * tv()))


def test_parameters_are_listed_once():
    layer = learnable()
    assert len(list(layer.parameters())) == 3
    assert set(layer.omega.per_row_tensors()) == {"lam", "base.c", "base.base.alpha", "penalty.lam"}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "error", "words"),
    [
        (lambda: -1 * omega("entropy"), ValueError, r"must be > 0; got -1.*Entropy\(\)"),
        (lambda: 0 * omega("entropy"), ValueError, "must be > 0; got 0"),
        (lambda: omega("entropy") * -0.5, ValueError, "must be > 0"),
        (lambda: -1 * tv(), ValueError, r"must be >= 0; got -1.*ChainTV\(\)"),
        (lambda: torch.tensor([1.0, -2.0]) * omega("gini"), ValueError, "got -2 at index"),
        (lambda: torch.tensor(-2.0) * tv(), ValueError, "got -2"),
        (lambda: float("inf") * tv(), ValueError, "finite"),
        (lambda: omega("entropy") + "gini", TypeError, "str 'gini'.*Regularizer"),
        (lambda: omega("entropy") + 1, TypeError, r"Entropy\(\) \+ int 1"),
        (lambda: 1 + omega("entropy"), TypeError, "int 1"),
        (lambda: tv() + 0.5, TypeError, "float 0.5"),
        (lambda: omega("entropy") + Symmetric, TypeError, "not its class"),
        (lambda: omega("entropy") * omega("gini"), TypeError, "must be a number or a tensor"),
        (lambda: "2" * omega("gini"), TypeError, "must be a number or a torch.Tensor; got str"),
        (lambda: True * omega("gini"), TypeError, "got bool"),
        (lambda: torch.tensor(2) * omega("gini"), TypeError, "floating"),
        (lambda: omega("tv") + 0.1 * oscar(), NotImplementedError, "no prox.*graph_tv.*owl"),
        (lambda: tv() + oscar(), NotImplementedError, "no prox"),
        (
            lambda: omega("gini") + 0.1 * tv() + 0.1 * oscar(),
            NotImplementedError,
            r"^ChainTV\(\) and OrderedPairs\(\).*no prox of a sum.* write one in the value of an Ω",
        ),
        (lambda: omega("gini") - 0.1 * tv(), TypeError, r"^Gini\(\) - 0.1\*ChainTV\(\): .*a \+ b"),
        (lambda: omega("gini") - omega("gini"), TypeError, "need not be convex; accepted: a"),
        (lambda: tv() - tv(), TypeError, "need not be convex; accepted: a"),
        (lambda: 2 - omega("gini"), TypeError, r"^2 - Gini\(\): .*c \* a with"),
        (lambda: -omega("gini"), TypeError, r"^-\(Gini\(\)\): "),
        (lambda: torch.ones(3, 3) - omega("gini"), TypeError, r"^tensor\(shape=\(3, 3\)\) - "),
        (lambda: omega("gini") + torch.ones(3, 3), TypeError, r"Tensor tensor\(shape=\(3, 3\)\): "),
        (lambda: number(0.1) * tv() + 0.2 * tv(), NotImplementedError, "add the weights"),
        (lambda: 2 * omega("oscar", exact=False), TypeError, "is an approximation"),
    ],
)
def test_wrong_operands(attempt, error, words):
    with pytest.raises(error, match=words):
        attempt()


def test_one_of_two_penalties_in_a_value():
    """What the message about two penalties advises."""

    def ordered(y):
        w = torch.arange(y.shape[-1] - 1, -1, -1, dtype=y.dtype, device=y.device)
        return y.square().sum(-1) / 2 + 0.1 * (y.sort(-1, descending=True).values * w).sum(-1)

    fused = omega_of(lambda y: y.square().sum(-1) / 2 + 0.1 * y.diff(dim=-1).abs().sum(-1))
    x, omegas = normal(4, 6), (omega_of(ordered) + 0.1 * tv(), fused + 0.1 * oscar())
    found = [RegularizedMax(o).solve(x) for o in omegas]
    assert all(bool(each.converged.all()) for each in found)
    apart = (found[0].y - found[1].y).norm(dim=-1)
    assert bool((apart <= found[0].error_bound + found[1].error_bound).all())


def test_a_structured_omega_that_is_redefined_is_no_sum():
    class Mine(type(omega("tv"))):
        def value(self, y):
            return 2 * super().value(y)

    with pytest.raises(TypeError, match="Mine redefines value"):
        2 * Mine()


def test_a_factor_that_leaves_its_range():
    layer = RegularizedMax(number(1.0) * omega("entropy") + 0.1 * tv())
    with torch.no_grad():
        layer.omega.base.c.fill_(-1.0)
    with pytest.raises(ValueError, match="c must be > 0; got -1"):
        layer(normal(2, 3))
