"""The loss of a linear layer beside the loss of its logits."""

from __future__ import annotations

import functools

import pytest
import torch
from omegas import Cubic, Weighted, omega_of
from torch.nn import functional as F

import regmax
from regmax.losses.linear import LinearFenchelYoungLoss

F64 = torch.float64
ROWS, FEATURES, CLASSES = 13, 5, 40


OMEGAS = {
    "softmax": regmax.regularizer("entropy"),
    "sparsemax": regmax.regularizer("gini"),
    "entmax15": regmax.regularizer("tsallis", alpha=1.5),
    "fusedmax": regmax.regularizer("tv", lam=0.1),
    "own": Cubic(),
}


def inputs(scale=3.0, dtype=F64):
    torch.manual_seed(0)
    hidden = (scale * torch.randn(ROWS, FEATURES, dtype=F64)).to(dtype).requires_grad_()
    weight = torch.randn(CLASSES, FEATURES, dtype=F64).to(dtype).requires_grad_()
    bias = torch.randn(CLASSES, dtype=F64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(CLASSES, (ROWS,)), bias


def leaves(given):
    return tuple(t for t in given if t.requires_grad)


def two_steps(omega, hidden, matrix, target, bias=None, mask=None, soft_cap=None, **options):
    logits = F.linear(hidden, matrix, bias)
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    return regmax.FenchelYoungLoss(omega, **options)(logits, target, mask)


def compare(loss, expected, learnt, **tolerance):
    tolerance = tolerance or {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(loss, expected, **tolerance)
    finite = (
        torch.where(torch.isfinite(loss), loss, 0),
        torch.where(torch.isfinite(loss), expected, 0),
    )
    g = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).view(loss.shape)
    found, wanted = (torch.autograd.grad((t * g).sum(), learnt) for t in finite)
    torch.testing.assert_close(found, wanted, **tolerance)


@pytest.mark.parametrize("name", OMEGAS)
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_equal(name, scale):
    """Where most classes have a gradient, and where few have."""
    hidden, weight, target, bias = inputs(scale)
    target[3] = -100
    for options in (
        {},
        {"reduction": "none"},
        {"reduction": "sum", "label_smoothing": 0.1},
        {"weight": torch.rand(CLASSES, dtype=F64)},
        {"gamma": 2.0, "soft_cap": 5.0},
    ):
        loss = LinearFenchelYoungLoss(OMEGAS[name], chunk=4, **options)
        given = (hidden, weight, target, bias)
        compare(loss(*given), two_steps(OMEGAS[name], *given, **options), leaves(given))


def test_masks_and_shapes():
    hidden, weight, target, bias = inputs()
    hidden, target = hidden[:12].view(3, 4, FEATURES), target[:12].view(3, 4)
    omega = OMEGAS["entmax15"]
    for mask in (torch.rand(CLASSES) < 0.8, torch.rand(3, 4, CLASSES) < 0.8):
        loss = LinearFenchelYoungLoss(omega, chunk=5, reduction="none")
        expected = two_steps(
            omega,
            *(hidden.flatten(0, 1), weight, target.flatten(), bias),
            mask=mask if mask.ndim == 1 else mask.flatten(0, 1),
            reduction="none",
        )
        found = loss(hidden, weight, target, bias, mask)
        assert found.shape == (3, 4)
        compare(found.flatten(), expected, (weight, bias))
    none = loss(hidden[:0], weight, target[:0])
    assert none.shape == (0, 4)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_frozen_inputs(reduction):
    """The second backward finds no sums of forward, and computes the logits again."""
    hidden, weight, target, bias = inputs(0.1)
    omega = OMEGAS["softmax"]
    loss = LinearFenchelYoungLoss(omega, chunk=4, reduction=reduction)
    value = loss(hidden, weight, target, bias).sum()
    expected = torch.autograd.grad(
        3 * two_steps(omega, hidden, weight, target, bias, reduction=reduction).sum(),
        (hidden, weight, bias),
    )
    for _ in range(2):
        found = torch.autograd.grad(3 * value, (hidden, weight, bias), retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for h, w, wanted in (
        (hidden.detach(), weight, expected[1:]),
        (hidden, weight.detach(), expected[::2]),
    ):
        given = (h, w, target, bias)
        found = torch.autograd.grad(3 * loss(*given).sum(), leaves(given))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_second_derivatives_of_tied_weights():
    """``hidden`` depends on ``weight``, as with embeddings: no gradient is doubled."""
    _, weight, target, bias = inputs()
    found, omega = [], regmax.regularizer("tsallis", alpha=torch.tensor(1.3).requires_grad_())
    learnt = weight, bias, omega.alpha
    for loss in (LinearFenchelYoungLoss(omega, chunk=4), functools.partial(two_steps, omega)):
        value = loss(weight[:ROWS].sin(), weight, target, bias)
        each = torch.autograd.grad(value, learnt, create_graph=True)
        found.append((*each, *torch.autograd.grad(sum(g.square().sum() for g in each), learnt)))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("learns", [(), (0,), (1,), (0, 1)], ids=str)
def test_a_hidden_tensor_that_learns_is_refused(learns):
    w = torch.ones(CLASSES, dtype=F64, requires_grad=True)

    hidden = omega_of(lambda y: (w * y.square()).sum(-1))
    given = [t.detach().requires_grad_(i in learns) for i, t in enumerate(inputs()[:2])]
    with pytest.raises(regmax.RegularizerError, match="requires grad and is not one of its"):
        LinearFenchelYoungLoss(hidden, chunk=4)(*given, inputs()[2])


@pytest.mark.parametrize(
    "made", [Weighted, lambda w: regmax.regularizer("divergence", prior=w)], ids=["own", "prior"]
)
def test_numbers_for_the_entries_of_each_row_take_all_rows_at_once(made):
    hidden, weight, target, bias = inputs()
    each = torch.rand(ROWS, CLASSES, dtype=F64) + 0.1
    same = regmax.FenchelYoungLoss(made(each))(F.linear(hidden, weight, bias), target)
    loss = LinearFenchelYoungLoss(made(each), chunk=4)
    torch.testing.assert_close(loss(hidden, weight, target, bias), same)
    with pytest.raises(ValueError, match=r"prior must broadcast|w must have one row"):
        LinearFenchelYoungLoss(made(each[:4]), chunk=4)(hidden[:12], weight, target[:12], bias)


def test_float32_half_precision_and_autocast():
    given = inputs(dtype=torch.float32)
    omega = OMEGAS["entmax15"]
    loss = LinearFenchelYoungLoss(omega, chunk=4)
    compare(loss(*given), two_steps(omega, *given), leaves(given), rtol=1e-5, atol=1e-5)
    half = inputs(dtype=torch.bfloat16)
    assert loss(*half).dtype == torch.bfloat16
    compare(loss(*half), two_steps(omega, *half), leaves(half), rtol=0.02, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = loss(*given), two_steps(omega, *given)
    assert found.dtype == torch.float32
    compare(found, expected, leaves(given), rtol=0.02, atol=0.02)


def test_compiled():
    given = [t.detach() for t in inputs(1.0)]
    loss = LinearFenchelYoungLoss(OMEGAS["entmax15"], chunk=4)
    compiled = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), loss(*given))


def test_only_the_support_is_kept():
    """Of a peaked sparse mapping, not the logits: the saved tensors are small."""
    hidden, weight, target, bias = inputs(30.0)
    loss = LinearFenchelYoungLoss(OMEGAS["sparsemax"], chunk=4)(hidden, weight, target, bias)
    node = loss.grad_fn
    while not hasattr(node, "operation"):
        node = node.next_functions[0][0]
    kept = node.operation.kept
    assert len(kept) == 4
    assert sum(values.numel() for _, values in kept) < ROWS * CLASSES / 8


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (TypeError, "weight must be a torch.Tensor; got int", {"weight": 1}),
        (ValueError, "with the same F; got", {"hidden": torch.zeros(ROWS, 4, dtype=F64)}),
        (ValueError, r"bias must have shape \(40,\); got", {"bias": torch.zeros(3)}),
        (ValueError, "target of indices .* must have shape", {"target": torch.zeros(2).long()}),
        (ValueError, "mask must broadcast to the logits", {"mask": torch.ones(7).bool()}),
        (ValueError, "target must hold indices in", {"target": torch.full((ROWS,), CLASSES)}),
    ],
)
def test_wrong_arguments(error, message, change):
    given = dict(zip(("hidden", "weight", "target", "bias"), inputs(), strict=True))
    with pytest.raises(error, match=message):
        LinearFenchelYoungLoss(OMEGAS["sparsemax"])(**(given | change))


