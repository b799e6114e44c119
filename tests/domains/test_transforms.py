"""Domains under torch.func, forward mode, torch.compile and torch.export."""

import copy

import pytest
import torch
from torch.autograd import forward_ad

import regmax
from regmax import AtMost, Box, RegularizedMax, Simplex

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
SETTINGS = {"tol": 1e-12, "on_failure": "ignore"}


class Coupled(regmax.Regularizer):
    def value(self, y):
        return y.square().sum(-1) / 2 + (y[..., 1:] - y[..., :-1]).square().sum(-1)


OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "entropy": lambda: regmax.regularizer("entropy"),
    "tsallis": lambda: 2 * regmax.regularizer("tsallis", alpha=1.3),
    "pnorm": lambda: regmax.regularizer("pnorm", p=1.5),
    "coupled": Coupled,
    "tv": lambda: regmax.regularizer("tv", lam=0.2),
}
DOMAINS = {
    "simplex": lambda total, lower, upper: Simplex(total, lower, upper),
    "at most": lambda total, lower, upper: AtMost(total, upper),
    "box": lambda total, lower, upper: Box(lower, upper),
}
CASES = [(n, d) for n in OMEGAS for d in DOMAINS if n != "tv" or d == "simplex"]
each = pytest.mark.parametrize(("name", "kind"), CASES)


def given(name):
    """Scores, γ, totals, lower and upper bounds."""
    generator = torch.Generator().manual_seed(1)
    x = 1.5 * torch.randn(3, 5, generator=generator, dtype=F64)
    x[1, 2] = x[1, 0]
    total = torch.tensor([[1.7], [2.2], [0.9]], dtype=F64)
    lower = torch.linspace(0.02, 0.1, 15, dtype=F64).view(3, 5)
    upper = torch.linspace(0.5, 0.8, 5, dtype=F64)
    if name == "tv":
        lower, upper = lower[:, :1], upper[:1]
    return x, torch.tensor(0.8, dtype=F64), total, lower, upper


def layer_of(name, kind, gamma, *limits):
    return RegularizedMax(OMEGAS[name](), gamma, domain=DOMAINS[kind](*limits), **SETTINGS)


def far(found, expected):
    pairs = zip(found, expected, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@each
def test_torch_func_has_the_derivatives_of_reverse_mode(name, kind):
    def mapped(x, *rest):
        return layer_of(name, kind, *rest)(x)

    def maximum(x, *rest):
        return layer_of(name, kind, *rest).max(x)

    tensors, wanted = given(name), tuple(range(5))
    for function in (mapped, maximum):
        forward = torch.func.jacfwd(function, wanted)(*tensors)
        assert far(torch.func.jacrev(function, wanted)(*tensors), forward) <= 1e-9
        if name != "tv" or function is mapped:  # no reverse mode in the bounds
            expected = torch.autograd.functional.jacobian(function, tensors)
            assert far(forward, expected) <= 1e-9
    x = tensors[0]
    with forward_ad.dual_level():
        y = mapped(forward_ad.make_dual(x, x), *tensors[1:])
        moved = forward_ad.unpack_dual(y).tangent
    along = torch.einsum("ijkl,kl->ij", torch.func.jacrev(mapped)(*tensors), x)
    assert (moved - along).abs().max() <= 1e-9


@each
def test_vmap_over_scores_and_bounds_is_one_call(name, kind):
    def mapped(x, *rest):
        return layer_of(name, kind, *rest)(x)

    x, gamma, total, lower, upper = given(name)
    y = mapped(x, gamma, total, lower, upper)
    rows = torch.vmap(mapped, (0, None, 0, 0, None))(x, gamma, total, lower, upper)
    assert (rows - y).abs().max() <= 1e-12
    more = torch.stack([upper, 1.1 * upper])
    both = torch.vmap(mapped, (None, None, None, None, 0))(x, gamma, total, lower, more)
    for found, upper in zip(both, more, strict=True):
        assert (found - mapped(x, gamma, total, lower, upper)).abs().max() <= 1e-12


def test_second_derivatives():
    def maximum(x, upper):
        return layer_of("tsallis", "simplex", 0.8, 1.7, 0.0, upper).max(x).sum()

    x, _, _, _, upper = given("tsallis")
    hessian = torch.func.hessian(maximum)(x, upper)
    expected = torch.autograd.functional.hessian(lambda t: maximum(t, upper), x)
    assert (hessian - expected).abs().max() <= 1e-9


@pytest.mark.parametrize(
    ("name", "kind"), [("tsallis", "simplex"), ("tsallis", "at most"), ("gini", "box")]
)
def test_compiled_and_exported(name, kind):
    """On AtMost Ω counts as written, also where a graph made it again from a text."""
    x, _, total, lower, upper = given(name)
    upper = torch.nn.Parameter(upper)
    layer = layer_of(name, kind, 0.8, total, lower, upper)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 1] = False
    torch._dynamo.reset()
    recorded = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for on in (None, mask):
        found = []
        for call in (layer, recorded):
            own = x.clone().requires_grad_()
            y = call(own, on)
            upper.grad = None
            (y * x.sin()).sum().backward()
            found.append((y.detach(), own.grad, upper.grad))
        assert far(*found) <= 1e-9
    maximum = torch.compile(layer.max, fullgraph=True, backend="aot_eager")
    assert (maximum(x) - layer.max(x)).abs().max() <= 1e-12
    layer = copy.deepcopy(layer).requires_grad_(False)
    program = torch.export.export(layer, (x, mask))
    assert (program.module()(x, mask) - layer(x, mask)).abs().max() <= 1e-12
    with pytest.raises(NotImplementedError, match="domain= has no form in operations of ATen"):
        program.run_decompositions()


def test_functions_are_recorded_or_run_outside_of_the_graph():
    x, functional = given("gini")[0], regmax.functional
    torch._dynamo.reset()

    def mapped(x, upper):
        return 2 * functional.entmax(x, 1.3, domain=Simplex(2.0, upper=upper))

    recorded = torch.compile(mapped, fullgraph=True, backend="aot_eager")
    caps = torch.tensor([[0.8], [0.3], [0.6]], dtype=F64)
    y = recorded(x, caps)
    assert y[1].isnan().all()  # no point of the domain, which is not read there
    assert torch.allclose(y[[0, 2]], mapped(x[[0, 2]], caps[[0, 2]]), rtol=0, atol=1e-12)

    def powers(x):
        return 2 * functional.pnormmax(x, domain=Box())

    outside = torch.compile(powers, backend="aot_eager")
    assert torch.equal(outside(x), powers(x))
    layer = RegularizedMax(OMEGAS["pnorm"](), domain=Box())
    with pytest.raises(NotImplementedError, match="record domain= where Ω has an inverse"):
        torch.export.export(layer, (x,))
