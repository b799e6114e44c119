"""torch.autocast and GradScaler: mappings as torch.softmax, losses in float32, no step skipped."""

import itertools

import pytest
import torch
from devices import DEVICES
from torch import nn

import regmax
from regmax import functional
from regmax.kernels import transforms
from regmax.nn import AdaptiveEntmax, Between, Learnable, MultiheadAttention, Positive

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


class Model(nn.Module):
    """Self-attention, then a mapping of the scores of classes."""

    def __init__(self, attention, loss, gate):
        super().__init__()
        self.embed, self.attention = nn.Linear(6, 8), attention
        self.classes, self.loss, self.gate = nn.Linear(8, 5), loss, gate

    def forward(self, x, target):
        h = self.embed(x)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        s = self.classes(h).flatten(0, 1)
        return self.loss(s + self.gate(s), target.flatten())


def steps(model, device):
    """Whether a scaler, which begins at 2**16, skips one of three steps; and the losses."""
    torch.manual_seed(1)
    x = torch.randn(2, 6, 6, device=device)
    target = torch.randint(5, (2, 6), device=device)
    scaler = torch.amp.GradScaler(device)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = model(x, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.detach())
    assert all(loss.dtype == torch.float32 for loss in found)
    return scaler.get_scale() != 2.0**16, torch.stack(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*NAMES, "learned"])
def test_a_gradient_scaler_skips_no_step(name, device):
    def made(ours):
        torch.manual_seed(0)
        if not ours:
            attention = nn.MultiheadAttention(8, 2, batch_first=True)
            return Model(attention, nn.CrossEntropyLoss(), nn.Softmax(-1)).to(device)
        if name == "learned":
            omega, gamma = regmax.regularizer("tsallis"), Positive(init=0.7)
            shared = Learnable(omega, alpha=Between(1, 2))
            attention = MultiheadAttention(8, 2, omega=AdaptiveEntmax(2), batch_first=True)
            model = Model(attention, None, None)
            model.shared, model.gamma = shared, gamma
            model.gate = lambda s: regmax.RegularizedMax(shared(), gamma=gamma())(s)
            model.loss = lambda s, t: regmax.FenchelYoungLoss(shared(), gamma=gamma())(s, t)
            return model.to(device)
        attention = MultiheadAttention(8, 2, omega=name, batch_first=True)
        loss = getattr(regmax.losses, name.capitalize() + "Loss")()
        return Model(attention, loss, getattr(functional, name)).to(device)

    skips, _ = steps(made(ours=False), device)
    assert not skips
    model = made(ours=True)
    before = [p.detach().clone() for p in model.parameters()]
    skips, losses = steps(model, device)
    assert not skips
    assert losses.isfinite().all()
    assert losses[-1] < losses[0]
    named = zip(before, model.named_parameters(), strict=True)
    same = {key for p, (key, q) in named if torch.equal(p, q)}
    assert not same - {"attention.in_proj_bias"}  # a bias of the keys changes no weight
