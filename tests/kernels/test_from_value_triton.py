"""Kernels from the value of Ω in Triton against those in numba and the solver: interpreted without
a GPU, compiled on one."""

import builtins

import pytest
import torch
from devices import CUDA, TRITON_DEVICES, need_triton
from omegas import Square, omega_of

need_triton()
pytest.importorskip("numba")

import regmax  # noqa: E402
from regmax.kernels.from_value import entrywise  # noqa: E402
from regmax.kernels.from_value.kernel import NumbaKernel  # noqa: E402
from regmax.kernels.from_value.triton_kernel import LIMIT, TritonKernel  # noqa: E402
from regmax.mapping.methods import base, from_value, traced  # noqa: E402

# the interpreter is numpy, which warns where IEEE arithmetic is meant
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F, F32, F64 = torch.nn.functional, torch.float32, torch.float64
D, ROWS = 9, 5


@pytest.fixture(params=TRITON_DEVICES)
def device(request, monkeypatch):
    base.METHODS.clear()
    monkeypatch.setitem(from_value.COMPILERS, "cpu", "triton")
    torch.manual_seed(0)
    yield request.param
    base.METHODS.clear()


VALUES = {
    "cube": lambda y, w, a: (y * y / 2 + y**3 / 6).sum(-1),
    "entropy": lambda y, w, a: -torch.special.entr(y).sum(-1),
    "tsallis 1.5": lambda y, w, a: (y**1.5).sum(-1) / 0.75,
    "weighted powers": lambda y, w, a: (F.softplus(w) * y**1.37).sum(-1) + a * y.square().sum(-1),
    "softplus": lambda y, w, a: F.softplus(5 * y - w).sum(-1),
    "pieces": lambda y, w, a: (
        torch.where(y > 0.2, y * y, 0.4 * y - 0.04) + a * (y - 0.1).clamp_min(0) ** 2 + y**3
    ).sum(-1),
    "branches on inputs": lambda y, w, a: (
        torch.where((w + 0 * y > 0) & ~(a + y > 9), y.expm1() * y, y.cosh() + a.abs() * y.erf() / 9)
        + torch.hypot(y, w)
    ).sum(-1),
    "two entropies": lambda y, w, a: (torch.xlogy(y, y) - torch.special.entr(1 - y)).sum(-1),
}


class Own(regmax.Regularizer):
    def __init__(self, name, rows=None):
        generator = torch.Generator().manual_seed(1)
        self.name_of_value = name
        self.w = torch.nn.Parameter(torch.randn(D, dtype=F64, generator=generator))
        shape = () if rows is None else (rows, 1)
        self.a = torch.nn.Parameter(0.1 + torch.rand(shape, dtype=F64, generator=generator))

    def value(self, y):
        a = self.a.squeeze(-1) if self.name_of_value == "weighted powers" else self.a
        return VALUES[self.name_of_value](y, self.w, a)


def kinds_of_rows():
    x = torch.randn(ROWS, D, dtype=F64)
    x[0] = 1.0
    x[1] = x[1].round()
    x[2] = torch.eye(D, dtype=F64)[3] * 40
    x[3] *= 1e-3
    return x


@pytest.mark.parametrize(("rows", "masked"), [(None, False), (ROWS, True)])
@pytest.mark.parametrize("name", VALUES)
def test_layer_and_all_gradients_are_those_of_numba_and_of_the_solver(
    name, rows, masked, device, monkeypatch
):
    omega = Own(name, rows).to(device)
    gamma = torch.full((ROWS, 1), 0.7, dtype=F64, device=device, requires_grad=True)
    layer = regmax.RegularizedMax(omega, gamma=gamma)
    x = kinds_of_rows().to(device)
    if name == "two entropies":
        x[2] /= 20  # y next to 1, where the slope is infinite, is the solver's
    x.requires_grad_()
    mask = (torch.rand(ROWS, D) < 0.7).to(device) if masked else None
    v = torch.randn(ROWS, D, dtype=F64).to(device)
    wanted = [x, gamma, *omega.parameters()]

    def results():
        y = layer(x, mask)
        grads = torch.autograd.grad(y, wanted, v, allow_unused=True)
        return [y, *(torch.zeros(1) if g is None else g for g in grads)]

    solver, calls = from_value.by_solver, []
    monkeypatch.setattr(from_value, "by_solver", lambda *a, **k: calls.append(a) or solver(*a, **k))
    found = results()
    (plan,) = (t for t in base.METHODS.values() if isinstance(t, traced.TracedValue))
    assert isinstance(plan.kernel, TritonKernel)
    assert len(calls) == 1  # when the kernel was made
    monkeypatch.setitem(from_value.COMPILERS, "cpu", "numba")
    base.METHODS.clear()
    with regmax.kernels.reference():
        solved = results()
    for expected in (solved,) if CUDA else (solved, results()):
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
        assert torch.equal(found[0] == 0, expected[0] == 0)
        for got, right in zip(found[1:], expected[1:], strict=True):
            size = 1 + right.abs().max().item()
            torch.testing.assert_close(got.cpu(), right.cpu(), rtol=0, atol=1e-10 * size)


def made(value, d, device):
    y = torch.linspace(0.05, 0.3, d, dtype=F64, device=device).unsqueeze(0)
    entry = entrywise(value, y, [])
    inputs = entry.inputs([])
    kernel = TritonKernel(entry, inputs, d, torch.device(device))
    return kernel, NumbaKernel(entry, inputs, d), [traced.hyper(t) for t in inputs]


@pytest.mark.parametrize("d", [1, 2, 33])
@pytest.mark.parametrize("name", ["cube", "entropy"])
def test_rows_of_every_size(name, d, device):
    kernel, other, theta = made(lambda y: VALUES[name](y, None, None), d, device)
    x, gamma = torch.randn(5, 2 * d, dtype=F64)[:, ::2], torch.full((1,), 0.3, dtype=F64)
    x = x.contiguous() if d > 1 else x[:, :1]
    y, bound = kernel.solve(x.to(device), gamma.to(device), tuple(theta), None)
    assert bool((bound <= 1e-10).all())
    expected, _ = other.solve(x, gamma, tuple(t.cpu() for t in theta), None)
    torch.testing.assert_close(y.cpu(), expected, rtol=0, atol=1e-14)


def test_scores_in_float32_are_computed_in_float64(device):
    layer = regmax.RegularizedMax(Own("cube").to(device, F32))
    x = torch.randn(3, D, dtype=F32, device=device)
    torch.testing.assert_close(layer(x), layer(x.double()).float(), rtol=0, atol=0)
    said = layer.explain(x)
    assert "kernel from the value: its source is" in said
    assert "triton_slopes" in said
    with regmax.kernels.reference():
        assert "kernel from" not in layer.explain(x)


def test_why_there_is_no_kernel(device, monkeypatch):
    def said(omega, d=D):
        x = torch.randn(2, d, dtype=F64, device=device)
        return regmax.RegularizedMax(omega).explain(x).splitlines()[-1]

    form = omega_of(lambda y: (y @ torch.eye(D, dtype=F64, device=y.device)).square().sum(-1))
    assert said(form).endswith("on a GPU: it couples entries of y")
    assert said(Square(), LIMIT + 1).endswith(f"more than {LIMIT} entries, on a GPU")
    real = builtins.__import__

    def without(name, *args):
        if name == "kernels.from_value.triton_kernel":
            raise ModuleNotFoundError(name="triton")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    assert said(Square()) == "note: triton is missing (pip install 'regmax[fast]')"
