"""Fenchel–Young losses on domains other than the simplex."""

import pytest
import torch
from mapping_checks import normal as scores
from omegas import omega_of
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
    assert torch.allclose(dx, (loss.mapping(x) - t).detach(), rtol=0, atol=1e-15)
    y = loss.mapping(x).detach()
    assert loss(x.detach(), y).abs().max() <= 1e-12

    def learned(x, gamma, upper):
        domain = Simplex(2.0, upper=upper)
        return FenchelYoungLoss(omega, gamma, domain=domain, reduction="sum", tol=1e-12)(x, t)

    gamma, upper = torch.tensor(0.7, dtype=F64), torch.full((4,), 1.3, dtype=F64)
    x, t = x[:2, :4].detach().requires_grad_(), t[:2, :4]
    given = x, gamma.requires_grad_(), upper.requires_grad_()
    assert gradcheck(learned, given, atol=1e-5, fast_mode=True)
    if name != "pnorm":  # a solver
        assert gradgradcheck(learned, given, atol=1e-4, fast_mode=True)


def by_value():
    return omega_of(lambda y: (torch.xlogy(y, y) + torch.xlogy(1 - y, 1 - y)).sum(-1))


def test_of_a_value_it_is_binary_cross_entropy_too():
    x, t = 3 * scores(4, 6), multi_hot()
    t[1] = 0  # Ω(t) is 0 where labels are 0 and 1
    x[2] = x[2, 0]
    x.requires_grad_()
    found = FenchelYoungLoss(by_value(), domain=Box(), reduction="sum")(x, t)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(x, t, reduction="sum")
    assert abs(found - expected) <= 1e-12
    pair = [torch.autograd.grad(value, x)[0] for value in (found, expected)]
    assert (pair[0] - pair[1]).abs().max() <= 1e-12


def test_of_a_value_whose_slope_is_infinite_at_the_cap():
    x = torch.tensor([[40.0, -40.0, 0.3, 1.0], [-200.0, 700.0, 1e9, 0.0]], dtype=F64)
    t = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]], dtype=F64)
    loss = FenchelYoungLoss(by_value(), domain=Box(), on_failure="raise", reduction="none")
    expected = torch.nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none").sum(-1)
    assert torch.allclose(loss(x, t), expected, rtol=1e-14, atol=1e-12)
    assert (loss.mapping(x) - x.sigmoid()).abs().max() <= 1e-15


@pytest.mark.parametrize("name", OMEGAS)
def test_one_class_of_those_that_are_chosen(name):
    """L = max_D − max_{D, y_c = 1}, whose second part is the whole maximum with a bound put in."""
    omega, x = OMEGAS[name](), scores(4, 6).requires_grad_()
    c = torch.tensor([0, 3, 5, 5])
    domain, held = Simplex(2.0, upper=1.0), torch.nn.functional.one_hot(c, 6).double()
    loss = FenchelYoungLoss(omega, 0.7, domain=domain, reduction="none")
    whole = regmax.RegularizedMax(omega, 0.7, domain=domain)
    inner = regmax.RegularizedMax(omega, 0.7, domain=Simplex(2.0, held, 1.0))
    value = loss(x, c)
    assert (value - (whole.max(x) - inner.max(x))).abs().max() <= 1e-12
    assert (value >= -1e-12).all()
    (dx,) = torch.autograd.grad(value.sum(), x)
    assert (dx - (whole(x) - inner(x))).abs().max() <= 1e-12
    chosen = x.detach().scatter(1, c[:, None], 30.0)
    assert loss(chosen, c).abs().max() <= 1e-9
    if name != "pnorm":  # a solver
        assert gradcheck(lambda x: loss(x, c), (x,), atol=1e-5, fast_mode=True)
    # one class of one is the loss of the simplex
    plain = FenchelYoungLoss(omega, 0.7, reduction="none")
    for one in (Simplex(upper=1.0), Simplex(upper=3.0)):
        same = FenchelYoungLoss(omega, 0.7, domain=one, reduction="none")(x, c)
        assert (same - plain(x, c)).abs().max() <= 1e-12


