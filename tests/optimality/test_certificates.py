"""No answer is used before it is put in order and certified: solvers, penalties and Ω that anybody
wrote, in the dtype of the answer."""

import warnings

import pytest
import torch
from bad_omegas import square
from mapping_checks import normal as draw
from omegas import GroupNorm, omega_of
from torch import Tensor

import regmax
from regmax import (
    ConvergenceError,
    ConvergenceWarning,
    Penalty,
    RegularizedMax,
    Regularizer,
    RegularizerError,
    Status,
)
from regmax.functional import fusedmax, sparsemax
from regmax.optimality.certificates import certify
from regmax.optimality.problem import Problem
from regmax.solvers import Solver

F64 = torch.float64


# -- bounds ----------------------------------------------------------------------------------------


def certificate_of(omega, z, y):
    """The certificate of y as the answer for the scores z, whatever it is."""
    return certify(Problem(omega, z).at(y))


def test_the_bound_of_the_duality_gap_is_attained():
    """z = (1, 0): y* is a vertex, and ‖y − y*‖² = gap for every y (docs/theory.md)."""
    t = torch.tensor([[0.5], [0.1], [1e-3]], dtype=F64)
    y = torch.cat([1 - t, t], -1)
    found = certificate_of(regmax.regularizer("gini"), torch.tensor([1.0, 0.0]).to(y), y)
    torch.testing.assert_close(found.error_bound, 2**0.5 * t.squeeze(-1))
    torch.testing.assert_close(found.gap, 2 * t.square().squeeze(-1))


@pytest.mark.parametrize("name", ["entropy", "gini", "pnorm", "tsallis", "tv", "oscar"])
@pytest.mark.parametrize("way", ["mixed", "moved", "another row"])
def test_an_inexact_answer_is_within_its_bound(name, way):
    omega = regmax.regularizer(name)
    z = draw(300, 6, scale=2, seed=3)
    exact = RegularizedMax(omega)(z)
    t = 10 ** torch.linspace(-9, 0, len(z), dtype=F64).unsqueeze(-1)
    other = {
        "mixed": torch.full_like(z, 1 / 6),
        "moved": RegularizedMax(omega)(z + draw(300, 6, seed=4)),
        "another row": exact.roll(1, 0),
    }[way]
    y = exact + t * (other - exact)
    far = (y - exact).norm(dim=-1)
    bound = certificate_of(omega, z, y).error_bound
    assert (far <= bound + 1e-15).all()


# -- solvers ---------------------------------------------------------------------------------------


class Says(Solver):
    """Returns what a function makes of the right answer for Gini."""

    name = "says"

    def __init__(self, change):
        self.change = change

    def unsuitable(self, problem):
        return None

    def run(self, problem, tol, max_iter):
        y = sparsemax(problem.z)
        iterations = torch.ones(y.shape[:-1], dtype=torch.int64)
        found = self.change(y, problem)
        return found if isinstance(found, tuple) else (found, iterations)


