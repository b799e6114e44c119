"""Exported programs, decomposed: ATen, ONNX, AOTInductor, ExecuTorch, and fresh processes."""

import itertools
import math
import shutil
from importlib.util import find_spec

import pytest
import torch
from omegas import omega_of
from processes import python
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import regmax
from regmax.kernels import transforms
from regmax.kernels.simplex import project
from regmax.mapping import decomposed
from regmax.regularizers.recorded import recorded
from regmax.regularizers.registry import Offer, registry

DYNAMIC = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
OPERATOR = torch.ops.regmax.argmax.default
UNDECIDED = 1e-15
"""The zeros of two programs are the same but for entries that rounding in float64 decides."""
MAPPINGS = [
    ("entropy", {}),
    ("gini", {}),
    ("pnorm", {}),
    ("pnorm", {"p": 1.05}),
    ("tsallis", {"alpha": 1.5}),
    ("tsallis", {"alpha": 1.2}),
    ("tsallis", {"alpha": 1.0001}),
    ("tsallis", {"alpha": 3.5}),
    ("tsallis", {"alpha": 50.0}),
    ("tsallis", {"alpha": 0.7}),
    ("tv", {}),
    ("tv", {"lam": 2.0}),
    ("oscar", {}),
    ("oscar", {"lam": 0.3}),
]
# what PyTorch's exporters warn of themselves
pytestmark = pytest.mark.filterwarnings("ignore")


def hard(rows, d, dtype=torch.float32):
    """Ties, one dominating score, all equal, huge and tiny scores, sorted, masked, empty and
    spoilt rows."""
    g = torch.Generator().manual_seed(d)
    x = torch.randn(rows, d, generator=g, dtype=torch.float64)
    kinds = x.chunk(10)
    kinds[0].mul_(1e3)
    kinds[1].mul_(1e-4)
    kinds[2].round_()
    kinds[3].mul_(4).round_().div_(4)
    kinds[4].copy_(kinds[4][:, :1].clone().expand_as(kinds[4]))
    kinds[5][:, 0] += 50
    kinds[6].masked_fill_(torch.rand(kinds[6].shape, generator=g) < 0.4, -math.inf)
    kinds[7].copy_(kinds[7].sort(-1).values)
    kinds[8].add_(1e4)
    kinds[9][0] = -math.inf
    kinds[9][1, -1], kinds[9][2, 0] = math.nan, math.inf
    return x.to(dtype)


def in_turn(cases):
    """One dtype for each: what is recorded is held against kernels in both."""
    return [*zip(cases, itertools.cycle([torch.float32, torch.float64]), strict=False)]


def agree(y, z, tol):
    torch.testing.assert_close(z, y, rtol=0, atol=tol, equal_nan=True)
    same = ((y == 0) == (z == 0)) | (torch.maximum(y, z) <= UNDECIDED)
    assert bool((same | y.isnan()).all())


def exported(layer, *inputs, strict=False):
    shapes = tuple({k: v for k, v in DYNAMIC.items() if k < t.ndim} for t in inputs)
    return torch.export.export(layer, inputs, dynamic_shapes=shapes, strict=strict)


def targets(program):
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


# -- the forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "theta"), MAPPINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operations_of_a_graph_agree_with_the_kernels(name, theta, dtype, monkeypatch):
    omega = regmax.regularizer(name, **theta)
    for d, gamma in ((1, 1.0), (2, 1.0), (3, 0.3), (17, 1.0), (40, 0.3)):
        x = hard(100, d, dtype)
        y = regmax.RegularizedMax(omega, gamma=gamma)(x)
        with monkeypatch.context() as patch:  # the same operations, on numbers
            patch.setattr(transforms, "tracing", lambda: True)
            z = decomposed.argmax(omega, gamma, x, None)
        agree(y, z, 1e-6 if dtype == torch.float32 else 1e-12)


def learnt(*numbers):
    return nn.Parameter(torch.tensor(numbers[0] if len(numbers) == 1 else [[n] for n in numbers]))


