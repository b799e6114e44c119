"""Every derivative of every mapping, by every mode of PyTorch that takes one, in x and in every
hyperparameter. The truth is reverse mode, which is held against differences.
"""

import functools
import io
import itertools
import shutil

import pytest
import torch
from mapping_checks import away_from_kinks, normal
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
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


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_jacobians(case, transform):
    same(transform(case, argnums=case.argnums)(*case.inputs), jacobian(case, case.inputs))


def test_second_derivatives(case):
    expected = torch.autograd.functional.hessian(case.loss, case.inputs)
    for second in (hessian, lambda f, argnums: jacfwd(jacfwd(f, argnums), argnums)):
        same(second(case.loss, case.argnums)(*case.inputs), expected, atol=1e-9)


def test_higher_derivatives():
    """Up to the fifth, against reverse mode again and again."""

    def f(x):
        return functional.entmax(x, alpha=1.3)[0]

    x = normal(3, seed=2) / 2
    expected, found = f(x.requires_grad_()), f
    for _ in range(5):
        (g,) = torch.autograd.grad(expected, x, create_graph=True)
        expected = g[1]
        found = functools.partial(lambda f, x: jacfwd(f)(x)[1], found)
        same(found(x.detach()), expected.detach(), atol=1e-8)


class Quartic(regmax.Regularizer):
    separable = True

    def value(self, y):
        return (y.square() / 2 + 0.3 * y**4).sum(-1)


@pytest.mark.parametrize("omega", [regmax.regularizer("tsallis", alpha=1.3), Quartic()], ids=str)
def test_fourth_derivatives_in_any_mixture(omega):
    layer, x = regmax.RegularizedMax(omega), torch.tensor([0.3, 0.1, -0.2], dtype=F64)

    def f(x):
        return layer(x) @ torch.tensor([1.0, 2, 4], dtype=F64)

    def backward(t, x):
        return torch.autograd.grad(t, x, create_graph=True)[0][1]

    leaf = x.clone().requires_grad_()
    expected = f(leaf)
    for _ in range(4):
        expected = backward(expected, leaf)
    mixtures = list(itertools.product((jacfwd, jacrev), repeat=4))
    for ways in mixtures[:: 5 if isinstance(omega, Quartic) else 1]:  # a solver takes its time
        found = f
        for way in ways:
            found = functools.partial(lambda g, way, x: way(g)(x)[1], found, way)
        same(found(x), expected.detach(), atol=1e-8)
    mixed = jacrev(jacrev(f))(leaf)[1, 1]  # and two plain backwards
    same(backward(backward(mixed, leaf), leaf).detach(), expected.detach(), atol=1e-8)


def test_products(case):
    tangents = case.tangents()
    j = jacobian(case, case.inputs)
    pushed = sum(
        (m.reshape(15, -1) @ t.reshape(-1)).reshape(3, 5) for m, t in zip(j, tangents, strict=True)
    )
    y, got = jvp(case, case.inputs, tangents)
    assert torch.equal(y, case(*case.inputs))
    same(got, pushed)
    _, pull = vjp(case, *case.inputs)
    v = normal(3, 5, seed=4)
    leaves = [t.clone().requires_grad_() for t in case.inputs]
    same(pull(v), torch.autograd.grad(case(*leaves), leaves, v))
    for one in range(len(tangents)):  # nothing is dropped when only one input moves
        only = tuple(t if i == one else torch.zeros_like(t) for i, t in enumerate(tangents))
        part = (j[one].reshape(15, -1) @ only[one].reshape(-1)).reshape(3, 5)
        same(jvp(case, case.inputs, only)[1], part)


