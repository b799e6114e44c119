"""Hyperparameters that learn, one for each head."""

from __future__ import annotations

import pytest
import torch
from mapping_checks import normal

import regmax
from regmax.functional import entmax
from regmax.nn import AdaptiveEntmax, Between, Learnable, MultiheadAttention, Positive

F64 = torch.float64
EXACT = {"rtol": 0, "atol": 1e-12}
N, L, S, E, H = 3, 4, 5, 8, 2


def layer_of(omega, gamma=1.0):
    """A layer with the same weights for every Ω."""
    layer = MultiheadAttention(E, H, batch_first=True, dtype=F64, omega=omega, gamma=gamma)
    for i, name in enumerate(("in_proj_weight", "in_proj_bias", "out_proj.weight")):
        weight = layer.get_parameter(name)
        weight.data = normal(*weight.shape, seed=i) / 2
    return layer


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_each_head_learns_its_alpha():
    ours, x = layer_of(AdaptiveEntmax(H).double()), 2 * normal(N, S, E)
    with torch.no_grad():
        ours.omega.a.copy_(torch.tensor([-1.0, 2.0]).view(H, 1, 1))
    torch.testing.assert_close(ours.omega.alpha, 1 + ours.omega.a.sigmoid(), rtol=0, atol=0)
    out, weights = ours(x, x, x, average_attn_weights=False)
    fixed = layer_of(regmax.regularizer("tsallis", alpha=ours.omega.alpha.detach()))
    same((out, weights), fixed(x, x, x, average_attn_weights=False))
    assert (weights[:, 1] == 0).sum() > (weights[:, 0] == 0).sum()
    out.square().sum().backward()
    assert ours.omega.a.grad.all()


def test_the_gradient_of_a():
    omega, x = AdaptiveEntmax(H).double(), 2 * normal(N, H, L, S)
    a = normal(H, 1, 1, seed=3).requires_grad_()
    with torch.no_grad():
        omega.a.copy_(a)
    weight = normal(N, H, L, S, seed=4)
    (ours,) = torch.autograd.grad((regmax.RegularizedMax(omega())(x) * weight).sum(), omega.a)
    (plain,) = torch.autograd.grad((entmax(x, alpha=1 + a.sigmoid()) * weight).sum(), a)
    assert plain.all()
    torch.testing.assert_close(ours, plain, **EXACT)


@pytest.mark.parametrize(
    ("module", "value", "low", "high"),
    [
        (Between(1, 2, (3, 1, 1)), 1.5, 1, 2),
        (Between(0.0, 4.0, (), 1.0), 1.0, 0, 4),
        (Positive((3, 1, 1), 0.1), 0.1, 0, 1e3),
        (Positive((), 30.0), 30.0, 0, 1e3),
        (Positive((), 1e-6), 1e-6, 0, 1e3),
    ],
)
def test_ranges(module, value, low, high):
    module = module.double()
    torch.testing.assert_close(module(), torch.full_like(module.a, value), rtol=1e-6, atol=0)
    for far in (-20.0, 20.0):
        with torch.no_grad():
            module.a.fill_(far)
        assert (module() > low).all()
        assert (module() < high).all()


def learning():
    omega = Learnable(regmax.regularizer("tv"), lam=Positive((H, 1, 1), 0.1))
    return layer_of(omega.double(), Positive((H, 1, 1), 0.5).double())


def test_a_sum_that_learns():
    omega = regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv")
    names = {"base.alpha": Between(1, 2, (H, 1, 1)), "lam": Positive((H, 1, 1), 0.1)}
    learns = Learnable(omega, **names).double()
    x = normal(N, H, L, S)
    torch.testing.assert_close(
        regmax.RegularizedMax(learns())(x), regmax.RegularizedMax(omega)(x), rtol=0, atol=1e-7
    )
    (regmax.RegularizedMax(learns())(x) * normal(N, H, L, S, seed=1)).sum().backward()
    assert all(p.grad.all() for p in learns.parameters())
    assert list(learns.state_dict()) == ["learned.base_alpha.a", "learned.lam.a"]


