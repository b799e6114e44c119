"""Fenchel–Young losses on domains other than the simplex."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import regmax
from regmax import AtMost, Box, FenchelYoungLoss, Simplex

F64 = torch.float64
OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "entropy": lambda: regmax.regularizer("entropy"),
    "tsallis": lambda: regmax.regularizer("tsallis", alpha=1.5),
    "pnorm": lambda: regmax.regularizer("pnorm", p=1.5),
}


class FermiDirac(regmax.Regularizer):
    """Σ y log y + (1 − y) log (1 − y)."""

    separable = True

    def value(self, y):
        return -(torch.special.entr(y) + torch.special.entr(1 - y)).sum(-1)

    def grad(self, y):
        return torch.logit(y)

    def curvature(self, y):
        return regmax.regularizers.curvature.Diagonal(1 / (y * (1 - y)))

    def inverse(self, u):
        return torch.sigmoid(u)


def scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def multi_hot():
    t = torch.zeros(4, 6, dtype=F64)
    t[:, :2] = 1
    t[1] = torch.tensor([0.5, 0.5, 0.5, 0.5, 0, 0])
    return t


@pytest.mark.parametrize("name", OMEGAS)
def test_gradients_are_y_minus_t_and_second_derivatives_are_finite_differences(name):
    omega, t, x = OMEGAS[name](), multi_hot(), scores(4, 6).requires_grad_()
    loss = FenchelYoungLoss(omega, domain=Simplex(2.0, upper=1.0), reduction="none")
    value = loss(x, t)
    assert (value >= 0).all()
    (dx,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(dx, (loss.mapping(x) - t).detach())
    y = loss.mapping(x).detach()
    assert loss(x.detach(), y).abs().max() <= 1e-12

    def learned(x, gamma, upper):
        domain = Simplex(2.0, upper=upper)
        return FenchelYoungLoss(omega, gamma, domain=domain, reduction="sum", tol=1e-12)(x, t)

    gamma, upper = torch.tensor(0.7, dtype=F64), torch.full((6,), 1.3, dtype=F64)
    given = x, gamma.requires_grad_(), upper.requires_grad_()
    assert gradcheck(learned, given, atol=1e-5)
    assert gradgradcheck(learned, given, atol=1e-4)


def test_on_a_box_it_is_binary_cross_entropy():
    x, t = scores(4, 6), multi_hot()
    t[1] = 0
    found = FenchelYoungLoss(FermiDirac(), domain=Box(), reduction="none")(x, t)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none").sum(-1)
    assert (found - expected).abs().max() <= 1e-12


def test_at_most_one_class():
    x, t = scores(4, 6), torch.zeros(4, 6, dtype=F64)
    loss = FenchelYoungLoss(OMEGAS["gini"](), domain=AtMost(1.0), reduction="none")
    assert (loss(x - 10, t) == 0).all()  # nothing is chosen, as the target says
    assert (loss(x + 10, t) > 1).all()


def test_masks_reductions_and_dtypes():
    x, t = scores(4, 6), multi_hot()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 0] = False
    mask[2] = False
    mask[3, 5] = False
    x[3, 5] = torch.nan
    x.requires_grad_()
    loss = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0), reduction="none")
    value = loss(x, t, mask)
    assert value[0] == torch.inf
    assert value[2] == 0
    assert torch.isfinite(value[[1, 3]]).all()
    value.sum().backward()
    assert (x.grad[[0, 2]] == 0).all()
    assert torch.isfinite(x.grad).all()
    plain = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0))
    rows = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0), reduction="none")
    x = scores(4, 6)
    assert torch.allclose(plain(x, t), rows(x, t).mean())
    assert plain(x.float(), t.float()).dtype == torch.float32
    assert torch.allclose(plain(x.float(), t.float()), plain(x, t).float())


def test_wrong_targets_and_arguments_are_refused():
    x, t = scores(4, 6), multi_hot()
    loss = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0))
    with pytest.raises(ValueError, match="must lie in the domain; got one of sum 4"):
        loss(x, 2 * t)
    with pytest.raises(ValueError, match="have the shape of input"):
        loss(x, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="neither weight nor label_smoothing"):
        regmax.SparsemaxLoss(domain=Box(), label_smoothing=0.1)
    caps = torch.tensor(0.6, requires_grad=True)
    layer = regmax.RegularizedMax(regmax.regularizer("tv", lam=0.1), domain=Simplex(upper=caps))
    with pytest.raises(NotImplementedError, match="where Ω has a penalty"):
        layer.max(x)
