"""The losses of the CPU kernels against those of PyTorch operations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

import regmax
from regmax.kernels import reference
from regmax.losses import by_kernel, fenchel_young
from regmax.mapping.methods.kernel import kernel_of, loss

F32, F64 = torch.float32, torch.float64
NAMES = {"tsallis": "alpha", "pnorm": "p"}
CASES = (
    ("entropy", None),
    ("gini", None),
    *(("tsallis", alpha) for alpha in (0.6, 1.0, 1 + 1e-9, 1.3, 1.5, 2.0, 3.0)),
    *(("pnorm", p) for p in (1.1, 1.5, 2.0)),
)


def quick(module: Any, x: Tensor, k: Tensor) -> Tensor | None:
    task = by_kernel.reduced(module, x, k, regmax.FenchelYoungLoss)
    return None if task is None else fenchel_young.reduced(task, x)


def omega(kind: str, theta: Any) -> Any:
    return regmax.regularizer(kind, **({} if theta is None else {NAMES[kind]: theta}))


def rows(d: int, size: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, targets, of which some are the largest and one is ignored, and a mask."""
    torch.manual_seed(0)
    x, k = size * torch.randn(24, d, dtype=F64), torch.randint(d, (24,))
    k[3:8], k[8] = x[3:8].argmax(-1), -1
    mask = torch.rand(24, d) > 0.3
    if d > 5:
        x[9, 2], x[10], mask[11], x[12, 1], x[13, k[13]] = (
            -torch.inf,
            -torch.inf,
            False,
            torch.nan,
            2,
        )
        x[14, k[14]] = -torch.inf
    return x, k, mask


def truth(omega: Any, x: Tensor, k: Tensor, gamma: Any, mask: Any, eps: float) -> Any:
    """Losses and gradients by PyTorch operations in float64; ``k`` may hold distributions."""
    k = k.double() if k.is_floating_point() else k
    module = regmax.FenchelYoungLoss(
        omega, gamma, reduction="none", label_smoothing=eps, ignore_index=-1
    )
    leaf = x.double().requires_grad_()
    with reference():
        value = module(leaf, k, mask)
        (g,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), g


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("kind", "theta"), CASES)
def test_values_and_gradients(kind: str, theta: Any, dtype: torch.dtype) -> None:
    near = 1e-11 if dtype == F64 else 2e-6
    for d, size in ((1, 1.0), (2, 0.01), (16, 1.0), (37, 4.0), (37, 100.0), (700, 1.0)):
        x, k, mask = rows(d, size)
        x = x.to(dtype)
        kernel = kernel_of(omega(kind, theta), x)
        assert kernel is not None
        for eps, gamma, on in (
            (0.0, 1.0, None),
            (0.0, 0.3, mask),
            (0.2, 1.0, None),
            (1.0, 2.0, mask),
        ):
            found = loss(kernel, omega(kind, theta), x, k[:, None], gamma, on, eps)
            assert found is not None
            value, g, _ = found
            assert (value.dtype, g.dtype) == (F64, dtype)
            assert not (value < 0).any()
            expected, right = truth(omega(kind, theta), x, k, gamma, on, eps)
            torch.testing.assert_close(value, expected, rtol=near, atol=near, equal_nan=True)
            torch.testing.assert_close(g.double(), right, rtol=0, atol=max(near, 1e-14))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("kind", "theta"), CASES)
