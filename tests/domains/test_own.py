"""Domains of the user's own, known by their projection: a cut simplex and a ball."""

import pytest
import torch
from omegas import omega_of

import regmax
from regmax.testing import check_domain

F64 = torch.float64
A = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.1], dtype=F64)


def on_simplex(v, mask):
    v = v if mask is None else v.masked_fill(~mask, -torch.inf)
    s = v.sort(-1, descending=True).values
    s, some = torch.where(s > -torch.inf, s, 0), s > -torch.inf
    tau = (s.cumsum(-1) - 1) / torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    count = ((s > tau) & some).sum(-1, keepdim=True).clamp_min(1)
    return (v - tau.gather(-1, count - 1)).clamp_min(0)


class Cut(regmax.Domain):
    """{y ≥ 0, Σy = 1, ⟨a, y⟩ ≤ b}: P(v) = P_Δ(v − μa) for some μ ≥ 0, by bisection."""

    arguments = ("a", "b")
    fixed_total = True

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def project(self, v, mask):
        a, b, free = self.a, self.b, on_simplex(v, mask)
        with torch.no_grad():
            over = (a * free).sum(-1, keepdim=True) > b
            low, high = torch.zeros_like(v[..., :1]), 1 + 1e3 * v.abs().amax(-1, keepdim=True)
            for _ in range(80):
                mid = (low + high) / 2
                more = (a * on_simplex(v - mid * a, mask)).sum(-1, keepdim=True) > b
                low, high = torch.where(more, mid, low), torch.where(more, high, mid)
            on = (on_simplex(v - high * a, mask) > 0).to(v.dtype)
        n = on.sum(-1, keepdim=True)
        mean = (on * a).sum(-1, keepdim=True) / n
        da, dv = on * (a - mean), on * (v - (on * v).sum(-1, keepdim=True) / n)
        size = (da * da).sum(-1, keepdim=True)
        mu = ((da * dv).sum(-1, keepdim=True) + mean - b) / torch.where(size > 0, size, 1)
        cut = on / n + dv - torch.where(size > 0, mu, 0) * da
        return torch.where(over, cut.clamp_min(0), free)

    def as_cvxpy(self, y):
        import cvxpy

        return [y >= 0, cvxpy.sum(y) == 1, self.a.detach().numpy() @ y <= float(self.b)]


class Ball(regmax.Domain):
    """{‖y − center‖₂ ≤ radius}."""

    arguments = ("center", "radius")

    def __init__(self, center=0.0, radius=1.0):  # need not call super()
        self.center, self.radius = center, radius

    def project(self, v, mask):
        away = v - self.center
        away = away if mask is None else torch.where(mask, away, 0)
        far = away.square().sum(-1, keepdim=True)
        out = far > self.radius**2
        part = torch.where(out, self.radius / torch.where(out, far, 1).sqrt(), 1)
        y = self.center + part * away
        return y if mask is None else torch.where(mask, y, 0)

    def as_cvxpy(self, y):
        import cvxpy

        center = self.center.detach().numpy() if torch.is_tensor(self.center) else self.center
        return [cvxpy.norm(y - center) <= float(self.radius)]


BALL = Ball(torch.full((5,), 0.4, dtype=F64), 0.3)
CUT = Cut(A, 0.8)
OMEGAS = {
    "gini": regmax.regularizer("gini"),
    "tsallis": regmax.regularizer("tsallis", alpha=1.5),
    "value": omega_of(lambda y: ((1 + torch.arange(y.shape[-1])) * y.square()).sum(-1) / 2),
}


@pytest.mark.parametrize("domain", [CUT, BALL, Ball()], ids=["cut", "ball", "unit"])
def test_the_kit_passes(domain):
    check_domain(domain)


