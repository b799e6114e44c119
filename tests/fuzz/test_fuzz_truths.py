"""What the fuzzer judges by is right: posed problems against a conic solver and its differences,
hard certificates in 50 digits, slopes of random Ω by autograd."""

import cvxpy as cp
import fuzz_certificates as certificates
import fuzz_random
import numpy as np
import pytest
import torch
from posed import LONG, Kinks, Smooth, pose

pytestmark = pytest.mark.slow

SMOOTH = {
    "gini": (Smooth(lambda y: y, lambda y: np.eye(len(y)), 1.0), lambda y: cp.sum_squares(y) / 2),
    "entropy": (
        Smooth(lambda y: np.log(y) + 1, lambda y: np.diag(1 / y), 1.0, True),
        lambda y: -cp.sum(cp.entr(y)),
    ),
    "tsallis": (
        Smooth(lambda y: 2 * np.sqrt(y), lambda y: np.diag(1 / np.sqrt(y)), 1.0),
        lambda y: cp.sum(cp.power(y, 1.5)) / 0.75,
    ),
}


def chain(d, lam, rng):
    lines = np.diff(np.eye(d), axis=0)
    return Kinks(lines, np.zeros(d - 1), np.full(d - 1, lam)), lambda y: cp.norm1(cp.diff(y))


def distance(d, lam, rng):
    at = rng.dirichlet(np.ones(d)) * 0.9
    return Kinks(np.eye(d), at, np.full(d, lam)), lambda y: cp.norm1(y - at)


def balls(d, lam, rng):
    parts = (np.arange(d)[::2], np.arange(d)[1::2])
    kinks = Kinks(balls=tuple((g, lam) for g in parts))
    return kinks, lambda y: sum(cp.norm(y[g]) for g in parts)


def ordered(d, lam, rng):
    w = np.sort(rng.random(d))[::-1]
    drops = w - np.append(w[1:], 0)
    return Kinks(ordered=w * lam), lambda y: sum(
        drops[k] * cp.sum_largest(y, k + 1) for k in range(d)
    )


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("made", [chain, distance, balls, ordered], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", SMOOTH)
def test_posed_problems_against_a_conic_solver(name, made):
    f, program = SMOOTH[name]
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(8):
        d, lam = int(rng.integers(2, 7)), float(rng.choice([0.05, 0.3, 1]))
        kinks, penalty = made(d, lam, rng)
        row = pose(f, kinks, d, rng)
        assert row.bound < 1e-14
        y, z = cp.Variable(d, nonneg=True), cp.Parameter(d)
        goal = cp.Minimize(program(y) + lam * penalty(y) - z @ y)
        problem = cp.Problem(goal, [cp.sum(y) == 1])

        def by_cone(x, problem=problem, y=y, z=z):
            z.value = x
            problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
            return y.value.copy()

        assert np.abs(row.y.astype(float) - by_cone(row.x)).max() < 1e-4
        v, way, h = rng.normal(size=d), rng.normal(size=d), 5e-3
        if row.margin < 10 * h:
            continue
        slope = v @ (by_cone(row.x + h * way) - by_cone(row.x - h * way)) / (2 * h)
        assert abs(slope - way @ row.product(v)) < 2e-2 * (1 + abs(slope))
        compared += 1
    assert compared


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_hard_certificates_in_50_digits(first):
    for seed in range(first, first + 10):
        case = certificates.draw(seed)
        if case.family == "dent" or case.d > 100:
            continue
        y, t = certificates.points(case)
        if not len(y):
            continue
        assert (y >= 0).all()
        x, off = certificates.scores(case, y, t)
        for i in {0, len(y) - 1}:
            miss, held = certificates.residual(case, x[i], y[i], t[i])
            size = LONG(1e-17) * (1 + case.w + np.abs(x[i]).max())
            assert miss <= 1.5 * off[i] + size, (str(case), i)
            assert held < 1e-16, (str(case), i)


@pytest.mark.parametrize("size", range(len(fuzz_random.SIZES)))
def test_slopes_and_hessians_are_those_of_the_values(size):
    seen = set()
    for seed in range(size, 200, len(fuzz_random.SIZES)):
        d, omega = fuzz_random.make(seed)
        seen |= {atom.kind for atom in omega.atoms}
        points = np.random.default_rng(seed).dirichlet(np.ones(d), size=2)
        y = torch.tensor(points if d > 1 else points / 2, requires_grad=True)
        (g,) = torch.autograd.grad(omega.value(y).sum(), y, create_graph=True)
        columns = [torch.autograd.grad(t, y, retain_graph=True)[0] for t in g.sum(0)[:3]]
        for i, at in enumerate(y.detach().numpy().astype(LONG)):
            slope, h, terms = omega.derivatives(at)
            off = np.abs(g[i].detach().numpy() - slope).max()
            assert off <= 1e-12 * (terms.max() + 1), (seed, off)
            for j, column in enumerate(columns):
                assert np.abs(column[i].numpy() - h[:, j]).max() <= 1e-10 * np.abs(h).max(), seed
    assert len(seen) > 6
