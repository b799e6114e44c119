"""The parts of a value with numbers of entries: a linear term moves the scores, and a power has
weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regmax
from regmax.kernels import reference
from regmax.kernels.from_value import entrywise
from regmax.kernels.from_value.inputs import varies
from regmax.kernels.from_value.kernel import NumbaKernel
from regmax.kernels.from_value.parts import parted

D = 6
Q = torch.tensor([0.3, 0.05, 0.2, 0.1, 0.25, 0.1], dtype=torch.float64)
A = torch.tensor(1.7, dtype=torch.float64)

MOVED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "xlogy": lambda y, q, a: torch.xlogy(y, y / q).sum(-1),
    "log of a ratio": lambda y, q, a: (y * (y / q).log()).sum(-1),
    "difference of logarithms": lambda y, q, a: (y * (y.log() - q.log())).sum(-1),
    "kl_div": lambda y, q, a: torch.nn.functional.kl_div(q.log(), y, reduction="none").sum(-1),
    "entr": lambda y, q, a: -(torch.special.entr(y) + torch.xlogy(y, q)).sum(-1),
    "a number before it": lambda y, q, a: (a * y * (y / q).log()).sum(-1) + y.square().sum(-1) / 2,
    "square of a difference": lambda y, q, a: (y - q).square().sum(-1) / 2 + a * (y**3).sum(-1),
    "product of differences": lambda y, q, a: ((q - 2 * y) * (q - y)).sum(-1),
    "linear": lambda y, q, a: (y**1.5).sum(-1) + (-y / q).sum(-1) + y @ q,
}
WEIGHTED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "weights": lambda y, q, a: (q * y**2).sum(-1),
    "weights between": lambda y, q, a: (y * q * y).sum(-1) + (q * y).sum(-1),
    "temperatures": lambda y, q, a: (q * torch.xlogy(y, y)).sum(-1),
    "power of a product": lambda y, q, a: ((q * y) ** 1.5 + a * q * y).sum(-1),
    "reverse KL": lambda y, q, a: -(q * (y / q).log()).sum(-1),
    "chi square": lambda y, q, a: (q * (y / q - 1) ** 2).sum(-1),
    "Hellinger": lambda y, q, a: (q * (4 - 4 * (y / q).sqrt() + 2 * (y / q - 1))).sum(-1),
    "f-divergence": lambda y, q, a: (q * ((y / q) ** 1.3 - 1.3 * y / q + 0.3)).sum(-1) / a,
}
OTHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two weights": lambda y, q: (q * y**2 + y**1.5).sum(-1),
    "two scales": lambda y, q: ((y / q) ** 2 + y**1.5).sum(-1),
    "product of two scales": lambda y, q: (y * (y / q + 1).log()).sum(-1),
    "logarithm of a sum": lambda y, q: (y * (y + q).log()).sum(-1),
    "power of a difference": lambda y, q: ((y - q) ** 4).sum(-1),
    "shared numbers": lambda y, q: (y**2 + 3 * y).sum(-1) + 0 * q.sum(),
}


@pytest.mark.parametrize("name", MOVED | WEIGHTED)
def test_value_is_that_of_the_parts(name: str) -> None:
    y = torch.linspace(0.05, 0.3, D, dtype=torch.float64).view(1, -1)
    entry = entrywise((MOVED | WEIGHTED)[name], y, [Q, A])
    inputs = entry.inputs([Q, A])
    found = parted(entry, [varies(t, D) for t in inputs])
    assert found is not None
    assert found.weighted == (name in WEIGHTED)
    assert not any(varies(inputs[k], D) for k in found.places)
    at = y.clone().requires_grad_()
    (expected,) = torch.autograd.grad(entry(at, *inputs).sum(), at)
    w, a, b = (
        1.0 * (k > 0) if part is None else part(*inputs)
        for k, part in enumerate((found.linear, found.factor, found.scale))
    )
    parts = a * found.entry(b * at, *(inputs[k] for k in found.places)) + w * at
    (got,) = torch.autograd.grad(parts.sum(), at)
    off = got - expected  # but for a shared linear term
    torch.testing.assert_close(off, off[:, :1].expand_as(off), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OTHER)
def test_other_numbers_of_entries_stay(name: str) -> None:
    y = torch.linspace(0.05, 0.3, D, dtype=torch.float64).view(1, -1)
    entry = entrywise(OTHER[name], y, [Q])
    assert parted(entry, [varies(t, D) for t in entry.inputs([Q])]) is None


class _Own(regmax.Regularizer):
    def __init__(self, name: str, q: Tensor, a: Tensor) -> None:
        self.name, self.q, self.a = name, q, a

    def value(self, y: Tensor) -> Tensor:
        return (MOVED | WEIGHTED)[self.name](y, self.q, self.a)


@pytest.mark.parametrize("name", ["xlogy", "difference of logarithms", "kl_div", "entr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("scale", [3, 300])
def test_kl_is_a_shifted_softmax(
    name: str, dtype: torch.dtype, per_row: bool, scale: float
) -> None:
    torch.manual_seed(0)
    x = scale * torch.randn(50, D, dtype=dtype)
    x[0], x[1, 1:] = -torch.inf, -torch.inf
    q = torch.rand(50, D, dtype=torch.float64) + 0.01 if per_row else Q
    layer = regmax.RegularizedMax(_Own(name, q, A), gamma=0.7)
    for _ in range(3):  # the first calls compare answers and take other ways
        at, own = x.clone().requires_grad_(), x.double().clone().requires_grad_()
        v = torch.randn_like(x)
        y, expected = layer(at), torch.softmax(own / 0.7 + q.log(), -1).nan_to_num(0)
        y.backward(v)
        expected.backward(v.double())
        near = 3e-7 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(y.double(), expected.detach(), rtol=0, atol=near)
        assert at.grad is not None
        assert own.grad is not None
        torch.testing.assert_close(at.grad.double(), own.grad.nan_to_num(0), rtol=0, atol=10 * near)


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("per_row", [False, True])
def test_weights_are_those_of_the_solver(name: str, dtype: torch.dtype, per_row: bool) -> None:
    torch.manual_seed(3)
    x = torch.cat([scale * torch.randn(8, D, dtype=dtype) for scale in (0.1, 3, 300)])
    x[0], x[1], x[2, 1:], x[3] = 0.0, x[1].round(), -torch.inf, torch.softmax(x[3], -1)
    x[4, 1] = torch.nextafter(x[4, 0], x[4, 1])
    mask = torch.rand(24, D) < 0.8
    mask[:, 0] = True
    q = torch.randn(24, D, dtype=torch.float64).exp() if per_row else Q
    layer = regmax.RegularizedMax(_Own(name, q, A), gamma=0.7)
    near, v = (1e-7, 1e-5) if dtype == torch.float32 else (1e-12, 1e-7), torch.randn_like(x)
    for on in (None, None, mask):  # the second call takes what the first one made
        at, own = x.clone().requires_grad_(), x.double().requires_grad_()
        with reference():
            expected = layer(own, mask=on)
            (along,) = torch.autograd.grad(expected, own, v.double())
        y = layer(at, mask=on)
        (got,) = torch.autograd.grad(y, at, v)
        torch.testing.assert_close(y.double(), expected.detach(), rtol=0, atol=near[0])
        size = 1 + along.abs().amax(-1, keepdim=True)
        torch.testing.assert_close(got.double() / size, along / size, rtol=0, atol=near[1])


@pytest.mark.parametrize("name", ["xlogy", "weights", "Hellinger"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_call_and_a_mask_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    x, on = 3 * torch.randn(20, D, dtype=dtype), torch.rand(20, D) < 0.7
    on[:, 0] = True
    layer = regmax.RegularizedMax(_Own(name, Q + 0.01, A), gamma=0.1)
    first = layer(x)
    for _ in range(3):
        assert torch.equal(layer(x), first)
    assert torch.equal(layer(x, mask=on), layer(x.masked_fill(~on, -torch.inf)))


@pytest.mark.parametrize("more", [0.0, 1e-14])
def test_another_function_above_1_is_no_power(more: float) -> None:
    def value(y: Tensor, q: Tensor) -> Tensor:
        return (q * ((y / q) ** 2 + more * (y / q) ** 8)).sum(-1)

    q = 0.01 * Q
    entry = entrywise(value, Q.view(1, -1), [q])
    kernel = NumbaKernel(entry, entry.inputs([q]), D)
    assert (kernel.laid_out((q.view(1, -1),), D).template is None) == (more > 0)


@pytest.mark.parametrize("name", ["a number before it", "square of a difference", *WEIGHTED])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_both_parts(name: str, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(4, D, dtype=torch.float64).requires_grad_()
    q = (torch.rand(rows, D, dtype=torch.float64) + 0.1).requires_grad_()
    a = A.clone().requires_grad_()
    if rows == 1:
        q = q.detach()[0].requires_grad_()

    def call(x: Tensor, q: Tensor, a: Tensor) -> Tensor:
        return regmax.RegularizedMax(_Own(name, q, a))(x)

    def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
        loss = call(x.to(dtype), q, a).square().sum()
        return torch.autograd.grad(loss, (x, q, a), materialize_grads=True)

    with reference():
        expected = gradients(torch.float64)
    got = gradients(dtype)
    near = (1e-5, 1e-5) if dtype == torch.float32 else (1e-7, 1e-8)
    torch.testing.assert_close(got, expected, rtol=near[0], atol=near[1])
    assert dtype == torch.float32 or torch.autograd.gradcheck(call, (x, q, a), atol=1e-6)


def test_linear_term_between_bounds() -> None:
    torch.manual_seed(2)
    x = torch.randn(30, D, dtype=torch.float64)
    layer = regmax.RegularizedMax(_Own("kl_div", Q, A), domain=regmax.Simplex(2.0, upper=0.6))
    entropy = regmax.RegularizedMax(
        regmax.regularizer("entropy"), domain=regmax.Simplex(2.0, upper=0.6)
    )
    torch.testing.assert_close(layer(x), entropy(x + Q.log()), rtol=0, atol=1e-8)
    assert "kernel from the value" in str(layer.explain(x))
