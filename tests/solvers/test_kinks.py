"""Answers on kinks of a value: certificates, zeros and groups, and derivatives along the kinks."""

import warnings

import numpy as np
import pytest
import torch
from bad_omegas import square as gini
from mapping_checks import normal
from omegas import omega_of
from torch import Tensor
from torch.nn import functional as F

import regmax
from regmax import RegularizedMax, Regularizer, kernels
from regmax.optimality.problem import Problem
from regmax.regularizers.kinks import Augmented, Kinks
from regmax.solvers.kinks import model, points

F64 = torch.float64


def steps(y: Tensor) -> Tensor:
    return torch.arange(y.shape[-1], dtype=y.dtype)


VALUES = {
    "largest": lambda y: gini(y) + 0.3 * y.amax(-1),
    "three largest": lambda y: gini(y) + 0.3 * y.topk(3, -1).values.sum(-1),
    "total variation": lambda y: gini(y) + 0.1 * y.diff(dim=-1).abs().sum(-1),
    "far from a point": lambda y: gini(y) + 0.3 * (y - 0.2).abs().sum(-1),
    "above a point": lambda y: gini(y) + 0.3 * torch.relu(y - 0.2).sum(-1),
    "a mean": lambda y: gini(y) + 0.3 * ((y * steps(y)).sum(-1) - 2).abs(),
    "of two": lambda y: gini(y) + 0.3 * torch.maximum(y[..., :1], y[..., 1:]).sum(-1),
    "least": lambda y: gini(y) - 0.3 * y.min(-1).values,
    "curved": lambda y: gini(y) + 0.3 * (y.square() - 0.04).clamp_min(0).sum(-1),
    "squared": lambda y: (
        gini(y) + y.norm(p=1, dim=-1) + torch.linalg.vector_norm(y - 0.1, torch.inf, -1) ** 2
    ),
    "squared alone": lambda y: gini(y) + torch.linalg.vector_norm(y - 0.1, torch.inf, -1) ** 2,
    "entropy": lambda y: torch.xlogy(y, y).sum(-1) + 0.3 * y.max(-1).values,
    "a logarithm in half": lambda y: (
        gini(y)
        + torch.xlogy(y, y)[..., ::2].sum(-1)
        + (y * steps(y)).sum(-1).square() / 8
        + 0.3 * (y[..., 0] - y[..., 1]).abs()
    ),
}


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error", regmax.ConvergenceWarning)
        yield


@pytest.mark.parametrize("d", [6, 18])
@pytest.mark.parametrize("name", VALUES)
def test_certified_with_the_derivatives_of_differences(name, d):
    layer = RegularizedMax(omega_of(VALUES[name]))
    x, v, way = normal(3, d) / 2, normal(3, d, seed=1), normal(3, d, seed=2)
    solution = layer.solve(x.requires_grad_())
    assert solution.converged.all()
    (got,) = torch.autograd.grad((solution.y * v).sum(), x)
    up, down = layer.solve(x.detach() + 1e-6 * way), layer.solve(x.detach() - 1e-6 * way)
    assert torch.equal(up.y == 0, down.y == 0)  # Π is differentiable in between
    expected = ((up.y - down.y) * v).sum(-1) / 2e-6
    off = (up.error_bound + down.error_bound) / 2e-6 * v.norm(dim=-1)
    assert ((got * way).sum(-1) - expected).abs().le(1e-6 + 1e-2 * off).all()


def chain(y: Tensor, lam: float) -> Tensor:
    return lam * y.diff(dim=-1).abs().sum(-1)


def pairs(y: Tensor, lam: float) -> Tensor:
    i, j = torch.triu_indices(y.shape[-1], y.shape[-1], 1)
    return lam * torch.maximum(y[..., i], y[..., j]).sum(-1)


def ordered(y: Tensor, lam: float) -> Tensor:
    return lam * (y.sort(-1, descending=True).values * steps(y).flip(-1)).sum(-1)


BASES = {
    "gini": gini,
    "entropy": lambda y: torch.xlogy(y, y).sum(-1),
    "tsallis": lambda y: y.pow(1.5).sum(-1) / 0.75,
}