def test_indices_have_the_conventions_of_cross_entropy():
    x, c = scores(5, 6), torch.tensor([0, 3, -100, 5, 2])
    x[2] = torch.nan  # ignored
    x[3, 0] = -torch.inf
    x.requires_grad_()
    weight = torch.linspace(0.5, 2.0, 6, dtype=F64)
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[4, 2] = False
    caps = torch.tensor([0.9, 1, 1, 1, 1, 1], dtype=F64)
    domain = Simplex(2.0, upper=1.0)
    each = regmax.SparsemaxLoss(domain=domain, reduction="none")(x, c, mask)
    assert each[2] == 0
    assert each[4] == torch.inf
    each[:4].sum().backward()
    assert (x.grad[[2, 4]] == 0).all()
    assert x.grad.isfinite().all()
    rows = each.detach()[[0, 1, 3]]
    c[4] = -100
    mean = regmax.SparsemaxLoss(domain=domain)(x, c, mask)
    assert torch.allclose(mean, rows.mean())
    mean = regmax.SparsemaxLoss(domain=domain, weight=weight)(x, c, mask)
    w = weight[c[[0, 1, 3]]]
    assert torch.allclose(mean, (w * rows).sum() / w.sum())
    total = regmax.SparsemaxLoss(domain=domain, weight=weight, reduction="sum")(x, c, mask)
    assert torch.allclose(total, (w * rows).sum())
    c[0] = 1  # class 0 cannot be chosen, and ignored rows have no class
    assert regmax.SparsemaxLoss(domain=Simplex(2.0, upper=caps))(x, c, mask).isfinite()
    assert regmax.SparsemaxLoss(domain=domain)(x[2:3], c[2:3]) == 0
    # classes on dimension 1
    deep, index = scores(2, 6, 3), torch.tensor([[0, 1, 5], [2, 2, 3]])
    loss = regmax.EntmaxLoss(domain=domain, reduction="none")
    flat = loss(deep.movedim(1, -1).reshape(6, 6), index.reshape(6))
    assert torch.allclose(loss(deep, index), flat.view(2, 3))


def test_multi_hot_targets_of_other_dtypes():
    x, t = scores(4, 6), multi_hot()
    t[1] = t[0]
    loss = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0))
    for other in (t.bool(), t.long(), t.float()):
        assert loss(x, other) == loss(x, t)
    assert loss(x.float(), t.bool()).dtype == torch.float32


def test_scores_far_from_0_keep_their_digits():
    x, t = scores(4, 6), multi_hot()
    loss = regmax.SparsemaxLoss(domain=Simplex(2.0, upper=1.0), reduction="none")
    far = 2.0**30 + (x * 2**20).round() / 2**20
    near = far - 2.0**30
    assert (loss(far, t) - loss(near, t)).abs().max() <= 1e-14
    c = torch.tensor([0, 1, 2, 3])
    assert (loss(far, c) - loss(near, c)).abs().max() <= 1e-14


@pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
def test_losses_are_compiled_and_transformed():
    x, c = scores(4, 6), torch.tensor([0, 3, -100, 5])
    torch._dynamo.reset()
    for target in (multi_hot(), c):
        loss = regmax.EntmaxLoss(domain=Simplex(2.0, upper=1.0))
        recorded = torch.compile(loss, fullgraph=True, backend="aot_eager")
        found = []
        for call in (loss, recorded):
            own = x.clone().requires_grad_()
            value = call(own, target)
            value.backward()
            found.append((value.detach(), own.grad))
        assert all((a - b).abs().max() <= 1e-12 for a, b in zip(*found, strict=True))
        grad = torch.func.grad(lambda x, loss=loss, t=target: loss(x, t))(x)
        assert (grad - found[0][1]).abs().max() <= 1e-12


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
    with pytest.raises(ValueError, match=r"target of indices .* must have shape \(4,\)"):
        loss(x, torch.zeros(3, dtype=torch.int64))
    for none in (Simplex(2.0, upper=0.9), Box(1.1, 2.0)):
        with pytest.raises(ValueError, match=r"class 0 cannot have y = 1 in the domain, at row"):
            regmax.SparsemaxLoss(domain=none)(x, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="takes weight for targets of indices alone"):
        regmax.SparsemaxLoss(domain=Box(), weight=torch.ones(6))(x, t)
    with pytest.raises(ValueError, match="takes no label_smoothing"):
        regmax.SparsemaxLoss(domain=Box(), label_smoothing=0.1)
    caps = torch.tensor(0.6, requires_grad=True)
    layer = regmax.RegularizedMax(regmax.regularizer("tv", lam=0.1), domain=Simplex(upper=caps))
    with pytest.raises(NotImplementedError, match="where Ω has a penalty"):
        layer.max(x)
