"""The losses of the Triton kernels against those of PyTorch operations in float64: interpreted
without a GPU, compiled on one. And the losses of a module, as on a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from devices import CUDA, TRITON_DEVICES, need_triton
from torch import Tensor

need_triton()

from gpu_on_cpu import as_on_a_gpu, traffic  # noqa: E402

import regmax  # noqa: E402
from regmax.kernels import reference  # noqa: E402
from regmax.kernels.triton.mappings import ThresholdKernel  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
NAMES = {"tsallis": "alpha", "pnorm": "p"}
CASES = (
    ("entropy", None),
    ("gini", None),
    *(("tsallis", alpha) for alpha in (0.6, 1.0, 1.3, 1.5, 2.0, 3.0)),
    *(("pnorm", p) for p in (1.1, 1.5, 2.0)),
)
SIMPLE = (("entropy", None), ("gini", None), ("tsallis", 1.5), ("tsallis", 3.0), ("pnorm", 1.5))
PATHS = {"registers": {}, "packed": {"pack": 16}, "chunks": {"limit": 16}}
D = 21


@pytest.fixture(params=TRITON_DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    torch.manual_seed(0)
    return str(request.param)


def omega(kind: str, theta: Any) -> Any:
    return regmax.regularizer(kind, **({} if theta is None else {NAMES[kind]: theta}))


def truth(
    kind: str, theta: Any, x: Tensor, k: Tensor, gamma: Any = 1.0, mask: Any = None, eps: Any = 0.0
) -> tuple[Tensor, Tensor]:
    """Losses and gradients by PyTorch operations in float64; ``k`` may hold distributions."""
    k = k.double() if k.is_floating_point() else k
    loss = regmax.FenchelYoungLoss(
        omega(kind, theta), gamma, reduction="none", label_smoothing=eps, ignore_index=-1
    )
    leaf = x.double().requires_grad_()
    with reference():
        value = loss(leaf, k, mask)
        (g,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), g


def by_kernel(
    path: str, device: str, kind: str, theta: Any, x: Tensor, k: Tensor, gamma: Any = 1.0,
    mask: Any = None, eps: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    numbers = () if theta is None else (theta,)
    on = None if mask is None else mask.to(device)
    kernel = ThresholdKernel(kind, **PATHS[path])
    target = k if k.is_floating_point() else k[:, None]
    found = kernel.loss(x.to(device), target.to(device), gamma, numbers, on, eps)
    assert found is not None
    value, g = (t.cpu() for t in found)
    assert value.dtype == F64
    assert g.dtype == (F32 if x.dtype in (F16, BF16) else x.dtype)
    return value, g


def targets(x: Tensor) -> Tensor:
    """The largest score, the smallest, and others."""
    k = torch.randint(x.shape[1], (len(x),))
    k[0], k[1] = x[0].argmax(), x[1].argmin()
    return k


@pytest.mark.parametrize(
    ("kind", "theta", "dtype"), [(*c, F64) for c in CASES] + [(*c, F32) for c in SIMPLE]
)
def test_values_and_gradients(kind: str, theta: Any, dtype: torch.dtype, device: str) -> None:
    x = (2 * torch.randn(4, D)).to(dtype)
    x[0, 3], k = 8.0, targets(x)
    mask = (torch.rand(4, D) > 0.3).scatter(1, k[:, None], True)
    k[0] = 3
    tolerance = {F64: 2e-14, F32: 2e-6}[dtype]
    for path in PATHS:
        for on, eps in ((None, 0.0), (mask, 0.2)):
            want, right = truth(kind, theta, x, k, 0.7, on, eps)
            value, g = by_kernel(path, device, kind, theta, x, k, 0.7, on, eps)
            torch.testing.assert_close(value, want, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(g.double(), right, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "theta", "dtype"), [(*c, F64) for c in CASES] + [(*c, F32) for c in SIMPLE]
)
def test_derivatives_in_gamma_and_theta(
    kind: str, theta: Any, dtype: torch.dtype, device: str
) -> None:
    x = (2 * torch.randn(5, D)).to(dtype)
    k, mask = targets(x), torch.rand(5, D) > 0.3
    mask = mask.scatter(1, k[:, None], True)
    k[0], x[4] = -1, -torch.inf
    near = {F64: 1e-13, F32: 2e-6}[dtype]
    per_row = torch.linspace(0.5, 1, 5, dtype=F64)[:, None]
    for on, eps in ((None, 0.0), (mask, 0.2)):
        gamma = per_row.clone().requires_grad_()
        learnt = None if theta is None else torch.full((5, 1), theta, dtype=F64).requires_grad_()
        leaves = [t for t in (gamma, learnt) if t is not None]
        module = regmax.FenchelYoungLoss(
            omega(kind, learnt), gamma, reduction="none", label_smoothing=eps, ignore_index=-1
        )
        with reference():
            right = torch.autograd.grad(module(x.double(), k, on).sum(), leaves)
        kernel = ThresholdKernel(kind)
        given = [t.detach().reshape(-1).to(device) for t in leaves]
        rest = (
            *(x.to(device), k[:, None].to(device), given[0], tuple(given[1:])),
            *(None if on is None else on.to(device), eps),
        )
        found = kernel.loss(*rest)
        assert found is not None
        slopes = kernel.loss_slopes(found[1], *rest)
        assert slopes is not None
        for a, b in zip(slopes.cpu().T, right, strict=False):
            torch.testing.assert_close(a[:4], b[:4, 0], rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_half_precision(kind: str, theta: Any, dtype: torch.dtype, device: str) -> None:
    x = (2 * torch.randn(2, D)).to(dtype)
    k = targets(x)
    want, right = truth(kind, theta, x, k)
    for path in PATHS:
        value, g = by_kernel(path, device, kind, theta, x, k)
        torch.testing.assert_close(value, want, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(g.double(), right, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_rows_of_every_kind(kind: str, theta: Any, device: str) -> None:
    x = torch.randn(12, D)
    k = torch.randint(D, (12,))
    mask = torch.ones(12, D) > 0
    x[0], k[0] = torch.randn(D), -1
    x[1], k[1] = torch.nan, -1
    x[2] = -torch.inf
    mask[3] = False
    x[4, 5] = torch.nan
    x[5, 6], mask[5, 6] = torch.nan, k[5] == 6
    x[6, 7] = torch.inf
    x[7, k[7]] = -torch.inf
    mask[8, k[8]] = False
    x[9] = 3.0
    x[10, 0], x[10, 1], k[10] = torch.finfo(F32).max, torch.finfo(F32).min, 1
    x[11] *= 1e4
    want, right = truth(kind, theta, x, k, mask=mask)
    assert want[[0, 1, 2, 3]].tolist() == [0.0] * 4
    assert bool(want[4].isnan())
    assert want[[7, 8]].tolist() == [torch.inf] * 2
    for eps in (0.0, 0.1):
        want, right = truth(kind, theta, x, k, mask=mask, eps=eps)
        for path in PATHS:
            value, g = by_kernel(path, device, kind, theta, x, k, mask=mask, eps=eps)
            torch.testing.assert_close(value, want, rtol=1e-6, atol=2e-6, equal_nan=True)
            torch.testing.assert_close(g.double(), right, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_one_class(kind: str, theta: Any, device: str) -> None:
    for path in PATHS:
        value, g = by_kernel(path, device, kind, theta, torch.tensor([[5.0]]), torch.tensor([0]))
        assert value.tolist() == [0.0]
        assert g.tolist() == [[0.0]]


@pytest.mark.parametrize(("kind", "theta"), CASES)
def test_small_losses_are_exact(kind: str, theta: Any, device: str) -> None:
    """Relative to the loss, also where 1 − y_k is below a rounding of y_k. A sparse mapping's loss
    is 0 iff y = e_k."""
    x = torch.full((4, D), -60.0)
    x[:, 2] = 0.0
    edge = {"entropy": 30.0, "tsallis": 1.0 if theta is None else 1 / max(theta - 1, 1 / 30)}
    edge = edge.get(kind, 1.0)
    x[:, 7] = -edge * torch.tensor([1 - 2**-8, 1 - 2**-4, 1.0, 1.5], dtype=F64)
    k = torch.full((4,), 2)
    want, right = truth(kind, theta, x, k)
    for path in PATHS:
        value, g = by_kernel(path, device, kind, theta, x, k)
        torch.testing.assert_close(g.double(), right, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(value, want, rtol=2e-4, atol=1e-15)
        assert bool((value >= 0).all())
        assert bool(((value == 0) == (g == 0).all(1)).all())


def test_small_losses_in_closed_form(device: str) -> None:
    """Two scores at the distance δ: sparsemax has the loss (1 − δ)²/4 for δ < 1, softmax
    log(1 + e^(−δ))."""
    delta = torch.tensor([1 - 2.0**-10, 1 - 2.0**-20, 1.0], dtype=F32)
    x = torch.stack([torch.zeros_like(delta), -delta], 1)
    k = torch.zeros(3, dtype=torch.int64)
    for path in PATHS:
        value, _ = by_kernel(path, device, "gini", None, x, k)
        torch.testing.assert_close(value, (1 - delta.double()) ** 2 / 4, rtol=2e-7, atol=0)
    delta = torch.tensor([10.0, 30.0, 60.0])
    x = torch.stack([torch.zeros_like(delta), -delta], 1)
    for path in PATHS:
        value, _ = by_kernel(path, device, "entropy", None, x, k)
        torch.testing.assert_close(value, (-delta.double()).exp().log1p(), rtol=1e-6, atol=0)
        far, _ = by_kernel(path, device, "entropy", None, 1e4 * x, 1 - k)
        torch.testing.assert_close(far, 1e4 * delta.double(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("alpha", [1 - 1e-7, 1 + 1e-9, 1 + 1e-5, 2 + 1e-9])
def test_losses_through_one_and_two(alpha: float, device: str) -> None:
    x = 3 * torch.randn(3, D, dtype=F64)
    k = targets(x)
    x[2, k[2]] = 20.0
    near = {1: ("entropy", None), 2: ("gini", None)}[round(alpha)]
    want, right = truth(*near, x, k)
    for path in PATHS:
        value, g = by_kernel(path, device, "tsallis", alpha, x, k)
        torch.testing.assert_close(value, want, rtol=1e3 * abs(alpha - round(alpha)), atol=1e-12)
        torch.testing.assert_close(g, right, rtol=0, atol=100 * abs(alpha - round(alpha)))


def test_hyperparameters_per_row(device: str) -> None:
    x = torch.randn(5, D, dtype=F64)
    k = targets(x)
    gamma = torch.tensor([0.3, 1.0, 2.0, torch.nan, 0.7], dtype=F64)
    alpha = torch.tensor([1.0, 1.5, 4.0, 2.0, torch.nan], dtype=F64)
    good = [0, 1, 2]
    pairs = [truth("tsallis", float(alpha[i]), x[[i]], k[[i]], float(gamma[i])) for i in good]
    for path in PATHS:
        value, g = by_kernel(path, device, "tsallis", alpha.to(device), x, k, gamma.to(device))
        assert value[3:].isnan().tolist() == [True, True]
        assert not bool(g[3:].any())
        for i, (want, right) in zip(good, pairs, strict=True):
            torch.testing.assert_close(value[[i]], want, rtol=0, atol=1e-13)
            torch.testing.assert_close(g[[i]], right, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_a_row_does_not_depend_on_its_batch_or_strides(kind: str, theta: Any, device: str) -> None:
    x, k = torch.randn(3, 36), torch.randint(D, (3,))
    mask = torch.rand(3, 36) > 0.1
    view, on = x[:, 7 : 7 + D], mask[:, 7 : 7 + D]
    for path in PATHS:
        every = by_kernel(path, device, kind, theta, view, k, mask=on)
        one = by_kernel(path, device, kind, theta, view[1:2].contiguous(), k[1:2], mask=on[1:2])
        for a, b in zip(every, one, strict=True):
            assert torch.equal(a[1:2], b)


# distributions


@pytest.mark.parametrize(
    ("kind", "theta", "dtype"),
    [(*c, F64) for c in CASES] + [(*c, t) for c in SIMPLE for t in (F32, F16, BF16)],
)
def test_distributions(kind: str, theta: Any, dtype: torch.dtype, device: str) -> None:
    """Of any sum, with zeros, on masked entries, or wrong; and rows of every kind."""
    x, t = (2 * torch.randn(12, D)).to(dtype), 2 * torch.rand(12, D)
    x[3], x[4, 5], x[5, 7], x[11] = -torch.inf, torch.nan, -torch.inf, 3.0
    t[0], t[1, 4:], t[2], t[10] = torch.eye(D)[3], 0, 0, x[10].float().softmax(-1)
    mask = torch.rand(12, D) > 0.3
    mask[1, :4], mask[6], mask[8], mask[9] = True, False, True, True
    t[[7, 11]], t = t[[7, 11]] * mask[[7, 11]], t.to(dtype)
    mass = t.double().sum(-1).clamp_min(1)
    near = {F64: 1e-13}.get(dtype, 1e-6)
    want, right = truth(kind, theta, x, t, 0.7, mask)
    assert want[[2, 3, 6]].tolist() == [0.0] * 3
    assert want[[4, 5]].isfinite().tolist() == [False] * 2
    t[8, 3], t[9, 2] = -0.5, torch.inf
    want[[8, 9]], right[[8, 9]] = torch.nan, 0
    for path in PATHS:
        value, g = by_kernel(path, device, kind, theta, x, t, 0.7, mask)
        assert not bool((value < 0).any())
        torch.testing.assert_close(value / mass, want / mass, rtol=near, atol=near, equal_nan=True)
        g = g.double() / mass[:, None]
        torch.testing.assert_close(g, right / mass[:, None], rtol=0, atol=2 * near)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_a_row_of_a_distribution_does_not_depend_on_its_batch(
    kind: str, theta: Any, device: str
) -> None:
    x, t = torch.randn(3, 36)[:, 7 : 7 + D], torch.rand(3, 40)[:, 7 : 7 + D]
    for path in PATHS:
        every = by_kernel(path, device, kind, theta, x, t)
        one = by_kernel(path, device, kind, theta, x[1:2].contiguous(), t[1:2].contiguous())
        for a, b in zip(every, one, strict=True):
            assert torch.equal(a[1:2], b)


# a module's losses, as on a GPU


def found(module: Any, x: Tensor, *target: Any) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    value = module(leaf, *target)
    (g,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), g


def same(module: Any, x: Tensor, *target: Any, tolerance: float = 2e-6) -> None:
    """On a GPU as on the CPU."""
    want, right = found(module, x, *target)
    with as_on_a_gpu():
        value, g = found(module, x, *target)
    assert value.dtype == want.dtype
    assert g.dtype == right.dtype
    torch.testing.assert_close(value, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(g, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_arguments_of_a_loss(kind: str, theta: Any) -> None:
    torch.manual_seed(0)
    if CUDA:
        pytest.skip("the interpreter takes tensors of the CPU")
    x, k = torch.randn(2, 6, 3), torch.tensor([[0, 5, -100], [2, 2, 1]])
    mask = torch.rand(1, 6, 3) > 0.2
    weight = torch.rand(6)
    for options, on in (
        ({"reduction": "mean"}, None),
        ({"reduction": "none", "label_smoothing": 0.1}, mask),
        ({"reduction": "sum", "weight": weight}, None),
        ({"reduction": "mean", "weight": weight}, mask),
        ({"reduction": "none", "weight": weight, "label_smoothing": 0.1}, mask),
    ):
        same(regmax.FenchelYoungLoss(omega(kind, theta), 0.7, **options), x, k, on)
    loss = regmax.FenchelYoungLoss(omega(kind, theta), dim=-1)
    same(loss, torch.randn(4, 6), torch.randint(6, (8,))[::2])
    same(loss, torch.randn(4, 6), torch.full((4,), -100))
    same(loss, torch.randn(6), torch.tensor(2))
    same(loss, torch.randn(0, 6), torch.zeros(0, dtype=torch.int64))
    soft = torch.rand(2, 6, 3)
    for options, on in (
        ({}, None),
        ({"reduction": "none", "weight": weight}, mask),
        ({"label_smoothing": 0.1}, mask),
    ):
        module = regmax.FenchelYoungLoss(omega(kind, theta), 0.7, **options)
        same(module, x, soft if on is None else soft * on, on)
    same(loss, torch.randn(4, 6), torch.rand(4, 6).half())
    same(loss, torch.randn(4, 6), torch.rand(4, 6).double())
    for dtype, tolerance in ((F16, 1e-3), (BF16, 8e-3)):
        same(loss, torch.randn(4, 6).to(dtype), torch.randint(6, (4,)), tolerance=tolerance)


def test_wrong_targets_are_nan() -> None:
    if CUDA:
        pytest.skip("the interpreter takes tensors of the CPU")
    loss = regmax.SparsemaxLoss(reduction="none")
    x, soft = torch.randn(4, 6), torch.rand(4, 6)
    soft[0, 1], soft[1, 2], soft[3] = -1, torch.nan, 0
    for t in (torch.tensor([6, -1, 0, -100]), soft):
        with as_on_a_gpu():
            value, g = found(loss, x, t)
        assert value.isnan().tolist() == [True, True, False, False]
        assert not bool(g[[0, 1, 3]].any())


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_what_learns_and_second_derivatives(kind: str, theta: Any) -> None:
    if CUDA:
        pytest.skip("the interpreter takes tensors of the CPU")
    torch.manual_seed(0)
    x, k = torch.randn(3, 5, dtype=F64), torch.tensor([0, 4, -100])
    v = torch.randn(3, 5, dtype=F64)

    def derivatives() -> list[Tensor]:
        leaves = [x.clone(), torch.full((3, 1), 0.7, dtype=F64)]
        leaves += [] if theta is None else [torch.tensor(theta, dtype=F64)]
        for t in leaves:
            t.requires_grad_()
        fixed = regmax.FenchelYoungLoss(omega(kind, theta), 0.7, reduction="sum")
        (g,) = torch.autograd.grad(fixed(leaves[0], k), leaves[0], create_graph=True)
        (h,) = torch.autograd.grad((g * v).sum(), leaves[0])
        learns = regmax.FenchelYoungLoss(omega(kind, *(leaves[2:] or [None])), leaves[1])
        return [g.detach(), h, *torch.autograd.grad(learns(leaves[0], k), leaves)]

    want = derivatives()
    with as_on_a_gpu():
        for a, b in zip(derivatives(), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("kind", "theta"), SIMPLE)
def test_what_a_loss_moves(kind: str, theta: Any) -> None:
    """Less than cross-entropy, with label smoothing and ignored rows too; nothing reads a result
    back."""
    if CUDA:
        pytest.skip("the interpreter takes tensors of the CPU")
    torch.manual_seed(0)
    index = torch.tensor([3, 7, -100])
    sizes = ((F32, 1000, 0.0), (F32, 1000, 0.1), (BF16, 1000, 0.0), (F32, 9000, 0.0))
    for (dtype, d, eps), soft in itertools.product(sizes, (False, True)):
        if soft and eps:
            continue
        x = torch.randn(3, d).to(dtype).requires_grad_()
        k = torch.randn(3, d).softmax(-1).to(dtype) if soft else index
        own = regmax.FenchelYoungLoss(omega(kind, theta), label_smoothing=eps)
        usual = torch.nn.CrossEntropyLoss(label_smoothing=eps)
        moved, other = (traffic(lambda: loss(x, k).backward()) for loss in (own, usual))  # noqa: B023
        assert moved.looks == []
        assert moved.total < other.total, (dtype, d, eps)
