"""Π_Ω on domains other than the simplex: conic solvers and hard rows."""

import contextlib

import pytest
import torch
from mapping_checks import normal
from omegas import Inverse, omega_of

import regmax
from regmax import AtMost, Box, ConvergenceWarning, RegularizedMax, Simplex, Transport
from regmax.optimality.certificates import certify
from regmax.optimality.problem import Problem
from regmax.testing.inputs import VALUES, hard_values

F64 = torch.float64


class Coupled(regmax.Regularizer):
    def value(self, y):
        return y.square().sum(-1) / 2 + (y[..., 1:] - y[..., :-1]).square().sum(-1)

    def as_cvxpy(self, y):
        import cvxpy

        return cvxpy.sum_squares(y) / 2 + cvxpy.sum_squares(cvxpy.diff(y))


def jacobian(f):
    return lambda t: torch.autograd.functional.jacobian(f, t)


OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "entropy": lambda: regmax.regularizer("entropy"),
    "tsallis 0.5": lambda: regmax.regularizer("tsallis", alpha=0.5),
    "tsallis 1.5": lambda: regmax.regularizer("tsallis", alpha=1.5),
    "tsallis 3": lambda: regmax.regularizer("tsallis", alpha=3.0),
    "scaled": lambda: 2 * regmax.regularizer("tsallis", alpha=1.25),
    "separable": Inverse,
    "pnorm": lambda: regmax.regularizer("pnorm", p=1.5),
    "coupled": Coupled,
    "tv": lambda: regmax.regularizer("tv", lam=0.3),
}
DOMAINS = {
    "capped": lambda: Simplex(1.0, 0.0, 0.5),
    "between": lambda: Simplex(1.7, 0.1, 0.6),
    "total": lambda: Simplex(2.0),
    "at most": lambda: AtMost(1.2, 0.7),
    "at most, wide": lambda: AtMost(3.0),
    "box": lambda: Box(0.1, 0.9),
    "box to 2": lambda: Box(0.0, 2.0),
}
THRESHOLDS = ("gini", "entropy", "tsallis 0.5", "tsallis 1.5", "tsallis 3", "scaled", "separable")
FREE = ("at most", "at most, wide", "box", "box to 2")


def made(name, domain):
    if name == "tv" and domain in FREE:
        pytest.skip("a penalty needs a fixed sum")
    return OMEGAS[name](), DOMAINS[domain]()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", OMEGAS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_answers_and_maxima_are_those_of_a_conic_solver(name, domain):
    """Each is certified; of some, as the solver finds them that knows the value alone."""
    cvxpy = pytest.importorskip("cvxpy")
    omega, d = made(name, domain)
    layer, mask = RegularizedMax(omega, 0.8, domain=d), torch.ones(3, 6, dtype=torch.bool)
    mask[0, 1] = name in ("coupled", "tv")
    against = ("cvxpy", "cvxpylayers", *["generic"] * (name in ("tsallis 3", "coupled")))
    for scale in (0.3, 8.0):
        x = normal(3, 6, seed=int(10 * scale), scale=scale)
        report = regmax.crosscheck(omega, x, against, gamma=0.8, mask=mask, domain=d)
        assert report.ok, report
        assert report.skipped == ["cvxpylayers: it takes the simplex alone; cvxpy takes domains"]
        y = cvxpy.Variable(6)
        y.value = layer(x)[0].numpy()
        best = (x[0].numpy() @ y.value) - 0.8 * omega.as_cvxpy(y).value
        assert layer.max(x)[0].item() == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", THRESHOLDS)
