"""Domains under torch.compile and torch.export; under torch.func: tests/test_grid.py."""

import copy

import pytest
import torch

import regmax
from regmax import AtMost, Box, RegularizedMax, Simplex

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
SETTINGS = {"tol": 1e-12, "on_failure": "ignore"}
OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "tsallis": lambda: 2 * regmax.regularizer("tsallis", alpha=1.3),
    "pnorm": lambda: regmax.regularizer("pnorm", p=1.5),
}
DOMAINS = {
    "simplex": lambda total, lower, upper: Simplex(total, lower, upper),
    "at most": lambda total, lower, upper: AtMost(total, upper),
    "box": lambda total, lower, upper: Box(lower, upper),
}


def given():
    """Scores, γ, totals, lower and upper bounds."""
    generator = torch.Generator().manual_seed(1)
    x = 1.5 * torch.randn(3, 5, generator=generator, dtype=F64)
    x[1, 2] = x[1, 0]
    total = torch.tensor([[1.7], [2.2], [0.9]], dtype=F64)
    lower = torch.linspace(0.02, 0.1, 15, dtype=F64).view(3, 5)
    upper = torch.linspace(0.5, 0.8, 5, dtype=F64)
    return x, torch.tensor(0.8, dtype=F64), total, lower, upper


def layer_of(name, kind, gamma, *limits):
    return RegularizedMax(OMEGAS[name](), gamma, domain=DOMAINS[kind](*limits), **SETTINGS)


def far(found, expected):
    pairs = zip(found, expected, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "kind"), [("tsallis", "simplex"), ("tsallis", "at most"), ("gini", "box")]
)
def test_compiled_and_exported(name, kind):
    """On AtMost Ω counts as written, also where a graph made it again from a text."""
    x, _, total, lower, upper = given()
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
    x, functional = given()[0], regmax.functional
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