@pytest.mark.parametrize("lam", [0.01, 0.2])
@pytest.mark.parametrize(
    ("penalty", "known"), [(chain, "tv"), (pairs, "oscar"), (ordered, "oscar")]
)
@pytest.mark.parametrize(
    ("base", "d"), [*((name, 2) for name in BASES), ("gini", 12), ("entropy", 12), ("tsallis", 6)]
)
def test_bases_and_penalties_by_their_values(base, penalty, known, d, lam):
    """Each row is within its bound; and where it is certified, which some of Tsallis are not, it
    has the zeros, the ties and the derivatives."""
    value = omega_of(lambda y: BASES[base](y) + penalty(y, lam))
    layer = RegularizedMax(value, on_failure="ignore")
    exact = RegularizedMax(regmax.regularizer(base) + lam * regmax.penalty(known))
    x, v = normal(6, d), normal(6, d, seed=1)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    solution, y = layer.solve(mine), exact(theirs)
    assert ((solution.y - y).norm(dim=-1) <= solution.error_bound + 1e-14).all()
    sure = solution.converged
    assert sure.sum() >= (3 if base == "tsallis" else 6)
    for same in (lambda t: t == 0, lambda t: t.unsqueeze(-1) == t.unsqueeze(-2)):
        assert torch.equal(same(solution.y)[sure], same(y)[sure])
    (got,), (expected,) = (
        torch.autograd.grad(t, s, v) for t, s in ((solution.y, mine), (y, theirs))
    )
    torch.testing.assert_close(got[sure], expected[sure], rtol=0, atol=1e-9)


class Learnt(Regularizer):
    """Kinks that move with a parameter."""

    def __init__(self, curved: bool) -> None:
        self.curved = curved
        self.centre = torch.nn.Parameter(torch.linspace(0.05, 0.4, 6, dtype=F64))
        self.weight = torch.nn.Parameter(torch.tensor(0.3, dtype=F64))

    def value(self, y: Tensor) -> Tensor:
        if self.curved:
            return gini(y) + self.weight * torch.relu(y.square() - self.centre.square()).sum(-1)
        return gini(y) + self.weight * ((y - self.centre).abs() * (1 + steps(y))).sum(-1)


@pytest.mark.parametrize("of", ["layer", "max", "loss"])
@pytest.mark.parametrize("curved", [False, True])
def test_gradients_of_parameters_that_move_the_kinks(curved, of):
    omega = Learnt(curved)
    layer, loss = RegularizedMax(omega, 0.7), regmax.FenchelYoungLoss(omega, 0.7)
    x, v, target = normal(4, 6).requires_grad_(), normal(4, 6, seed=1), torch.tensor([1, 2, 0, 5])
    function = {
        "layer": lambda: (layer(x) * v).sum(),
        "max": lambda: layer.max(x).sum(),
        "loss": lambda: loss(x, target),
    }[of]
    inputs = [x, omega.centre, omega.weight]
    for t, g in zip(inputs, torch.autograd.grad(function(), inputs), strict=True):
        with torch.no_grad():
            way, ends = torch.ones_like(t) + t.cos(), []
            for step in (1e-6, -2e-6, 1e-6):
                t += step * way
                ends.append(function())
        assert (g * way).sum().item() == pytest.approx(
            ((ends[0] - ends[1]) / 2e-6).item(), abs=1e-6
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["above", "clamp", "exponential"])
def test_rows_that_the_first_step_leaves_where_they_are(name, masked):
    """The curvature is that of the multipliers found, not of those that the steps begin with, nor
    of a row that the steps lost and that another solver found at the same place."""
    value, bend = {
        "above": (lambda y: torch.relu(y - 0.1).square().sum(-1) / 2, 2.0),
        "clamp": (lambda y: y.clamp(min=0.2).square().sum(-1) / 2, 2.0),
        "exponential": (lambda y: torch.relu(y - 0.1).exp().sum(-1), 1 + np.exp(0.15)),
    }[name]
    x, v = torch.zeros(2, 4 + masked, dtype=F64, requires_grad=True), normal(2, 4, seed=1)
    mask = torch.arange(4 + masked) < 4
    with kernels.reference():
        y = RegularizedMax(omega_of(lambda y: gini(y) + value(y)))(x, mask)
    (got,) = torch.autograd.grad(y[:, :4], x, v)
    torch.testing.assert_close(got[:, :4], (v - v.mean(-1, keepdim=True)) / bend)


