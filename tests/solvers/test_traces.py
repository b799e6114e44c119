"""What a solve tells of itself: its trace, its status, where it starts and what it may spend."""

from __future__ import annotations

import pytest
import torch
from omegas import omega_of

import regmax
from regmax import RegularizedMax, Status
from regmax.solvers import Solver
from regmax.testing.backends.generic import definition

F64 = torch.float64
SUITS = {
    "newton": ("gini", "entropy"),
    "fista": ("tsallis", "tv"),
    "interior": ("entropy", "pnorm"),
}
CASES = [(solver, name) for solver, names in SUITS.items() for name in names]


def by_value(name, **settings):
    settings = {"on_failure": "ignore", **settings}
    return RegularizedMax(definition(regmax.regularizer(name)), **settings)


def scores(*shape, seed=0, scale=2.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


class TestTrace:
    @pytest.mark.parametrize(("solver", "name"), CASES)
    def test_start_each_iteration_and_the_answer(self, solver, name):
        x = scores(5, 9)
        solution = by_value(name, solver=solver).solve(x, trace=True)
        trace = solution.trace
        points = int(solution.iterations.max()) + 1
        assert len(trace) == points
        assert trace.gap.shape == trace.residual.shape == trace.support.shape == (points, 5)
        assert trace.solvers == [solver] * points
        assert (trace.support[0] == 9).all()
        assert torch.equal(trace.support[-1], (solution.y > 0).sum(-1))
        assert (trace.gap >= 0).all()
        assert (trace.gap[-1] <= 1e-12).all()
        assert (trace.residual[-1] <= 1e-7).all()
        assert (trace.gap[0] > 0.1).all()
        assert torch.allclose(trace.gap[-1], solution.gap, atol=1e-14)
        assert repr(trace) == f"Trace({points} points: {solver})"

    @pytest.mark.parametrize("solver", SUITS)
    def test_in_the_layout_of_the_scores(self, solver):
        x = scores(3, 9, 2)
        mask = torch.ones_like(x, dtype=torch.bool)
        mask[0, 4:, 1] = False
        trace = by_value("gini", solver=solver, dim=1).solve(x, mask=mask, trace=True).trace
        assert trace.gap.shape[1:] == trace.support.shape[1:] == (3, 2)
        alone = by_value("gini", solver=solver).solve(x[0, :4, 1], trace=True).trace
        assert torch.allclose(trace.gap[0, 0, 1], alone.gap[0], atol=1e-12)
        assert torch.equal(trace.support[:, 0, 1][[0, -1]], alone.support[[0, -1]])
        assert (trace.support[0] == mask.sum(1)).all()

    @pytest.mark.parametrize("solver", SUITS)
    def test_rows_without_an_answer(self, solver):
        x = scores(3, 6)
        x[0] = -torch.inf
        x[2, 1] = torch.nan
        solution = by_value("gini", solver=solver).solve(x, trace=True)
        trace = solution.trace
        for kept in (trace.gap, trace.residual):
            assert (kept[:, 0] == 0).all()
            assert kept[:, 2].isnan().all()
            assert kept[:, 1].isfinite().all()
        assert (trace.support[:, [0, 2]] == 0).all()
        assert not trace.support.is_floating_point()
        assert solution.iterations[[0, 2]].tolist() == [0, 0]

    def test_a_chain_names_each_solver(self):
        # the budget is spent by one, and the next begins at the start again
        x = scores(4, 12, scale=30.0)
        steep = omega_of(  # one iteration is not enough for anybody
            lambda y: (torch.xlogy(y, y) + 5 * y.pow(6) - y.add(1e-3).log() / 50).sum(-1)
        )
        layer = RegularizedMax(steep, max_iter=1, on_failure="ignore", tol=1e-14)
        trace = layer.solve(x, trace=True).trace
        names = list(dict.fromkeys(trace.solvers))
        assert len(names) > 1
        assert trace.solvers == [name for name in names for _ in range(2)]
        starts = [trace.solvers.index(name) for name in names]
        for start in starts[1:]:
            assert torch.equal(trace.gap[start], trace.gap[0])
        assert ", ".join(names) in repr(trace)

    def test_a_solver_that_notes_nothing_has_its_answer(self):
        class Silent(Solver):
            name = "silent"

            def unsuitable(self, problem):
                return None

            def run(self, problem, tol, max_iter):
                y = regmax.functional.sparsemax(problem.z)
                return y, torch.ones(y.shape[:-1], dtype=torch.int64)

        trace = by_value("gini", solver=Silent()).solve(scores(2, 5), trace=True).trace
        assert trace.solvers == ["silent"]
        assert trace.gap.shape == (1, 2)

    @pytest.mark.parametrize("name", ["gini", "entropy", "tv"])
    def test_a_closed_form_has_none(self, name):
        solution = RegularizedMax(regmax.regularizer(name)).solve(scores(2, 5), trace=True)
        assert solution.path == "closed form"
        assert len(solution.trace) == 0
        assert solution.trace.gap.numel() == solution.trace.support.numel() == 0
        assert repr(solution.trace) == "Trace(0 points: none)"


class TestStart:
    @pytest.mark.parametrize(("solver", "name"), [*CASES, ("auto", "tv"), ("auto", "pnorm")])
    def test_from_the_answer_there_is_little_to_do(self, solver, name):
        x, layer = scores(5, 9), by_value(name, solver=solver)
        cold = layer.solve(x)
        warm = layer.solve(x, y0=cold.y)
        assert (warm.iterations <= 2).all()
        assert warm.converged.all()
        assert torch.allclose(warm.y, cold.y, atol=1e-9)

    @pytest.mark.parametrize(("solver", "name"), CASES)
    def test_from_a_vertex_and_from_anywhere(self, solver, name):
        x, layer = scores(5, 9), by_value(name, solver=solver, max_iter=300)
        truth = RegularizedMax(regmax.regularizer(name))(x)
        vertex = torch.zeros_like(x)
        vertex[:, 2] = 1
        some = vertex.roll(1, -1) + vertex
        for y0 in (vertex, some, scores(5, 9, seed=3).abs(), vertex.float() * 1e6):
            solution = layer.solve(x, y0=y0)
            assert solution.converged.all(), (solver, name)
            assert torch.allclose(solution.y, truth, atol=1e-8)

    def test_is_scaled_and_the_trace_begins_there(self):
        x = scores(3, 6)
        y0 = torch.tensor([3.0, 1.0, 0, 0, 0, 0]).expand(3, 6)
        trace = by_value("gini", solver="newton").solve(x, y0=y0, trace=True).trace
        assert (trace.support[0] == 2).all()
        y = y0.double() / 4
        gap = (x - y).amax(-1) - (y * (x - y)).sum(-1)
        assert torch.allclose(trace.gap[0], gap)

    def test_an_earlier_answer_fits_whatever_its_rows_are(self):
        """Zeros of empty rows and NaN of spoilt ones included; masked entries do not matter."""
        x = scores(4, 6)
        x[0] = -torch.inf
        x[1, 2] = torch.nan
        x[2, 3:] = -torch.inf
        layer = by_value("tsallis")
        cold = layer.solve(x)
        y0 = cold.y.clone()
        y0[2, 3:] = torch.nan
        warm = layer.solve(x, y0=y0)
        assert torch.allclose(warm.y, cold.y, atol=1e-12, equal_nan=True)
        assert torch.equal(warm.status, cold.status)

    def test_gradients_do_not_depend_on_it(self):
        x, v = scores(3, 7).requires_grad_(), scores(3, 7, seed=1)
        layer = by_value("tsallis", solver="newton")
        y0 = scores(3, 7, seed=2).abs().requires_grad_()
        cold, warm = layer.solve(x), layer.solve(x, y0=y0)
        (expected,) = torch.autograd.grad((cold.y * v).sum(), x)
        found, none = torch.autograd.grad((warm.y * v).sum(), (x, y0), allow_unused=True)
        assert torch.allclose(found, expected, atol=1e-9)
        assert none is None

    def test_a_closed_form_checks_it_and_needs_it_not(self):
        layer, x = RegularizedMax(regmax.regularizer("gini")), scores(2, 5)
        assert torch.equal(layer.solve(x, y0=torch.ones(2, 5)).y, layer(x))
        with pytest.raises(ValueError, match="y0 must have the shape"):
            layer.solve(x, y0=torch.ones(5))

    @pytest.mark.parametrize(
        ("y0", "error", "words"),
        [
            (torch.ones(2, 4), ValueError, r"y0 must have the shape of x, \(2, 5\); got \(2, 4\)"),
            (torch.ones(2, 5, dtype=torch.int64), TypeError, r"floating tensor .* torch\.int64"),
            ([[1.0] * 5] * 2, TypeError, r"y0 must be a floating tensor like x; got list"),
            (-torch.ones(2, 5), ValueError, r"nonnegative and finite.* got entries in \[-1, -1\]"),
            (torch.zeros(2, 5), ValueError, r"positive sum .* sums from 0"),
            (torch.full((2, 5), torch.nan), ValueError, r"y0 must be nonnegative and finite"),
        ],
    )
    def test_refused(self, y0, error, words):
        with pytest.raises(error, match=words):
            by_value("gini").solve(scores(2, 5), y0=y0)

    def test_refused_where_all_of_it_is_masked_out(self):
        mask = torch.tensor([True, True, False])
        y0 = torch.tensor([0.0, 0.0, 1.0])
        with pytest.raises(ValueError, match="positive sum over the participants"):
            by_value("gini").solve(scores(3), mask=mask, y0=y0)


class TestStatus:
    def test_of_each_row(self):
        x = scores(4, 6)
        x[1] = -torch.inf
        x[2, 0] = torch.inf
        x[3, 0] = torch.nan
        for layer in (by_value("gini"), RegularizedMax(regmax.regularizer("gini"))):
            status = layer.solve(x).status
            assert status.dtype == torch.int8
            names = [Status(s).name for s in status.tolist()]
            assert names == ["CONVERGED", "EMPTY", "SPOILT", "SPOILT"]

    def test_budget_of_some_rows(self):
        x = torch.cat([torch.zeros(1, 9, dtype=F64), scores(2, 9)])
        solution = by_value("tsallis", solver="fista", max_iter=1).solve(x)
        assert solution.status.tolist() == [Status.CONVERGED, Status.BUDGET, Status.BUDGET]
        assert solution.converged.tolist() == [True, False, False]
        assert (solution.iterations <= 1).all()

    def test_stalled_where_more_iterations_would_not_help(self):
        layer = by_value("tsallis", solver="newton", tol=1e-30)
        solution = layer.solve(scores(3, 9))
        assert (solution.status == Status.STALLED).all()
        assert (solution.error_bound < 1e-12).all()
        assert (solution.iterations < 2000).all()


class TestBudget:
    def test_the_message_of_a_spent_budget(self):
        layer = by_value("tsallis", solver="fista", max_iter=1, on_failure="raise")
        with pytest.raises(regmax.ConvergenceError, match=r"solver fista: . of 3 rows .*max_iter"):
            layer.solve(scores(3, 9))
