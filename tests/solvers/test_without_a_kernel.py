"""An Ω of which no kernel is made: what the solvers compute, call after call."""

import pytest
import torch
from row_checks import same_in_any_batch

import regmax
from regmax import RegularizedMax, Regularizer, RegularizerError

F64 = torch.float64


def opaque(y):
    """y, by operations that no kernel translates."""
    return torch.fft.irfft(torch.fft.rfft(y), y.shape[-1])


def separate(y):
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


def omega_of(name: str) -> Regularizer:
    return type("Opaque", (Regularizer,), {"value": lambda self, y: VALUES[name](y)})()


def scores(rows, d, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2 * torch.rand(rows, 1, generator=g, dtype=F64) - 1)
    return scale * sizes * torch.randn(rows, d, generator=g, dtype=F64)


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


def test_a_value_that_changes_between_calls():
    """The answer is that of a new Ω, to the bit."""
    omega, x = Weighted(torch.linspace(1, 2, 8)), scores(1, 8, seed=1)
    layer = RegularizedMax(omega)
    before = layer(x)
    for box in ([torch.linspace(3, 1, 8), 0.0], [torch.linspace(3, 1, 8), 0.3]):
        omega.box[:] = box
        new = Weighted(box[0])
        new.box[:] = box
        assert not torch.equal(layer(x), before)
        assert torch.equal(layer(x), RegularizedMax(new)(x))


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


@pytest.mark.parametrize(
    ("name", "penalty"),
    [
        *((name, None) for name in ("gini", "gini, separable", "entropy", "tsallis15", "spectrum")),
        *(("spectrum", penalty) for penalty in ("tv", "oscar")),
    ],
)
def test_a_row_has_the_same_bits_in_any_batch(name, penalty):
    omega = omega_of(name) if penalty is None else penalized(name, penalty)
    layer, n = RegularizedMax(omega, on_failure="ignore"), 40 if penalty else 20
    same_in_any_batch(layer, scores(n, 6, seed=3), scores(n, 6))
