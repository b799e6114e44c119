"""The conformance kit of solvers: the built-in ones pass, each check finds the fault it is for."""

import re

import pytest
import torch

import regmax
from regmax.optimality.certificates import Certificate, certify
from regmax.optimality.problem import Point, Problem
from regmax.regularizers.curvature import Diagonal
from regmax.regularizers.registry import registry
from regmax.solvers import Solver
from regmax.solvers import base as solving
from regmax.testing import check_solver, parametrize_solver_with_checks, solver_checks, solvers
from regmax.testing.known import known_problems

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]
Newton = registry().get("solver", "newton")


COSTLY = ("check_backward", "check_float32", "check_rows_independent", "check_deterministic")
"""Of what the layers do to the answer of any solver: for one of them."""


@parametrize_solver_with_checks([cls() for cls in registry().names("solver").values()])
def test_built_in(solver, check):
    if check.name in COSTLY and not isinstance(solver, Newton):
        pytest.skip("as for Newton's method")
    check(solver)


def test_every_problem_suits_a_built_in_solver():
    for known in known_problems():
        problem = known.problem(torch.tensor([[0.3, -0.1, 0.4]], dtype=torch.float64))
        reasons = [cls().unsuitable(problem) for cls in registry().names("solver").values()]
        assert None in reasons, (known, reasons)


# -- faults ----------------------------------------------------------------------------------------


def faulty(change, base=Newton, **attributes):
    """``base`` with what it answers changed: ``change(solver, problem, tol, max_iter, y, k)``."""

    def run(self, problem, tol, max_iter):
        y, k = base.run(self, problem, tol, max_iter)
        return change(self, problem, tol, max_iter, y, k)

    return type("Lying", (base,), {"run": run, "name": "lying", **attributes})


def saying(reason):
    """Newton with another ``unsuitable``."""
    return type("Lying", (Newton,), {"unsuitable": reason, "name": "lying"})


def uniform(self, problem, tol, max_iter, y, k):
    on = problem.participants()
    return on / on.sum(-1, keepdim=True).to(y.dtype), k


def nearly(self, problem, tol, max_iter, y, k):
    return (y + 1e-5 / y.shape[-1]) / (1 + 1e-5), k


class Mixing(Newton):
    """Scores pulled towards the mean of the batch."""

    name = "lying"

    def run(self, problem, tol, max_iter):
        z = problem.z + 1e-9 * problem.z.mean(0, keepdim=True)
        return super().run(Problem(problem.omega, z, problem.mask), tol, max_iter)


class Maskless(Newton):
    name = "lying"

    def run(self, problem, tol, max_iter):
        return super().run(Problem(problem.omega, problem.z, None), tol, max_iter)


class Endless(Newton):
    """Goes on until the tolerance is reached."""

    name = "lying"

    def run(self, problem, tol, max_iter):
        while True:
            y, k = super().run(problem, tol, max_iter)
            if (certify(problem.at(y)).error_bound <= tol).all():
                return y, k


class Greedy(Newton):
    """Does what it wants with its budget."""

    name = "lying"

    def run(self, problem, tol, max_iter):
        return super().run(problem, tol, 50)


class Pairs(Newton):
    """Needs two entries."""

    name = "lying"

    def run(self, problem, tol, max_iter):
        problem.z.topk(2, -1)
        return super().run(problem, tol, max_iter)


def in_place(self, problem, tol, max_iter, y, k):
    problem.z.sub_(1)
    return y, k


def noisy(self, problem, tol, max_iter, y, k):
    y = y * (1 + 1e-12 * torch.rand_like(y))
    return y / y.sum(-1, keepdim=True), k


def remembering(self, problem, tol, max_iter, y, k):
    self.calls = getattr(self, "calls", 0) + 1
    return y, k + self.calls


def certain(self, problem, tol, max_iter, y, k):
    """A certificate that is always good, for an answer that is not."""
    zero = torch.zeros_like(y[..., 0])
    problem.__dict__["certify"] = lambda y: Certificate(zero, zero, False, y > 0, y < 0)
    return uniform(self, problem, tol, max_iter, y, k)


def corrupting(self, problem, tol, max_iter, y, k):
    """As ``certain``, and every other certificate too."""

    def certify(at, tested=False):
        zero = torch.zeros_like(at.y[..., 0])
        return Certificate(zero, zero, False, at.y > 0, at.y < 0)

    solving.certify = certify
    return uniform(self, problem, tol, max_iter, y, k)


