"""``RegularizedMax`` as an nn.Module, its smooth maximum, its solutions."""

import pytest
import torch
from mapping_checks import normal as scores
from omegas import omega_of

import regmax
from regmax import RegularizedMax, Regularizer

F64 = torch.float64
NAMES = ("entropy", "gini", "pnorm", "tsallis", "tv", "oscar")


class Mixed(Regularizer):
    """Neither separable nor closed: the generic path."""

    def value(self, y):
        return y.square().sum(-1) + (y * y.roll(1, -1)).sum(-1) / 2 + y.pow(3).sum(-1)


def omegas():
    return {**{n: regmax.regularizer(n) for n in NAMES}, "mixed": Mixed()}


@pytest.fixture(params=[*NAMES, "mixed"])
def omega(request):
    return omegas()[request.param]


def test_explain_of_a_kernel_that_does_not_run():
    """A solver that the user chose needs no reason; the device is named where it is the reason."""
    text = RegularizedMax(regmax.regularizer("gini"), solver="newton").explain(torch.zeros(3))
    assert "asked for" in text
    assert "kernel" not in text
    assert regmax.kernels.why_none("mps").endswith("CPU or CUDA device, not on mps")
    assert regmax.kernels.why_none("cpu").startswith("no kernel takes rows of this length")


def test_solution(omega):
    layer = RegularizedMax(omega, dim=1)
    x = scores(2, 5, 3)
    sol = layer.solve(x)
    assert sol.y.shape == x.shape
    for field in ("value", "gap", "error_bound", "iterations", "converged"):
        assert getattr(sol, field).shape == (2, 3), field
    assert torch.equal(sol.y, layer(x))
    assert torch.equal(sol.value, layer.max(x))
    assert sol.iterations.dtype == torch.int64
    assert sol.converged.dtype == torch.bool
    assert sol.converged.all()
    assert (sol.gap >= 0).all()
    assert (sol.error_bound <= 1e-8).all()
    assert isinstance(sol.path, str)
    assert isinstance(sol.estimated, bool)
    assert sol.path == ("kernel from the value" if isinstance(omega, Mixed) else "closed form")
    assert (sol.iterations == 0).all()
    with regmax.kernels.reference():
        assert (layer.solve(x).iterations > 0).all() == isinstance(omega, Mixed)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 1), (2, 1), (1,), (5,)])
def test_small_shapes(omega, shape):
    layer = RegularizedMax(omega)
    x = scores(*shape).requires_grad_()
    y, m, sol = layer(x), layer.max(x), layer.solve(x)
    assert y.shape == shape
    assert m.shape == shape[:-1] == sol.value.shape == sol.iterations.shape
    assert torch.allclose(y.sum(-1), torch.ones(shape[:-1], dtype=F64))
    (g,) = torch.autograd.grad(y.sum() + m.sum(), x)
    assert g.shape == shape
    assert "forward" in layer.explain(x)


CUMULATIVE = omega_of(lambda y: (y * y).sum(-1) + y.logcumsumexp(-1).sum(-1))
LOG_GAMMA = omega_of(lambda y: torch.lgamma(y + 1).sum(-1))
CAPPED = omega_of(lambda y: (y * y.log() + (0.5 - y) * (0.5 - y).log()).sum(-1))
"""Not finite above ½: no answer on the simplex confirms a kernel."""


@pytest.mark.parametrize(
    ("omega", "said"),
    [
        (CUMULATIVE, "aten.logcumsumexp"),
        (LOG_GAMMA, "aten.digamma"),
        (CAPPED, "no answer of the solver on the simplex"),
    ],
)
def test_explain_says_why_no_kernel_is_made_of_a_value(omega, said):
    pytest.importorskip("numba")
    layer, x = RegularizedMax(omega), scores(3, 5)
    text = layer.explain(x)
    assert "forward: solver" in text
    assert text.count(f"note: no kernel is made of its value: {said}") == 1
    with regmax.kernels.reference():  # none is wanted, so there is nothing to explain
        assert "note" not in layer.explain(x)


def test_explain_is_silent_on_kernels_that_are_made_or_not_tried():
    both = regmax.regularizer("gini") + regmax.regularizer("entropy")
    for layer in (RegularizedMax(both), RegularizedMax(CUMULATIVE, solver="newton")):
        assert "no kernel" not in layer.explain(scores(3, 5))


def test_one_participant_needs_no_curvature():
    """‖y‖ is strictly convex on the simplex, with no curvature along y itself."""
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    solution = RegularizedMax(omega_of(lambda y: y.norm(dim=-1))).solve(x, mask=mask)
    assert solution.y.tolist() == [[1.0, 0.0, 0.0]]
    assert solution.error_bound.item() < 1e-14
    (grad,) = torch.autograd.grad(solution.y[0, 0], x, create_graph=True)
    assert grad.tolist() == [[0.0, 0.0, 0.0]]
    (second,) = torch.autograd.grad(grad.sum(), x, allow_unused=True)
    assert second is None or second.tolist() == [[0.0, 0.0, 0.0]]


def test_what_is_no_regularizer_is_refused():
    pytest.importorskip("matplotlib")
    x, gini = scores(2, 4), regmax.regularizer("gini")
    takers = (
        RegularizedMax,
        regmax.FenchelYoungLoss,
        regmax.nn.Learnable,
        lambda omega: regmax.crosscheck(omega, x),
        lambda omega: regmax.analysis.path(omega, x, over="gamma"),
        lambda omega: regmax.analysis.sweep(omega, x, {"gamma": [1.0]}),
        regmax.plots.mapping,
        regmax.plots.path,
        regmax.plots.overview,
    )
    for taker in takers:
        for other in (regmax.nn.AdaptiveEntmax(4), "gini", RegularizedMax(gini)):
            with pytest.raises(
                TypeError, match=r"omega must be a regmax\.Regularizer; .* by name; a"
            ):
                taker(other)
    with pytest.raises(TypeError, match=r"Gini is not called: RegularizedMax\(omega\)\(x\)"):
        gini(x)