def test_all_modes_against_differences(case):
    inputs = [t.clone().requires_grad_() for t in case.inputs]
    assert gradcheck(
        case,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(
        case, inputs, fast_mode=True, atol=1e-4, check_fwd_over_rev=True, check_rev_over_rev=True
    )


def test_vmap(case):
    x, *values, gamma = case.inputs
    rows = torch.stack([case(x[i], *values, gamma[i]) for i in range(3)])
    inner = (0, *(None for _ in values), 0)
    torch.testing.assert_close(vmap(case, inner)(x, *values, gamma), rows, rtol=0, atol=1e-15)
    turned = vmap(case, (1, *(None for _ in values), 1), 1)(x.t(), *values, gamma.t())
    torch.testing.assert_close(turned, rows.t(), rtol=0, atol=1e-15)
    # a batch of hyperparameters, nested, with gradients
    many = [torch.stack([0.9 * v, v, 1.1 * v]) for v in (*values, gamma[0])]
    for argument in range(len(many)):
        axes = [None] * len(many)
        axes[argument] = 0
        fixed = [m if a == 0 else m[1] for m, a in zip(many, axes, strict=True)]
        got = vmap(case, (None, *axes))(x, *fixed)
        expected = [
            case(x, *(m[i] if a == 0 else m for m, a in zip(fixed, axes, strict=True)))
            for i in range(3)
        ]
        torch.testing.assert_close(got, torch.stack(expected), rtol=0, atol=1e-15)

    def loss(row, *values):
        return case(row, *values).pow(3).sum()

    for transform in (jacfwd, hessian):
        got = vmap(transform(lambda row: case(row, *values, gamma[0])[..., 0]))(x)
        one = [transform(lambda row: case(row, *values, gamma[0])[..., 0])(row) for row in x]
        torch.testing.assert_close(got, torch.stack(one), rtol=1e-9, atol=1e-12)
    everything = tuple(range(1 + len(many)))
    got = vmap(grad(loss, everything), (0, *(None for _ in values), 0))(x, *values, gamma)
    leaves = [[t.clone().requires_grad_() for t in (x[i], *values, gamma[i])] for i in range(3)]
    expected = zip(*(torch.autograd.grad(loss(*row), row) for row in leaves), strict=True)
    same(got, tuple(torch.stack(g) for g in expected))


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


def test_max_too(case):
    def smooth(x, *values):
        hyper = case.arguments(values)
        gamma = hyper.pop("gamma")
        return regmax.RegularizedMax(regmax.regularizer(case.plugin, **hyper), gamma=gamma).max(x)

    j = jacobian(smooth, case.inputs)
    same(jacrev(smooth, case.argnums)(*case.inputs), j)
    same(jacfwd(smooth, case.argnums)(*case.inputs), j)
    same(j[0].sum(0), case(*case.inputs))


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
def test_compiled_training(case):
    compiled = torch.compile(case.loss, fullgraph=True, backend="aot_eager")
    same(gradients(compiled, case.inputs), gradients(case.loss, case.inputs))


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


@one_recorded
@pytest.mark.parametrize("transform", [grad, hessian, lambda f: vmap(grad(f))])
def test_compiled_transforms(case, transform):
    def loss(x):
        return case.mapping(x).pow(3).sum()

    x = case.inputs[0]
    expected = transform(loss)(x)
    compiled = torch.compile(transform(loss), fullgraph=True, backend="aot_eager")
    same(compiled(x), expected)


@one_recorded
def test_compiled_forward_mode(case):
    def push(*inputs):
        return jvp(case, inputs, tuple(t.cos() for t in inputs))[1]

    compiled = torch.compile(push, fullgraph=True, backend="aot_eager")
    same(compiled(*case.inputs), push(*case.inputs))


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


def test_an_omega_of_ones_own():
    w, x = torch.rand(5, dtype=F64, generator=torch.Generator().manual_seed(0)), normal(3, 5) / 2

    def f(x, w):
        return regmax.RegularizedMax(Cubic(w))(x)

    def closure(w):
        class Hidden(regmax.Regularizer):
            def value(self, y):
                return (y.square() / 2 + w * y.pow(3) + y * y.roll(1, -1) / 4).sum(-1)

        return regmax.RegularizedMax(Hidden())(x)

    j = jacobian(f, (x, w))
    same(jacrev(f, (0, 1))(x, w), j)
    same(jacfwd(f, (0, 1))(x, w), j)
    same(jacfwd(closure)(w), j[1])

    def loss(x, w):
        return f(x, w).pow(3).sum()

    expected = torch.autograd.functional.hessian(loss, (x, w))
    same(hessian(loss, (0, 1))(x, w), expected)
    same(jacrev(grad(lambda w: closure(w).pow(3).sum()))(w), expected[1][1])
    for transform in (jacfwd, jacrev, hessian):
        got = vmap(transform(lambda x: f(x, w)[..., 0]))(x)
        one = [transform(lambda x: f(x, w)[..., 0])(row) for row in x]
        same(got, torch.stack(one))
    many = torch.stack([w, 1 - w, w / 2])  # one w for each row
    got = vmap(f)(x, many)
    for i in range(3):
        torch.testing.assert_close(got[i], f(x[i], many[i]), rtol=0, atol=1e-14)
    layer = regmax.RegularizedMax(Cubic(nn.Parameter(w)))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: layer(2 * x) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(2 * x) + 1, rtol=0, atol=1e-14)


# -- tensors that Ω holds out of sight -----------------------------------------------------------


class Box:
    """Holds a tensor."""

    def __init__(self, w):
        self.w = w