def test_second_derivatives_are_refused_on_kinks_alone():
    layer = RegularizedMax(omega_of(VALUES["largest"]))
    far, tied = ([[1.0, 0.6, 0.3]], [[0.5, 0.5, 0.3]])
    x = torch.tensor(far, dtype=F64, requires_grad=True)
    (g,) = torch.autograd.grad(layer(x)[..., 0].square().sum(), x, create_graph=True)
    assert torch.autograd.grad(g[..., 0].sum(), x)[0].isfinite().all()
    x = torch.tensor(tied, dtype=F64, requires_grad=True)
    with pytest.raises(NotImplementedError, match="lies on a kink"):
        torch.autograd.grad(layer(x)[..., 0].sum(), x, create_graph=True)


def test_masks_dtypes_starts_and_certified_layers():
    omega, x = Learnt(curved=False), normal(4, 6)
    mask = torch.ones_like(x, dtype=torch.bool).index_fill(-1, torch.tensor(0), False)
    solution = RegularizedMax(omega).solve(x, mask=mask)
    assert solution.converged.all()
    assert (solution.y[:, 0] == 0).all()
    y = RegularizedMax(omega)(x)
    assert torch.equal(
        RegularizedMax(omega)(x.float()), RegularizedMax(omega)(x.float().double()).float()
    )
    torch.testing.assert_close(RegularizedMax(omega).solve(x, y0=y.detach()).y, y)
    certified = RegularizedMax(omega, certify=True)(x.requires_grad_())
    certified[..., 0].sum().backward()
    assert torch.equal(certified, y)


def test_a_concave_kink_is_no_answer():
    layer = RegularizedMax(omega_of(lambda y: gini(y) - 0.3 * y.amax(-1)), on_failure="ignore")
    x = torch.tensor([[0.1, 0.1, 0.0]], dtype=F64)
    with pytest.raises(regmax.RegularizerError, match="not convex"):
        layer.solve(x)


@pytest.mark.parametrize("sizes", [(1.0, 1.0, 0.1, 0.05), (1.0, 0.3, 0.5, 0.1)])
def test_too_many_multipliers_are_no_accusation(sizes):
    """Where entries are equal up to rounding, the slope of a convex Ω depends on their order."""
    a, b, c, r = sizes
    weights = torch.arange(30, 0, -1, dtype=F64) / 30

    def value(y):
        largest = y.sort(-1, descending=True).values
        kinks = a * (largest * weights).sum(-1) + b * y.amax(-1)
        return kinks + c * y.var(-1) + r * y.square().sum(-1)

    with pytest.warns(regmax.ConvergenceWarning, match="30 × 30 multipliers.* up to 512"):
        RegularizedMax(omega_of(value)).solve(0.3 * normal(4, 30))


def test_a_maximum_that_bends_between_the_vertices_and_the_middle_has_kinks():
    """u is .02 at all vertices and in the middle, and negative elsewhere."""

    def value(y):
        a, b = y[..., 0], y[..., 1]
        u = 0.02 + a * b * (a - b)
        return 5 * gini(y) + torch.relu(u) + 0.3 * y.diff(dim=-1).abs().sum(-1)

    problem = Problem(omega_of(value), torch.zeros(2, 3, dtype=F64), None)
    known = points.known_maxima(problem)
    assert known is not None
    assert known.moves == [True, True]


def test_a_guard_against_zero_is_no_kink():
    def value(y):
        return (y * y.clamp_min(1e-300).log()).sum(-1) + y.prod(-1)

    problem = Problem(omega_of(value), torch.zeros(2, 3, dtype=F64), None)
    assert points.known_maxima(problem) is None