@pytest.mark.parametrize("other", [3, regmax.Box(), regmax.Transport()])
def test_the_kit_is_for_domains_of_ones_own(other):
    with pytest.raises(TypeError, match=r"domain must be a regmax.Domain of your own, .* got \w+"):
        check_domain(other)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda p, v: 0.99 * p, r"P\(P\(v\)\) = P\(v\)"),
        (lambda p, v: p + 0.1 * (torch.roll(p, 1, -1) - p) * (v != p), "⟨v − P"),
        (lambda p, v: v + (p - v).detach(), "eigenvalues|by differences"),
    ],
)
def test_the_kit_fails_for_what_is_no_projection(wrong, named):
    class Wrong(Ball):
        def project(self, v, mask):
            return wrong(super().project(v, mask), v)

    with pytest.raises(AssertionError, match=named):
        check_domain(Wrong())


@pytest.mark.parametrize(("kind", "name"), [(Cut, "gini"), (Ball, "gini"), (Ball, "value")])
def test_derivatives(kind, name):
    torch.manual_seed(2)
    first = A[:4] if kind is Cut else torch.full((4,), 0.4, dtype=F64)
    given = [first.clone(), torch.tensor(0.8 if kind is Cut else 0.3, dtype=F64)]
    inputs = [torch.randn(1, 4, dtype=F64), torch.tensor(0.7, dtype=F64), *given]
    inputs = [t.requires_grad_() for t in inputs]

    def layer(gamma, *tensors):
        return regmax.RegularizedMax(OMEGAS[name], gamma=gamma, domain=kind(*tensors))

    assert torch.autograd.gradcheck(lambda x, *rest: layer(*rest)(x), inputs)
    assert torch.autograd.gradcheck(lambda x, *rest: layer(*rest).max(x), inputs)
    if kind is Ball:
        assert torch.autograd.gradgradcheck(lambda x, *rest: layer(*rest)(x), inputs)


def test_derivative_in_a_hyperparameter():
    x = torch.tensor([[0.3, 1.2, -0.4, 0.1, 0.5]], dtype=F64, requires_grad=True)
    alpha = torch.tensor(1.5, dtype=F64, requires_grad=True)

    def mapping(x, alpha):
        omega = regmax.regularizer("tsallis", alpha=alpha)
        return regmax.RegularizedMax(omega, domain=BALL)(x)

    assert torch.autograd.gradcheck(mapping, (x, alpha))


def test_a_penalty_needs_what_the_theorem_needs():
    omega, x = OMEGAS["gini"] + 0.1 * regmax.penalty("tv"), torch.randn(3, 5, dtype=F64)

    class Same(regmax.Domain):
        fixed_total = permutation_invariant = True

        def project(self, v, mask):
            return on_simplex(v, mask)

    y = regmax.RegularizedMax(omega, domain=Same())(x)
    assert torch.allclose(y, regmax.RegularizedMax(omega)(x), atol=1e-10)
    with pytest.raises(NotImplementedError, match="where Ω has a penalty"):
        regmax.RegularizedMax(omega, domain=CUT)(x)


def test_losses_and_attention():
    torch.manual_seed(3)
    x, t = (
        torch.randn(4, 5, dtype=F64, requires_grad=True),
        CUT.project(torch.randn(4, 5).double(), None),
    )
    loss = regmax.SparsemaxLoss(domain=CUT, reduction="sum")
    loss(x, t).backward()
    assert torch.allclose(x.grad, loss.mapping(x) - t, atol=1e-12)
    with pytest.raises(ValueError, match="target must be a point of the domain"):
        loss(x, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="target must lie in the domain"):
        loss(x, torch.zeros(4, 5, dtype=F64))
    radius = torch.tensor(0.3, requires_grad=True)
    q, k, v = torch.randn(3, 1, 4, 8).unbind(0)
    regmax.nn.attention(q, k, v, "sparsemax", domain=Ball(0.25, radius)).sum().backward()
    assert radius.grad.abs() > 0


class Plane(regmax.Domain):
    """{⟨a, y⟩ = b}; everything for a = 0."""

    arguments = ("a", "b")

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def project(self, v, mask):
        size = (self.a * self.a).sum(-1, keepdim=True).clamp_min(1e-300)
        return v - ((self.a * v).sum(-1, keepdim=True) - self.b) / size * self.a