EXPRESSIONS = {
    "learnt γ": lambda: (regmax.regularizer("gini"), learnt(0.7)),
    "learnt α, one for each row": lambda: (
        regmax.regularizer("tsallis", alpha=learnt(1.3, 2.5, 0.7)),
        1.0,
    ),
    "learnt λ": lambda: (regmax.regularizer("tv", lam=learnt(0.3)), 0.6),
    "a multiple": lambda: (0.3 * regmax.regularizer("tsallis"), 0.7),
    "fused entmax": lambda: (regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv"), 1.0),
    "clustered softmax": lambda: (
        regmax.regularizer("entropy") + 0.1 * regmax.penalty("clique_tv"),
        1.0,
    ),
    "ordered weights": lambda: (
        regmax.regularizer("gini") + 0.1 * regmax.penalty("owl", weights=(4.0, 3.0, 0.7, 0.5, 0.1)),
        1.0,
    ),
}


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_expressions_have_such_a_form(case, monkeypatch):
    omega, gamma = EXPRESSIONS[case]()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True, False, True, True, True], [True] * 5, [False] * 5])
    y = regmax.RegularizedMax(omega, gamma=gamma)(x, mask)
    monkeypatch.setattr(transforms, "tracing", lambda: True)
    with torch.no_grad():
        z = decomposed.argmax(omega, gamma, x, mask)
    torch.testing.assert_close(z, y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["learnt λ", "ordered weights"])
def test_expressions_are_decomposed(case):
    omega, gamma = EXPRESSIONS[case]()
    layer = regmax.RegularizedMax(omega, gamma=gamma)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(layer, (x,))
    assert OPERATOR in targets(program)
    assert len(program.graph.nodes) < 40
    program = program.run_decompositions()
    assert OPERATOR not in targets(program)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=0, atol=1e-6)


def test_the_operator_stays_where_nothing_is_decomposed():
    layer, x = regmax.RegularizedMax(regmax.regularizer("gini")), torch.randn(3, 5)
    program = exported(layer, x)
    assert targets(program) == {OPERATOR}
    assert OPERATOR in targets(program.run_decompositions({}))
    assert OPERATOR in {node.target for node in make_fx(layer)(x).graph.nodes}
    assert OPERATOR not in targets(program.run_decompositions())


@pytest.mark.parametrize("name", ["entropy", "tsallis", "tv", "oscar"])
def test_all_operations_are_core_aten(name):
    """What ExecuTorch's edge dialect and other backends take."""
    layer = regmax.RegularizedMax(regmax.regularizer(name), gamma=0.7)
    found = targets(exported(layer, torch.randn(3, 5)).run_decompositions())
    assert all(torch.Tag.core in op.tags for op in found if isinstance(op, torch._ops.OpOverload))


class Twice(regmax.Regularizer):
    """‖y‖², with a closed form that makes a tensor of a number."""

    name = "twice"
    separable = True

    def value(self, y):
        return y.square().sum(-1)

    def closed_form(self, x, gamma, mask=None):
        return project(x / (gamma * torch.as_tensor(2.0, dtype=x.dtype)), mask)


def test_the_closed_form_of_a_plugin_is_decomposed(monkeypatch):
    offer = Offer("twice", Twice, "mine", "mine 1.0")
    monkeypatch.setitem(registry()._offers["regularizer"], "twice", [offer])
    layer, x = regmax.RegularizedMax(Twice()), torch.randn(3, 5)
    program = exported(layer, x).run_decompositions()
    assert OPERATOR not in targets(program)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=0, atol=1e-6)


class Loops(regmax.Regularizer):
    """½‖y‖² with a closed form that reads a number."""

    name = "loops"
    separable = True

    def value(self, y):
        return y.square().sum(-1) / 2

    def closed_form(self, x, gamma, mask=None):
        while bool((x > 0).any()):
            x = x / 2
        return x


