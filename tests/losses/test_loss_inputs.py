"""Fenchel–Young losses: what they take and what they refuse."""

import math

import pytest
import torch
from devices import GPU
from loss_cases import F64, FORMULAS, OMEGAS, close, distributions, gradient, indices, loss_of
from mapping_checks import normal
from torch.func import vmap
from torch.nn.functional import one_hot

import regmax
from regmax.losses import FenchelYoungLoss, SoftmaxLoss, SparsemaxLoss

INF, NAN = torch.inf, torch.nan


@pytest.fixture(params=OMEGAS)
def name(request):
    return request.param


# -- rows without an answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "smoothing"), [("indices", 0.0), ("indices", 0.1), ("distributions", 0.1)]
)
def test_a_row_without_an_answer_stays_alone(name, kind, smoothing):
    x, k = 2 * normal(8, 5), torch.tensor([0, 1, 2, 3, 4, 1, -100, 2])
    x[1, 1] = -INF  # the target
    x[2] = -INF  # nothing takes part
    x[3, 0], x[4, 0] = NAN, INF
    x[5, 0] = -INF  # somebody else
    x[6] = NAN  # nobody asks
    x[7] += 1e6
    t = k if kind == "indices" else one_hot(k.clamp_min(0), 5).to(F64)
    loss = loss_of(name, reduction="none", label_smoothing=smoothing)
    leaf = x.clone().requires_grad_()
    value = loss(leaf, t)
    assert value[1:5].tolist()[:2] == [INF, 0]
    assert torch.isnan(value[3:5]).all()
    assert torch.isfinite(value[[0, 5, 7]]).all()
    if kind == "indices":
        assert value[6] == 0
    (g,) = torch.autograd.grad(value.sum(), leaf)
    assert (g[[1, 2, 3, 4, 6]] == 0).all()
    assert torch.isfinite(g).all()
    assert (g[[0, 5]] != 0).any(-1).all()
    for i in range(8):
        torch.testing.assert_close(
            loss(x[i : i + 1], t[i : i + 1]), value[i : i + 1], rtol=0, atol=1e-14, equal_nan=True
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_that_counts_costs_nothing(name, reduction):
    x = normal(4, 5)
    x[0, 0], x[1] = NAN, INF
    k = torch.full((4,), -1)
    loss = loss_of(name, reduction=reduction, ignore_index=-1, label_smoothing=0.1)
    assert (loss(x, k) == 0).all()
    assert (gradient(loss, x, k) == 0).all()
    weightless = loss_of(name, reduction=reduction, weight=torch.zeros(5))
    finite = normal(4, 5)
    assert (weightless(finite, indices(4, 5)) == 0).all()
    assert (gradient(weightless, finite, indices(4, 5)) == 0).all()
    for empty in (torch.zeros(0, dtype=torch.long), torch.zeros(0, 5, dtype=F64)):
        value = loss(torch.zeros(0, 5, dtype=F64, requires_grad=True), empty)
        assert value.sum() == 0
        value.sum().backward()


def test_a_masked_class_of_weight_0_is_no_target(name):
    """As for distributions, from which the weight removes it."""
    x, k, last = normal(4, 5), torch.tensor([1, 4, 4, 0]), torch.arange(5) == 4
    weight = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0], dtype=F64)
    for epsilon in (0.0, 0.1):
        loss = loss_of(name, weight=weight, label_smoothing=epsilon, reduction="sum")
        shares = torch.nn.functional.one_hot(k, 5).to(F64)
        close(loss(x, k, mask=~last), loss(x, shares, mask=~last))
        hidden = x.masked_fill(last, -INF)
        close(gradient(loss, hidden, k), gradient(loss, x, k, ~last))


def test_what_an_ignored_row_holds_does_not_matter(name):
    x, k = normal(7, 5), torch.tensor([1, -100, 2, -100, 0, -100, -100])
    loss = loss_of(name, weight=torch.linspace(0.5, 1, 5), label_smoothing=0.1)
    dirty, keep = x.clone(), k >= 0
    dirty[~keep] = torch.tensor([[NAN], [INF], [-INF], [1e30]], dtype=F64)
    close(loss(dirty, k), loss(x[keep], k[keep]), 1e-14)
    g = gradient(loss, dirty, k)
    close(g[keep], gradient(loss, x[keep], k[keep]), 1e-14)
    assert (g[~keep] == 0).all()


