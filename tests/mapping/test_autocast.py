"""torch.autocast and GradScaler: mappings as torch.softmax, losses in float32, no step skipped."""

import itertools

import pytest
import torch
from devices import DEVICES

import regmax
from regmax import functional
from regmax.kernels import transforms

HALF = (torch.float16, torch.bfloat16)
NAMES = ("softmax", "sparsemax", "pnormmax", "entmax15", "entmax", "fusedmax", "oscarmax")


def scores(*shape, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return (2 * torch.randn(*shape)).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_the_dtype_is_that_of_softmax(name, device):
    mapping = getattr(functional, name)
    for dtype, autocast in itertools.product((*HALF, torch.float32, torch.float64), HALF):
        x = scores(3, 7, dtype=dtype, device=device).requires_grad_()
        with torch.autocast(device, autocast):
            expected, y = torch.softmax(x, -1), mapping(x)
            masked = mapping(x, dim=0, mask=torch.ones(3, 1, dtype=torch.bool, device=device))
        assert y.dtype == masked.dtype == expected.dtype
        rounding = 2 * torch.finfo(y.dtype).eps
        torch.testing.assert_close(y.double(), mapping(x.double()), rtol=rounding, atol=rounding)
        (g,) = torch.autograd.grad(y.square().sum(), x)
        assert g.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_where_autocast_widens_softmax(name, monkeypatch):
    """What a GPU returns, computed on the CPU."""
    monkeypatch.setattr(transforms, "widens_softmax", transforms.autocasting)
    mapping, x = getattr(functional, name), scores(3, 7, dtype=torch.bfloat16).requires_grad_()
    layer = regmax.RegularizedMax(regmax.regularizer("tsallis"), certify=True)
    for call in (mapping, layer, torch.compile(mapping, fullgraph=True, backend="aot_eager")):
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        assert y.dtype == torch.float32
        exact = x.detach().float().requires_grad_()
        expected = (layer if call is layer else mapping)(exact)
        torch.testing.assert_close(y, expected)
        (g,) = torch.autograd.grad(y.square().sum(), x)
        (h,) = torch.autograd.grad(expected.square().sum(), exact)
        torch.testing.assert_close(g, h.bfloat16())


@pytest.mark.parametrize("name", NAMES)
def test_a_large_gradient_is_rounded_once(name):
    """As a scaled loss sends it."""
    v = 2.0**14 * scores(40, 5).view(5, 40).sin().half()
    hyper = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}.get(name)
    found = []
    for dtype in (torch.float16, torch.float64):
        x = scores(5, 40).half().to(dtype).requires_grad_()
        learned = {"gamma": torch.tensor(1.5, requires_grad=True)}
        if hyper is not None:
            start = 0.1 if hyper == "lam" else 1.5
            learned[hyper] = torch.tensor(start, requires_grad=True)
        y = getattr(functional, name)(x, **learned)
        found.append(torch.autograd.grad(y, [x, *learned.values()], v.to(dtype)))
    for g, exact in zip(*found, strict=True):
        assert g.isfinite().all()
        size = exact.abs().max().item()
        torch.testing.assert_close(g.double(), exact.double(), rtol=2e-2, atol=2e-3 * size)