def test_hard_rows_are_on_their_domain(name, values, dtype):
    d = 9
    x = hard_values(values, 4, d, dtype)
    omega, eps = OMEGAS[name](), torch.finfo(dtype).eps
    for domain in (Simplex(2.5, upper=0.4), Simplex(1.0, 0.05, 0.5), AtMost(1.5, 0.7), Box(0.1)):
        y = RegularizedMax(omega, domain=domain)(x)
        bounds = domain.region(x, -1, None)
        assert (bounds.off(y) == 0).all()
        if bounds.total is not None:
            assert (bounds.excess(y) <= 2 * eps * d**0.5 * bounds.total.squeeze(-1)).all()


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_simplex_with_idle_bounds_is_the_simplex(name):
    omega, x = OMEGAS[name](), normal(16, 7, seed=4, scale=2.0)
    plain = RegularizedMax(omega)
    own = RegularizedMax(omega, domain=Simplex(upper=1.0))
    assert (plain(x) - own(x)).abs().max() <= 1e-12
    assert RegularizedMax(omega, domain=Simplex()).domain is None


@pytest.mark.parametrize("alpha", [4.0, 10.0, 20.0])
def test_a_curvature_that_vanishes_at_0_has_the_digits_of_the_threshold(alpha):
    x, omega = normal(64, 64), regmax.regularizer("tsallis", alpha=alpha)
    y = RegularizedMax(omega, domain=Simplex(upper=1.0))(x)
    assert (y - RegularizedMax(omega)(x)).abs().max() <= 1e-14


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", ["tsallis 1.5", "tv"])
def test_masked_entries_are_0_and_other_rows_are_as_without_them(name, domain):
    omega, d = made(name, domain)
    x = normal(6, 8, seed=5)
    mask = torch.ones(6, 8, dtype=torch.bool)
    mask[:, 2] = mask[0, 5] = False
    whole = RegularizedMax(omega, domain=d)
    y = whole(x, mask)
    for i in range(6):
        assert (y[i, ~mask[i]] == 0).all()
        assert torch.allclose(y[i, mask[i]], whole(x[i, mask[i]]), rtol=0, atol=1e-14)
    x[1, 3] = torch.nan
    mask[2] = False
    y = whole(x, mask)
    assert y[1].isnan().all()
    assert (y[2] == 0).all()
    assert y[[0, 3, 4, 5]].isfinite().all()


def test_other_dimensions_and_dtypes():
    x = normal(3, 7, 4, seed=6)
    caps = torch.linspace(0.2, 0.5, 7, dtype=F64)
    y = regmax.functional.sparsemax(x, dim=1, domain=Simplex(upper=caps.view(7, 1)))
    other = regmax.functional.sparsemax(x.movedim(1, -1), domain=Simplex(upper=caps))
    assert torch.equal(y, other.movedim(-1, 1))
    half = regmax.functional.sparsemax(x.half(), dim=1, domain=Simplex(upper=0.25))
    assert half.dtype == torch.float16
    assert half.max() == 0.25
    assert regmax.functional.sparsemax(x[:0], domain=Box()).shape == (0, 7, 4)


def test_rows_without_a_point_are_refused():
    x = normal(2, 4, seed=7)
    with pytest.raises(ValueError, match=r"sum = 3 at row \(0,\): the upper bounds .* sum to 2"):
        regmax.functional.sparsemax(x, domain=Simplex(3.0, upper=0.5))
    with pytest.raises(ValueError, match="lower bounds"):
        regmax.functional.sparsemax(x, domain=Simplex(1.0, lower=0.3))
    with pytest.raises(ValueError, match="lower must be at most upper"):
        regmax.functional.sparsemax(x, domain=Box(0.5, 0.4))
    mask = torch.tensor([[True] * 4, [True] + [False] * 3])
    with pytest.raises(ValueError, match=r"row \(1,\)"):
        regmax.functional.sparsemax(x, mask=mask, domain=Simplex(upper=0.5))
    mask[1] = False
    assert (regmax.functional.sparsemax(x, mask=mask, domain=Simplex(upper=0.5))[1] == 0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Simplex(-0.1),
        lambda: Simplex(torch.tensor(-1.0)),
        lambda: Simplex(1.0, lower=-0.1),
        lambda: AtMost(1.0, torch.inf),
        lambda: Box(upper=-1.0),
    ],
)
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_what_takes_no_domain_refuses_it():
    x = normal(2, 4, seed=8)
    approximate = regmax.regularizer("oscar", lam=0.1, exact=False)
    for call in (
        lambda: RegularizedMax(OMEGAS["tv"](), domain=Box())(x),
        lambda: RegularizedMax(approximate, domain=Simplex(2.0))(x),
        lambda: RegularizedMax(OMEGAS["tv"](), domain=Simplex(upper=x.sigmoid()))(x),
    ):
        with pytest.raises(NotImplementedError, match="domain="):
            call()
    with pytest.raises(ValueError, match="simplex alone"):
        RegularizedMax(OMEGAS["gini"](), solver="fista", domain=Box())(x)
    with pytest.raises(TypeError, match="domain must be"):
        RegularizedMax(OMEGAS["gini"](), domain="box")