def test_what_has_no_such_form_says_so(monkeypatch):
    offer = Offer("loops", Loops, "mine", "mine 1.0")
    monkeypatch.setitem(registry()._offers["regularizer"], "loops", [offer])
    gini, edges = regmax.regularizer("gini"), [(0, 1), (1, 2)]
    for omega in (Loops(), gini + regmax.penalty("graph_tv", edges=edges)):
        program = torch.export.export(regmax.RegularizedMax(omega), (torch.randn(2, 3),))
        assert OPERATOR in targets(program.run_decompositions({}))
        with pytest.raises(NotImplementedError, match="no form in operations of ATen"):
            program.run_decompositions()


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="onnxscript is not installed")
def test_onnx_says_why_an_omega_is_refused():
    layer = regmax.RegularizedMax(COUPLED).eval()
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match="it couples entries of y"):
        torch.onnx.export(layer, (torch.randn(3, 5),), dynamo=True, verbose=False)


def test_jit_script_says_what_to_use():
    omega = regmax.regularizer("gini")
    for module in (
        omega,
        regmax.RegularizedMax(omega),
        regmax.FenchelYoungLoss(omega),
        regmax.nn.MultiheadAttention(4, 2, omega=omega),
    ):
        with pytest.raises(NotImplementedError, match=r"no Gini; use torch\.export"):
            torch.jit.script(module)


# -- ONNX -------------------------------------------------------------------------------------


def entmax(alpha):
    return lambda dtype: regmax.regularizer("tsallis", alpha=alpha)


ONNX = {
    "entropy": (lambda dtype: regmax.regularizer("entropy"), 50),
    "gini": (lambda dtype: regmax.regularizer("gini"), 90),
    "entmax15": (entmax(1.5), 120),
    "pnorm": (lambda dtype: regmax.regularizer("pnorm"), 180),
    "tv": (lambda dtype: regmax.regularizer("tv"), 450),
    "oscar": (lambda dtype: regmax.regularizer("oscar"), 180),
    "α < 1": (entmax(0.7), 200),
    "α < 2": (entmax(1.2), 200),
    "α > 2": (entmax(3.0), 270),
    "α = 50": (entmax(50.0), 270),
    "learnt α": (lambda dtype: regmax.regularizer("tsallis", alpha=learnt(1.3).to(dtype)), 290),
    "a value": (lambda dtype: Cubes(0.3, nn.Parameter(torch.tensor(0.7, dtype=dtype))), 310),
    "a value, e'(0) = −∞": (lambda dtype: entropic(0.3), 340),
}
"""With the most operations that each may have, those of the loops counted once."""


def operations(graph):
    inside = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return len(graph.node) + sum(map(operations, inside))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype"), in_turn(ONNX))
def test_onnx_agrees_on_hard_rows(case, dtype, tmp_path):
    pytest.importorskip("onnxscript")
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    made, most = ONNX[case]
    layer = regmax.RegularizedMax(made(dtype), gamma=0.7).eval().requires_grad_(False)
    file, x = tmp_path / "layer.onnx", torch.randn(3, 5, dtype=dtype)
    torch.onnx.export(layer, (x,), file, dynamic_shapes=(DYNAMIC,), dynamo=True, verbose=False)
    assert operations(onnx.load(file).graph) <= most
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    for rows, d in ((1000, 17), (50, 1), (50, 2), (50, 40)):
        x = hard(rows, d, dtype)
        (z,) = session.run(None, {given.name: x.numpy()})
        agree(layer(x), torch.from_numpy(z), 1e-6 if dtype == torch.float32 else 1e-12)


# -- whole models, in fresh processes -----------------------------------------------------------


class Transformer(nn.Module):
    def __init__(self, omega):
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        block.self_attn = regmax.nn.MultiheadAttention(8, 2, omega=omega, batch_first=True)
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

    def forward(self, tokens, padding):
        return self.encoder(self.embedding(tokens), src_key_padding_mask=padding)


def tokens(rows, length):
    g = torch.Generator().manual_seed(rows)
    shape = (rows, length)
    return torch.randint(0, 11, shape, generator=g), torch.rand(shape, generator=g) < 0.3


def queries(rows, length):
    return (torch.randn(rows, length, 8, generator=torch.Generator().manual_seed(rows)),) * 3


