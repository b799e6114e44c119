"""Newton steps in compiled code, for an Ω of which no kernel is made."""

import contextlib

import pytest
import torch
from torch import Tensor

import regmax
from regmax import RegularizedMax, Regularizer, RegularizerError, functional, kernels
from regmax.optimality.problem import Problem
from regmax.solvers.compiled import compiled

pytest.importorskip("numba")
F64 = torch.float64


def opaque(y: Tensor) -> Tensor:
    """y, by operations that no kernel translates."""
    return torch.fft.irfft(torch.fft.rfft(y), y.shape[-1])


def separate(y: Tensor) -> Tensor:
    """y, entry by entry, by operations that no kernel translates."""
    return y + 0 * y.detach()


def spectrum(y):
    f = torch.fft.rfft(y)
    weights = 1 + torch.arange(f.shape[-1], dtype=y.dtype)
    return ((f.real.square() + f.imag.square()) * weights).sum(-1) / y.shape[-1]


def coupled(y, weight=0.3):
    d = y.shape[-1]
    return torch.diag_embed(y) + torch.eye(d, dtype=y.dtype) + weight


VALUES = {
    "gini": lambda y: opaque(y).square().sum(-1) / 2,
    "gini, separable": lambda y: separate(y).square().sum(-1) / 2,
    "entropy": lambda y: torch.xlogy(separate(y), separate(y)).sum(-1),
    "tsallis15": lambda y: (separate(y).pow(1.5).sum(-1) - 1) / 0.75,
    "slogdet": lambda y: y.square().sum(-1) / 2 - torch.linalg.slogdet(coupled(y, 0))[1],
    "coupled slogdet": lambda y: y.square().sum(-1) - torch.linalg.slogdet(coupled(y))[1],
    "spectrum": lambda y: spectrum(y) + y.pow(4).sum(-1),
    "spectrum and entropy": lambda y: spectrum(y) / 5 + torch.xlogy(y, y).sum(-1),
    "largest": lambda y: separate(y).square().sum(-1) / 2 + 0.1 * y.amax(-1),
}
"""``value`` of each Ω: the last has kinks."""
EXACT = {
    "gini": functional.sparsemax,
    "gini, separable": functional.sparsemax,
    "entropy": functional.softmax,
    "tsallis15": functional.entmax15,
}


def omega_of(name: str) -> Regularizer:
    return type("Opaque", (Regularizer,), {"value": lambda self, y: VALUES[name](y)})()


def scores(rows, d, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2 * torch.rand(rows, 1, generator=g, dtype=F64) - 1)
    return scale * sizes * torch.randn(rows, d, generator=g, dtype=F64)


def found(omega, x, mask=None):
    """The rows that the compiled steps solve, and their bounds."""
    problem = Problem(omega, x - x.amax(-1, keepdim=True), mask)
    solved = compiled(problem, {})
    assert solved is not None
    return solved.y, solved.certificate.error_bound


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("d", [2, 16])
def test_same_answers_as_the_solvers(name, d):
    """Within the bounds of both, with and without a mask; the gradients too."""
    omega = omega_of(name)
    layer = RegularizedMax(omega, on_failure="ignore")
    x = scores(12, d, seed=d)
    mask = torch.rand(12, d, generator=torch.Generator().manual_seed(d)) < 0.7
    mask[:, 0] = True
    for on in (None, mask):
        y, bound = found(omega, x, on)
        with kernels.reference():
            expected = layer.solve(x, mask=on)
        known = torch.isfinite(bound) & (expected.error_bound < 1e-6)
        if name != "largest":
            assert known.sum() >= 9
        assert ((y - expected.y).norm(dim=-1) <= bound + expected.error_bound)[known].all()
        assert bound[known].max() < 1e-9
        if name in EXACT:
            torch.testing.assert_close(y[known], EXACT[name](x, mask=on)[known], rtol=0, atol=1e-9)
        v, grads = torch.randn(12, d, dtype=F64, generator=torch.Generator().manual_seed(1)), []
        for context in (contextlib.nullcontext, kernels.reference):
            with context():
                leaf = x.clone().requires_grad_()
                grads += torch.autograd.grad(layer(leaf, mask=on), leaf, v)
        alike = known & ((y > 0) == (expected.y > 0)).all(-1)
        torch.testing.assert_close(grads[0][alike], grads[1][alike], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["spectrum", "slogdet", "entropy"])
