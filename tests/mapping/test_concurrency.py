"""Threads, processes, compilers and settings of the process: everything gives the same bits, and
nothing of the process is changed. (Kernels on threads and in forked children: test_kernels.py.)"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading

import pytest
import torch
from omegas import Quadratic, penalty_of
from processes import python
from torch import nn
from torch._dynamo.utils import counters

import regmax
from regmax import RegularizedMax, functional, losses
from regmax.nn import AdaptiveEntmax, MultiheadAttention

F64 = torch.float64
X = torch.randn(3, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([0, 5, 2])


class Separable(regmax.Regularizer):
    separable = True

    def __init__(self, w):
        self.w = w

    def value(self, y):
        return (self.w * y.square() + y.pow(4)).sum(-1)


def learnt(value):
    return nn.Parameter(torch.tensor(value, dtype=F64))


def cases():
    omega, penalty = regmax.regularizer, regmax.penalty
    for name in regmax.available():
        yield name, RegularizedMax(omega(name))
        key = omega(name).hyperparameters
        if key:
            yield f"{name}, learning", RegularizedMax(omega(name, **{key[0]: learnt([1.3])}), 0.5)
    for name in regmax.available("penalty"):
        r = penalty_of(name)
        yield f"entropy + {name}", RegularizedMax(omega("entropy") + learnt(0.1) * r)
    w = torch.arange(1.0, 7, dtype=F64)
    yield "separable", RegularizedMax(Separable(nn.Parameter(w)))
    yield "quadratic", RegularizedMax(Quadratic(nn.Parameter(torch.diag(w) + 0.1)))
    yield "with a penalty", RegularizedMax(Separable(w) + 0.1 * penalty("tv"))
    yield "approximation", RegularizedMax(omega("oscar", exact=False))
    for name in dir(losses):
        if not name.endswith("FenchelYoungLoss"):
            yield name, getattr(losses, name)(weight=w)
    attention = MultiheadAttention(6, 2, omega=AdaptiveEntmax(2), dtype=F64)
    yield "attention", attention.double().eval()


CASES = [*cases()]
each = pytest.mark.parametrize("layer", [c[1] for c in CASES], ids=[c[0] for c in CASES])


def derivatives(layer, x=X):
    """The output, its gradients, and theirs in the scores."""
    x = x.clone().requires_grad_()
    out = layer(x, INDEX) if isinstance(layer, regmax.FenchelYoungLoss) else None
    out = layer(x, x, x)[0] if isinstance(layer, MultiheadAttention) else out
    out = layer(x) if out is None else out
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    wanted = [x, *layer.parameters()]
    first = torch.autograd.grad((out * weights).sum(), wanted, create_graph=True, allow_unused=True)
    total = sum(g.square().sum() for g in first if g is not None)
    second = (None,)
    if total.requires_grad:
        second = torch.autograd.grad(total, wanted, allow_unused=True)
    return [None if t is None else t.detach() for t in (out, *first, *second)]


def same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


# -- settings of the process -----------------------------------------------------------------------


@each
def test_settings_of_the_process(layer):
    """Deterministic algorithms change nothing. Tensors are made in the dtype and on the device of
    the scores, whatever torch's defaults. No random numbers are drawn."""
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    single = [] if isinstance(layer, MultiheadAttention) else [torch.float32]  # its weights are F64
    for x in (X, *map(X.to, single)):
        expected = derivatives(layer, x)
        torch.use_deterministic_algorithms(True)
        try:
            same(derivatives(layer, x), expected)
        finally:
            torch.use_deterministic_algorithms(False)
    expected = derivatives(layer)
    for dtype in (torch.float16, F64):
        torch.set_default_dtype(dtype)
        try:
            same(derivatives(layer), expected)
        finally:
            torch.set_default_dtype(before)
    with torch.device("meta"):
        same(derivatives(layer), expected)
    assert torch.equal(torch.get_rng_state(), state)


# -- threads and processes -------------------------------------------------------------------------