def test_a_slope_that_autograd_does_not_find_at_the_largest_y():
    class Half(regmax.Regularizer):
        """Σ y log y + (½ − y) log(½ − y), whose slope at ½ is 0/0 by autograd."""

        separable, highest = True, 0.5

        def value(self, y):
            return (y * y.log() + (0.5 - y) * (0.5 - y).log()).sum(-1)

        def inverse(self, u):
            return 0.5 * u.sigmoid()

    x = normal(16, 8, seed=4)
    solution = RegularizedMax(Half(), domain=Simplex(2.0)).solve(x)
    assert (solution.error_bound < 1e-13).all()
    assert torch.allclose(solution.y.sum(-1), torch.tensor(2.0, dtype=F64), rtol=0, atol=1e-14)


def test_kinks_of_a_value_are_named():
    class Hinge(regmax.Regularizer):
        def value(self, y):
            return y.square().sum(-1) / 2 + y.diff().relu().sum(-1)

    layer = RegularizedMax(Hinge(), domain=Simplex(2.0, upper=1.0), max_iter=20)
    with pytest.warns(ConvergenceWarning, match="Hinge: its value has kinks, .* the simplex alone"):
        layer(normal(8, 6, seed=3))


@pytest.mark.parametrize(
    "domain", [Simplex(upper=0.4), Simplex(2.0, upper=0.5), Transport()], ids=str
)
def test_next_to_alpha_1_slopes_have_no_constant_beyond_their_digits(domain):
    """1/(α − 1) in each, of which only rounding of Σ Jv = 0 was left."""
    x, found = normal(4, 8, seed=12), []
    for near in (0.0, 1e-9, -1e-9):
        alpha = torch.tensor(1 + near, dtype=F64, requires_grad=True)
        layer = RegularizedMax(regmax.regularizer("tsallis", alpha=alpha), domain=domain)
        solution = layer.solve(x)
        assert (solution.error_bound < 1e-12).all()
        found += torch.autograd.grad((solution.y * x.flip(-1)).sum(), alpha)
    assert torch.allclose(torch.stack(found), found[0], rtol=1e-6)


