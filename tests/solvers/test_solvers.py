"""Solvers: honest when they fail, chosen with a reason, or written by the user. Their answers are
held against known ones by the kit (testing/test_solver_kit.py)."""

import warnings
from pathlib import Path

import pytest
import torch
from mapping_checks import normal
from omegas import Entropy, Power, Square

import regmax
from regmax import ConvergenceError, ConvergenceWarning, RegularizedMax, Regularizer
from regmax.kernels import reference
from regmax.solvers import Solver

F64 = torch.float64


class SquaredNorm(Regularizer):
    """½‖y‖_p²: not separable, slope finite at 0."""

    def __init__(self, p):
        self.p = p

    def value(self, y):
        return y.pow(self.p).sum(-1) ** (2 / self.p) / 2


class Fused(regmax.Penalized):
    def __init__(self, name, lam):
        penalty = regmax.regularizer(name).penalty
        super().__init__(Square(), penalty, lam)


f = regmax.functional
CHOSEN = {
    Square(): ("newton", "separable"),
    Entropy(): ("newton", "separable"),
    SquaredNorm(1.5): ("newton", "smooth"),
    Fused("tv", 0.2): ("prox|fista", "penalty|permutation"),
}


@pytest.mark.parametrize("solver", ["newton", "fista", "interior"])
def test_failure_is_told(solver):
    # the optimum of a flat Ω: one iteration cannot reach it
    omega = Power(3.0)
    x = normal(4, 30, scale=0.05, seed=4)
    x[1] = 0
    x[1, 0] = 100.0  # a vertex: easy
    kind = {"solver": solver, "max_iter": 1}
    with pytest.warns(ConvergenceWarning) as record:
        y = RegularizedMax(omega, tol=1e-15, **kind)(x)
    text = str(record[0].message)
    assert len(record) == 1
    for part in (solver, "rows", "(0,)", "gap", "max_iter", "another solver"):
        assert part in text, text
    assert torch.allclose(y.sum(-1), torch.ones(4, dtype=F64))
    with pytest.raises(ConvergenceError, match="rows"):
        RegularizedMax(omega, tol=1e-15, on_failure="raise", **kind)(x)
    sol = RegularizedMax(omega, tol=1e-15, on_failure="ignore", **kind).solve(x)
    assert not sol.converged.all()
    assert torch.equal(sol.converged, sol.error_bound <= 1e-15)


class Other(Power):
    """The same under another name."""


def test_failures_of_a_kind_are_one_warning_at_each_line_of_the_user():
    """Under Python's default filter, whatever rows and gaps they name."""
    layers = [RegularizedMax(cls(3.0), solver="fista", max_iter=1) for cls in (Power, Other)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for seed in range(3):
            x = normal(4 + seed, 30, scale=0.05, seed=seed).requires_grad_()
            layers[0](x)
            layers[1].solve(x.detach())
    assert [w.category for w in seen] == [ConvergenceWarning] * 2
    assert [Path(w.filename).name for w in seen] == [Path(__file__).name] * 2
    assert seen[1].lineno == seen[0].lineno + 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for seed in range(2):
            layers[0](normal(4 + seed, 30, scale=0.05, seed=seed))
    first, second = (str(w.message) for w in seen)
    assert "of 4 rows" in first
    assert "of 5 rows" in second


def test_auto_explains_its_choice():
    x = normal(2, 5)
    for omega, (solver, why) in CHOSEN.items():
        with reference():
            text = RegularizedMax(omega).explain(x)
        assert any(s in text for s in solver.split("|")), text
        assert any(w in text for w in why.split("|")), text
    mixed = type("Mixed", (Regularizer,), {})
    mixed.value = lambda self, y: torch.xlogy(y, y).sum(-1) + (y * y.roll(1, -1)).sum(-1) / 4
    with reference():
        text = RegularizedMax(mixed()).explain(x)
    assert "newton" in text
    assert "infinite" in text
    text = RegularizedMax(regmax.regularizer("gini")).explain(x)
    assert "closed form" in text
    text = RegularizedMax(regmax.regularizer("tv")).explain(x)
    assert "kernel" in text
    with reference():
        text = RegularizedMax(regmax.regularizer("tv")).explain(x)
    assert "prox" in text
    assert "permutation-invariant" in text
    assert "asked for" in RegularizedMax(Square(), solver="fista").explain(x)


class Bisect(Solver):
    """For Ω = ½‖y‖² alone."""

    name = "bisect"

    def unsuitable(self, problem):
        return None if isinstance(problem.omega, Square) else "only for Square"

    def run(self, problem, tol, max_iter):
        z = problem.z
        z = z if problem.mask is None else z.masked_fill(~problem.mask, -1e300)
        high = z.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(60):
            mid = (low + high) / 2
            big = (z - mid).clamp_min(0).sum(-1, keepdim=True) > 1
            low, high = torch.where(big, mid, low), torch.where(big, high, mid)
        y = (z - low).clamp_min(0)
        return y / y.sum(-1, keepdim=True), torch.full(z.shape[:-1], 60)


def test_a_solver_of_ones_own():
    x = normal(4, 6).requires_grad_()
    layer = RegularizedMax(Square(), solver=Bisect())
    sol = layer.solve(x)
    assert "bisect" in sol.path
    assert (sol.iterations == 60).all()
    assert torch.allclose(sol.y, f.sparsemax(x.detach()), atol=1e-12)
    assert torch.autograd.gradcheck(layer, (x,))  # right in backward the day it is written
    assert torch.autograd.gradgradcheck(layer, (x,))
    with pytest.raises(ValueError, match=r"bisect.*only for Square"):
        RegularizedMax(Power(1.5), solver=Bisect())(x)
