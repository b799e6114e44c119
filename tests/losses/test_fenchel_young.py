"""Fenchel–Young losses: values and gradients, against cross-entropy and their definition."""

import itertools

import pytest
import torch
from loss_cases import (
    F64,
    FORMULAS,
    OMEGAS,
    SOLVED,
    by_definition,
    close,
    distributions,
    indices,
    value_and_gradient,
)
from mapping_checks import normal
from omegas import omega_of
from torch.nn.functional import one_hot

import regmax
from regmax.losses import EntmaxLoss, FenchelYoungLoss, SoftmaxLoss, SparsemaxLoss

# -- cross-entropy -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (6, 5), (4, 5, 3), (2, 5, 3, 2)])
def test_entropy_is_cross_entropy(shape):
    """All of weight × ignore_index × label_smoothing × reduction: values and gradients."""
    x = 3 * normal(*shape, seed=1)
    dim = min(1, x.ndim - 1)
    others = shape[:dim] + shape[dim + 1 :]
    index = indices(x.numel() // 5, 5).reshape(others)
    soft = normal(*shape, seed=5).softmax(dim)
    weights = (None, torch.tensor([0.5, 1, 2, 0, 0.3], dtype=F64))
    for weight, ignored, smoothing, reduction in itertools.product(
        weights, (-100, -1, 0, 2), (0.0, 0.1, 1.0), ("mean", "sum", "none")
    ):
        k = index.clone()
        if k.ndim:
            k.view(-1)[::3] = ignored
        settings = {
            "weight": weight,
            "ignore_index": ignored,
            "label_smoothing": smoothing,
            "reduction": reduction,
        }
        ours, theirs = SoftmaxLoss(**settings), torch.nn.CrossEntropyLoss(**settings)
        expected, g = value_and_gradient(theirs, x, k)
        if not torch.isnan(expected).any():  # the mean of no weight at all
            found, h = value_and_gradient(ours, x, k)
            close(found, expected)
            close(h, g)
        if dim == 1:
            moved = FenchelYoungLoss(regmax.regularizer("entropy"), dim=-1, **settings)
            close(moved(x.movedim(1, -1), k), ours(x, k))
        if ignored == -100:
            _, h = value_and_gradient(ours, x, soft)
            close(h, value_and_gradient(theirs, x, soft)[1])


def test_distributions_need_not_sum_to_one():
    """L(x; t) of their direction, times their sum: the gradient is cross-entropy's."""
    x, t = normal(6, 5), 3 * normal(6, 5, seed=1).square()
    t[2] = 0
    ours, theirs = SoftmaxLoss(reduction="sum"), torch.nn.CrossEntropyLoss(reduction="sum")
    close(value_and_gradient(ours, x, t)[1], value_and_gradient(theirs, x, t)[1])
    each = SparsemaxLoss(reduction="none")
    total = t.sum(-1, keepdim=True)
    close(each(x, t), total.squeeze(-1) * each(x, torch.where(total > 0, t / total, 1 / 5)))


# -- autocast ----------------------------------------------------------------------------------

HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("autocast", [None, *HALF])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32, F64])
def test_dtypes_are_cross_entropys(dtype, autocast):
    """And a sum over 16,384 rows is right: in float16 it is beyond the largest number."""
    x, index = (3 * normal(2**14, 8)).to(dtype), indices(2**14, 8)
    soft = distributions(2**14, 8)
    targets = (index, soft.half() if dtype in HALF else soft.to(dtype), soft.float())
    for t, reduction in itertools.product(targets, ("mean", "sum", "none")):
        settings = {"reduction": reduction, "label_smoothing": 0.1 if t is index else 0.0}
        with torch.autocast("cpu", autocast or HALF[0], enabled=autocast is not None):
            expected = torch.nn.CrossEntropyLoss(**settings)(x, t)
            losses = [
                SoftmaxLoss(**settings),
                SparsemaxLoss(**settings),
                EntmaxLoss(1.3, **settings),
            ]
            found = [loss(x, t) for loss in losses]
        for loss, value in zip(losses, found, strict=True):
            assert value.dtype == expected.dtype
            ulp = max(torch.finfo(value.dtype).eps, 1e-5)  # float32 computed it
            exact = loss(x.double(), t).to(value.dtype)
            torch.testing.assert_close(value, exact, rtol=ulp, atol=1e-5)
        if t is index and expected.isfinite().all():  # it sums in half precision
            atol = 4 * torch.finfo(dtype).eps * expected.abs().max().item()
            torch.testing.assert_close(found[0], expected, rtol=0.01, atol=max(atol, 1e-5))


