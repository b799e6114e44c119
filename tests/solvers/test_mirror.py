"""A coupled Ω with a logarithm, of all entries or some, at scores of any size."""

import pytest
import torch
from omegas import omega_of

import regmax
from regmax import AtMost, Box, RegularizedMax, Simplex
from regmax.testing.backends.generic import definition

F64 = torch.float64


class Quadratic(regmax.Regularizer):
    """Σ w_i y_i log y_i + ½ yᵀQy."""

    def __init__(self, q, w=1.0):
        super().__init__()
        self.q, self.w = q, w

    def value(self, y):
        return (self.w * torch.xlogy(y, y)).sum(-1) + ((y @ self.q) * y).sum(-1) / 2


class Pairs(Quadratic):
    """Its slope is infinite at 0 in groups too."""

    def value(self, y):
        s = y[..., ::2].sum(-1)
        return torch.xlogy(y, y).sum(-1) + torch.xlogy(s, s)


def matrix(d, size=1.0, seed=0):
    a = torch.randn(d, 2, generator=torch.Generator().manual_seed(1000 + seed), dtype=F64)
    return size * (a @ a.T) / d


def hard(rows, d, scale, seed=0):
    """Scores with ties, and one ulp beside a tie."""
    generator = torch.Generator().manual_seed(seed + 10 * d)
    x = scale * torch.randn(rows, d, generator=generator, dtype=F64)
    x[1, 0], x[2, 0], x[3] = x[1, 1], torch.nextafter(x[2, 1], x[2, 2]), x[3, 0]
    return x


DOMAINS = {
    "cap 1": lambda d: Simplex(upper=1.0),
    "cap": lambda d: Simplex(upper=max(0.4, 1.5 / d)),
    "subset": lambda d: Simplex(min(3.0, d - 1), upper=1.0),
    "from below": lambda d: Simplex(1.5, 0.1 / d, 0.7),
    "caps": lambda d: Simplex(upper=torch.linspace(2 / d, 1, d, dtype=F64)),
    "box": lambda d: Box(),
    "at most": lambda d: AtMost(1.5, 0.6),
}


def optimal(omega, x, y, domain, slack):
    """The optimality condition by itself, of entries that are not below what r can resolve."""
    bounds = domain.region(x, -1, None)
    at = y.detach().clamp_min(1e-290).requires_grad_()
    r = x - torch.autograd.grad(omega.value(at).sum(), at)[0]
    free = (y > bounds.low) & (y < bounds.high)
    high = torch.where(free, r, -torch.inf).amax(-1)
    low = torch.where(free, r, torch.inf).amin(-1)
    assert ((high - low) <= slack)[free.any(-1)].all(), (high - low).max()
    over = torch.where(y >= bounds.high, r, torch.inf).amin(-1)
    under = torch.where(y <= bounds.low, r, -torch.inf).amax(-1)
    some = free.any(-1)
    assert (over[some] >= low[some] - slack).all()
    assert (under[some] <= high[some] + slack).all()


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("kind", DOMAINS)
@pytest.mark.parametrize("name", ["entropy", "jensen_shannon", "fermi_dirac"])
def test_separable_ones_by_their_values(name, kind, scale):
    if name == "fermi_dirac" and kind in ("subset", "from below"):
        pytest.skip("entries are at most 1")
    omega, domain, x = regmax.regularizer(name), DOMAINS[kind](8), hard(20, 8, scale)
    layer = RegularizedMax(definition(omega), domain=domain, solver="newton", on_failure="raise")
    solution = layer.solve(x)
    assert solution.iterations.max() <= 12
    assert (solution.y - RegularizedMax(omega, domain=domain)(x)).abs().max() <= 1e-9


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("kind", DOMAINS)
def test_every_row_is_certified_in_few_steps(kind, scale):
    for d in (3, 5, 8, 16, 33, 64):
        x, omega, domain = hard(6, d, scale), Quadratic(matrix(d)), DOMAINS[kind](d)
        solution = RegularizedMax(omega, domain=domain, on_failure="raise").solve(x)
        assert solution.path == "solver newton"
        assert (solution.error_bound <= 1e-8).all()
        assert solution.iterations.max() <= 12
        if kind in ("cap 1", "cap", "from below", "caps"):
            optimal(omega, x, solution.y, domain, 1e-6 * (1 + scale))


@pytest.mark.parametrize("kind", DOMAINS)
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_weights_groups_and_masks(kind, scale):
    for d in (3, 8, 16):
        x, domain = hard(6, d, scale), DOMAINS[kind](d)
        weights = torch.linspace(0.05, 20, d, dtype=F64)
        for omega in (Quadratic(matrix(d), weights), Pairs(None)):
            solution = RegularizedMax(omega, domain=domain, on_failure="raise").solve(x)
            assert (solution.error_bound <= 1e-8).all()
    mask = torch.ones(6, d, dtype=torch.bool)
    mask[1:, 3:6] = False
    layer = RegularizedMax(Quadratic(matrix(d)), domain=domain, on_failure="raise")
    assert (layer(x, mask)[1:, 3:6] == 0).all()
    assert torch.equal(layer(x, mask)[:1], layer(x[:1]))