class Hiding(regmax.Regularizer):
    """``Cubic``, its w somewhere inside of one attribute."""

    def __init__(self, held):
        self.held = held

    def w(self):
        (w,) = self.held
        return w

    def value(self, y):
        return (y.square() / 2 + self.w() * y.pow(3) + y * y.roll(1, -1) / 4).sum(-1)


class Private(Hiding):
    """Declares its hyperparameters and writes its gradient down."""

    hyperparameters = ()

    def __init__(self, held):
        self._held = held

    def w(self):
        return self._held.w if isinstance(self._held, Box) else self._held["w"]

    def value(self, y):
        return (y.square() / 2 + self.w() * y.pow(3)).sum(-1)

    def grad(self, y):
        return y + 3 * self.w() * y.square()


class Plain(Private):
    """As ``Private``, its tensor an attribute."""

    def __init__(self, w):
        self.weight = w

    def w(self):
        return self.weight


def closing_over(w):
    class Closed(Private):
        def __init__(self):
            pass

        def w(self):
            return w

    return Closed()


# where w is held, and the Ω that has it as an attribute
HIDING = {
    "list": (lambda w: Hiding([w]), Cubic),
    "private dict": (lambda w: Private({"w": w}), Plain),
    "object": (lambda w: Private(Box(w)), Plain),
    "closure": (closing_over, Plain),
    "term of a sum": (
        lambda w: Hiding([w]) + regmax.regularizer("gini"),
        lambda w: Cubic(w) + regmax.regularizer("gini"),
    ),
    "under a penalty": (
        lambda w: Private(Box(w)) + 0.1 * regmax.penalty("tv"),
        lambda w: Plain(w) + 0.1 * regmax.penalty("tv"),
    ),
}


@pytest.fixture(params=HIDING)
def hidden(request):
    """A tensor w, scores, and functions of w that hide it, each with its twin that does not."""
    w, x = torch.rand(5, dtype=F64, generator=torch.Generator().manual_seed(0)), normal(3, 5) / 2

    def functions(make):
        index = torch.tensor([0, 1, 2])
        return (
            lambda w, x: regmax.RegularizedMax(make(w))(x),
            lambda w, x: regmax.RegularizedMax(make(w)).max(x),
            lambda w, x: regmax.FenchelYoungLoss(make(w), reduction="none")(x, index[: len(x)]),
        )

    return w, x, tuple(zip(*map(functions, HIDING[request.param]), strict=True))


REFUSED = r"requires grad and is not one of its attributes \(a closure.*self\.w = w"


def test_hidden_tensors_that_require_grad_are_refused(hidden):
    w, x, functions = hidden
    leaf, at = w.clone().requires_grad_(), x.clone().requires_grad_()
    pairs = ((leaf, x), (2 * leaf, at), (leaf.view_as(leaf), x.float()))
    for hides, shows in functions:
        for given, scores in pairs:
            with pytest.raises(regmax.RegularizerError, match=REFUSED):
                hides(given, scores)
        with pytest.raises(regmax.RegularizerError, match=REFUSED):
            hides(at[0].exp(), at)  # a function of the scores
        with forward_ad.dual_level(), pytest.raises(regmax.RegularizerError, match=REFUSED):
            hides(forward_ad.make_dual(leaf, w), x)
        with torch.no_grad():
            same(hides(leaf, at), shows(w, x))
        first = [
            torch.autograd.grad(f(w, at).pow(3).sum(), at, create_graph=True)[0]
            for f in (hides, shows)  # w is a constant
        ]
        same(*first)
        same(*(torch.autograd.grad(g.pow(3).sum(), at)[0] for g in first), atol=1e-9)


def test_hidden_tensors_are_differentiated_by_transforms(hidden):
    w, x, functions = hidden
    tangents = normal(5, seed=3), normal(3, 5, seed=4)
    for hides, shows in functions:
        for transform in (jacrev, jacfwd):
            same(transform(hides, (0, 1))(w, x), jacobian(shows, (w, x)))
        same(jvp(hides, (w, x), tangents), jvp(shows, (w, x), tangents))
        pushed = (
            jvp(lambda w, f=shows: f(w, x), (w,), tangents[:1])[1],
            jvp(lambda x, f=shows: f(w, x), (x,), tangents[1:])[1],
        )
        for keep in (True, False):
            with torch.set_grad_enabled(keep), forward_ad.dual_level():
                of_w = hides(forward_ad.make_dual(w, tangents[0]), x)
                of_x = hides(w, forward_ad.make_dual(x, tangents[1]))
                same(tuple(forward_ad.unpack_dual(y).tangent for y in (of_w, of_x)), pushed)