def test_nothing_is_rounded_under_autocast():
    """Products of a smoothed target, or of a user's Ω, neither."""

    product = omega_of(lambda y: ((y @ torch.eye(5, dtype=y.dtype)) * y).sum(-1) / 2)
    x, k = 30 * normal(6, 5).float(), indices(6, 5)
    losses = [
        SoftmaxLoss(weight=torch.rand(5), label_smoothing=0.3),
        EntmaxLoss(label_smoothing=0.3),
    ]
    for loss in (*losses, FenchelYoungLoss(product, label_smoothing=0.3)):
        with torch.autocast("cpu", torch.bfloat16):
            inside, g = value_and_gradient(loss, x, k)
        expected, h = value_and_gradient(loss, x, k)
        assert torch.equal(inside, expected)
        assert torch.equal(g, h)


def test_autocast_of_another_device_is_none_of_ours():
    x, k = normal(6, 5).bfloat16(), indices(6, 5)
    enabled = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        assert SoftmaxLoss()(x, k).dtype == torch.bfloat16
        assert regmax.kernels.transforms.autocasting("cuda")
        assert not regmax.kernels.transforms.autocasting("cpu")
    finally:
        torch.set_autocast_enabled("cuda", enabled)


def test_compiled_under_autocast():
    loss, x, k = EntmaxLoss(1.3), normal(6, 5).bfloat16(), indices(6, 5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, k: loss(x, k), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        inside = compiled(x, k)
        assert inside.dtype == torch.float32
        torch.testing.assert_close(inside, loss(x, k))
    assert compiled(x, k).dtype == torch.bfloat16


# -- the definition ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "d"), [*itertools.product(OMEGAS, (1, 2, 7)), *((name, 300) for name in FORMULAS)]
)
def test_values_and_gradients(name, d):
    x, k, soft = 2 * normal(5, d, seed=1), indices(5, d), distributions(5, d)
    exact = 1e-9 if name in SOLVED else 1e-12 * (1 + d)
    for gamma, t in itertools.product((0.5, 1.0, 2.0), (k, soft)):
        loss = FenchelYoungLoss(OMEGAS[name][0](d), gamma, reduction="none")
        full = one_hot(t, d).to(F64) if t is k else t
        expected, slope = by_definition(name, x, full, gamma)
        value = loss(x, t)
        close(value, expected, exact)
        assert (value >= -1e-9).all()
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(leaf, t).sum(), leaf)
        close(g, slope, max(exact, 1e-10))
        single = x.float()
        expected, _ = by_definition(name, single.double(), full, gamma)
        target = t if t is k else t.float()
        torch.testing.assert_close(
            loss(single, target).double(),
            expected,
            rtol=2e-6,
            atol=2e-5 if name in SOLVED else 2e-6,
        )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("d", [3, 300])
@pytest.mark.parametrize("name", ["gini", "pnorm", "tsallis 1.3", "tsallis 3.0", "tv", "priced"])
def test_exactly_zero_beyond_the_margin(name, d, dtype):
    if name in SOLVED and d == 300:
        return
    x, k = normal(4, d, dtype=dtype), indices(4, d)
    x[torch.arange(4), k] += 12
    for target in (k, one_hot(k, d).to(dtype)):
        leaf = x.clone().requires_grad_()
        value = FenchelYoungLoss(OMEGAS[name][0](d), reduction="none")(leaf, target)
        (g,) = torch.autograd.grad(value.sum(), leaf)
        assert (value == 0).all()
        assert (g == 0).all()


def test_smoothing_is_a_mean_of_losses():
    x, k, soft = normal(6, 5), indices(6, 5), distributions(6, 5)
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(3)) < 0.7
    mask = mask | one_hot(k, 5).bool() | (soft > 0)
    for name, on in itertools.product(FORMULAS, (None, mask)):
        omega = OMEGAS[name][0](5)
        plain = FenchelYoungLoss(omega, reduction="none")
        each = torch.stack([plain(x, torch.full((6,), c), on) for c in range(5)], -1)
        takes = torch.ones(6, 5, dtype=torch.bool) if on is None else on
        spread = torch.where(takes, each, 0).sum(-1) / takes.sum(-1)
        for t in (k, soft):
            smooth = FenchelYoungLoss(omega, reduction="none", label_smoothing=0.3)
            close(smooth(x, t, on), 0.7 * plain(x, t, on) + 0.3 * spread)


# -- derivatives -------------------------------------------------------------------------------


def test_derivatives_at_a_vertex_are_finite():
    """The derivative of √(w yᵢ) in w is 0/0 at a zero of y."""
    w, x = torch.tensor(1.5, dtype=F64, requires_grad=True), normal(2, 4).requires_grad_()
    loss = FenchelYoungLoss(omega_of(lambda y, w: -(w * y).sqrt().sum(-1), w=w), reduction="sum")
    for t in (torch.tensor([1, 2]), distributions(2, 4)):
        full = one_hot(t, 4).to(F64) if t.ndim == 1 else t
        y = loss.mapping(x).detach()
        expected = (y.sqrt() - full.sqrt()).sum() / (2 * w.detach().sqrt())
        found, g = torch.autograd.grad(loss(x, t), [w, x])
        close(found, expected, 1e-9)
        close(g, y - full, 1e-9)