def classes(rows, length):
    g = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, length, generator=g)
    return x, torch.randint(0, length, (rows,), generator=g)


def made(kind, name):
    omega = regmax.regularizer(name)
    if kind == "layer":
        return regmax.RegularizedMax(omega), lambda *shape: (classes(*shape)[0],)
    if kind == "loss":
        return regmax.FenchelYoungLoss(omega), classes
    if kind == "attention":
        return regmax.nn.MultiheadAttention(8, 2, omega=omega, batch_first=True).eval(), queries
    return Transformer(omega).eval(), tokens


class Both(nn.Module):
    """Attention, and a layer on what comes out."""

    def __init__(self):
        super().__init__()
        omega = regmax.regularizer("tsallis")
        self.attention = regmax.nn.MultiheadAttention(8, 2, omega=omega, batch_first=True)
        self.layer = regmax.RegularizedMax(regmax.regularizer("gini"))
        self.rounds = regmax.RegularizedMax(regmax.regularizer("tsallis", alpha=1.2))

    def forward(self, x):
        out, weights = self.attention(x, x, x)
        return self.layer(out), self.rounds(out), weights


MODELS = [
    ("layer", "oscar", True),
    ("loss", "tsallis", False),
    ("attention", "tv", False),
    ("attention", "gini", True),
    ("transformer", "tsallis", False),
    ("transformer", "pnorm", True),
]
LOAD = """
import sys
import torch
import regmax

for name in sys.argv[1:]:
    program, (inputs, expected) = torch.export.load(name + ".pt2"), torch.load(name + ".pt")
    found = program.module()(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
"""
RUN = """
import sys
import torch

for name in sys.argv[1:]:
    run = torch._inductor.aoti_load_package(name + ".pt2")
    inputs, expected = torch.load(name + ".pt")
    found = run(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
assert "regmax" not in sys.modules
"""


def kept(model, inputs, file):
    with torch.no_grad():
        torch.save((inputs, model(*inputs)), file.with_suffix(".pt"))


@pytest.mark.slow
def test_models_are_loaded_in_a_fresh_process_at_other_sizes(tmp_path):
    names = []
    for kind, name, strict in MODELS:
        (model, inputs), file = made(kind, name), tmp_path / f"{kind}-{name}"
        program = exported(model, *inputs(3, 5), strict=strict)
        assert len(program.graph.nodes) < 130
        torch.export.save(program, file.with_suffix(".pt2"))
        kept(model, inputs(4, 7), file)
        names.append(file)
    python(LOAD, *names)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aotinductor_runs_without_regmax(tmp_path):
    model, file = Both().eval(), tmp_path / "model"
    program = exported(model, queries(3, 5)[0])
    package = str(file.with_suffix(".pt2"))
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=quick)
    kept(model, queries(4, 7)[:1], file)
    python(RUN, file)


# -- as any module ----------------------------------------------------------------------------


def test_a_process_may_export_before_all_else():
    """The kernels are loaded under the tracer, and hold no tensor of it."""
    code = (
        "import torch, regmax; x = torch.eye(3); omega = regmax.regularizer('gini'); "
        "torch.export.export(regmax.RegularizedMax(omega), (x,)); "
        "loss = regmax.FenchelYoungLoss(omega)(x, torch.tensor([0, 1, 2])); assert loss == 0"
    )
    python(code)


# -- an Ω by its value ------------------------------------------------------------------------


class Cubes(regmax.Regularizer):
    def __init__(self, a, w):
        self.a, self.w = a, w

    def value(self, y):
        return (self.a * y.square() / 2 + self.w * y.pow(3) / 6).sum(-1)


def weighted(w):
    return omega_of(lambda y, w: (w * y * (y + 1e-300).log()).sum(-1) + y.pow(3).mean(-1) / 2, w=w)


def entropic(a):
    return omega_of(lambda y: (a * y.square() + 0.7 * y * y.log()).sum(-1))


def powers(a):
    return omega_of(lambda y: (y**1.5 + a * y.square() + 0.1 * y**8).sum(-1))


