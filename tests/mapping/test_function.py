"""Every derivative of every mapping, by every mode of PyTorch that takes one, in x and in every
hyperparameter. The truth is reverse mode, which is held against differences.
"""

import functools
import io
import shutil

import pytest
import torch
from mapping_checks import away_from_kinks, normal
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, jacfwd, jacrev, jvp, linearize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import regmax
from regmax import functional
from regmax.regularizers import serialize
from regmax.regularizers.registry import Offer, registry

F64 = torch.float64
MAPPINGS = {
    "softmax": ("entropy", {}),
    "sparsemax": ("gini", {}),
    "pnormmax": ("pnorm", {"p": 1.4}),
    "entmax": ("tsallis", {"alpha": 1.3}),
    "entmax15": ("tsallis", {}),
    "fusedmax": ("tv", {"lam": 0.1}),
    "oscarmax": ("oscar", {"lam": 0.05}),
}
# forward mode warns that it is in beta
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Case:
    """A mapping as a function of x, its hyperparameters and γ, and a point away from kinks."""

    def __init__(self, name):
        self.plugin, hyper = MAPPINGS[name]
        self.name, self.keys, self.mapping = name, tuple(hyper), getattr(functional, name)
        values = [torch.tensor(v, dtype=F64) for v in hyper.values()]
        gamma = torch.tensor([[0.8], [1.0], [1.2]], dtype=F64)
        x = away_from_kinks(lambda x: self(x, *values, gamma), 3, 5)
        self.inputs = (x, *values, gamma)
        self.argnums = tuple(range(len(self.inputs)))
        self.weights = normal(3, 5, seed=9)

    def __call__(self, x, *values, **kwargs):
        return self.mapping(x, **self.arguments(values), **kwargs)

    def arguments(self, values):
        return dict(zip((*self.keys, "gamma"), values, strict=False))

    def tangents(self):
        return tuple(normal(*t.shape or (1,), seed=3).reshape(t.shape) for t in self.inputs)

    def loss(self, *inputs):
        return (self(*inputs).pow(3) * self.weights).sum()

    def layer(self, gamma=None):
        hyper = self.arguments([nn.Parameter(v.clone()) for v in self.inputs[1:]])
        learnt = hyper.pop("gamma")
        omega = regmax.regularizer(self.plugin, **hyper)
        return regmax.RegularizedMax(omega, gamma=learnt if gamma is None else gamma)


@functools.cache
def made(name):
    return Case(name)


@pytest.fixture(params=MAPPINGS)
def case(request):
    torch._dynamo.reset()
    return made(request.param)


# in a graph each mapping is one operator: a threshold and a penalty stand for all
recorded = pytest.mark.parametrize("case", ["entmax", "fusedmax"], indirect=True)
one_recorded = pytest.mark.parametrize("case", ["fusedmax"], indirect=True)


def same(got, expected, atol=1e-10):
    """Equal, tree by tree, and not because both are zero."""
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=atol)
    flat = torch.utils._pytree.tree_leaves(expected)
    assert all(bool((t != 0).any()) for t in flat), "the check is about zeros"


def jacobian(f, inputs):
    return torch.autograd.functional.jacobian(f, tuple(inputs))


# -- torch.func ------------------------------------------------------------------------------


def test_vmap_of_masks_and_odd_rows(case):
    x = normal(4, 6, seed=5)
    x[1, 2], x[2, 3] = torch.nan, -torch.inf
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0], mask[3] = False, True
    expected = case.mapping(x, mask=mask)
    got = vmap(lambda x, m: case.mapping(x, mask=m))(x, mask)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-15, equal_nan=True)
    got = vmap(lambda m: case.mapping(x, mask=m))(torch.stack([mask, ~mask]))
    assert torch.equal(got[0].nan_to_num(7), expected.nan_to_num(7))
    for transform in (jacrev, jacfwd):
        j = transform(lambda x: case.mapping(x, mask=mask))(x.nan_to_num(0, neginf=-torch.inf))
        assert torch.isfinite(j).all()
        assert (j[0] == 0).all()