def hoarding(self, problem, tol, max_iter, y, k):
    """Leaves a factorisation of other curvatures for the backward pass."""
    own = Diagonal(1 + torch.rand_like(y)).inverse(problem.participants())
    Point.kept_inverse = lambda self, support: own
    return y, k


FAULTS = {
    "check_optimum": [faulty(certain), faulty(nearly), faulty(uniform)],
    "check_stopped_early": [
        faulty(corrupting),
        Maskless,
        faulty(lambda s, p, tol, n, y, k: (y - 1e-16 * (y == 0), k)),
        faulty(lambda s, p, tol, n, y, k: (torch.where(y == y.flip(-1), torch.nan, y), k)),
    ],
    "check_float32": [
        faulty(lambda s, p, tol, n, y, k: (y.double(), k)),
        faulty(lambda s, p, tol, n, y, k: certain(s, p, tol, n, y, k) if n > 1 else (y, k)),
    ],
    "check_rows_independent": [
        Mixing,
        faulty(lambda s, p, tol, n, y, k: (y, k + torch.arange(len(k)))),
    ],
    "check_no_side_effects": [
        faulty(noisy),
        faulty(remembering),
        faulty(in_place),
        faulty(lambda s, p, tol, n, y, k: (y.clone().requires_grad_(), k)),
    ],
    "check_budget": [Endless, Greedy],
    "check_iterations": [
        faulty(lambda s, p, tol, n, y, k: (y, torch.ones_like(k))),
        faulty(lambda s, p, tol, n, y, k: (y, k - 1000)),
    ],
    "check_unsuitable": [
        saying(lambda self, problem: False if problem.structured else None),
        saying(lambda self, problem: 1 / 0),
        saying(lambda self, problem: f"{torch.rand(1).item()}" if problem.structured else None),
    ],
    "check_hard_inputs": [Pairs],
    "check_backward": [faulty(hoarding)],
    "check_name": [faulty(lambda s, p, tol, n, y, k: (y, k), name="auto")],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, k) for name, some in FAULTS.items() for k in range(len(some))]
)
def test_a_planted_fault_is_found(name, number, monkeypatch):
    for part, its in ((solving, "certify"), (Point, "kept_inverse")):
        monkeypatch.setattr(part, its, getattr(part, its))  # put back what is corrupted
    solver = FAULTS[name][number]()
    check = next(check for check in solver_checks(solver) if check.name == name)
    with pytest.raises(AssertionError) as caught:
        check(solver)
    message = str(caught.value)
    assert message.startswith(f"{name} failed for solver")
    for part in ("expected: ", "found: ", "look at: "):
        assert part in message
    assert type(solver).__name__ in re.search("look at: .*", message).group(), message


def test_every_check_has_a_planted_fault():
    assert set(FAULTS) == set(solvers.KINDS)


def test_the_message_holds_the_smallest_input():
    solver = Maskless()
    check = next(check for check in solver_checks(solver) if check.name == "check_stopped_early")
    with pytest.raises(AssertionError, match="a masked entry that is not 0") as caught:
        check(solver)
    text = re.search(r"mask = torch.tensor\((\[.*?\])", str(caught.value)).group(1)
    assert text.count("True") == 1, text
    assert text.count("False") == 1, text


# -- the kit itself --------------------------------------------------------------------------------


class Never(Solver):
    """Takes nothing."""

    name = "never"

    def unsuitable(self, problem):
        return "it is never suitable"

    def run(self, problem, tol, max_iter):
        raise AssertionError


@pytest.fixture
def few(monkeypatch):
    """The kit with a few cheap checks."""
    some = ("check_stopped_early", "check_iterations", "check_name")
    monkeypatch.setattr(solvers, "KINDS", {name: solvers.KINDS[name] for name in some})


def test_one_error_lists_all(few):
    """How failures are expected is tested in test_harness.py."""
    wrong = type("Wrong", (Maskless,), {"name": "auto"})()
    with pytest.raises(AssertionError, match="2 of 3 checks failed for solver 'auto'") as caught:
        check_solver(wrong)
    assert "check_stopped_early failed" in str(caught.value)
    assert "check_name failed" in str(caught.value)
    check_solver(Never())  # checks that need a problem are left out
    check_solver(wrong, expected_failures={"check_stopped_early": "known", "check_name": "known"})


def test_arguments():
    with pytest.raises(TypeError, match="call it first"):
        check_solver(Newton)
    with pytest.raises(TypeError, match=r"instance of regmax\.solvers\.Solver"):
        solver_checks(regmax.regularizer("gini"))
    with pytest.raises(TypeError, match="must take a solver and a check"):
        parametrize_solver_with_checks([Newton()])(lambda solver: None)
