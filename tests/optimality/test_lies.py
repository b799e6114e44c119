"""A method that answers wrongly, of a solver, a penalty or Ω: each row of what comes of it is
right, flagged, or refused by name. The truth is that of the same problem without the lie."""

import copy
import functools
import re
import warnings

import pytest
import torch
from mapping_checks import normal
from omegas import GroupNorm

import regmax
from regmax import ConvergenceWarning, Penalty, RegularizedMax, RegularizerError
from regmax.regularizers.curvature import Diagonal
from regmax.solvers import Solver, choose

F64 = torch.float64


class Weighted(regmax.Regularizer):
    """½ Σ c y² + ¼ Σ y⁴."""

    separable = True

    def __init__(self, c):
        self.c = c

    def value(self, y):
        return (self.c * y.square() / 2 + y.pow(4) / 4).sum(-1)

    def grad(self, y):
        return self.c * y + y.pow(3)

    def curvature(self, y):
        return Diagonal(self.c + 3 * y.square())


class ByFormula(Weighted):
    def closed_form(self, x, gamma, mask=None):
        return RegularizedMax(Weighted(self.c), gamma)(x, mask)


class Chosen(Solver):
    """The solver that ``auto`` takes."""

    name = "chosen"

    def unsuitable(self, problem):
        return None

    def run(self, problem, tol, max_iter):
        return choose(problem)[0][0].run(problem, tol, max_iter)


X, V, C = 1.5 * normal(6, 5, seed=2), normal(6, 5, seed=3), 1 + normal(6, 5, seed=4)[0].square()
X[0] = (2 * X[0]).round() / 2
CHANGES = {
    "half more": lambda t: 1.5 * t,
    "a hundredth less": lambda t: 0.99 * t,
    "a millionth more": lambda t: (1 + 1e-6) * t,
    "a step": lambda t: t + 0.1 * torch.linspace(-1, 1, t.shape[-1], dtype=F64),
    "a small step": lambda t: t + 1e-5 * torch.linspace(-1, 1, t.shape[-1], dtype=F64),
    "of the other sign": lambda t: -t,
    "zeros": lambda t: 0 * t,
    "no zeros": lambda t: t + 1e-9 * (t == 0),
    "hardly zeros": lambda t: t + 1e-320 * (t == 0),
    "infinite": lambda t: t / 0,
    "NaN": lambda t: t * torch.nan,
    "99 more in a row": lambda t: torch.cat([t[:1] + 99, t[1:]]),
    "NaN in a row": lambda t: torch.cat([t[:1] * torch.nan, t[1:]]),
    "rows mixed": lambda t: t.roll(1, 0),
    "entries mixed": lambda t: t.roll(1, -1),
    "one row for all": lambda t: t[:1],
    "expanded": lambda t: t[:1].expand(t.shape),
    "one entry less": lambda t: t[..., :-1],
    "a dimension more": lambda t: t.unsqueeze(-1),
    "float32": lambda t: t.float(),
    "a list": lambda t: t.tolist(),
    "None": lambda t: None,
}
SUBJECTS = {
    "solver": (Chosen, ("run",)),
    "tv": (
        lambda: regmax.penalty("tv"),
        ("value", "prox", "groups", "subgradient", "any_subgradient", "average"),
    ),
    "groups": (lambda: GroupNorm([2, 3]), ("value", "prox")),
    "omega": (lambda: Weighted(C), ("grad",)),
    "formula": (lambda: ByFormula(C), ("closed_form",)),
}
NO_ANSWERS = ("one row for all", "one entry less", "a dimension more", "float32", "a list", "None")
LIES = [(name, method) for name, (_, methods) in SUBJECTS.items() for method in methods]


def lying(right, method, change):
    """A copy whose ``method`` is changed; of a solver, whose count of iterations stays."""
    cls, found = type(right), copy.copy(right)

    def changed(self, *args, **kwargs):
        said = getattr(cls, method)(self, *args, **kwargs)
        return (change(said[0]), said[1]) if isinstance(said, tuple) else change(said)

    found.__class__ = type("Lying", (cls,), {method: changed})
    return found


def answers(name, method=None, change=None):
    """The solution, y and J v of the layer of a subject, and the warnings."""
    subject = SUBJECTS[name][0]()
    if method is not None:
        subject = lying(subject, method, change)
    omega, solver = regmax.regularizer("gini"), "auto"
    if name == "solver":
        solver = subject
    elif isinstance(subject, Penalty):
        omega = regmax.regularizer("tsallis", alpha=1.5) + 0.3 * subject
    else:
        omega = subject
    x = X.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        layer = RegularizedMax(omega, 0.7, solver=solver, max_iter=40, certify=True)
        solution, y = layer.solve(X), layer(x)
        (g,) = torch.autograd.grad(y, x, V)
    return solution, y.detach(), g, [w for w in seen if w.category is ConvergenceWarning]


@functools.cache
def truth(name):
    solution, y, g, seen = answers(name)
    assert solution.converged.all()
    assert not seen
    return y, g


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("name", "method"), LIES)
def test_no_lie_is_taken_for_the_truth(name, method, change):
    (expected, slope), refused = truth(name), None
    try:
        solution, y, g, seen = answers(name, method, CHANGES[change])
    except (TypeError, ValueError, RegularizerError) as error:
        refused = str(error)
    if refused is not None:
        assert re.search(r"Lying\b|the vector–Jacobian product of backward is off", refused)
        return
    # a closed form may be none
    assert change not in NO_ANSWERS or (method, change) == ("closed_form", "None")
    sure = solution.converged
    assert bool(sure.all()) or seen
    off = (solution.y - expected).norm(dim=-1)[sure]
    assert bool((off <= solution.error_bound[sure] + 1e-15).all())
    assert bool((off <= 1e-8).all())
    torch.testing.assert_close(y[sure], expected[sure], rtol=0, atol=2e-8)
    assert torch.equal(y[sure] == 0, expected[sure] == 0)
    torch.testing.assert_close(g[sure], slope[sure], rtol=0, atol=1e-6)