def test_float32(name):
    layer, x = RegularizedMax(omega_of(name)), scores(4, 10, seed=5).float()
    assert torch.equal(layer(x), layer(x.double()).float())


class Weighted(Regularizer):
    """½ Σ w y² by numbers that regmax cannot name."""

    def __init__(self, weights):
        self.box = [weights, 0.0]

    def value(self, y):
        own, coupling = self.box
        return (own.to(y) * separate(y).square()).sum(-1) / 2 + coupling * spectrum(y)


class Coupled(Regularizer):
    """Convex where the weight is positive."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(6, dtype=F64))

    def value(self, y):
        return (self.weight * y.square()).sum(-1) / 2 + spectrum(y) / 4


def test_an_optimiser_that_changes_what_is_known():
    """The answer is that of a new Ω, to the bit; where Ω is no longer convex, an error."""
    omega, x = Coupled(), scores(3, 6, seed=4)
    layer = RegularizedMax(omega)
    for k in range(4):
        with torch.no_grad():
            omega.weight *= 1 + 0.1 * k * torch.rand(6, dtype=F64)
        new = Coupled()
        new.load_state_dict(omega.state_dict())
        assert torch.equal(layer(x), RegularizedMax(new)(x))
    with torch.no_grad():
        omega.weight.fill_(-3.0)
    with pytest.raises(RegularizerError, match="not strictly convex"):
        layer(x)


def penalized(name, penalty, lam=0.1):
    return regmax.Penalized(omega_of(name), regmax.penalty(penalty), lam)


@pytest.mark.parametrize("penalty", ["tv", "oscar"])
@pytest.mark.parametrize(
    ("name", "lam"), [("gini, separable", 0.3), ("coupled slogdet", 0.01), ("spectrum", 0.1)]
)
def test_a_penalty(name, penalty, lam):
    """Answers and gradients of the solvers, with and without a mask; members of a group are
    equal."""
    x, v = scores(9, 7, seed=9), torch.randn(9, 7, dtype=F64)
    mask = torch.rand(9, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, 0] = True
    weights = lam * (1 + torch.arange(9, dtype=F64).view(-1, 1) % 3)
    for weight, on in ((lam, None), (lam, mask), (weights, None)):
        given = weight.clone().requires_grad_() if isinstance(weight, Tensor) else weight
        layer, results = RegularizedMax(penalized(name, penalty, given)), []
        with torch.no_grad():
            _, bound = found(layer.omega, x, on)
        assert (bound < 1e-9).all()
        for context in (contextlib.nullcontext, kernels.reference):
            with context():
                leaf = x.clone().requires_grad_()
                y = layer(leaf, mask=on)
                inputs = [leaf, given] if isinstance(given, Tensor) else [leaf]
                results.append((y.detach(), *torch.autograd.grad(y, inputs, v)))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
        y, expected = results[0][0], results[1][0]
        part = torch.ones_like(y, dtype=torch.bool) if on is None else on
        ids = [layer.omega.penalty.groups(t, part) for t in (y, expected)]
        assert torch.equal(*(torch.where(part, k, 0) for k in ids))


@pytest.mark.parametrize(
    ("name", "penalty"),
    [*((name, None) for name in VALUES), ("spectrum", "tv"), ("spectrum", "oscar")],
)
def test_a_row_has_the_same_bits_in_any_batch(name, penalty):
    omega = omega_of(name) if penalty is None else penalized(name, penalty)
    layer, n = RegularizedMax(omega, on_failure="ignore"), 40 if penalty else 20
    x, v = scores(n, 6, seed=3), scores(n, 6)

    def everything(rows):
        leaf = x[rows].requires_grad_()
        solution = layer.solve(x[rows])
        (gradient,) = torch.autograd.grad(layer(leaf), leaf, v[rows])
        return solution.y, solution.error_bound, solution.iterations, gradient

    among = everything(list(range(n)))
    for rows in ([3], [5, 5], [1, 6, 4], list(range(n - 1, -1, -1))):
        for alone, all_rows in zip(everything(rows), among, strict=True):
            assert torch.equal(alone, all_rows[rows])


class Chance(Regularizer):
    def value(self, y):
        return (1 + 0.1 * torch.rand(())) * opaque(y).square().sum(-1)


class Called(Regularizer):
    """Another value at each call."""

    def __init__(self):
        self.calls = [0]

    def value(self, y):
        self.calls[0] += 1
        return (1 + 0.01 * self.calls[0]) * opaque(y).square().sum(-1)


class Among(Regularizer):
    """A value that depends on other rows."""

    def value(self, y):
        own = opaque(y)
        other = own.square().sum(-1).mean() if y.ndim < 2 else own.square().sum(-1).mean(-1)
        return own.square().sum(-1) * (1 + other.unsqueeze(-1))


class Hollow(Regularizer):
    def value(self, y):
        return opaque(y).square().sum(-1) / 2 - opaque(y).pow(3).sum(-1)


class Jump(Regularizer):
    """Curvature that autograd does not see."""

    def value(self, y):
        return opaque(y).square().sum(-1) / 2 + (y > 0.3).to(y.dtype).sum(-1)


@pytest.mark.parametrize("cls", [Chance, Called, Among, Hollow, Jump])
def test_a_wrong_value_is_refused(cls):
    for seed in range(4):
        x = scores(4, 6, seed=seed)
        solved = compiled(Problem(cls(), x - x.amax(-1, keepdim=True)), {})
        with kernels.reference():
            try:
                RegularizedMax(cls())(x)
            except RegularizerError:
                refused = True
            else:
                refused = False
        if refused:
            assert solved is None or torch.isinf(solved.certificate.error_bound).any()
            with pytest.raises(RegularizerError):
                RegularizedMax(cls())(x)


@pytest.mark.parametrize("cls", [Chance, Called, Among])
def test_with_a_penalty_a_wrong_value_is_not_certified(cls):
    for seed in range(4):
        omega, x = regmax.Penalized(cls(), regmax.penalty("tv"), 0.1), scores(4, 6, seed=seed)
        solved = compiled(Problem(omega, x - x.amax(-1, keepdim=True)), {})
        assert solved is None or torch.isinf(solved.certificate.error_bound).any()
    if cls is Chance:
        with pytest.raises(RegularizerError):
            RegularizedMax(omega)(x)


class Lying(type(regmax.penalty("tv"))):
    def subgradient(self, y, near, step, mask=None):
        return 2 * super().subgradient(y, near, step, mask)


def test_a_penalty_whose_methods_do_not_fit_is_refused():
    layer = RegularizedMax(regmax.Penalized(omega_of("spectrum"), Lying(), 0.1))
    with pytest.raises(RegularizerError, match=r"Lying\.subgradient and Lying\.value do not fit"):
        layer(scores(2, 6, seed=1))


def test_who_is_left_to_other_solvers():
    class Own(Weighted):
        def grad(self, y):
            return self.box[0].to(y) * y

    x = scores(2, 8)
    x = x - x.amax(-1, keepdim=True)
    assert compiled(Problem(Own(torch.ones(8)), x), {}) is None
    omega = Weighted(torch.ones(17))
    assert compiled(Problem(omega, scores(1, 17)), {}) is None
    with kernels.reference():
        assert compiled(Problem(Weighted(torch.ones(8)), x), {}) is None
