"""Solvers: each on what suits it, refused elsewhere, honest when it fails."""

import warnings
from pathlib import Path

import pytest
import torch

import regmax
from regmax import ConvergenceError, ConvergenceWarning, RegularizedMax, Regularizer
from regmax.kernels import reference
from regmax.solvers import Solver

F64 = torch.float64


class Square(Regularizer):
    def value(self, y):
        return y.square().sum(-1) / 2


class Power(Regularizer):
    def __init__(self, alpha):
        self.alpha = alpha

    def value(self, y):
        return (y.pow(self.alpha).sum(-1) - 1) / (self.alpha * (self.alpha - 1))


class Entropy(Regularizer):
    def value(self, y):
        return torch.xlogy(y, y).sum(-1)


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
TRUTH = {
    "gini": (Square(), f.sparsemax),
    "tsallis15": (Power(1.5), f.entmax15),
    "tsallis07": (Power(0.7), lambda x: f.entmax(x, alpha=0.7)),
    "entropy": (Entropy(), f.softmax),
    "pnorm": (SquaredNorm(1.5), f.pnormmax),
    "tv": (Fused("tv", 0.2), lambda x: f.fusedmax(x, lam=0.2)),
    "oscar": (Fused("oscar", 0.05), lambda x: f.oscarmax(x, lam=0.05)),
}
SUITS = {
    "fista": {"gini", "tsallis15", "pnorm", "tv", "oscar"},
    "interior": {"gini", "tsallis15", "tsallis07", "entropy", "pnorm"},
    "newton": {"gini", "tsallis15", "tsallis07", "entropy", "pnorm"},
}


def scores(rows, d, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, d, generator=generator, dtype=F64)


@pytest.mark.parametrize(
    ("solver", "name"), [(s, n) for s, names in SUITS.items() for n in sorted(names)]
)
def test_right_where_suitable(solver, name):
    omega, truth = TRUTH[name]
    layer = RegularizedMax(omega, solver=solver)
    for scale in (0.05, 1, 6):
        x = scores(3, 9, scale, seed=1)
        sol = layer.solve(x)
        error = (sol.y - truth(x)).norm(dim=-1)
        assert (error <= sol.error_bound + 1e-14).all(), (scale, error, sol.error_bound)
        assert (error <= 1e-9).all(), (scale, error)
        assert sol.converged.all()
        assert (sol.iterations >= 1).all()
        assert sol.iterations.dtype == torch.int64
        assert solver in sol.path


@pytest.mark.parametrize(
    ("solver", "name"), [(s, n) for s in SUITS for n in sorted(set(TRUTH) - SUITS[s])]
)
def test_refused_with_a_reason(solver, name):
    omega, _ = TRUTH[name]
    reason = "penalty|infinite"
    with pytest.raises(ValueError, match=rf"solver='{solver}' .*({reason}).*auto"):
        RegularizedMax(omega, solver=solver)(scores(1, 4))


@pytest.mark.parametrize("solver", ["newton", "fista", "interior"])
def test_failure_is_told(solver):
    # the optimum of a flat Ω: one iteration cannot reach it
    omega = Power(3.0)
    x = scores(4, 30, 0.05, seed=4)
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
            x = scores(4 + seed, 30, 0.05, seed).requires_grad_()
            layers[0](x)
            layers[1].solve(x.detach())
    assert [w.category for w in seen] == [ConvergenceWarning] * 2
    assert [Path(w.filename).name for w in seen] == [Path(__file__).name] * 2
    assert seen[1].lineno == seen[0].lineno + 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for seed in range(2):
            layers[0](scores(4 + seed, 30, 0.05, seed))
    first, second = (str(w.message) for w in seen)
    assert "of 4 rows" in first
    assert "of 5 rows" in second


def test_auto_explains_its_choice():
    x = scores(2, 5)
    expected = {
        "gini": ("newton", "separable"),
        "entropy": ("newton", "separable"),
        "pnorm": ("newton", "smooth"),
        "tv": ("prox|fista", "penalty|permutation"),
    }
    for name, (solver, why) in expected.items():
        with reference():
            text = RegularizedMax(TRUTH[name][0]).explain(x)
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


def test_solver_asked_for_beats_the_closed_form():
    x = scores(3, 6)
    for name, solver in (("gini", "fista"), ("entropy", "interior"), ("tv", "fista")):
        layer = RegularizedMax(regmax.regularizer(name), solver=solver)
        sol = layer.solve(x)
        assert solver in sol.path
        assert torch.allclose(sol.y, RegularizedMax(regmax.regularizer(name))(x), atol=1e-9)


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
    x = scores(4, 6).requires_grad_()
    layer = RegularizedMax(Square(), solver=Bisect())
    sol = layer.solve(x)
    assert "bisect" in sol.path
    assert (sol.iterations == 60).all()
    assert torch.allclose(sol.y, f.sparsemax(x.detach()), atol=1e-12)
    assert torch.autograd.gradcheck(layer, (x,))  # right in backward the day it is written
    assert torch.autograd.gradgradcheck(layer, (x,))
    with pytest.raises(ValueError, match=r"bisect.*only for Square"):
        RegularizedMax(Power(1.5), solver=Bisect())(x)


def test_a_wrong_solver_is_caught_by_its_certificate():
    class Lazy(Bisect):
        name = "lazy"

        def run(self, problem, tol, max_iter):
            y = torch.zeros_like(problem.z)
            y[..., 0] = 1
            return y, torch.ones(y.shape[:-1], dtype=torch.int64)

    x = scores(4, 6, 0.1)
    with pytest.warns(ConvergenceWarning, match="lazy"):
        sol = RegularizedMax(Square(), solver=Lazy()).solve(x)
    error = (sol.y - f.sparsemax(x)).norm(dim=-1)
    assert (error <= sol.error_bound + 1e-14).all(), (error, sol.error_bound)


@pytest.mark.parametrize("name", ["tv", "oscar"])
def test_penalty_on_a_base_without_symmetry(name):
    """No theorem applies: proximal gradient steps, checked by Ω's optimality on the groups."""

    class Weighted(Regularizer):
        def value(self, y):
            return (torch.tensor([0.6, 1.0, 1.4, 0.8, 1.9], dtype=F64) * y * y).sum(-1) / 2

    penalty = regmax.regularizer(name).penalty
    layer = RegularizedMax(regmax.Penalized(Weighted(), penalty, 0.1))
    x = scores(3, 5, 0.6)
    sol, value = layer.solve(x), layer.max(x)
    assert "fista" in sol.path
    assert sol.converged.all()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):  # no point near or far has a better objective
        t = torch.rand(3, 1, generator=generator, dtype=F64) ** 4
        other = torch.distributions.Dirichlet(torch.ones(3, 5, dtype=F64)).sample()
        y = (1 - t) * sol.y.detach() + t * other
        objective = (y * x).sum(-1) - layer.omega.value(y)
        assert (objective <= value + 1e-12).all()
    xs = x[:1].clone().requires_grad_()
    assert torch.autograd.gradcheck(layer, (xs,), atol=1e-5)