@pytest.mark.parametrize("domain", [Simplex(0.5, 0.0, 0.025), AtMost(0.5, 0.025)], ids=str)
@pytest.mark.parametrize("name", ["entropy", "fermi_dirac", "jensen_shannon", "divergence"])
def test_caps_that_add_up_but_for_rounding_are_accepted(name, domain):
    """20 · 0.025 is above 0.5 by a rounding, which one entry has less than its cap."""
    x = normal(20, 40, seed=13, scale=1e4)
    x = x - x.amin(-1, keepdim=True) + 1
    layer = RegularizedMax(regmax.regularizer(name), domain=domain, on_failure="ignore")
    solution = layer.solve(x)
    assert (solution.error_bound < 1e-6).all()
    top = x.argsort(-1, descending=True)[:, :20]
    assert torch.allclose(solution.y.gather(-1, top), x.new_tensor(0.025), rtol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("name", ["entropy", "tsallis"])
def test_strong_convexity_is_declared_for_the_simplex_alone(name, scale):
    x = normal(4, 6, seed=11, scale=scale)
    report = regmax.crosscheck(regmax.regularizer(name), x, ("generic",), domain=Simplex(2.0))
    assert report.ok, report


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_a_score_far_above_the_others_leaves_them_their_digits(dtype):
    huge = torch.finfo(dtype).max / 2
    x = torch.tensor([[huge, 1.0, 2.0, -huge], [1e9, 1.0, 2.0, 1.75]], dtype=dtype)
    y = regmax.functional.sparsemax(x, domain=Simplex(2.0, upper=0.75))
    assert y.tolist() == [[0.75, 0.5, 0.75, 0.0], [0.75, 0.0, 0.75, 0.5]]
    assert (regmax.functional.sparsemax(x, domain=Box())[:, 0] == 1).all()


@pytest.mark.parametrize("kind", [Simplex, AtMost])
@pytest.mark.parametrize("name", ["gini", "tsallis 0.5", "separable", "pnorm", "coupled", "tv"])
def test_a_total_of_0_gives_zeros_and_leaves_other_rows_alone(name, kind):
    if name == "tv" and kind is AtMost:
        pytest.skip("a penalty needs a fixed sum")
    x = normal(3, 5, seed=3).requires_grad_()
    total = torch.tensor([[0.0], [1.5], [0.0]], dtype=F64)
    layer = RegularizedMax(OMEGAS[name](), domain=kind(total, upper=1.0))
    solution = layer.solve(x.detach())
    assert solution.converged.all()
    assert solution.error_bound[::2].max() < 1e-14
    y = layer(x)
    (grad,) = torch.autograd.grad((y * normal(3, 5, seed=4)).sum(), x)
    for row in (y, grad):
        assert (row[::2] == 0).all()
    alone = RegularizedMax(OMEGAS[name](), domain=kind(1.5, upper=1.0))(x[1])
    assert torch.allclose(y[1], alone, atol=1e-9)
    assert torch.isfinite(layer.max(x)).all()


@pytest.mark.parametrize("kernels", [True, False], ids=["kernel", "PyTorch"])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["gini", "tsallis 1.5", "tsallis 3", "separable"])
def test_at_a_vertex_weights_are_bounds_and_nothing_else(name, dtype, kernels):
    """k largest scores that are far enough above the others, by a plain comparison of slopes: no
    rounding is left beside them, and J is 0."""
    x = normal(400, 9, seed=5, scale=3.0)
    x[::4] = x[::4].round()
    x = x.to(dtype)
    # in float32 3 · 0.3 is not 0.9
    for k, u in ((2, 1.0), (3, 0.5), (4, 0.25), *([(3, 0.3)] if dtype is F64 else [])):
        omega, total = OMEGAS[name](), k * u
        slope = omega.grad(torch.tensor([[0.0, u]], dtype=F64)).squeeze(0)
        top = x.double().sort(-1, descending=True).values
        sure = top[:, k - 1] - top[:, k] > slope[1] - slope[0] + 1e-4
        assert sure.sum() > 20
        with contextlib.nullcontext() if kernels else regmax.kernels.reference():
            z = x[sure].requires_grad_()
            y = RegularizedMax(omega, domain=Simplex(total, upper=u))(z)
        cap = torch.tensor(u, dtype=dtype)
        assert ((y == 0) | (y == cap)).all(), (k, u)
        assert ((y == cap).sum(-1) == k).all()
        assert (torch.autograd.grad((y * torch.arange(9)).sum(), z)[0] == 0).all()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", ["gini", "tsallis 1.5", "separable"])
def test_bounds_of_wrong_answers_and_points_of_the_domain(name, domain):
    omega, x = OMEGAS[name](), normal(200, 6, seed=13, scale=4.0)
    region = DOMAINS[domain]().region(x, -1, None)
    exact = RegularizedMax(omega, domain=DOMAINS[domain]())(x)
    part = torch.logspace(-9, 0, len(x), dtype=F64).unsqueeze(-1)
    others = (region.best(x), region.best(-x), region.middle(x), exact.roll(1, 0))
    low = torch.full_like(x, -1.0)  # where Σy ≤ k, no y with Σy = k is right
    for z, other in (*((x, y) for y in others), (low, region.nearest(low + 9))):
        right = RegularizedMax(omega, domain=DOMAINS[domain]())(z)
        y = right + part * (other - right)
        bound = certify(Problem(omega, z, bounds=region).at(y)).error_bound
        assert ((y - right).norm(dim=-1) <= bound + 1e-14).all()
    for v in (x, x.abs(), region.middle(x) + x / 40, exact + part * x):
        inside = region.inside(v)
        assert (region.off(inside) == 0).all()
        assert region.feasible(inside).all()


