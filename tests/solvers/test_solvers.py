"""Solvers: honest when they fail, chosen with a reason, or written by the user. Their answers are
held against known ones by the kit (testing/test_solver_kit.py)."""

import warnings
from pathlib import Path

import pytest
import torch
from mapping_checks import normal
from omegas import Entropy, Power, Square, omega_of

import regmax
from regmax import ConvergenceError, ConvergenceWarning, RegularizedMax
from regmax.kernels import reference

F64 = torch.float64


CHOSEN = {
    Square(): ("newton", "separable"),
    Entropy(): ("newton", "separable"),
    omega_of(lambda y: y.pow(1.5).sum(-1) ** (4 / 3) / 2): ("newton", "smooth"),
    Square() + 0.2 * regmax.penalty("tv"): ("prox|fista", "penalty|permutation"),
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
    mixed = omega_of(lambda y: torch.xlogy(y, y).sum(-1) + (y * y.roll(1, -1)).sum(-1) / 4)
    with reference():
        text = RegularizedMax(mixed).explain(x)
    assert "newton" in text
    assert "infinite" in text
    assert "asked for" in RegularizedMax(Square(), solver="fista").explain(x)


def test_a_solver_that_cannot_take_omega_says_why():
    layer = RegularizedMax(Square() + 0.2 * regmax.penalty("tv"), solver="newton")
    with pytest.raises(ValueError, match=r"'newton' cannot take Penalized: a penalty has no Hess"):
        layer(normal(4, 6))
