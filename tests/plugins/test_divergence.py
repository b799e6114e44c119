"""Divergences from a prior and the Fermi–Dirac entropy: limits, known answers, hard inputs."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

import regmax
from regmax import AtMost, Box, FenchelYoungLoss, RegularizedMax, Simplex

F64 = torch.float64
Q = torch.tensor([0.4, 1e-3, 0.3, 0.25, 0.05], dtype=F64)
FERMI = regmax.regularizer("fermi_dirac")
SCALES = [1e-3, 1.0, 20.0, 300.0, 1e5]


def divergence(alpha, prior=Q):
    return regmax.regularizer("divergence", alpha=alpha, prior=prior)


def rows(scale, d=5, n=40):
    x = torch.randn(n, d, dtype=F64, generator=torch.Generator().manual_seed(0)) * scale
    x[0], x[1, :2], x[2, 1:], x[3, 2:] = 0.0, scale, -torch.inf, -torch.inf
    x[4, 1] = torch.nextafter(x[4, 0], x[4, 0] + 1)
    return x


def test_kl_is_softmax_with_the_logarithm_of_the_prior():
    x = rows(30.0)
    y = RegularizedMax(divergence(1.0), gamma=0.5)(x)
    assert torch.allclose(y, (2 * x + Q.log()).softmax(-1), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_with_a_prior_of_one_it_is_entmax(alpha):
    x = rows(1.0)
    assert torch.allclose(
        RegularizedMax(divergence(alpha, 1.0))(x), regmax.functional.entmax(x, alpha), atol=1e-13
    )


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5, 0.95, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("domain", [None, Simplex(2.0, upper=1.0), AtMost(1.2), Box()], ids=str)
def test_it_is_continuous_in_alpha(alpha, domain):
    at = torch.tensor([[alpha], [alpha + 1e-9]], dtype=F64)
    x = rows(2.0)[5:6].expand(2, 5)
    y = RegularizedMax(divergence(at), domain=domain)(x)
    assert torch.allclose(y[0], y[1], atol=1e-7)
    values = divergence(at).value(torch.full((2, 5), 0.2, dtype=F64))
    assert torch.allclose(values[0], values[1], rtol=1e-7)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("prior", [0.2, Q], ids=["number", "tensor"])
def test_hard_rows(scale, prior):
    x = rows(scale)
    shannon = regmax.regularizer("jensen_shannon", prior=prior)
    for omega in (shannon, *(divergence(alpha, prior) for alpha in (0.0, 0.5, 1.0, 1.5, 3.0))):
        layer = RegularizedMax(omega)
        solution = layer.solve(x)
        # where y is much larger than q, Ω is nearly flat
        assert bool((solution.error_bound < 1e-7 * max(1, scale / 1e3)).all()), omega
        with regmax.kernels.reference():
            assert torch.allclose(layer(x), solution.y, atol=1e-12), omega


def test_a_prior_broadcasts_to_the_scores():
    x = torch.randn(2, 5, 3, dtype=F64)
    y = RegularizedMax(divergence(1.0, Q.unsqueeze(-1)), dim=1)(x)
    assert torch.allclose(y, (x + Q.log().unsqueeze(-1)).softmax(1), atol=1e-14)
    loss = FenchelYoungLoss(divergence(1.0, Q.unsqueeze(-1)), reduction="sum")
    x.requires_grad_()
    (slope,) = torch.autograd.grad(loss(x, torch.zeros(2, 3, dtype=torch.long)), x)
    assert torch.allclose(slope[:, 1:], y[:, 1:], atol=1e-14)


def test_wrong_priors_are_named():
    with pytest.raises(ValueError, match="prior must be > 0; got 0"):
        divergence(1.0, torch.tensor([0.5, 0.0]))
    with pytest.raises(ValueError, match="prior must broadcast to x"):
        RegularizedMax(divergence(1.0))(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="alpha must be >= 0; got -1"):
        divergence(-1.0)


@pytest.mark.parametrize("scale", SCALES)
def test_fermi_dirac_next_to_the_vertices(scale):
    """Against bisection on the logarithm of 1 − y of the largest entry."""
    x = rows(scale)
    z = x - x.amax(-1, keepdim=True)
    others = z.scatter(-1, z.argmax(-1, keepdim=True), -torch.inf)
    low = torch.full((len(z), 1), -1e6, dtype=F64)
    high = -low
    for _ in range(200):
        tau = (low + high) / 2
        more = logsigmoid(others - tau).logsumexp(-1, keepdim=True) > logsigmoid(tau)
        low, high = torch.where(more, tau, low), torch.where(more, high, tau)
    expected = (z - low).sigmoid()
    solution = RegularizedMax(FERMI).solve(x)
    assert torch.allclose(solution.y, expected, rtol=1e-11, atol=1e-300)
    assert bool((solution.error_bound < 1e-7).all())
    assert torch.allclose(RegularizedMax(FERMI)(x.float()).double(), expected, atol=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("domain", [Simplex(2.0), Simplex(2.0, upper=0.9), AtMost(2.0)], ids=str)
def test_soft_top_k(domain, scale):
    x = rows(scale)[4:]
    high, low = x.amax(-1, keepdim=True) + 50, x.amin(-1, keepdim=True) - 50
    upper = 1.0 if domain.upper is None else domain.upper
    for _ in range(200):
        tau = (low + high) / 2
        more = (x - tau).sigmoid().clamp_max(upper).sum(-1, keepdim=True) > 2
        low, high = torch.where(more, tau, low), torch.where(more, high, tau)
    tau = low.clamp_min(0) if domain.at_most else low
    solution = RegularizedMax(FERMI, domain=domain).solve(x)
    assert torch.allclose(solution.y, (x - tau).sigmoid().clamp_max(upper), atol=1e-11)
    assert bool((solution.error_bound < 1e-6).all())
    v = torch.randn(x.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    for rows_of, atol in ((x, 1e-11), (x.float(), 3e-6)):  # by a kernel, and without
        found = []
        for kernels in (nullcontext(), regmax.kernels.reference()):
            with kernels:
                at = rows_of.clone().requires_grad_()
                y = RegularizedMax(FERMI, domain=domain)(at)
                found.append((y, torch.autograd.grad(y, at, v.to(y.dtype))[0]))
        assert torch.allclose(found[0][0], found[1][0], atol=atol)
        assert torch.allclose(found[0][1], found[1][1], atol=10 * atol)


def test_on_a_box_it_is_the_sigmoid_and_its_loss():
    x = torch.tensor([[-1e3, -50.0, -20.0, -1.0, 0.0, 0.5, 20.0, 37.0, 50.0, 1e3]], dtype=F64)
    x.requires_grad_()
    assert torch.equal(RegularizedMax(FERMI, domain=Box())(x), 1 / (1 + (-x).exp()))
    for t in (torch.zeros_like(x), torch.ones_like(x)):
        loss = FenchelYoungLoss(FERMI, domain=Box())(x, t)
        expected = binary_cross_entropy_with_logits(x, t, reduction="sum")
        assert torch.allclose(loss, expected, rtol=1e-14)
        slopes = (torch.autograd.grad(total, x)[0] for total in (loss, expected))
        assert torch.allclose(*slopes, atol=1e-15)
    with pytest.raises(ValueError, match="the upper bounds"):
        RegularizedMax(FERMI, domain=Simplex(3.0))(torch.zeros(2))


def test_convex_programs():
    pytest.importorskip("cvxpy")
    prior = torch.rand(6, 5, dtype=F64) + 0.1
    alpha = torch.tensor([[0.0], [0.5], [1.0], [1.5], [2.0], [1.0]], dtype=F64)
    x = rows(1.0)[:6]
    x[2], x[3] = x[5], x[4]
    x[5, 1] = -torch.inf
    omegas = divergence(alpha, prior), regmax.regularizer("jensen_shannon", prior=prior), FERMI
    for omega in omegas:
        for domain in (None, Simplex(2.0, upper=1.0), Box(0.0, 0.7)):
            assert regmax.crosscheck(omega, x, against=("cvxpy",), domain=domain).ok, omega