def test_ensembles_of_layers(case):
    layer = case.layer()
    stacked = {k: torch.stack([p, 0.9 * p]).detach() for k, p in layer.named_parameters()}
    x = case.inputs[0]
    got = vmap(lambda p: functional_call(layer, p, (x,)))(stacked)
    for i in range(2):
        one = functional_call(layer, {k: p[i] for k, p in stacked.items()}, (x,))
        torch.testing.assert_close(got[i], one, rtol=0, atol=1e-15)


def test_recorders_of_operators(case):
    """linearize, make_fx, fake and meta tensors, dispatch modes."""
    x = case.inputs[0]
    y, push = linearize(case.mapping, x)
    assert torch.equal(y, case.mapping(x))
    same(push(x.cos()), jvp(case.mapping, (x,), (x.cos(),))[1])
    torch.testing.assert_close(make_fx(case.mapping)(x)(x + 1), case.mapping(x + 1))
    assert case.mapping(x.to("meta")).shape == x.shape
    with FakeTensorMode() as mode:
        assert case.mapping(mode.from_tensor(x)).shape == x.shape
    with FlopCounterMode(display=False):
        torch.testing.assert_close(case.mapping(x), case.mapping(x))
        ones = regmax.RegularizedMax(Cubic(torch.ones(5, dtype=F64)))(x)
        assert torch.allclose(ones.sum(-1), torch.ones(3, dtype=F64))


# -- torch.compile, torch.export --------------------------------------------------------------