@pytest.mark.parametrize(
    "domain", [Plane(0 * A[:2], 0.0), Ball(torch.tensor([0.3, -0.2], dtype=F64), 12.0)]
)
@pytest.mark.parametrize("gamma", [1.0, 0.01, 0.003])
def test_entries_below_0_from_a_start_inside_of_the_domain(domain, gamma):
    """Where Ω rises like an exponential, Newton's first steps lead as far as its slope goes."""
    omega = omega_of(lambda y: y.cosh().sum(-1))
    x = torch.tensor([[1.0, -0.5], [-0.3, 0.7], [-1.0, -1.0]], dtype=F64)
    solution = regmax.RegularizedMax(omega, gamma=gamma, domain=domain).solve(x)
    torch.testing.assert_close(solution.y, (x / gamma).asinh(), rtol=1e-9, atol=1e-9)
    assert solution.converged.all()


def test_norms_of_the_jacobian_count_entries_that_are_not_above_0():
    x = torch.tensor([[0.2, -0.1, 0.0], [2.0, -3.0, -1.0], [-1.0, -2.0, 0.0]], dtype=F64)
    layer = regmax.RegularizedMax(OMEGAS["gini"], domain=Ball())
    j, dense = layer.jacobian(x, dense=False), layer.jacobian(x)
    torch.testing.assert_close(j.norm(), torch.linalg.matrix_norm(dense, 2))
    torch.testing.assert_close(j.norm("frobenius"), torch.linalg.matrix_norm(dense))
    table = regmax.analysis.sweep(OMEGAS["gini"], x, {"gamma": [1.0]}, domain=Ball()).to_dict()
    assert table["sensitivity"] == pytest.approx([j.norm().mean().item()])


@pytest.mark.parametrize("gamma", [1.0, 0.01])
def test_a_point_next_to_0_is_in_the_domain_but_for_rounding(gamma):
    a = torch.tensor([1.5409961082440433], dtype=F64)
    layer = regmax.RegularizedMax(OMEGAS["gini"], gamma=gamma, domain=Plane(a, 0.0))
    x = torch.linspace(-2, 2, 40, dtype=F64).unsqueeze(-1)
    assert (layer.solve(x).y.abs() <= 1e-12).all()


def test_a_curvature_that_overflows_along_the_domain_is_not_certified():
    domain = Plane(torch.tensor([1.0, 0.5, -0.3], dtype=F64), torch.tensor(700.0, dtype=F64))
    omega = omega_of(lambda y: y.cosh().sum(-1))
    layer = regmax.RegularizedMax(omega, gamma=10.0, domain=domain, on_failure="ignore")
    assert not layer.solve(torch.zeros(1, 3, dtype=F64)).converged.any()


def test_an_infinite_slope_in_some_entries_is_taken():
    half = omega_of(lambda y: torch.xlogy(y, y)[..., :3].sum(-1) + y.square().sum(-1) / 2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=generator, dtype=F64) / 2
    assert (regmax.RegularizedMax(half, domain=Cut(A, 10.0)).solve(x).error_bound < 1e-9).all()


def test_what_is_refused_is_named():
    layer = regmax.RegularizedMax(OMEGAS["gini"], domain=CUT)
    with pytest.raises(NotImplementedError, match=r"domain=Cut.* is not for torch\.func"):
        torch.vmap(layer)(torch.randn(2, 5, dtype=F64))
    with pytest.raises(NotImplementedError, match="a finite slope at 0; got Entropy"):
        regmax.RegularizedMax(regmax.regularizer("entropy"), domain=CUT)(torch.randn(5).double())
    with pytest.raises(ValueError, match='solver="auto" alone'):
        regmax.RegularizedMax(OMEGAS["gini"], domain=CUT, solver="newton")(torch.randn(5).double())

    class Numbers(Ball):
        def project(self, v, mask):
            return super().project(v, mask).detach()

    with pytest.raises(TypeError, match=r"Numbers\.project must be differentiable"):
        regmax.RegularizedMax(OMEGAS["gini"], domain=Numbers())(torch.randn(5))
    with pytest.raises(NotImplementedError, match=r"must define project\(v, mask\)"):
        regmax.RegularizedMax(OMEGAS["gini"], domain=regmax.Domain())(torch.randn(5))
