"""Mappings as PyTorch records them: shapes, graphs, programs, and what is refused. The derivatives
of every mode are in the grid."""

import functools
import gc
import io
import shutil
import weakref

import pytest
import torch
from mapping_checks import normal
from omegas import omega_of
from points import module, point
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.func import jacfwd, jacrev, vmap
from torch.utils.flop_counter import FlopCounterMode

import regmax
from regmax import functional
from regmax.regularizers import serialize
from regmax.regularizers.registry import Offer, registry

F64 = torch.float64
RANGED = ("alpha", "p", "lam")
NAMES = ("softmax", "sparsemax", "pnormmax", "entmax", "entmax15", "fusedmax", "oscarmax")
KEYS = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}
# forward mode warns that it is in beta
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(params=NAMES)
def mapping(request):
    torch._dynamo.reset()
    return getattr(functional, request.param)


def same(got, expected, atol=1e-10):
    """Equal, tree by tree, and not because both are zero."""
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=atol)
    flat = torch.utils._pytree.tree_leaves(expected)
    assert all(bool((t != 0).any()) for t in flat), "the check is about zeros"


# -- torch.func ------------------------------------------------------------------------------


def test_vmap_of_masks_and_odd_rows(mapping):
    x = normal(4, 6, seed=5)
    x[1, 2], x[2, 3] = torch.nan, -torch.inf
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0], mask[3] = False, True
    expected = mapping(x, mask=mask)
    got = vmap(lambda x, m: mapping(x, mask=m))(x, mask)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-15, equal_nan=True)
    got = vmap(lambda m: mapping(x, mask=m))(torch.stack([mask, ~mask]))
    assert torch.equal(got[0].nan_to_num(7), expected.nan_to_num(7))
    for transform in (jacrev, jacfwd):
        j = transform(lambda x: mapping(x, mask=mask))(x.nan_to_num(0, neginf=-torch.inf))
        assert torch.isfinite(j).all()
        assert (j[0] == 0).all()


def test_recorders_of_shapes(mapping):
    """Fake and meta tensors, dispatch modes."""
    x = normal(3, 5)
    assert mapping(x.to("meta")).shape == x.shape
    with FakeTensorMode() as mode:
        assert mapping(mode.from_tensor(x)).shape == x.shape
    with FlopCounterMode(display=False):
        torch.testing.assert_close(mapping(x), mapping(x))
        ones = regmax.RegularizedMax(COUPLED)(x)
        assert torch.allclose(ones.sum(-1), torch.ones(3, dtype=F64))


# -- torch.compile, torch.export --------------------------------------------------------------


def learnt(value):
    return nn.Parameter(torch.tensor(value, dtype=F64))


# in a graph each mapping is one operator: a threshold and a penalty stand for all
@pytest.mark.parametrize(("name", "key"), [("entmax", "alpha"), ("fusedmax", "lam")])
def test_compiled_shapes_and_numbers_stay_open(name, key):
    def f(x, number):
        return getattr(functional, name)(x, gamma=number, **{key: number})

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for shape, number in (((3, 5), 1.2), ((4, 7), 1.3), ((2, 9), 1.9), ((6, 4), 1.05)):
        x = normal(*shape, seed=1)
        torch.testing.assert_close(compiled(x, number), f(x, number), rtol=0, atol=1e-13)
    assert counter.frame_count <= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    def loss(x, gamma, lam):
        return functional.fusedmax(x, lam=lam, gamma=gamma).pow(3).sum()

    given = [t.clone().requires_grad_() for t in point("tv").inputs]
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    same(*(torch.autograd.grad(f(*given), given) for f in (compiled, loss)))


# learnt numbers, fixed tensors
@pytest.mark.parametrize(
    ("name", "strict"),
    [("tsallis", True), ("tv", False), ("c (pnorm + oscar)", True), ("gini + graph", False)],
)
def test_export(name, strict):
    layer, (x, *_) = module(name)
    dims = {0: torch.export.Dim("rows")}
    if "graph" not in name:
        dims[1] = torch.export.Dim("d", min=3)
    program = torch.export.export(layer, (x,), dynamic_shapes=(dims,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((3, 5), (4, 5 if "graph" in name else 8)):
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


def test_a_class_name_of_two_plugins_breaks_the_graph(monkeypatch):
    other = type("Gini", (regmax.Regularizer,), {})
    offer = Offer("other", other, "other", "regmax 0.1.0")
    monkeypatch.setitem(registry()._offers["regularizer"], "other", [offer])
    x = normal(3, 5)
    sparsemax = functional.sparsemax
    same(torch.compile(sparsemax, backend="eager")(x), sparsemax(x))
    layer = regmax.RegularizedMax(regmax.regularizer("gini"))
    same(torch.compile(layer, backend="eager")(x), layer(x))


COUPLED = omega_of(
    lambda y, w: (y.square() / 2 + w * y.pow(3) + y * y.roll(1, -1) / 4).sum(-1),
    w=torch.ones(5, dtype=F64),
)


# -- what is refused is refused aloud -----------------------------------------------------------


def test_what_cannot_be_recorded_says_so():
    solver = regmax.RegularizedMax(regmax.regularizer("gini"), solver="fista")
    with pytest.raises(NotImplementedError, match="solver='fista'"):
        torch.export.export(solver, (normal(3, 5),))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        torch.compile(solver, fullgraph=True, backend="aot_eager")(normal(3, 5))


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
    coupled = omega_of(lambda y: y.square().sum(-1) + y.mean(-1).square())
    with pytest.raises(NotImplementedError, match="declare its curvature"):
        vmap(regmax.RegularizedMax(coupled))(normal(2, 600))


@pytest.mark.parametrize(("name", "key"), KEYS.items())
def test_numbers_are_checked_at_every_call_and_freed(name, key):
    mapping, x = getattr(functional, name), normal(4, 8)
    number = 0.4 if key == "lam" else 1.4
    for _ in range(3):
        theta = torch.full((4, 1), number, dtype=F64, requires_grad=True)
        gone = weakref.ref(theta)
        mapping(x, **{key: theta})
        with torch.no_grad():
            theta[2] = -1.0
        with pytest.raises(ValueError, match=rf"{key} must be .*; got -1 at index \(2, 0\)"):
            mapping(x, **{key: theta})
        with pytest.raises(ValueError, match=f"{key} must broadcast to x"):
            mapping(x, **{key: theta[:2]})
        del theta
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("name", NAMES)
def test_out_of_range_where_nobody_looks_is_nan(name):
    x, mapping = normal(3, 5), getattr(functional, name)
    own = {p.name: 1.3 for p in functional.hyperparameters_of(name)[1] if p.name in RANGED}
    for key, value in (*own.items(), ("gamma", 0.8)):
        good = torch.tensor(value, dtype=F64)
        bad = [torch.full_like(good, v) for v in (-1.0, torch.nan, torch.inf)]
        f = functools.partial(lambda key, v: mapping(x, **{key: v}), key)
        y = vmap(f)(torch.stack([good, *bad, good]))
        assert y[1:4].isnan().all(), key
        torch.testing.assert_close(y[[0, 4]], torch.stack([f(good)] * 2), rtol=0, atol=1e-15)