def test_entries_of_any_size_are_those_of_a_softmax_of_what_the_others_leave():
    """y_i = exp(z_i − τ − 1 − (Qy)_i), to digits that y itself would lose at 1e-100."""
    x, q = hard(5, 8, 100.0, 3), matrix(8)
    y = RegularizedMax(Quadratic(q), domain=Simplex(upper=0.9))(x)
    logs = x - (y @ q) - y.log()
    free = y < 0.9
    spread = torch.where(free, logs, -torch.inf).amax(-1) - torch.where(free, logs, 1e9).amin(-1)
    assert y.min() < 1e-60
    assert spread.max() < 1e-9


def test_large_couplings_and_float32():
    for size in (30.0, 1000.0):
        x, omega = hard(6, 8, 1.0), Quadratic(matrix(8, size))
        solution = RegularizedMax(omega, domain=Simplex(3.0, upper=1.0)).solve(x)
        assert (solution.error_bound <= 1e-8).all()
    x, omega = hard(6, 8, 100.0), Quadratic(matrix(8).float())
    layer = RegularizedMax(omega, domain=Simplex(upper=0.6), on_failure="raise")
    wide = RegularizedMax(Quadratic(matrix(8)), domain=Simplex(upper=0.6))(x)
    assert (layer(x.float()) - wide).abs().max() < 1e-4


def test_derivatives_next_to_0_and_to_a_cap():
    x, omega = hard(5, 5, 10.0, 1)[:1], Quadratic(matrix(5))
    for domain in (Simplex(upper=0.6), Simplex(2.0, upper=1.0), AtMost(0.8, 0.5), Box(0.0, 0.7)):
        report = regmax.crosscheck(omega, x, ("generic",), domain=domain)
        assert report.ok, report.table()
        layer = RegularizedMax(omega, domain=domain)
        assert torch.autograd.gradcheck(layer, x.clone().requires_grad_(), eps=1e-7, atol=1e-6)


class Half(Quadratic):
    """A logarithm, or another infinite slope, in the first half of the entries alone."""

    def __init__(self, q, steep="log", rest=2.0):
        super().__init__(q)
        self.steep, self.rest = steep, rest

    def value(self, y):
        first, last = y.tensor_split(2, -1)
        first = {"log": torch.xlogy(first, first), "root": -first.sqrt()}[self.steep]
        return first.sum(-1) + last.pow(self.rest).sum(-1) + ((y @ self.q) * y).sum(-1) / 2


@pytest.mark.parametrize("scale", [10.0, 100.0])
@pytest.mark.parametrize("kind", [None, "cap", "subset", "at most", "box"])
def test_an_infinite_slope_in_some_entries(kind, scale):
    for d, steep, rest in ((3, "log", 2.0), (8, "root", 1.5), (24, "log", 1.5)):
        x, omega = hard(6, d, scale), Half(matrix(d, 4.0), steep, rest)
        domain = None if kind is None else DOMAINS[kind](d)
        with regmax.kernels.reference():
            layer = RegularizedMax(omega, domain=domain, on_failure="raise")
            solution, narrow = layer.solve(x), layer(x.float())
        assert solution.path == "solver newton"
        assert (solution.error_bound <= 1e-8).all()
        assert (solution.y[:, : d // 2] > 0).all() or scale == 100
        assert (narrow - solution.y).abs().max() < 1e-4
        if kind in (None, "cap"):
            optimal(omega, x, solution.y, domain or Simplex(upper=1.0), 1e-6 * (1 + scale))
    if kind is None:
        assert (solution.y == 0).any()


def test_derivatives_where_some_entries_are_0_and_others_cannot_be():
    x = hard(4, 7, 2.0, 2)[:2]
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, 2] = False
    for domain in (None, AtMost(0.8, 0.5)):
        with regmax.kernels.reference():
            layer = RegularizedMax(Half(matrix(7)), domain=domain)
            y = layer(x, mask)
            assert (y[:, [0, 1]] > 0).all()
            inputs = (x.clone().requires_grad_(), mask)
            assert torch.autograd.gradcheck(layer, inputs, eps=1e-7, atol=1e-6)


def test_an_entropy_of_groups_takes_few_steps():
    """The logarithm of an entry is small beside that of its group."""

    def value(y):
        s = torch.stack([t.sum(-1) for t in y.tensor_split(2, -1)], -1)
        return torch.xlogy(y, y).sum(-1) / 10 + torch.xlogy(s, s).sum(-1)

    omega = omega_of(value)
    with regmax.kernels.reference():
        solution = RegularizedMax(omega, on_failure="raise").solve(hard(8, 20, 10.0))
    assert solution.path == "solver newton"
    assert solution.iterations.max() <= 15


def test_entries_that_do_not_take_part_hide_no_digits_of_a_pole():
    x = hard(8, 20, 1.0)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    q = matrix(20, 100.0)
    barrier = omega_of(lambda y: ((y @ q) * y).sum(-1) / 2 - y.log().sum(-1) / 100)
    with regmax.kernels.reference():
        solution = RegularizedMax(barrier, on_failure="raise").solve(x, mask)
    assert solution.path == "solver newton"