REFUSED = {
    "None": (lambda y, p: (None, None), r"Says\.run must return.*NoneType"),
    "one number": (lambda y, p: (y,), r"Says\.run must return \(y, iterations\)"),
    "another shape": (lambda y, p: y[:1], r"y of shape \(20, 6\); got \(1, 6\)"),
    "another dtype": (lambda y, p: y.float(), "float64.*got torch.float32"),
    "no counts": (lambda y, p: (y, 7), r"iterations a tensor of shape \(20,\); got int"),
    "counts of another shape": (lambda y, p: (y, torch.ones(3).long()), "iterations of shape"),
    "scores overwritten": (lambda y, p: (p.z.mul_(0.5), y)[1], "must not write to problem.z"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_answer_is_refused_by_name(name):
    change, said = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=said):
        RegularizedMax(regmax.regularizer("gini"), solver=Says(change))(draw(20, 6))


@pytest.mark.parametrize("floor", [1e-9, 1e-12])
def test_what_a_solver_leaves_next_to_0_is_0(floor):
    omega, x = regmax.regularizer("tsallis", alpha=1.2), draw(200, 6, scale=2)
    right = RegularizedMax(omega)(x)
    near = Says(lambda y, p: right + floor * (right == 0))
    solution = RegularizedMax(omega, solver=near, on_failure="ignore").solve(x)
    assert solution.converged.all()
    assert torch.equal(solution.y == 0, right == 0)


# -- Ω ---------------------------------------------------------------------------------------------


def smoothed_tv(y):
    return square(y) + (y.diff(dim=-1).square() + 1e-12).sqrt().sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_bend_far_sharper_than_the_rest_fools_no_certificate(dtype):
    x = draw(64, 5, scale=2, dtype=dtype)
    truth = fusedmax(x.double(), lam=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solution = RegularizedMax(omega_of(smoothed_tv)).solve(x)
    off = (solution.y.double() - truth).norm(dim=-1)
    assert solution.converged.sum() >= 60
    # the smoothing itself moves y by at most √(2 · 4 · 1e-6)
    assert bool((off[solution.converged] <= 3e-3).all())


def group_norms(y):
    return square(y) + y[..., :2].norm(dim=-1) + y[..., 2:].norm(dim=-1)


STIFF = torch.tensor(
    [2.171875, 2.671875, 2.40625, 1.96875, 2.640625, 1.875, 1.109375, 1.546875], dtype=F64
)
# fmt: off
NEXT_TO_A_KINK = [
    ([-2782.868075159453, -6.654341016388932, -3222.5233377792797, 0.0,
      -2694.5308996989816, -935.0505877752224, -3694.061360380891, -734.1934241957234],
     [0.12499999998701414, 0.12500000002249823, 0.12500000001006614, 0.12500000002259878,
      0.1249999999933826, 0.12499999999186699, 0.12499999997630303, 0.12499999999627012]),
    ([-3071.4602792548526, 0.0, -4041.5738276633715, -53.3804633877967,
      -2047.9662674942647, -3071.1398200715475, -1022.3133726354005, -3070.7856283213932],
     [0.12500000058594718, 0.12500000167829553, 0.12500000076617016, 0.12500000078271536,
      0.12499999968906107, 0.12499999905333768, 0.12499999905333768, 0.12499999839113533]),
]
# fmt: on


def _bent(y):
    t, e = y.diff(dim=-1), 1.7468810420779104e-11
    huber = torch.where(t.abs() < e, t * t / (2 * e), t.abs() - e / 2)
    return (STIFF * torch.xlogy(y, y)).sum(-1) + 1024 * huber.sum(-1)


def test_an_estimate_holds_beyond_a_kink_nearer_than_rounding():
    """Ω is stiff everywhere at the answer, and hardly bends at y*, past kinks next to it."""
    layer = RegularizedMax(omega_of(_bent), max_iter=30, on_failure="ignore")
    for x, truth in NEXT_TO_A_KINK:
        found = layer.solve(torch.tensor([x], dtype=F64))
        error = (found.y[0] - torch.tensor(truth, dtype=F64)).norm()
        assert error <= found.error_bound[0] + 4e-12 or not found.converged[0]


@pytest.mark.parametrize("tested", [True, False])
def test_an_entry_that_may_enter_where_omega_is_flat_counts(tested):
    """y = (1, 0, 0) for y* = (1 − ε, ε, 0) and Ω = Σ y³, which has no curvature at 0."""
    eps = torch.tensor([0.1, 1e-2, 1e-3, 1e-5, 1e-8], dtype=F64)
    z = torch.stack([3 - 6 * eps, 0 * eps, 0 * eps - 9], -1)
    at = Problem(omega_of(lambda y: (y**3).sum(-1)), z).at(torch.eye(3, dtype=F64)[0].expand_as(z))
    assert (certify(at, tested).error_bound >= 2**0.5 * eps).all()


@pytest.mark.parametrize("scale", [10.0, 30.0])
@pytest.mark.parametrize("name", ["by value", "jensen_shannon"])
def test_an_entry_next_to_nothing_costs_its_answer_no_certificate(name, scale):
    """Below ε² a kernel from the value has no digits, and there a logarithm is far off."""
    own = omega_of(lambda y: torch.xlogy(y, y).sum(-1) + y.square().sum(-1) / 2)
    omega = own if name == "by value" else regmax.regularizer(name)
    for seed in range(10):
        solution = RegularizedMax(omega).solve(draw(50, 8, scale=scale, seed=seed))
        assert bool((solution.error_bound < 1e-11).all()), solution


def test_a_declared_strong_convexity_outranks_an_estimate():
    """Curvature beside a huge one is lost in rounding: no ground to call Ω flat."""
    x = torch.cat([draw(5, 5), torch.tensor([[3.0, 2.0, 0.1, 0.0, -0.1]], dtype=F64)])
    solution = RegularizedMax(omega_of(group_norms, strong_convexity=1.0)).solve(x)
    assert solution.converged.all()
    assert not solution.estimated


def test_a_declared_strong_convexity_is_checked():
    RegularizedMax(omega_of(square))(draw(4, 5))  # the same value, which declares nothing
    with pytest.raises(RegularizerError, match=r"strong_convexity.*3"):
        RegularizedMax(omega_of(square, strong_convexity=3.0))(draw(4, 5))
    stretched = omega_of(
        lambda y: square(y) / 100 + 5 * (y[..., 0] - y[..., 1]).square(), strong_convexity=1.0
    )
    with pytest.raises(RegularizerError, match="strong_convexity"):
        RegularizedMax(stretched)(draw(4, 3))
    for wrong in (0.0, -1.0, torch.ones(7, 3), torch.nan):
        with pytest.raises(RegularizerError, match=r"Mine\.strong_convexity must"):
            RegularizedMax(omega_of(square, strong_convexity=wrong))(draw(4, 5))


def test_separable_is_checked():
    coupled = omega_of(lambda y: square(y) + y[..., 0] * y[..., 1] / 2, separable=True)
    with pytest.raises(RegularizerError, match="separable"):
        RegularizedMax(coupled)(draw(4, 5))


class Counter(Regularizer):
    calls = 0

    def value(self, y):
        self.calls += 1
        return square(y) * (1 + self.calls / 100)


UNSTEADY = {
    "a state": (Counter(), "called again"),
    "chance": (omega_of(lambda y: (1 + 0.1 * torch.rand(())) * square(y)), "called again"),
    "other rows": (omega_of(lambda y: square(y) + 0.3 * (y * y.roll(1, 0)).sum(-1)), "other rows"),
    "detached": (omega_of(lambda y: square(y) + square(y.detach())), "autograd does not see"),
    "a step": (omega_of(lambda y: square(y) + 0.2 * (y[..., 0] > 0.3)), "not convex"),
}


@pytest.mark.parametrize("name", UNSTEADY)
def test_a_value_that_is_no_function_of_a_row_is_refused(name):
    omega, said = UNSTEADY[name]
    with pytest.raises(RegularizerError, match=said):
        RegularizedMax(omega)(draw(20, 4))


class WrongCurvature(Regularizer):
    def value(self, y):
        return y.pow(3).sum(-1) / 6 + square(y)

    def curvature(self, y):
        return regmax.regularizers.curvature.Diagonal(2 * (1 + y))


def test_a_wrong_curvature_is_named_where_y_is_right():
    with pytest.raises(RegularizerError, match=r"WrongCurvature\.curvature contradicts"):
        RegularizedMax(WrongCurvature())(draw(4, 5))


@pytest.mark.parametrize("name", ["gini", "tv", "oscar", "tsallis", "pnorm", "entropy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_bound_holds_in_the_dtype_of_the_answer(name, dtype):
    omega = regmax.regularizer(name)
    x = draw(2000, 6, scale=2, dtype=dtype)
    solution, truth = RegularizedMax(omega).solve(x), RegularizedMax(omega).solve(x.double())
    off = (solution.y.double() - truth.y).norm(dim=-1)
    assert bool((off <= solution.error_bound.double() + truth.error_bound).all())


def test_what_solve_says_is_what_it_does():
    """A row that is not certified has a status, and raises where that is asked for."""
    kink = omega_of(lambda y: square(y) + 0.3 * torch.where(y < 0.3, 0.3 - y, y - 0.3).sum(-1))
    x = torch.cat([draw(4, 3, scale=0.3), draw(4, 3, scale=9)])
    solution = RegularizedMax(kink, on_failure="ignore").solve(x)
    assert set(solution.status.tolist()) == {Status.CONVERGED, Status.STALLED}
    with pytest.raises(ConvergenceError, match="not differentiable"):
        RegularizedMax(kink, on_failure="raise").solve(x)
    sound = solution.status == Status.CONVERGED
    RegularizedMax(kink, on_failure="raise").solve(x[sound])
    with pytest.raises(ConvergenceError, match="rows are not certified to 1e-12"):
        RegularizedMax(regmax.regularizer("gini"), tol=1e-12, on_failure="raise").solve(x.float())


def test_a_value_in_float32_has_the_bound_of_float32():
    x, single = draw(50, 5), omega_of(lambda y: square(y.float()).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solution = RegularizedMax(single).solve(x)
    assert bool(((solution.y - sparsemax(x)).norm(dim=-1) <= solution.error_bound).all())


# -- penalties -------------------------------------------------------------------------------------


class Distances(Penalty):
    """R(y) = Σ |y_i − c|: with kinks inside Δ."""

    def value(self, y, mask=None):
        return (y - 0.3).abs().sum(-1)

    def prox(self, v, step, mask=None):
        return 0.3 + (v - 0.3).sign() * ((v - 0.3).abs() - step).clamp_min(0)


@pytest.mark.parametrize("base", ["gini", "entropy", "tsallis"])
def test_a_penalty_outside_the_theorem_is_solved_as_a_whole(base):
    pytest.importorskip("cvxpylayers")
    omega = regmax.regularizer(base) + 0.5 * GroupNorm([2, 3])
    x = draw(6, 5)
    solution = RegularizedMax(omega).solve(x)
    assert solution.converged.all()
    assert "theorem" not in RegularizedMax(omega).explain(x)
    report = regmax.crosscheck(omega, x, against=("generic", "cvxpylayers"))
    assert report.ok, str(report)


def test_a_prox_that_does_not_fit_is_refused_where_failures_are_ignored():
    omega = regmax.regularizer("gini") + 0.5 * GroupNorm([2, 3], factor=1.5)
    with pytest.raises(RegularizerError, match=r"GroupNorm\.prox and GroupNorm\.value do not fit"):
        RegularizedMax(omega, on_failure="ignore")(draw(6, 5))


# torch's forward mode compiles its own decompositions when it is first used
@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")
def test_its_derivatives():
    x = draw(2, 5, seed=3).requires_grad_()
    lam = torch.tensor(0.5, dtype=F64, requires_grad=True)
    gamma = torch.full((2, 1), 0.7, dtype=F64, requires_grad=True)

    def mapping(x, lam, gamma):
        omega = regmax.regularizer("tsallis", alpha=1.5) + lam * GroupNorm([2, 3])
        return RegularizedMax(omega, gamma)(x)

    torch.autograd.gradcheck(mapping, (x, lam, gamma), fast_mode=True)
    torch.autograd.gradgradcheck(mapping, (x, lam, gamma), fast_mode=True)
    expected = torch.func.jacrev(mapping)(x, lam, gamma)
    torch.testing.assert_close(torch.func.jacfwd(mapping)(x, lam, gamma), expected)


def test_where_it_has_a_kink_the_gradient_is_that_along_it():
    x = torch.tensor([[0.1, 0.0, 0.05]], dtype=F64, requires_grad=True)
    solution = RegularizedMax(regmax.regularizer("gini") + 0.5 * Distances()).solve(x)
    assert solution.status.item() == Status.CONVERGED
    v = torch.tensor([[1.0, 0.3, -0.5]], dtype=F64)
    expected = torch.tensor([[0.75, 0.0, -0.75]], dtype=F64)  # the second entry stays at 0.3
    torch.testing.assert_close(torch.autograd.grad(solution.y, x, v)[0], expected)


def test_a_base_that_is_not_permutation_invariant_is_not_composed_in_silence():
    lie = omega_of(lambda y: square(torch.arange(1, 6).sqrt() * y), permutation_invariant=True)
    omega = lie + 0.3 * regmax.penalty("grid_tv", shape=(1, 5))
    with pytest.raises(ConvergenceError, match="Mine"):
        RegularizedMax(omega, on_failure="raise")(draw(6, 5))


def test_a_lovasz_extension_needs_its_groups():
    class Bare(GroupNorm):
        lovasz = True

    with pytest.raises(NotImplementedError, match=r"Bare declares lovasz = True and defines no"):
        RegularizedMax(regmax.regularizer("gini") + Bare([2, 3]))(draw(6, 5))


# -- the switch ------------------------------------------------------------------------------------


class Off(Regularizer):
    """A closed form with an error of 1e-5."""

    def value(self, y):
        return square(y)

    def closed_form(self, x, gamma, mask=None):
        y: Tensor = sparsemax(x, gamma=gamma, mask=mask)
        return (1 - 1e-5) * y + 1e-5 / x.shape[-1]


class OffCurvature(Off):
    def closed_form(self, x, gamma, mask=None):
        return sparsemax(x, gamma=gamma, mask=mask)

    def curvature(self, y):
        return regmax.regularizers.curvature.Diagonal(torch.full_like(y, 2.0))


class NoZeros(Off):
    """A closed form that is right to ``floor``, which is where y is 0."""

    def __init__(self, floor):
        self.floor = floor

    def closed_form(self, x, gamma, mask=None):
        return sparsemax(x, gamma=gamma, mask=mask).clamp_min(self.floor)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("floor", [1e-12, 1e-40])
def test_an_entry_next_to_0_that_is_0_is_refused(floor, dtype):
    x, said = draw(3, 5, scale=4, dtype=dtype), r"NoZeros.* gives .*, where y is 0"
    with pytest.raises(RegularizerError, match=said):
        RegularizedMax(NoZeros(floor)).solve(x)
    with pytest.raises(RegularizerError, match=said):
        RegularizedMax(NoZeros(floor), certify=True)(x)
    # tiny entries that are right
    steep = regmax.regularizer("tsallis", alpha=1.05)
    assert RegularizedMax(steep).solve(draw(20, 50, scale=30, dtype=dtype)).converged.all()


def test_a_norm_that_calls_itself_a_lovasz_extension_is_refused():
    class Called(GroupNorm):
        lovasz = True

        def groups(self, z, mask=None):
            return torch.arange(z.shape[-1]).expand(z.shape)

        def subgradient(self, y, near, step, mask=None):
            return step * self.any_subgradient(y)

    with pytest.raises(RegularizerError, match=r"Called declares lovasz = True, and R\(s \+ t\)"):
        RegularizedMax(regmax.regularizer("gini") + 0.01 * Called([5]))(draw(6, 5))


def test_certify_certifies_every_call():
    x, target = draw(3, 5).requires_grad_(), torch.tensor([0, 1, 2])
    calls = {
        "layer": lambda omega: RegularizedMax(omega, certify=True)(x),
        "loss": lambda omega: regmax.FenchelYoungLoss(omega, certify=True)(x, target),
        "attention": lambda omega: regmax.nn.attention(x, x, x, omega, certify=True),
    }
    for call in calls.values():
        with pytest.warns(ConvergenceWarning, match="the mapping of Off"):
            call(Off())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in ("gini", "entropy", "tv", "oscar", "pnorm", "tsallis"):
                call(regmax.regularizer(name))
    with pytest.raises(RegularizerError, match="product of backward is off"):
        RegularizedMax(OffCurvature(), certify=True)(x)
    missing = x.detach().clone()  # a row without participants, and one that is NaN
    missing[0], missing[1, 0] = -torch.inf, torch.nan
    RegularizedMax(regmax.regularizer("gini"), certify=True)(missing.requires_grad_())
    with pytest.raises(TypeError, match="certify must be a bool"):
        RegularizedMax(Off(), certify="yes")
    assert "certify=True" in repr(RegularizedMax(regmax.regularizer("gini"), certify=True))