@pytest.mark.parametrize("rows", [ROWS, CLASSES])
def test_bias_before_target_is_refused(rows):
    """Also with as many rows as classes, where the targets have the shape of a bias."""
    hidden, weight, _, bias = (t.detach() for t in inputs())
    hidden, target = hidden[:1].expand(rows, -1), torch.arange(rows)
    loss = LinearFenchelYoungLoss(OMEGAS["sparsemax"])
    with pytest.raises(ValueError, match=r"target of distributions .*; got \(40,\)"):
        loss(hidden, weight, bias, target)
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor; got NoneType"):
        loss(hidden, weight, None, target)


def test_a_wrong_target_is_named_by_its_row():
    """Not by its place in a chunk."""
    hidden, weight, target, bias = inputs()
    target[5] = CLASSES
    with pytest.raises(ValueError, match=r"got 40 at index \(5,\)"):
        LinearFenchelYoungLoss(OMEGAS["sparsemax"], chunk=2)(hidden, weight, target, bias)


def test_wrong_options():
    omega = OMEGAS["sparsemax"]
    with pytest.raises(ValueError, match="soft_cap must be a number > 0 or None; got 0"):
        LinearFenchelYoungLoss(omega, soft_cap=0)
    with pytest.raises(ValueError, match="chunk must be an int >= 1 or None; got 0"):
        LinearFenchelYoungLoss(omega, chunk=0)
    with pytest.raises(TypeError, match="dim is no argument"):
        LinearFenchelYoungLoss(omega, dim=0)