def gradients(f, inputs):
    leaves = [t.clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(f(*leaves), leaves)


@recorded
def test_compiled_shapes_and_numbers_stay_open(case):
    def f(x, number):
        keys = dict.fromkeys(case.keys, number)
        return case.mapping(x, gamma=number, **keys)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for shape, number in (((3, 5), 1.2), ((4, 7), 1.3), ((2, 9), 1.9), ((6, 4), 1.05)):
        x = normal(*shape, seed=1)
        torch.testing.assert_close(compiled(x, number), f(x, number), rtol=0, atol=1e-13)
    assert counter.frame_count <= 2


@one_recorded
def test_compiled_masks(case):
    mask = torch.tensor([[True, True, False, True, True], [False] * 5, [True] * 5])
    x = normal(3, 5, seed=1)
    compiled = torch.compile(case.mapping, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask=mask), case.mapping(x, mask=mask), rtol=0, atol=0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    case = made("fusedmax")
    torch._dynamo.reset()
    compiled = torch.compile(case.loss, fullgraph=True)
    same(gradients(compiled, case.inputs), gradients(case.loss, case.inputs))


@pytest.mark.parametrize(
    ("case", "strict"), [("entmax", True), ("fusedmax", False)], indirect=["case"]
)
def test_export(case, strict):
    layer, x = case.layer(gamma=0.9), case.inputs[0]
    dims = {0: torch.export.Dim("rows"), 1: torch.export.Dim("d", min=3)}
    program = torch.export.export(layer, (x,), dynamic_shapes=(dims,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((3, 5), (4, 8)):
        x = normal(*shape, seed=3)
        torch.testing.assert_close(loaded(x), layer(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["gini", "entropy", "tsallis", "pnorm", "tv", "oscar"])
def test_a_mapping_is_one_operator_in_a_graph_and_its_backward_another(name):
    x = normal(3, 5)
    program = torch.export.export(regmax.RegularizedMax(regmax.regularizer(name)), (x,))
    (call,) = [node for node in program.graph.nodes if node.op == "call_function"]
    assert call.target is torch.ops.regmax.argmax.default
    text = call.args[3]
    torch.library.opcheck(torch.ops.regmax.argmax, (x, None, [], text))
    given = (torch.ops.regmax.argmax(x, None, [], text), None, x.cos(), [], text, True)
    torch.library.opcheck(torch.ops.regmax.jacobian_product, given)


class ByValue(type(regmax.regularizer("gini"))):
    """½‖y‖² and its kernel; gradient and curvature are left to autograd."""

    name = "by-value"
    grad, curvature = regmax.Regularizer.grad, regmax.Regularizer.curvature

    def value(self, y):
        return y.square().sum(-1) / 2

    def kernel(self, x):
        return super().kernel(x)


@pytest.mark.parametrize(
    ("name", "theta"),
    [("gini", None), ("by-value", "own"), ("tsallis", "alpha"), ("pnorm", "p"), ("tv", "lam")],
)
def test_a_recorded_backward_is_exact_where_no_kernel_is(name, theta, monkeypatch):
    """A program exported with kernels may be loaded where there are none."""
    y, v = normal(4, 6).softmax(-1), normal(4, 6).cos()
    t = torch.full((4, 1), 1.4, dtype=F64)
    tensors = {} if theta in (None, "own") else {theta: t}
    if theta == "own":
        offer = Offer("by-value", ByValue, "mine", "mine 1.0")
        monkeypatch.setitem(registry()._offers["regularizer"], "by-value", [offer])
    omega = regmax.regularizer(name, **tensors)
    text = serialize.call(omega, 0.8, tuple(tensors))
    given = (y, None, v, list(tensors.values()), text, True)
    expected = torch.ops.regmax.jacobian_product(*given)
    with regmax.kernels.reference():
        found = torch.ops.regmax.jacobian_product(*given)
    same(found, expected)


def test_the_text_of_a_graph():
    owl = regmax.penalty("owl", weights=learnt([2.0, 1.0, 0.5]))
    omega = learnt(2.0) * regmax.regularizer("tsallis", alpha=1.5) + 0.25 * owl
    text = serialize.call(omega, None, ("base.c", "penalty.weights"))
    assert text == (
        "Penalized(base=Scaled(base=Tsallis(alpha=1.5), c=tensor()), "
        "penalty=OWL(weights=tensor(3,)), lam=0.25), None, 'base.c', 'penalty.weights'"
    )
    made, gamma, *names = serialize.made(text)
    assert serialize.call(made, gamma, tuple(names)) == text
    wide = regmax.penalty("owl", weights=range(99, -1, -1))  # more entries than a repr
    made, gamma = serialize.made(serialize.call(regmax.regularizer("gini") + wide, 0.5, ()))
    assert (made.penalty.weights, gamma) == (wide.weights, 0.5)


def test_a_class_name_of_two_plugins_breaks_the_graph(monkeypatch):
    other = type("Gini", (regmax.Regularizer,), {})
    offer = Offer("other", other, "other", "regmax 0.1.0")
    monkeypatch.setitem(registry()._offers["regularizer"], "other", [offer])
    x = normal(3, 5)
    sparsemax = functional.sparsemax
    same(torch.compile(sparsemax, backend="eager")(x), sparsemax(x))
    layer = regmax.RegularizedMax(regmax.regularizer("gini"))
    same(torch.compile(layer, backend="eager")(x), layer(x))


class Cubic(regmax.Regularizer):
    """Given by its value alone."""

    def __init__(self, w):
        self.w = w

    def value(self, y):
        return (y.square() / 2 + self.w * y.pow(3) + y * y.roll(1, -1) / 4).sum(-1)


# -- what is refused is refused aloud -----------------------------------------------------------


def test_what_cannot_be_recorded_says_so():
    layer = regmax.RegularizedMax(Cubic(torch.ones(5, dtype=F64)))
    with pytest.raises(NotImplementedError, match="Cubic is not one"):
        torch.export.export(layer, (normal(3, 5),))
    solver = regmax.RegularizedMax(regmax.regularizer("gini"), solver="fista")
    with pytest.raises(NotImplementedError, match="solver='fista'"):
        torch.export.export(solver, (normal(3, 5),))
    for refused in (layer, solver):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
            torch.compile(refused, fullgraph=True, backend="aot_eager")(normal(3, 5))


def test_certificates_are_taken_outside():
    layer, x = regmax.RegularizedMax(regmax.regularizer("tv")), normal(3, 5)
    for transform in (vmap, jacrev, jacfwd):
        with pytest.raises(NotImplementedError, match="call solve outside"):
            transform(lambda x: layer.solve(x).value)(x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * layer.solve(x + 1).value, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 2 * layer.solve(x + 1).value)


def test_what_is_differentiated_as_written_says_so():
    def f(x):
        return functional.oscarmax(x, exact=False)

    for transform in (jacrev, jacfwd, vmap):
        with pytest.raises(NotImplementedError, match=r"exact=False.*as it is written"):
            transform(f)(normal(3, 5))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"exact=False"):
        torch.compile(f, fullgraph=True, backend="aot_eager")(normal(3, 5))


def test_a_curvature_too_large_to_write_down_says_so():
    class Coupled(regmax.Regularizer):
        def value(self, y):
            return y.square().sum(-1) + y.mean(-1).square()

    with pytest.raises(NotImplementedError, match="declare its curvature"):
        vmap(regmax.RegularizedMax(Coupled()))(normal(2, 600))


def test_out_of_range_where_nobody_looks_is_nan(case):
    x, *values, gamma = case.inputs
    for i, key in enumerate((*case.keys, "gamma")):
        good = (*values, gamma[0])[i]
        bad = [torch.full_like(good, v) for v in (-1.0, torch.nan, torch.inf)]
        f = functools.partial(lambda x, key, v: case.mapping(x, **{key: v}), x, key)
        y = vmap(f)(torch.stack([good, *bad, good]))
        assert y[1:4].isnan().all(), key
        torch.testing.assert_close(y[[0, 4]], torch.stack([f(good)] * 2), rtol=0, atol=1e-15)


# -- autocast, checkpoints -----------------------------------------------------------------------


# -- expressions -----------------------------------------------------------------------------------


def learnt(value):
    return nn.Parameter(torch.tensor(value, dtype=F64))


EXPRESSIONS = {
    "entmax + tv": lambda: (
        regmax.regularizer("tsallis", alpha=learnt(1.4)) + learnt(0.1) * regmax.penalty("tv")
    ),
    "c (pnorm + λ oscar)": lambda: (
        learnt(1.3) * (regmax.regularizer("pnorm") + learnt(0.05) * regmax.penalty("oscar"))
    ),
    "c entropy": lambda: learnt(2.0) * regmax.regularizer("entropy"),
    "gini + grid": lambda: (
        learnt(0.7) * regmax.regularizer("gini") + 0.1 * regmax.penalty("grid_tv", shape=(2, 3))
    ),
}


class Expression:
    """A layer of an expression as a function of x, γ and its parameters, away from kinks."""

    def __init__(self, name):
        self.layer = regmax.RegularizedMax(EXPRESSIONS[name](), gamma=learnt(0.9))
        self.names = [k for k, _ in self.layer.named_parameters()]
        self.x = away_from_kinks(lambda x: self.layer(x).detach(), 3, 6)
        self.inputs = (self.x, *(p.detach().clone() for p in self.layer.parameters()))
        self.argnums = tuple(range(len(self.inputs)))
        self.weights = normal(3, 6, seed=9)

    def __call__(self, x, *values):
        return functional_call(self.layer, dict(zip(self.names, values, strict=True)), (x,))

    def loss(self, *inputs):
        return (self(*inputs).pow(3) * self.weights).sum()


@pytest.fixture(params=EXPRESSIONS)
def expression(request):
    torch._dynamo.reset()
    return Expression(request.param)


@pytest.mark.parametrize(
    ("expression", "strict"),
    [("c (pnorm + λ oscar)", True), ("gini + grid", False)],  # learnt numbers, fixed tensors
    indirect=["expression"],
)
def test_expressions_exported(expression, strict):
    layer = expression.layer
    dims = {0: torch.export.Dim("rows")}
    program = torch.export.export(layer, (expression.x,), dynamic_shapes=(dims,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    x = normal(5, 6, seed=3)
    torch.testing.assert_close(loaded(x), layer(x), rtol=0, atol=1e-14)


def test_expressions_that_cannot_be_recorded_say_why():
    x = normal(2, 3)
    for omega, words in (
        (Cubic(torch.ones(3, dtype=F64)) + regmax.regularizer("gini"), "Cubic is not one"),
        (regmax.regularizer("entropy") + regmax.regularizer("gini"), "has none"),
    ):
        torch._dynamo.reset()
        layer = regmax.RegularizedMax(omega)
        with pytest.raises(NotImplementedError, match=words):
            torch.export.export(layer, (x,), strict=False)
        torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))