def test_a_wrong_total_names_itself():
    with pytest.raises(ValueError, match="total must broadcast to x with size 1"):
        regmax.functional.sparsemax(normal(3, 5, seed=12), domain=Simplex(torch.ones(5)))


@pytest.mark.parametrize("name", ["gini", "tsallis 1.5", "coupled"])
def test_what_cannot_move_has_the_gradient_0(name):
    """The one free entry, an entry whose bounds are equal, a sum that is less than k."""
    x = torch.tensor([[5.0, 5.0, -5.0], [0.1, 0.3, 0.2]], dtype=F64, requires_grad=True)
    v, caps = normal(2, 3, seed=15), torch.tensor([0.5, 0.5, 1.0], dtype=F64)
    y = RegularizedMax(OMEGAS[name](), domain=Simplex(1.3, upper=caps))(x)
    assert (y[0, :2] == 0.5).all()
    assert (torch.autograd.grad(y, x, v)[0][0] == 0).all()
    low = torch.tensor([0.2, 0.0, 0.0], dtype=F64)
    y = RegularizedMax(OMEGAS[name](), domain=Simplex(1.0, low, caps.where(low == 0, low)))(x)
    (g,) = torch.autograd.grad(y, x, v)
    assert (y[:, 0] == 0.2).all()
    assert (g[:, 0] == 0).all()
    assert (g[1, 1:] != 0).all()
    total = torch.tensor(9.0, dtype=F64, requires_grad=True)
    y = RegularizedMax(OMEGAS[name](), domain=AtMost(total, 0.9))(x)
    assert torch.autograd.grad(y, total, v)[0] == 0


def test_sums_that_rounding_decides():
    """An inverse that rounds, one entry that moves, and Σy = k where it may be less."""
    x = torch.tensor([[0.32, -1.6, 0.1], [0.0, 1.0, 0.0]], dtype=F64)
    y = RegularizedMax(Inverse(), domain=Simplex(1e-3)).solve(x).y
    assert y.tolist() == [[1e-3, 0.0, 0.0], [0.0, 1e-3, 0.0]]
    lower = torch.tensor([0.5, 0.07495438806314239, 0.125], dtype=F64)
    upper = torch.tensor([0.5, 0.5, 0.5], dtype=F64)
    y = RegularizedMax(OMEGAS["tsallis 3"](), domain=Simplex(1.0, lower, upper)).solve(x[:1]).y
    assert y[0, :2].tolist() == lower[:2].tolist()
    assert (RegularizedMax(Inverse(), domain=Simplex(0.3, 0.1))(x) == 0.1).all()  # 0.1 · 3 > 0.3
    tiny = torch.tensor([[1e-97, 1e-29, 0.0126]], dtype=F64)
    y = RegularizedMax(regmax.regularizer("tsallis", alpha=1.9), domain=AtMost(1e-3)).solve(tiny).y
    assert y.tolist() == [[0.0, 0.0, 1e-3]]


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0, 3000.0])
@pytest.mark.parametrize(
    "domain",
    [
        Simplex(1.3, lower=0.07),
        Simplex(3.0),
        Simplex(0.17, lower=torch.tensor([0.017, 0.01, 0.002] * 4)),
        Simplex(2.678, lower=0.05, upper=2.0),
        Simplex(2.5, torch.tensor([1.0] + [0.0] * 11), torch.tensor([1.0] + [2.5] * 11)),
    ],
    ids=str,
)
def test_one_entry_that_takes_all_leaves_the_others_at_their_bounds(domain, scale, dtype):
    x = torch.randn(50, 12, dtype=dtype, generator=torch.Generator().manual_seed(2)) * scale
    x[0], x[1, 1:], x[2] = 0.0, x[1, 1], x[2].round()
    for omega in (regmax.regularizer("gini"), regmax.regularizer("tsallis", alpha=1.5)):
        layer = RegularizedMax(omega, domain=domain)
        solution = layer.solve(x)
        assert solution.converged.all()
        ulps = 16 * torch.finfo(dtype).eps * max(1.0, scale if dtype == F64 else 1.0)
        assert torch.allclose(layer(x), solution.y, atol=ulps)