def test_derivatives_in_gamma_and_theta(kind: str, theta: Any, dtype: torch.dtype) -> None:
    near = 1e-11 if dtype == F64 else 4e-6

    def gradients(x: Tensor, k: Tensor, on: Tensor | None, eps: float, per_row: bool) -> Any:
        shape = (24, 1) if per_row else ()
        gamma = x.new_full(shape, 0.75).requires_grad_()
        learnt = None if theta is None else x.new_full(shape, theta).requires_grad_()
        leaves = [t for t in (x.requires_grad_(), gamma, learnt) if t is not None]
        module = regmax.FenchelYoungLoss(
            omega(kind, learnt), gamma, reduction="none", label_smoothing=eps, ignore_index=-1
        )
        return torch.autograd.grad(module(x, k, on).sum(), leaves)

    for d, size in ((1, 1.0), (2, 0.01), (37, 4.0), (700, 1.0)):
        x, k, mask = rows(d, size)
        x = x.to(dtype)
        t = soft(x), soft(x, mask)
        for target, eps, on, per_row in (
            (k, 0.0, None, True),
            (k, 0.2, mask, True),
            (k, 0.1, None, False),
            (t[0], 0.0, None, True),
            (t[1], 0.0, mask, True),
            (t[0] / 7, 0.0, None, False),
        ):
            found = gradients(x.clone(), target, on, eps, per_row)
            with reference():
                right = gradients(x.double(), target, on, eps, per_row)
            for a, b in zip(found, right, strict=True):
                scale = 1 + b.abs().max().nan_to_num().item()
                torch.testing.assert_close(a.double(), b, rtol=0, atol=near * scale)


