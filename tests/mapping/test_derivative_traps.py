"""Derivatives where they have gone wrong in silence, here or elsewhere."""

import pytest
import torch
from mapping_checks import normal
from omegas import Weighted, omega_of
from torch import nn
from torch.autograd import forward_ad, grad
from torch.nn.utils import parametrize

import regmax
from regmax import RegularizedMax, Regularizer, functional, kernels

F64 = torch.float64


def loss(y):
    return (y * normal(*y.shape, seed=7)).sum()


class Steps(Regularizer):
    """½‖y‖² + λ Σ |y_{i+1} − y_i| with its closed form."""

    lam = 0.2

    def value(self, y):
        return y.square().sum(-1) / 2 + self.lam * y.diff(dim=-1).abs().sum(-1)

    def closed_form(self, x, gamma, mask=None):
        return functional.fusedmax(x / gamma, self.lam)


# -- kinks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_closed_form_on_kinks_of_the_value(dtype):
    """Also where all scores are equal, and ∇Ω at the kink is a subgradient that certifies y."""
    x = torch.cat([0.3 * normal(4, 6), torch.zeros(1, 6)]).to(dtype)
    found = []
    for omega in (Steps(), regmax.regularizer("tv", lam=Steps.lam)):
        leaf, gamma = x.clone().requires_grad_(), torch.tensor(0.7, dtype=dtype, requires_grad=True)
        found.append(grad(loss(RegularizedMax(omega, gamma)(leaf).double()), (leaf, gamma)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8 if dtype == F64 else 1e-5)


def slope(layer):
    return torch.func.grad(lambda x: layer(x)[..., 0].sum())


TRANSFORMS = {
    "grad": lambda layer, x: slope(layer)(x),
    "vmap of grad": lambda layer, x: torch.func.vmap(slope(layer))(x),
    "jvp": lambda layer, x: torch.func.jvp(layer, (x,), (x + 1,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's, of its own parts
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_closed_form_on_kinks_under_transforms(name):
    layer = RegularizedMax(Steps())
    TRANSFORMS[name](layer, 3 * normal(3, 6))  # beside the kinks
    with pytest.warns(regmax.ConvergenceWarning, match="on kinks of the value in"):
        TRANSFORMS[name](layer, torch.zeros(3, 6, dtype=F64))


class Pairs(Regularizer):
    """½‖y‖² + λ Σ_{i<j} max(y_i, y_j) with its closed form."""

    permutation_invariant = True
    lam = 0.1

    def value(self, y):
        pairs = torch.triu(torch.maximum(y.unsqueeze(-1), y.unsqueeze(-2)), 1)
        return y.square().sum(-1) / 2 + self.lam * pairs.sum((-2, -1))

    def closed_form(self, x, gamma, mask=None):
        return functional.oscarmax(x / gamma, self.lam)


def test_a_closed_form_with_a_penalty_on_kinks_of_its_value():
    """The derivatives of both kinds of kinks at once are not known."""
    x = torch.zeros(1, 6, dtype=F64, requires_grad=True)
    with pytest.warns(regmax.ConvergenceWarning, match="on kinks of the value in 1 of 1 rows"):
        RegularizedMax(Pairs() + 0.1 * regmax.penalty("tv"))(x)


def test_a_row_that_the_steps_on_kinks_lose_spoils_no_derivative():
    def value(y, w):
        a, b = y[..., 0], y[..., 1]
        return w * (y.square().sum(-1) / 2 + (a - b).relu() + (b - 0.4).relu() ** 2)

    w = torch.tensor(1.0, dtype=F64, requires_grad=True)
    x = torch.tensor([[1.0, 1.0, 0.0], [-1.612, -0.1367, 0.1552]], dtype=F64, requires_grad=True)
    v = torch.tensor([1.0, 0.3, -0.2], dtype=F64)
    together, *alone = (
        grad((RegularizedMax(omega_of(value, w=w))(rows) * v).sum(), (x, w))
        for rows in (x, x[:1], x[1:])
    )
    for a, b, c in zip(together, *alone, strict=True):
        torch.testing.assert_close(a, b + c)
    assert together[0][1].abs().sum() > 0.1


# -- slopes that are infinite at some zeros alone ------------------------------------------------


class Entropy(Regularizer):
    """Σ s log s, s = Ay, and w/2 Σ y²; Σ y log y of the first k entries."""

    def __init__(self, a, w=0.0, k=0):
        self.a, self.w, self.k = a, w, k

    def value(self, y):
        s, first = y @ self.a.T, y[..., : self.k]
        return sum(torch.xlogy(t, t).sum(-1) for t in (s, first)) + self.w * y.square().sum(-1) / 2


@pytest.mark.parametrize("case", ["maps", "groups", "first"])
@pytest.mark.parametrize("d", [6, 20])
def test_zeros_where_the_slope_is_infinite_at_others(case, d):
    """Each zero is exact, and the derivatives are those of differences."""
    generator = torch.Generator().manual_seed(d)
    maps = 0.1 + torch.rand(d + 2, d, dtype=F64, generator=generator)
    groups = torch.eye(d // 2, dtype=F64).repeat(1, 2)
    a, w, k = {"maps": (maps, 0.0, 0), "groups": (groups, 0.1, 0), "first": (maps, 0.1, d // 2)}[
        case
    ]
    layer = RegularizedMax(Entropy(a, w, k))
    x, way = 2 * normal(4, d), normal(4, d, seed=1)
    with kernels.reference():  # the solvers
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        (got,) = grad(loss(y), leaf)
        ends = [layer(x + h * way) for h in (1e-6, -1e-6)]
    assert not ((y > 0) & (y < 1e-15)).any()
    assert (y == 0).any()
    assert torch.equal(*((t == 0) for t in ends))
    expected = (loss(ends[0]) - loss(ends[1])) / 2e-6
    assert (got * way).sum().item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("low", [-25.0, -38.0, -64.0])
def test_a_small_entry_hides_no_digits_of_others(low):
    """Its curvature is 1/y = 1e10 to 1e28; a kernel is made of the value for the other row."""

    first = omega_of(lambda y: y.square().sum(-1) / 2 + torch.xlogy(y[..., :1], y[..., :1]).sum(-1))
    x = torch.tensor([[low, 0.2, 0.0, -0.1], [0.0, 0.1, 0.2, 0.3]], dtype=F64, requires_grad=True)
    y, v = RegularizedMax(first)(x), normal(4)
    assert 0 < y[0, 0] < 1e-10
    (got,) = grad(y[0], x, v)
    expected = v[1:] - v[1:].mean()
    torch.testing.assert_close(got[0, 1:], expected, rtol=0, atol=1e-9)


# -- the Ω of the forward pass ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "before", "after"), [("tsallis", "alpha", 1.5, 1.1), ("pnorm", "p", 1.5, 1.2)]
)
def test_a_number_may_move_before_backward(name, key, before, after):
    x = normal(6).requires_grad_()
    layer = RegularizedMax(regmax.regularizer(name, **{key: before}))
    (expected,) = grad(loss(layer(x)), x)
    y, m = layer(x), layer.max(x)
    setattr(layer.omega, key, after)
    assert torch.equal(grad(loss(y), x)[0], expected)
    assert torch.equal(grad(m, x)[0], y)


def test_a_tensor_that_moves_before_backward_is_noticed():
    x, alpha = normal(6).requires_grad_(), torch.tensor(1.5, dtype=F64)
    y = RegularizedMax(regmax.regularizer("tsallis", alpha=alpha))(x)
    alpha.fill_(1.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(loss(y), x)


def test_a_parameter_frozen_before_backward_stays_frozen():
    w, x = nn.Parameter(normal(6, seed=1).exp()), normal(6).requires_grad_()
    y = RegularizedMax(Weighted(w))(x)
    w.requires_grad_(False)
    grad(loss(y), x)
    assert not w.requires_grad
    alpha = nn.Parameter(torch.tensor(1.5, dtype=F64))
    layer = RegularizedMax(regmax.regularizer("tsallis", alpha=alpha))
    y, m = layer(x), layer.max(x)
    alpha.requires_grad_(False)
    assert torch.equal(grad(m, x)[0], y)
    assert not alpha.requires_grad


# -- tensors in odd places -----------------------------------------------------------------------


def test_a_tensor_in_a_list_beside_declared_hyperparameters():
    class Listed(Regularizer):
        hyperparameters = ("mu",)

        def __init__(self, mu, ws):
            self.mu, self.ws = mu, ws

        def value(self, y):
            return self.per_row("mu") * (self.ws[0] * y.square()).sum(-1) / 2

    w, x, mu = normal(6, seed=1).exp(), normal(6), torch.tensor(0.9, dtype=F64, requires_grad=True)
    (got,) = grad(loss(RegularizedMax(Listed(mu, [w]))(x)), mu)
    (expected,) = grad(loss(RegularizedMax(Weighted(mu * w))(x)), mu)
    torch.testing.assert_close(got, expected)
    with pytest.raises(regmax.RegularizerError, match="is not one of its attributes"):
        RegularizedMax(Listed(mu, [w.requires_grad_()]))(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dual_tensor_inside_a_penalty_is_seen():
    class Scaled(type(regmax.regularizer("tv").penalty)):
        def value(self, y, mask=None):
            return self.scale * super().value(y, mask)

        def prox(self, v, step, mask=None):
            return super().prox(v, step * self.scale, mask)

        def subgradient(self, y, near, step, mask=None):
            return super().subgradient(y, near, step * self.scale, mask)

        def any_subgradient(self, y, mask=None):
            return self.scale * super().any_subgradient(y, mask)

    penalty, x = Scaled(), normal(6) / 5
    scale = torch.tensor(1.3, dtype=F64)

    def f(scale):
        penalty.scale = scale
        return RegularizedMax(regmax.Penalized(regmax.regularizer("gini"), penalty, 0.1))(x)

    expected = (f(scale + 1e-6) - f(scale - 1e-6)) / 2e-6
    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(scale, torch.ones_like(scale)))
        got = forward_ad.unpack_dual(y).tangent
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)
    assert (got != 0).any()


# -- small probabilities, large weights ----------------------------------------------------------


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 80.0), (F64, 600.0)])
@pytest.mark.parametrize(
    "f", [functional.softmax, lambda x: functional.entmax(x, alpha=x.new_ones(()))]
)
def test_the_log_likelihood_of_the_improbable(f, dtype, gap):
    x = torch.tensor([0.0, -gap, 1.0], dtype=dtype, requires_grad=True)
    expected = x.detach().softmax(-1) - torch.tensor([0.0, 1.0, 0.0], dtype=dtype)
    (g,) = grad(-f(x)[1].log(), x)
    torch.testing.assert_close(g, expected, rtol=1e-5, atol=1e-30)


def test_second_derivatives_of_a_piecewise_linear_mapping_are_zero():
    """As those of torch.relu, not an error."""
    x = normal(3, 4).requires_grad_()
    for mapping in (functional.sparsemax, functional.oscarmax, RegularizedMax(Weighted(1.0))):
        (g,) = grad(loss(mapping(x)), x, create_graph=True)
        assert torch.equal(grad(g.sum(), x)[0], torch.zeros_like(x))


# -- neighbours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["entropy", "gini", "pnorm", "tsallis", "tv", "oscar"])
def test_a_spoilt_row_leaves_shared_hyperparameters_alone(name):
    gamma = torch.tensor(0.9, dtype=F64, requires_grad=True)
    layer = RegularizedMax(regmax.regularizer(name), gamma=gamma)
    x = normal(3, 4)
    x[1, 0] = torch.nan
    good = x[[0, 2]]
    for f in (layer, layer.max):
        (got,) = grad(f(x)[[0, 2]].square().sum(), gamma)
        (expected,) = grad(f(good).square().sum(), gamma)
        torch.testing.assert_close(got, expected)


# -- recorders and modes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "fusedmax", "oscarmax", "entmax"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_is_refused(name):
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace .* torch\.export"):
        torch.jit.trace(getattr(functional, name), (normal(3, 5),), check_trace=False)


# -- what rounding makes of an argument ------------------------------------------------------------


def test_a_hyperparameter_that_rounds_out_of_its_range_is_refused():
    x = normal(3, 4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"p must be in \(1, 2\]; got 1"):
        functional.pnormmax(x, p=torch.tensor(1 + 1e-9, dtype=F64))
    with pytest.raises(ValueError, match="lam must be >= 0 and finite; got inf"):
        functional.fusedmax(x, lam=float("inf"))
    with pytest.raises(TypeError, match=r"x must be floating .*float8"):
        functional.softmax(x.to(torch.float8_e4m3fn))


# -- penalties -------------------------------------------------------------------------------------


class Away(regmax.Penalty):
    """Σ |y_i − u_i|."""

    def __init__(self, u):
        self.u = u

    def value(self, y, mask=None):
        return (y - self.u).abs().sum(-1)

    def prox(self, v, step, mask=None):
        t = v - self.u
        return self.u + t.sign() * (t.abs() - step).clamp_min(0)


class AwayByWhere(Away):
    def value(self, y, mask=None):
        return torch.where(y > self.u, y - self.u, self.u - y).sum(-1)


ON_AND_OFF_A_KINK = [[0.5, 0.5, 0.1], [0.7, 0.2, 0.4]]


def test_tensors_inside_a_penalty_that_y_is_on_a_kink_of():
    x = torch.tensor(ON_AND_OFF_A_KINK, dtype=F64)
    given = [x, torch.tensor([0.3, 0.0, 0.1], dtype=F64), torch.tensor([[0.2], [0.1]], dtype=F64)]

    def f(x, u, lam):
        y = RegularizedMax(regmax.regularizer("gini") + lam * Away(u))(x)
        return (y * torch.tensor([1.0, 0.3, -0.5])).sum()

    got = grad(f(*(t.requires_grad_() for t in given)), given)
    for k, t in enumerate(got):
        way = torch.zeros(3, dtype=F64).index_fill(0, torch.tensor(k), 1e-6)
        steps = [w * (1 + g.detach().cos()) for w, g in zip(way, given, strict=True)]
        with torch.no_grad():
            ends = [f(*(g + h * s for g, s in zip(given, steps, strict=True))) for h in (1, -1)]
        expected = ((ends[0] - ends[1]) / 2).item()
        assert (t * steps[k]).sum().item() == pytest.approx(expected, abs=1e-12)
    assert got[1][2].abs() > 0.1


def test_tensors_inside_a_penalty_with_a_kink_that_is_not_known():
    """NaN in all that depends on the row on the kink, with a warning, and in nothing else."""
    x = torch.tensor(ON_AND_OFF_A_KINK, dtype=F64, requires_grad=True)
    u = torch.tensor([0.3, 0.0, 0.1], dtype=F64, requires_grad=True)
    lam = torch.tensor([[0.2], [0.1]], dtype=F64, requires_grad=True)
    layer = RegularizedMax(regmax.regularizer("gini") + lam * AwayByWhere(u), on_failure="ignore")
    with pytest.warns(regmax.ConvergenceWarning, match="not differentiable at y.*in 1 of 2 rows"):
        y = layer(x)
    dx, du, dlam = grad(y[:, 0].sum(), (x, u, lam), retain_graph=True)
    assert torch.equal(torch.isnan(dx).any(-1), torch.tensor([True, False]))
    assert torch.isnan(du).all()
    assert torch.equal(torch.isnan(dlam.squeeze(-1)), torch.tensor([True, False]))
    assert all(torch.isfinite(t).all() for t in grad(y[1, 0], (x, lam)))


# -- hyperparameters that other modules make -------------------------------------------------------


def test_a_parametrized_alpha_per_row():
    class Above(nn.Module):
        def forward(self, t):
            return 1 + t.sigmoid()

    raw, x = normal(3, 1, seed=1), normal(3, 3, 3)
    omega = regmax.regularizer("tsallis", alpha=nn.Parameter(1.5 + 0 * raw))
    parametrize.register_parametrization(omega, "alpha", Above(), unsafe=True)
    with torch.no_grad():
        omega.parametrizations.alpha.original.copy_(raw)
    y = RegularizedMax(omega, dim=0)(x)
    torch.testing.assert_close(y, functional.entmax(x, alpha=1 + raw.sigmoid(), dim=0))
    (got,) = grad(loss(y), list(omega.parameters()))
    leaf = raw.requires_grad_()
    (expected,) = grad(loss(functional.entmax(x, alpha=1 + leaf.sigmoid(), dim=0)), leaf)
    torch.testing.assert_close(got, expected)