@pytest.mark.parametrize("domain", [Simplex, AtMost])
def test_the_multiplier_of_wide_scores_is_that_of_the_large_entries(domain):
    """Of the entropy it is γ(log Σ exp(x/γ) − log k − 1); y next to 0 do not tell it."""
    x = 50 * normal(20, 6, seed=16).abs()
    total = torch.full((20, 1), 1.5, dtype=F64, requires_grad=True)
    best = RegularizedMax(OMEGAS["entropy"](), 0.7, domain=domain(total)).max(x)
    (found,) = torch.autograd.grad(best.sum(), total)
    expected = 0.7 * ((x / 0.7).logsumexp(-1, keepdim=True) - total.log() - 1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("transform", [torch.func.jacrev, jacobian])
def test_an_entry_next_to_0_takes_no_part_of_what_a_bound_leaves(transform):
    x = torch.tensor([44.3, -13.9, 9.0], dtype=F64)
    omega = omega_of(lambda y: (torch.xlogy(y, y) + 0.35 * y.square()).sum(-1))

    def y(upper):
        return RegularizedMax(omega, 0.3, domain=AtMost(1.3, upper))(x)

    found = transform(y)(torch.tensor([0.63, 0.92, 0.94], dtype=F64))
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=F64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [8, 64])
@pytest.mark.parametrize("name", ["entropy", "jensen_shannon", "written"])
def test_wide_scores_agree_in_the_cross_check(name, d):
    x, omega = (
        10 * normal(20, d, seed=12),
        omega_of(lambda y: (torch.xlogy(y, y) + y * y / 2).sum(-1)),
    )
    omega = omega if name == "written" else regmax.regularizer(name)
    report = regmax.crosscheck(omega, x, ("generic",), domain=Simplex(3.0, 0.0, 1.0))
    assert report.ok, report


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_curvatures_beyond_the_square_root_of_the_largest_number_are_taken():
    def both(y):
        total, steps = 1 + y.sum(-1) / 2, y.diff(dim=-1).square().sum(-1) / 2
        return torch.xlogy(y, y).sum(-1) + torch.xlogy(total, total) + steps

    x = 100 * torch.randn(10, 8, generator=torch.Generator().manual_seed(2), dtype=F64)
    layer = RegularizedMax(omega_of(both), domain=Simplex(3.0, 0.0, 1.0), on_failure="ignore")
    assert (layer.solve(x).y >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["gini", "entropy", "jensen_shannon", "fermi_dirac"])
def test_right_answers_are_certified_in_each_dtype(name, dtype):
    """With a row of which no entry takes part, and a NaN."""
    x = normal(12, 8, seed=40, scale=2.0)
    x[-2:] *= 20
    x[0], x[1, 3] = -torch.inf, torch.nan
    for domain in (None, Simplex(0.5), Simplex(1.5, upper=1.0), AtMost(0.7), AtMost(2.0), Box()):
        rows = x if domain is None or not domain.fixed_total else x[1:]
        given = rows.to(dtype).requires_grad_()
        options = {"domain": domain, "on_failure": "raise"}
        y = RegularizedMax(regmax.regularizer(name), certify=True, **options)(given)
        assert y.dtype == dtype
        plain = RegularizedMax(regmax.regularizer(name), **options)(given)
        torch.testing.assert_close(y, plain, rtol=0, atol=0, equal_nan=True)