FUNCTIONS = {
    "abs": lambda u: u.abs() + torch.abs(u) + abs(u),
    "relu": lambda u: u.relu() + F.relu(u),
    "leaky_relu": lambda u: F.leaky_relu(u, 0.1) + F.leaky_relu(u, negative_slope=0.3),
    "hardtanh": lambda u: F.hardtanh(u, -0.2, 0.45) + torch.nn.Hardtanh()(3 * u),
    "l1_loss": lambda u: F.l1_loss(u, u * u, reduction="none"),
    "maximum": lambda u: torch.maximum(u, u.flip(-1)) + torch.max(u, 0 * u),
    "minimum": lambda u: -torch.minimum(u, u.flip(-1)) - torch.min(u, 0 * u),
    "clamp": lambda u: u.clamp(min=0.1) - u.clamp(max=0.3) + u.clamp_min(0.2) - u.clip(max=0.1),
    "amax": lambda u: u.amax(-1) + u.amax(dim=-1, keepdim=True).sum(-1) - u.amin(-1),
    "max": lambda u: u.max(-1).values - u.min(dim=-1, keepdim=True)[0].sum(-1),
    "sort": lambda u: (
        (u.sort(descending=True).values * steps(u).flip(-1)).sum(-1) + u.sort()[0][..., -1]
    ),
    "topk": lambda u: u.topk(2).values.sum(-1) - u.topk(2, largest=False).values.sum(-1),
    "norm": lambda u: u.norm(p=1, dim=-1) + torch.norm(u, torch.inf, -1) + u.norm(dim=-1),
    "vector norm": lambda u: torch.linalg.vector_norm(u, torch.inf, dim=-1),
    "of several dimensions": lambda u: (
        torch.linalg.vector_norm(u.unflatten(-1, (2, 2)), torch.inf, (-2, -1))
        + u.unsqueeze(-2).abs().sum((-2, -1))
    ),
    "linalg.norm": lambda u: (
        torch.linalg.norm(u, ord=1, dim=-1) + torch.linalg.norm(u, torch.inf, -1, True).squeeze(-1)
    ),
    "pairwise_distance": lambda u: (
        F.pairwise_distance(u, 0 * u, p=1) + F.pairwise_distance(u, 0 * u, p=torch.inf, eps=0)
    ),
    "aminmax": lambda u: u.aminmax(dim=-1).max - torch.aminmax(u, dim=-1)[0],
    "fmax": lambda u: torch.fmax(u, u.flip(-1)) - torch.fmin(u, 0 * u),
    "relu6": lambda u: F.relu6(u) + F.threshold(u, 0.1, 0.1),
    "msort": lambda u: torch.msort(u.movedim(-1, 0))[2:].sum(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_lagrangian_is_the_value_where_its_maxima_are_attained(name):
    function = FUNCTIONS[name]
    y = torch.tensor([[0.5, -0.4, 0.35, 0.05], [0.22, 0.7, -0.15, 0.4]], dtype=F64)
    with Kinks(None, None) as kinks:
        function(y)
    assert kinks.u
    with Kinks(kinks.multipliers, [torch.tensor(1e9, dtype=F64)] * len(kinks.u)) as far:
        function(y)
    omega = Augmented(omega_of(function), far.multipliers, None)
    slopes = [torch.autograd.functional.jacobian(f, y) for f in (omega.value, function)]
    torch.testing.assert_close(omega.value(y), function(y))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("name", ["total variation", "three largest", "squared", "entropy"])
def test_the_model_in_pytorch_and_in_compiled_code(name, monkeypatch):
    pytest.importorskip("numba")
    layer, x = RegularizedMax(omega_of(VALUES[name])), normal(8, 7)
    fast = layer.solve(x)
    monkeypatch.setattr(model, "_rows", lambda: None)
    slow = layer.solve(x)
    assert fast.path == slow.path == "newton steps on kinks"
    assert ((fast.y - slow.y).norm(dim=-1) <= fast.error_bound + slow.error_bound).all()
    assert torch.equal(fast.y == 0, slow.y == 0)


@pytest.mark.parametrize(
    "name", [name for name in VALUES if name not in ("above a point", "curved")]
)
def test_a_row_has_the_same_bits_in_any_batch(name):
    layer, x = RegularizedMax(omega_of(VALUES[name])), normal(9, 8) / 2
    together = layer(x)
    assert torch.equal(together, torch.cat([layer(row) for row in x.split(1)]))
    assert torch.equal(together, layer(x.view(3, 3, 8)).view(9, 8))