def test_compiled():
    layer, x = learning(), normal(N, S, E)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    leaves = list(layer.parameters())
    gradients = []
    for f in (layer, compiled):
        out, _ = f(x, x, x, key_padding_mask=torch.arange(S) > torch.tensor([[4], [2], [3]]))
        gradients.append(torch.autograd.grad(out.square().sum(), leaves))
    torch.testing.assert_close(*gradients, **EXACT)


def test_compiled_by_its_value():
    """A number of the user's own Ω that learns is no constant of the graph."""

    class Mixture(regmax.Regularizer):
        hyperparameters = ("w",)

        def __init__(self, w=0.5):
            self.w = w

        def value(self, y):
            w = self.per_row("w")
            return w * y.pow(1.5).sum(-1) + (1 - w) * y.square().sum(-1)

    class Slip(Mixture):
        def value(self, y):
            return self.w * y.pow(1.5).sum(-1) + (1 - self.w) * y.square().sum(-1)

    for batch in ((2, 3), (3, 3), (3,)):
        with pytest.raises(ValueError, match=r"Slip\.value\(y\): self\.w .* self\.per_row\('w'\)"):
            regmax.RegularizedMax(Slip(torch.full((batch[-1], 1), 0.5)))(normal(*batch, S))
    layer, x = layer_of(Learnable(Mixture(), w=Between(0, 1, (H, 1, 1))).double()), normal(N, S, E)
    layer.omega.learned["w"].a.data += torch.tensor([1.0, -2.0]).view(H, 1, 1)
    torch._dynamo.reset()
    found = []
    for f in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        out, _ = f(x, x, x)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_parametrized_and_compiled():
    """torch.nn.utils.parametrize gives Ω a class of its own, which Dynamo meets first."""

    class Mixture(regmax.Regularizer):
        def __init__(self, w):
            self.w = torch.nn.Parameter(w)

        def value(self, y):
            return self.w * y.pow(1.5).sum(-1) + y.square().sum(-1)

    class Soft(torch.nn.Module):
        def forward(self, a):
            return torch.nn.functional.softplus(a)

    omega, x = Mixture(torch.tensor(0.3, dtype=F64)), normal(N, S)
    torch.nn.utils.parametrize.register_parametrization(omega, "w", Soft())
    layer = regmax.RegularizedMax(omega)
    torch._dynamo.reset()
    found = []
    for f in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
        y = f(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"omega must be a regmax\.Regularizer; got str"):
        Learnable("entmax")
    gini, tv = regmax.regularizer("gini"), regmax.regularizer("tv")
    with pytest.raises(TypeError, match=r"'alpha'; accepted: \(none\)"):
        Learnable(gini, alpha=Between(1, 2))
    with pytest.raises(TypeError, match="lam must be a module that computes it"):
        Learnable(tv, lam=0.1)
    with pytest.raises(ValueError, match="low must be < high"):
        Between(2, 1)
    with pytest.raises(ValueError, match=r"init must be in \(1, 2\); got 2"):
        Between(1, 2, init=2.0)
    with pytest.raises(ValueError, match="init must be > 0 and finite; got 0"):
        Positive(init=0.0)
    for made, wrong in ((Positive, 8), (lambda n: Between(1, 2, n), -1), (AdaptiveEntmax, "8")):
        with pytest.raises(TypeError, match=r"shape must hold ints >= 0, as \(heads, 1, 1\) does"):
            made(wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_the_range(dtype):
    """1 + σ(a) rounded to bfloat16 is 1 or 2 long before a has stopped learning."""
    a = torch.tensor([-9.0, 0.01, 9.0])
    for make, low, high in ((lambda: Between(1, 2, (3,)), 1, 2), (lambda: Positive((3,)), 0, 10)):
        module = make().to(dtype)
        module.a.data = a.to(dtype)
        value = module()
        assert ((value > low) & (value < high)).all()
        exact = make().double()
        exact.a.data = module.a.detach().double()
        torch.testing.assert_close(value.double(), exact(), rtol=1e-6, atol=0)
        (slope,) = torch.autograd.grad(value.sum(), module.a)
        assert slope.dtype == dtype
        assert slope.all()