def test_from_several_threads():
    expected = [derivatives(layer) for _, layer in CASES]
    found = {}

    def work(which):
        order = [*range(which, len(CASES)), *range(which)]
        found[which] = {i: derivatives(CASES[i][1]) for i in order}

    threads = [threading.Thread(target=work, args=(3 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 4
    for results in found.values():
        for i, right in enumerate(expected):
            same(results[i], right)


def run(script):
    found = python(script)
    assert found.stderr == ""
    return found.stdout


def test_first_calls_from_several_threads():
    """Plugins and kernels are loaded by whoever comes first."""
    script = (
        "import threading, torch, regmax\n"
        "torch.set_num_threads(1)\n"
        "x = torch.linspace(-1, 1, 12).view(2, 6)\n"
        "start, found = threading.Barrier(6), []\n"
        "def work():\n"
        "    start.wait()\n"
        "    f = regmax.functional\n"
        "    found.append([f.sparsemax(x), f.fusedmax(x), f.oscarmax(x), f.entmax15(x)])\n"
        "threads = [threading.Thread(target=work) for _ in range(6)]\n"
        "[t.start() for t in threads]\n"
        "[t.join() for t in threads]\n"
        "same = all(torch.equal(a, b) for r in found for a, b in zip(r, found[0]))\n"
        "print(len(found), same)\n"
    )
    assert run(script) == "6 True\n"


def child(queue, names):
    torch.set_num_threads(1)
    layers = dict(CASES)
    queue.put(
        {
            n: [None if t is None else t.numpy(force=True) for t in derivatives(layers[n])]
            for n in names
        }
    )


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_a_forked_process():
    """After the parent used the same layers: kernels, graphs and what they keep are there."""
    names = [n for n, layer in CASES if not isinstance(layer, MultiheadAttention)]
    expected = {n: derivatives(dict(CASES)[n]) for n in names}
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=child, args=(queue, names))
    worker.start()
    found = queue.get(timeout=60)
    worker.join(60)
    assert worker.exitcode == 0
    for n in names:
        same([None if t is None else torch.as_tensor(t) for t in found[n]], expected[n])


# -- torch.compile ---------------------------------------------------------------------------------


def graphs(callables, *inputs):
    """How many graphs Dynamo made of them, each compiled by itself and called twice."""
    torch._dynamo.reset()
    counters.clear()
    for f in callables:
        compiled = torch.compile(f, backend="eager", fullgraph=True)
        assert torch.equal(compiled(*inputs), f(*inputs))
        compiled(*inputs)
    return counters["stats"]["unique_graphs"]


STACKS = {
    "numbers": lambda k: RegularizedMax(regmax.regularizer("tsallis", alpha=1.1 + k / 20)),
    "tensors": lambda k: RegularizedMax(regmax.regularizer("tsallis", alpha=learnt(1 + k / 20))),
    "expressions": lambda k: RegularizedMax(
        learnt(1.0 + k) * regmax.regularizer("gini") + learnt(0.1 * k) * regmax.penalty("tv")
    ),
    "inside": lambda k: nn.Sequential(
        nn.Linear(6, 6, dtype=F64), RegularizedMax(regmax.regularizer("tv", lam=learnt(0.1 * k)))
    ),
}


@pytest.mark.parametrize("make", STACKS.values(), ids=STACKS)
def test_layers_that_are_alike_share_a_graph(make):
    """Twelve blocks of a model, compiled one by one, where Dynamo's limit is 8 graphs a function;
    a number that differs is opened by the second graph."""
    assert graphs([make(k) for k in range(12)], X) <= 2


def test_losses_and_attention_share_a_graph_too():
    many = [losses.EntmaxLoss(learnt(1.1 + k / 20)) for k in range(12)]
    assert graphs(many, X, INDEX) == 1
    heads = [MultiheadAttention(6, 2, omega=AdaptiveEntmax(2), dtype=F64) for _ in range(12)]
    heads = [nn.TransformerEncoderLayer(6, 2, 8, 0.0, dtype=F64) for _ in heads]
    for k, layer in enumerate(heads):
        alpha = learnt(torch.full((2, 1, 1), 1.1 + k / 20).tolist())
        omega = regmax.regularizer("tsallis", alpha=alpha)
        layer.self_attn = MultiheadAttention(6, 2, omega=omega, dtype=F64)
    assert graphs(heads, X) == 1


def test_each_mapping_has_its_own_limit():
    """Mappings by name, for several kinds of input: more than 8 graphs, each function fewer."""
    names = [n for n in dir(functional) if n != "softmax"]
    every = [getattr(functional, n) for n in names]
    total = 0
    torch._dynamo.reset()
    counters.clear()
    for f in every:
        for x in (X, X.float(), X.half()):
            torch.compile(f, backend="eager", fullgraph=True, dynamic=False)(x)
            total += 1
    assert total > 8
    assert counters["stats"]["unique_graphs"] == total


def test_a_graph_is_not_taken_for_another():
    """Layers of other classes, of other numbers, or whose Ω was exchanged, are compiled anew."""
    grids = [regmax.penalty("grid_tv", shape=shape) for shape in ((2, 3), (3, 2), (1, 6))]
    layer = RegularizedMax(regmax.regularizer("gini"))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for omegas in (
        [regmax.regularizer(name) for name in ("gini", "entropy", "tv", "gini")],
        [regmax.regularizer("tsallis", alpha=a) for a in (1.2, 1.7, learnt(1.4))],
        [regmax.regularizer("gini") + 0.3 * grid for grid in grids],
    ):
        torch._dynamo.reset()
        for omega in [*omegas, omegas[0]]:
            layer.omega = omega
            assert torch.equal(compiled(X), layer(X))
    layer.omega = Separable(torch.ones(6, dtype=F64))
    torch.testing.assert_close(compiled(X), layer(X), rtol=0, atol=1e-12)
    layer.omega = Quadratic(torch.eye(6, dtype=F64))
    with pytest.raises(Exception, match=r"[Gg]raph break|skip|disable"):
        compiled(X)


# -- importing -------------------------------------------------------------------------------------


def test_imports_are_light_and_change_nothing():
    """What ``import regmax`` adds to ``import torch``: its own modules and pluggy. Plugins,
    compilers and all that is optional are loaded when they are needed."""
    script = """
import json, os, sys, threading, warnings, torch

def state():
    s = [sorted(os.environ.items()), [str(f) for f in warnings.filters]]
    s += [threading.active_count(), torch.get_num_threads(), str(sys.excepthook)]
    s += [torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist()]
    return [*s, len(torch.serialization.get_safe_globals())]

def added():
    new = sorted(set(sys.modules) - old)
    old.update(new)
    return new

before, old = state(), set(sys.modules)
import regmax
hasattr(regmax.functional, "__wrapped__")  # a question of inspect loads no plugin
found = [before == state(), added()]
regmax.available(), regmax.nn, regmax.losses, regmax.analysis
from regmax import *
import regmax_oscar.isotonic, regmax_tv.chain, regmax.plots, regmax.cli
found.append(added())
regmax.functional.entmax(torch.zeros(2, 3))
found.append(added())
try:
    regmax.plots.mapping(regmax.regularizer("gini"))
except ImportError:
    pass
print(json.dumps([*found, added()]))
"""
    unchanged, first, plugins, call, figure = json.loads(run(script))
    assert unchanged
    tops = {m.split(".")[0] for m in first}
    assert tops <= {"regmax", "pluggy"} | set(sys.stdlib_module_names)
    later = ("nn", "losses", "analysis", "testing", "plots", "cli", "integrations")
    later += ("mapping.dynamo",)
    assert not [m for m in first if m.startswith(tuple(f"regmax.{name}" for name in later))]
    drawing = {"matplotlib", "cvxpy", "cvxpylayers", "sklearn", "transformers"}
    optional = drawing | {"numba", "llvmlite", "triton", "scipy", "hypothesis", "pytest"}
    assert not [m for m in plugins if m.split(".")[0] in optional or m.startswith("torch._dynamo")]
    assert not [m for m in call if m.split(".")[0] in drawing]
    assert "matplotlib.pyplot" not in figure  # figures without a window system