def from_prior(q):
    return omega_of(lambda y, q: (torch.xlogy(y, y / q) + 0.1 * y.square()).sum(-1), q=q)


COUPLED = omega_of(lambda y: y.square().sum(-1) + y.sum(-1).pow(4))
OWN = {
    "numbers": lambda dtype: Cubes(1.0, 2.0),
    "a tensor": lambda dtype: Cubes(0.5, nn.Parameter(torch.tensor(0.7, dtype=dtype))),
    "one per entry": lambda dtype: weighted(nn.Parameter(torch.linspace(0.5, 2, 12, dtype=dtype))),
    "flat at 0": lambda dtype: omega_of(
        lambda y, w: w * y.pow(3).sum(-1), w=nn.Parameter(torch.tensor(0.7, dtype=dtype))
    ),
    "an expression": lambda dtype: 0.5 * Cubes(1.0, 2.0) + regmax.regularizer("gini"),
}
BY_VALUE = OWN | {
    "e'(0) = −∞": lambda dtype: entropic(0.3),
    "a multiple of y log y": lambda dtype: entropic(0.0),
    "powers": lambda dtype: powers(0.3),
    "nearly flat": lambda dtype: powers(1e-9),
    "large": lambda dtype: Cubes(1e6, 1e-3),
    "from a prior": lambda dtype: from_prior(torch.logspace(-9, 3, 12, dtype=dtype)),
}


@pytest.mark.parametrize("name", BY_VALUE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operations_of_a_value_agree_with_its_layer(name, dtype, monkeypatch):
    omega = BY_VALUE[name](dtype)
    wide = name in ("one per entry", "from a prior")
    for d, gamma in ((12, 1.0),) if wide else ((1, 1.0), (2, 1.0), (3, 0.3), (17, 1.0), (40, 3.0)):
        x = hard(100, d, dtype)
        y = regmax.RegularizedMax(omega, gamma=gamma)(x).detach()
        graph = recorded(omega)
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(transforms, "tracing", lambda: True)
            z = decomposed.argmax(graph, gamma, x, None)
        agree(y, z, 1e-6 if dtype == torch.float32 else 1e-10)


def test_an_omega_whose_slope_falls_is_nan_in_a_graph(monkeypatch):
    """The layer raises: a graph reads no numbers."""
    monkeypatch.setattr(transforms, "tracing", lambda: True)
    x = torch.tensor([[0.0, 0.1, -0.2], [0.0, -5.0, -5.0]])
    falling = omega_of(lambda y: (y.square() - 2 * y.pow(3)).sum(-1))
    y = decomposed.argmax(recorded(falling), 1.0, x, None)
    assert bool(y[0].isnan().all())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_an_omega_by_its_value_is_trained_by_inductor():
    """Which checks the strides of what an operator returns."""
    torch._dynamo.reset()
    layer = regmax.RegularizedMax(weighted(nn.Parameter(torch.linspace(0.5, 2, 8))))
    model = nn.Sequential(nn.Linear(8, 8), layer)
    x, steps = torch.randn(6, 8), (torch.compile(model, fullgraph=True), model)
    losses = [(step(x) * torch.arange(8.0)).sum() for step in steps]
    found, known = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
    torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "dtype"), in_turn(OWN))
def test_an_omega_by_its_value_is_compiled_with_its_derivatives(name, dtype):
    torch._dynamo.reset()
    tol = 1e-6 if dtype == torch.float32 else 1e-12
    x = hard(40, 12, dtype)[:36].T.contiguous().requires_grad_()
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.8
    gamma = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    layer = regmax.RegularizedMax(OWN[name](dtype), gamma=gamma, dim=0)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = [x, gamma, *layer.omega.tensors().values()]
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=dtype)
    for on in (None, mask):
        (y, *g), (z, *h) = (
            (y, *torch.autograd.grad((y * v).nan_to_num().sum(), inputs))
            for y in (f(x, on) for f in (layer, compiled))
        )
        agree(y, z, tol)
        for one, other in zip(g, h, strict=True):
            scale = one.abs().nan_to_num().max().clamp_min(1)
            torch.testing.assert_close(other / scale, one / scale, rtol=tol, atol=tol)


