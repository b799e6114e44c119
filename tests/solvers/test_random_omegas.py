"""Random convex Ω, by value alone, on hard rows: no answer is wrong in silence.

``python tests/helpers/random_omegas.py`` prints the whole report: three times the Ω, and nine times
the rows of each.
"""

import cvxpy as cp
import numpy as np
import omega_reference as reference
import pytest
import random_omegas as grammar
import torch
from omega_reference import LONG

import regmax

CHUNK = 10
SEEDS = range(0, grammar.COUNT, 3)  # of every size
f = regmax.functional


@pytest.mark.parametrize("first", range(0, len(SEEDS), CHUNK))
def test_no_answer_is_wrong_in_silence(first):
    few = {"short": True, "every": 3, "max_iter": 40}
    reports = [grammar.judge(grammar.make(seed), **few) for seed in SEEDS[first : first + CHUNK]]
    said = grammar.printed(reports)
    assert not grammar.wrong(reports), said
    assert not grammar.wrong_vjp(reports), said


def test_the_grammar_has_everything():
    made = [grammar.make(seed) for seed in range(grammar.COUNT)]
    kinds = {type(atom).__name__ for m in made for atom in m.omega.atoms}
    assert len(kinds) >= 12, kinds
    assert {m.d for m in made} == {1, 2, 3, 8, 33, 64}
    for trait in ("strict", "smooth", "apart", "steep"):
        share = sum(getattr(m, trait) for m in made) / len(made)
        assert 0.1 < share < 0.95, (trait, share)
    again = grammar.make(7).omega
    y = torch.rand(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    assert torch.equal(again.value(y), made[7].omega.value(y))


# -- the truth is true -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, grammar.COUNT, 50))
def test_slopes_and_hessians_are_those_of_the_values(first):
    for seed in range(first, first + 50):
        made = grammar.make(seed)
        rng = np.random.default_rng(seed)
        y = torch.tensor(rng.dirichlet(np.ones(made.d), size=2), requires_grad=True)
        (g,) = torch.autograd.grad(made.omega.value(y).sum(), y, create_graph=True)
        truth = made.truth()
        points = y.detach().numpy()
        if made.d == 1 and made.steep:
            continue  # the binary entropy has no slope at 1
        expected = truth.slope(points.astype(LONG)).astype(float)
        size = np.abs(expected).max() + 1
        assert np.abs(g.detach().numpy() - expected).max() <= 1e-12 * size, made
        h = truth.bend(points)
        for j in range(min(made.d, 3)):
            (column,) = torch.autograd.grad(g[:, j].sum(), y, retain_graph=True)
            assert np.abs(column.numpy() - h[:, j]).max() <= 1e-10 * np.abs(h).max(), made


CLOSED = {
    "power<2": (1.5, lambda z: f.entmax15(z / 0.75)),  # y^1.5 = 0.75 · (y^1.5 − 1)/(1.5 · 0.5) + c
    "square": (2.0, f.sparsemax),
    "entropy": (None, f.softmax),
}


@pytest.mark.parametrize("name", sorted(CLOSED))
@pytest.mark.parametrize("apart", [True, False])
def test_the_reference_against_closed_forms(name, apart):
    """By the enclosure of the threshold and by the residual: each within its own bound."""
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=(3, 9)) * s for s in (1e-3, 1, 30)])
    z[3] = z[3].round()
    on = np.ones_like(z, bool)
    on[4, :5] = False
    exponent, formula = CLOSED[name]

    def slope(y):
        return 1 + np.log(y) if exponent is None else exponent * y ** (exponent - 1) * c

    def bend(y):
        y = np.maximum(y, 1e-290).astype(float)
        h = 1 / y if exponent is None else c * exponent * (exponent - 1) * y ** (exponent - 2)
        return h[:, :, None] * np.eye(y.shape[-1])

    c = 0.5 if name == "square" else 1.0
    x = torch.tensor(np.where(on, z, -np.inf))
    expected = formula(x).numpy()
    truth = reference.solve(reference.Convex(slope, bend, apart), z.astype(LONG), on)
    error = np.abs(truth.y - expected).max(-1)
    assert (truth.bound < 1e-15).all(), truth.bound
    assert (error <= 1e-15 * (1 + np.abs(z).max(-1))).all(), error  # the formulas' own rounding


def program(made, y):
    """Ω as a cvxpy expression, or None."""
    total = 0
    for atom in made.omega.atoms:
        w, kind = atom.w, type(atom).__name__
        if kind == "Entropy":
            c, q = atom.numbers("c"), atom.numbers("q")
            term = -c @ cp.entr(y) - (c * np.log(q)) @ y
        elif kind == "Quadratic":
            term = cp.quad_form(y, cp.psd_wrap(atom.numbers("q"))) / 2
        elif kind == "Ridge":
            term = atom.numbers("c") @ cp.square(y - atom.numbers("m")) / 2
        elif kind == "LogSumExp":
            term = cp.log_sum_exp(atom.numbers("a") @ y + atom.numbers("b"))
        elif kind == "Softplus":
            term = cp.sum(cp.logistic(atom.numbers("a") @ y + atom.numbers("b")))
        elif kind == "Huber":
            u = atom.numbers("a") @ y + atom.numbers("b")
            term = cp.sum(cp.huber(u, float(atom.k))) / 2
        elif kind == "Exponential":
            term = cp.sum(cp.exp(cp.multiply(atom.numbers("s"), y)))
        elif kind == "Barrier":
            term = -cp.sum(cp.log(y + float(atom.e)))
        else:
            return None
        total = total + w * term
    return total


def conic_seeds():
    y = cp.Variable(8)
    made = [grammar.make(seed) for seed in range(grammar.COUNT)]
    return [m.seed for m in made if m.d == 8 and m.strict and program(m, y) is not None][:8]


@pytest.mark.parametrize("seed", conic_seeds())
def test_the_reference_against_a_conic_solver(seed):
    made = grammar.make(seed)
    x, gamma, kinds = grammar.scores(made, short=True)
    i = kinds.index("normal")
    on = np.isfinite(x)
    z = grammar.scaled(x, gamma, on)
    truth = reference.solve(made.truth(), z, on)
    y = cp.Variable(made.d)
    goal = cp.Minimize(program(made, y) - z[i].astype(float) @ y)
    cp.Problem(goal, [y >= 0, cp.sum(y) == 1]).solve(solver="CLARABEL")
    f_of = made.omega.value
    found, ours = (
        torch.tensor(np.maximum(np.asarray(t, float), 1e-30)) for t in (y.value, truth.y[i])
    )
    linear = torch.tensor(z[i].astype(float))
    loss = (f_of(ours) - ours @ linear) - (f_of(found) - found @ linear)
    assert loss <= 1e-12 * (1 + linear.abs().max())  # never worse
    assert np.abs(y.value - truth.y[i]).max() <= 1e-3