# -- layout and size ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_huge_scores(name, dtype):
    x, k = 2 * normal(4, 5, dtype=dtype), torch.tensor([1, 0, 2, 3])
    loss, last = loss_of(name, reduction="none"), torch.arange(5) == 4
    for huge in (x + 1e6, 1e4 * x, x.masked_fill(last, torch.finfo(dtype).min)):
        value, g = loss(huge, k), gradient(loss, huge, k)
        assert torch.isfinite(value).all()
        assert (value >= -1e-9).all()
        assert torch.isfinite(g).all()
        assert g.sum(-1).abs().max() < 1e-5
    low = x.masked_fill(last, torch.finfo(dtype).min)
    on = ~last.expand(4, 5)
    if name != "tv" and "+ tv" not in name and name != "fused entmax":  # neighbours stay
        torch.testing.assert_close(loss(low, k), loss(x, k, on), rtol=1e-5, atol=1e-5)


# -- what is refused ---------------------------------------------------------------------------

X, K = normal(4, 5), torch.tensor([1, 0, 2, 3])


def of(**keywords):
    return FenchelYoungLoss(regmax.regularizer("gini"), **keywords)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FenchelYoungLoss("gini"), TypeError, "omega must be .*; got str 'gini'"),
        (lambda: of(gamma=-1.0), ValueError, "gamma must be > 0; got -1"),
        (lambda: of(dim=1.0), TypeError, "dim must be an int; got 1.0"),
        (lambda: of(reduction="avg"), ValueError, "reduction must be .*; got 'avg'"),
        (lambda: of(weight=[1, 2]), TypeError, r"weight must be .*; got \[1, 2\]"),
        (lambda: of(weight=torch.ones(2, 3)), TypeError, r"weight must be .*shape \(2, 3\)"),
        (lambda: of(weight=torch.ones(3).int()), TypeError, "weight must be a floating .*int32"),
        (lambda: of(weight=torch.tensor([1.0, -2])), ValueError, "weight must be >= 0; got -2"),
        (lambda: of(weight=torch.ones(4))(X, K), ValueError, "weight .* has 4, and input 5"),
        (lambda: of(ignore_index=1.5), TypeError, "ignore_index must be an int; got 1.5"),
        (lambda: of(ignore_index=True), TypeError, "ignore_index must be an int; got True"),
        (lambda: of(label_smoothing=1.5), ValueError, r"label_smoothing must .*; got 1.5"),
        (lambda: of(label_smoothing=math.nan), ValueError, r"label_smoothing must .*; got nan"),
        (lambda: of(label_smoothing="a"), ValueError, r"label_smoothing must .*; got 'a'"),
        (lambda: of()(X, [1, 2]), TypeError, "target must be a torch.Tensor; got list"),
        (lambda: of()(X, K > 0), TypeError, "target must hold .*; got torch.bool"),
        (lambda: of()(X, K[:3]), ValueError, r"target of indices .* \(4,\) .* got \(3,\)"),
        (lambda: of()(X, K.double()), ValueError, r"target of dist.* \(4, 5\) .* got \(4,\)"),
        (lambda: of()(X, K + 2), ValueError, r"target .* in \[0, 4\] or .*; got 5 at index \(3,\)"),
        (lambda: of()(X, K - 1), ValueError, r"target .*ignore_index=-100; got -1 at index \(1,\)"),
        (lambda: of()(X, X), ValueError, "target distributions must be finite and >= 0; got -"),
        (lambda: of()(X, X * NAN), ValueError, "target distributions must be .*; got nan"),
        (lambda: of()(X, X.abs() / 0), ValueError, "target distributions must be .*; got inf"),
        (lambda: of(dim=2)(X, K), ValueError, r"dim must be in \[-2, 1\]"),
        (lambda: of()(X, K, torch.ones(5)), TypeError, "mask must be bool"),
        (lambda: of()(X.int(), K), TypeError, "must be floating .*; got torch.int32"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_any_integer_is_an_index():
    expected = of()(X, K)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert torch.equal(of()(X, K.to(dtype)), expected)
    assert torch.equal(of(ignore_index=300)(X, K.to(torch.int8)), expected)


# -- ugly inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("device", [GPU])
def test_on_a_gpu(name, device):
    x, k = 2 * normal(6, 300, seed=1), indices(6, 300)
    x[1, 7], x[2], x[3, 0] = -INF, -INF, NAN
    k[4] = -100
    for t in (k, distributions(6, 300)):
        loss = loss_of(name, 300, reduction="none", label_smoothing=0.1)
        value, g = loss(x.to(device), t.to(device)), gradient(loss, x.to(device), t.to(device))
        torch.testing.assert_close(value.cpu(), loss(x, t), rtol=0, atol=1e-9, equal_nan=True)
        close(g.cpu(), gradient(loss, x, t), 1e-9)
    wrong = SoftmaxLoss(reduction="none")(x[:2].to(device), torch.tensor([1, 300], device=device))
    assert torch.isnan(wrong).tolist() == [False, True]


def test_an_index_out_of_range_is_nan_where_nobody_may_look():
    x, k = normal(3, 5), torch.tensor([1, 7, -2])
    value = vmap(SparsemaxLoss(reduction="none"))(x, k)
    assert torch.isnan(value).tolist() == [False, True, True]