def test_maxima_losses_and_attention_of_a_value_are_compiled():
    w = torch.tensor(0.7, requires_grad=True)
    omega, target = Cubes(0.5, w), torch.tensor([0, 3, 1, 1])
    layer, loss = regmax.RegularizedMax(omega), regmax.FenchelYoungLoss(omega)
    for call in (
        lambda x: layer.max(x),
        lambda x: loss(x, target),
        lambda x: regmax.nn.attention(x, x, x, omega),
    ):
        torch._dynamo.reset()
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(5)).requires_grad_()
        y, z = call(x), torch.compile(call, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(z, y)
        for one, other in zip(*(torch.autograd.grad(t.sum(), (x, w)) for t in (y, z)), strict=True):
            torch.testing.assert_close(other, one)


def test_derivatives_where_the_kernel_is_forgotten(monkeypatch):
    torch._dynamo.reset()
    omega = weighted(torch.linspace(0.5, 2, 5, requires_grad=True))
    layer, x = regmax.RegularizedMax(omega), torch.randn(3, 5, requires_grad=True)
    y, z = layer(x), torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    monkeypatch.setattr("regmax.mapping.methods.from_value.again", lambda *_: None)
    given = (x, omega.w)
    for one, other in zip(
        *(torch.autograd.grad(t[0].sum() + t[1, 2], given) for t in (y, z)), strict=True
    ):
        torch.testing.assert_close(other, one)


def test_a_compiled_omega_follows_its_attributes():
    torch._dynamo.reset()
    layer, x = regmax.RegularizedMax(Cubes(1.0, 2.0)), torch.randn(3, 5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for layer.omega.a in (1.0, 0.3, 2.0):
        agree(layer(x), compiled(x), 1e-6)


@pytest.mark.parametrize("strict", [True, False])
def test_an_omega_by_its_value_is_exported(strict, tmp_path):
    """Its program needs regmax, and not its class."""
    layer = regmax.RegularizedMax(Cubes(0.5, nn.Parameter(torch.tensor(0.7))), gamma=0.5)
    with torch.no_grad():
        program = exported(layer, hard(30, 7), strict=strict)
    x, own = hard(50, 13), program.run_decompositions().module()
    torch.testing.assert_close(own(x), layer(x), equal_nan=True)
    if strict:
        return
    torch.export.save(program, tmp_path / "own.pt2")
    code = (
        "import sys, torch, regmax; x, y = torch.load(sys.argv[1]); "
        "z = torch.export.load(sys.argv[2]).module()(x); "
        "torch.testing.assert_close(z, y, rtol=0, atol=1e-6, equal_nan=True)"
    )
    torch.save([x, layer(x).detach()], tmp_path / "rows.pt")
    python(code, tmp_path / "rows.pt", tmp_path / "own.pt2")


@pytest.mark.parametrize(
    ("omega", "why"),
    [
        (
            omega_of(lambda y: (y.square() / 2 + (y - 0.3).relu()).sum(-1)),
            "its derivatives may jump",
        ),
        (COUPLED, "it couples entries of y"),
        (omega_of(lambda y: y.square().mean(-1)), "it depends on the length of a row"),
    ],
)
def test_a_value_that_cannot_be_recorded_says_why(omega, why):
    with torch.no_grad(), pytest.raises(NotImplementedError, match=why):
        exported(regmax.RegularizedMax(omega), torch.randn(3, 4))


def test_dynamo_says_what_to_do_where_the_graph_breaks():
    layer, loss = regmax.RegularizedMax(COUPLED), regmax.FenchelYoungLoss(COUPLED)
    x = torch.randn(3, 4)
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    for call in (layer, model, lambda x: loss(x, torch.tensor([0, 1, 2]))):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(call, backend="eager")(x), call(x))
        torch._dynamo.reset()
        with pytest.raises(Exception, match="compile without fullgraph"):
            torch.compile(call, backend="eager", fullgraph=True)(x)