def soft(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Distributions of any sum for :func:`rows`, over entries that take part: some have many
    zeros, one is Π_Ω(x) of softmax; and one is 0, in rows of several entries."""
    t = 3 * torch.rand(x.shape, dtype=x.dtype)
    t[:12] = t[:12].masked_fill(torch.rand(12, x.shape[1]) > 0.2, 0)
    t[4], t[5] = x[4].softmax(-1), torch.eye(x.shape[1], dtype=x.dtype)[0]
    on = x != -torch.inf if mask is None else mask & (x != -torch.inf)
    t[:22] = torch.where(on, t, 0)[:22]
    t[16:18] = 0
    return t


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("kind", "theta"), CASES)
def test_distributions(kind: str, theta: Any, dtype: torch.dtype) -> None:
    """Zeros, sums that are not 1, mass on masked entries, and rows of every kind."""
    near = 2e-11 if dtype == F64 else 2e-6
    for d, size in ((1, 1.0), (2, 0.01), (16, 1.0), (37, 4.0), (37, 100.0), (700, 1.0)):
        x, _, mask = rows(d, size)
        x = x.to(dtype)
        x[17, -1] = torch.nan if d > 5 else 0
        for gamma, on in ((1.0, None), (0.3, mask)):
            t = soft(x, on)
            kernel = kernel_of(omega(kind, theta), x)
            assert kernel is not None
            found = loss(kernel, omega(kind, theta), x, t, gamma, on)
            assert found is not None
            value, g, _ = found
            assert (value.dtype, g.dtype) == (F64, dtype)
            assert not (value < 0).any()
            assert not value[16:18].any()
            expected, right = truth(omega(kind, theta), x.clone(), t, gamma, on, 0.0)
            mass = t.double().sum(-1).clamp_min(1)
            close = {"rtol": near, "atol": near, "equal_nan": True}
            torch.testing.assert_close(value / mass, expected / mass, **close)
            torch.testing.assert_close(
                g / mass[:, None], right / mass[:, None], rtol=0, atol=near, check_dtype=False
            )


@pytest.mark.parametrize(("kind", "theta"), CASES)
def test_distributions_of_any_sum(kind: str, theta: Any) -> None:
    x, t = torch.randn(6, 40), torch.rand(6, 40)
    kernel = kernel_of(omega(kind, theta), x)
    assert kernel is not None
    results = []
    for size in (1.0, 2.0**-110, 2.0**100):
        found = loss(kernel, omega(kind, theta), x, t * size, 0.7)
        assert found is not None
        results.append([a.double() / size for a in found[:2] if a is not None])
    for a, b in zip(results[0] * 2, results[1] + results[2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_small_losses_of_distributions_have_digits(dtype: torch.dtype) -> None:
    """½‖t − y‖² where y > 0, and 0 only at t = y."""
    y = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=dtype)
    move = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=dtype)
    for step in (2.0**-6, 2.0**-12, 2.0**-16):
        for kind, theta in (("gini", None), ("tsallis", 2.0), ("pnorm", 2.0)):
            kernel = kernel_of(omega(kind, theta), y)
            assert kernel is not None
            found = loss(kernel, omega(kind, theta), y + 3, y + step * move, 1.0)
            assert found is not None
            near = (1e-5 if dtype == F32 else 1e-10) if kind == "pnorm" else 1e-7
            assert found[0].item() == pytest.approx(5 * step**2, rel=near)
            same = loss(kernel, omega(kind, theta), y + 3, y, 1.0)
            assert same is not None
            assert same[0].item() < 1e-15


def test_small_losses_have_digits() -> None:
    """Where y_k is 1 up to rounding, from the sums of the other entries."""
    x = torch.zeros(4, 100, dtype=F64)
    x[:, 0] = torch.tensor([20.0, 30.0, 40.0, 60.0], dtype=F64)
    k, one = torch.zeros(4, 1, dtype=torch.int64), regmax.regularizer("entropy")
    kernel = kernel_of(one, x)
    assert kernel is not None
    found = loss(kernel, one, x, k, 1.0)
    assert found is not None
    torch.testing.assert_close(found[0], torch.log1p(99 * (-x[:, 0]).exp()), rtol=1e-14, atol=0)


@pytest.mark.parametrize("number", [0.7, 1.5, 2.0])
def test_numbers_per_row(number: float) -> None:
    x, k, _ = rows(20, 2.0)
    alpha = torch.linspace(1.1, 2.5, 24, dtype=F64)[:, None]
    kernel = kernel_of(omega("tsallis", alpha), x)
    assert kernel is not None
    found = loss(kernel, omega("tsallis", alpha), x, k[:, None], alpha * number)
    assert found is not None
    for i in range(24):
        one = omega("tsallis", float(alpha[i]))
        alone = loss(kernel, one, x[i : i + 1], k[i : i + 1, None], float(alpha[i] * number))
        assert alone is not None
        torch.testing.assert_close(found[0][i], alone[0][0], rtol=1e-12, atol=0, equal_nan=True)
        torch.testing.assert_close(found[1][i], alone[1][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("learns", [True, False])
def test_numbers_per_row_in_two_dimensions(learns: bool) -> None:
    x, k = torch.randn(3, 7, 4, dtype=F64, requires_grad=True), torch.randint(7, (3, 4))
    gamma, alpha = (
        torch.linspace(a, b, 12, dtype=F64).view(3, 1, 4).requires_grad_(learns)
        for a, b in ((0.5, 2.0), (1.1, 2.5))
    )
    module = regmax.FenchelYoungLoss(omega("tsallis", alpha), gamma, reduction="none")
    leaves = (x, gamma, alpha) if learns else (x,)
    value = module(x, k)
    found = (value, *torch.autograd.grad(value.sum(), leaves))
    with reference():
        value = module(x, k)
        right = (value, *torch.autograd.grad(value.sum(), leaves))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "theta"), [("entropy", None), ("gini", None), ("tsallis", 1.5)])
def test_one_call_for_a_training_step(
    kind: str, theta: Any, smoothing: float, reduction: Any
) -> None:
    """The quick way of a loss, and the way that takes all inputs."""
    module = regmax.FenchelYoungLoss(
        omega(kind, theta), reduction=reduction, label_smoothing=smoothing, ignore_index=-1
    )
    x, k, _ = rows(37, 4.0)
    x, k = x[:9].float(), k[:9]
    assert quick(module, x, k) is not None
    for scale in (1.0, 3.0):
        results = []
        for way in (module, lambda x, k: module._general(x, k, None)):
            leaf = x.clone().requires_grad_()
            value = way(leaf, k)
            v = torch.full_like(value, scale)
            results.append(
                (
                    value,
                    *(torch.autograd.grad(value, leaf, v, retain_graph=True)[0] for _ in range(2)),
                )
            )
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        assert torch.equal(results[0][1], results[0][2])
    leaf = x[:4].double().requires_grad_()
    if reduction != "none":
        torch.autograd.gradcheck(module, (leaf, k[:4]))
        torch.autograd.gradgradcheck(module, (leaf, k[:4]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("kind", "theta"), [("entropy", None), ("gini", None), ("pnorm", 1.5)])
def test_one_call_for_distributions(kind: str, theta: Any, reduction: Any) -> None:
    """As for indices, by both ways; also with other strides, dtypes and dimensions."""
    module = regmax.FenchelYoungLoss(omega(kind, theta), reduction=reduction)
    weighted = regmax.FenchelYoungLoss(
        omega(kind, theta), reduction=reduction, weight=torch.rand(37), dim=-1
    )
    x = (4 * torch.randn(37, 12)).T
    t = torch.rand(12, 74)[:, ::2]
    t[3], t[5, 4:] = 0, 0
    assert quick(module, x, t) is not None
    cases: list[tuple[Any, Any, Tensor, Tensor]] = [
        (module, module, x, t),
        (lambda x, t: module._general(x, t, None), module, x, t),
        (module, module, x, t.double()),
        (module, module, x.double(), t),
        (module, module, x, t.half()),
        (weighted, weighted, x, t),
        (module, module, x.T.reshape(1, 37, 3, 4), t.T.reshape(1, 37, 3, 4)),
    ]
    for way, exact, x, t in cases:
        leaf, right = x.clone().requires_grad_(), x.double().requires_grad_()
        value = way(leaf, t)
        with reference():
            expected = exact(right, t.double())
        assert value.dtype == torch.promote_types(x.dtype, t.dtype)
        near = {"rtol": 2e-6, "atol": 2e-6, "check_dtype": False}
        torch.testing.assert_close(value, expected, **near)
        v = torch.full_like(value, 3)
        (found,) = torch.autograd.grad(value, leaf, v, retain_graph=True)
        (h,) = torch.autograd.grad(expected, right, v.double())
        torch.testing.assert_close(found, h, rtol=0, atol=1e-4, check_dtype=False)
        assert torch.equal(found, torch.autograd.grad(value, leaf, v)[0])
    leaf, t = torch.randn(4, 5, dtype=F64, requires_grad=True), torch.rand(4, 5, dtype=F64)
    torch.autograd.gradcheck(module, (leaf, t.requires_grad_()))
    t.requires_grad_(False)[1] = 0
    torch.autograd.gradcheck(module, (leaf, t))
    if reduction != "none":
        torch.autograd.gradgradcheck(module, (leaf, t))


@pytest.mark.parametrize(("kind", "theta"), [("entropy", None), ("tsallis", 1.3), ("pnorm", 1.5)])
def test_a_row_of_a_distribution_does_not_depend_on_its_batch(kind: str, theta: Any) -> None:
    x, t = torch.randn(50, 300), torch.rand(50, 300)
    kernel = kernel_of(omega(kind, theta), x)
    assert kernel is not None
    every = loss(kernel, omega(kind, theta), x, t, 1.0)
    one = loss(kernel, omega(kind, theta), x[7:8], t[7:8], 1.0)
    assert every is not None
    assert one is not None
    for a, b in zip(every[:2], one[:2], strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a[7:8], b)


def test_what_the_quick_way_leaves_to_the_other() -> None:
    module, x, k = regmax.losses.SparsemaxLoss(), torch.randn(4, 5), torch.arange(4)
    assert quick(module, x, k) is not None
    assert quick(module, x, k + 2) is None
    assert quick(module, x.half(), k) is None
    assert quick(module, x, k.int()) is None
    assert quick(module, x.T, k) is None
    assert quick(module, x, x.softmax(-1)) is not None
    assert quick(module, x, x.softmax(-1).double()) is None
    assert quick(module, x, x.softmax(-1).requires_grad_()) is None
    assert quick(module, x, -x.softmax(-1)) is None
    assert quick(module, x, x) is None
    assert quick(module, x, x / 0) is None
    assert quick(regmax.losses.SparsemaxLoss(label_smoothing=0.1), x, x.exp()) is None
    assert quick(regmax.losses.SparsemaxLoss(weight=torch.ones(5)), x, k) is None
    assert quick(regmax.losses.SparsemaxLoss(torch.tensor(1.0)), x, k) is None
    assert torch.func.grad(lambda x: module(x, k))(x).shape == x.shape
    with pytest.raises(ValueError, match="target must hold indices in"):
        module(x, k + 2)