def test_hidden_tensors_under_nested_transforms(hidden):
    w, x, ((hides, shows), *_) = hidden

    def losses(f):
        return lambda w: f(w, x).pow(3).sum()

    expected = hessian(losses(shows))(w)
    same(hessian(losses(hides))(w), expected, atol=1e-9)
    same(jacrev(grad(losses(hides)))(w), expected, atol=1e-9)
    rows = functools.partial(vmap, in_dims=(None, 0))
    same(grad(lambda w: rows(hides)(w, x).pow(3).sum())(w), grad(losses(shows))(w))
    same(jacfwd(rows(hides))(w, x), jacfwd(shows)(w, x))


@pytest.mark.parametrize("where", ["list", "under a penalty"])
def test_hidden_tensors_beside_compiled_code(where):
    x, leaf = normal(3, 5) / 2, torch.linspace(0.1, 0.9, 5, dtype=F64).requires_grad_()
    hides, shows = (regmax.RegularizedMax(make(leaf)) for make in HIDING[where])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * hides(2 * x), backend="aot_eager")
    with pytest.raises(regmax.RegularizerError, match=REFUSED):
        compiled(x)
    with torch.no_grad():
        same(compiled(x), 2 * shows(2 * x))


def test_hidden_tensors_that_are_mapped_over_are_refused(hidden):
    w, x, functions = hidden
    many = torch.stack([w, 1 - w, w / 2])
    for hides, shows in functions:
        assert vmap(shows, (0, None))(many, x).shape[0] == 3
        for f in (
            lambda f=hides: vmap(f, (0, None))(many, x),
            lambda f=hides: vmap(f, (0, 0))(many, x[:, None]),
            lambda f=hides: vmap(jacrev(f), (0, None))(many, x),
            lambda f=hides: grad(lambda w: vmap(f, (0, None))(w, x).sum())(many),
        ):
            with pytest.raises(NotImplementedError, match=r"vmap maps over.*as an attribute"):
                f()


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


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(case, reentrant):
    leaves = [t.clone().requires_grad_() for t in case.inputs]
    torch.utils.checkpoint.checkpoint(case.loss, *leaves, use_reentrant=reentrant).backward()
    same(tuple(t.grad for t in leaves), gradients(case.loss, case.inputs))


def test_autocast(case):
    """Rows keep their dtype, and solvers and Jacobians their precision."""
    expected = gradients(case.loss, case.inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = case(*case.inputs)
        assert y.dtype == F64
        same(gradients(case.loss, case.inputs), expected)
        half = torch.nn.functional.linear(normal(3, 4).float(), normal(5, 4).float())
        assert half.dtype == torch.bfloat16
        assert case.mapping(half).dtype == torch.bfloat16


@one_recorded
def test_compiled_autocast(case):
    expected = gradients(case.loss, case.inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(case.loss, fullgraph=True, backend="aot_eager")
        same(gradients(compiled, case.inputs), expected)


def test_autocast_spares_solvers():
    layer = regmax.RegularizedMax(Cubic(torch.ones(5, dtype=F64)))
    x = normal(3, 5).requires_grad_()
    expected = torch.autograd.grad(layer(x)[0, 0], x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(torch.autograd.grad(layer(x)[0, 0], x), expected)


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


def test_expressions_under_transforms(expression):
    j = jacobian(expression, expression.inputs)
    for transform in (jacrev, jacfwd):
        same(transform(expression, argnums=expression.argnums)(*expression.inputs), j)
    expected = torch.autograd.functional.hessian(expression.loss, expression.inputs)
    same(hessian(expression.loss, expression.argnums)(*expression.inputs), expected, atol=1e-9)
    rows = torch.stack([expression.layer(row) for row in expression.x])
    torch.testing.assert_close(vmap(expression.layer)(expression.x), rows, rtol=0, atol=1e-15)
    many = [torch.stack([t, 0.9 * t]) for t in expression.inputs[1:]]
    got = vmap(expression, (None, *(0 for _ in many)))(expression.x, *many)
    for i in range(2):
        one = expression(expression.x, *(t[i] for t in many))
        torch.testing.assert_close(got[i], one, rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["c (pnorm + λ oscar)"], indirect=True)
def test_expressions_compiled(expression):
    layer, x = expression.layer, expression.x
    parameters = list(layer.parameters())

    def both(x):
        return layer(x).pow(3).sum() + layer.max(x).sum()

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    leaf = x.clone().requires_grad_()
    same(
        torch.autograd.grad(compiled(leaf), [leaf, *parameters]),
        torch.autograd.grad(both(leaf), [leaf, *parameters]),
    )
    with torch.no_grad():  # a parameter that moves is followed
        for p in parameters:
            p.mul_(0.9)
    same(compiled(x), both(x))


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
