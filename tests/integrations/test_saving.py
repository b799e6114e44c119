"""Saved, copied and loaded, everything is what it was, to the bit."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from omegas import Weighted, penalty_of
from processes import python
from torch import nn

import regmax
from regmax import RegularizedMax, losses, solvers
from regmax.integrations import saving
from regmax.nn import AdaptiveEntmax, Learnable, MultiheadAttention, Positive
from regmax.regularizers.registry import Offer, registry

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([0, 5, 2])


def learnt(value):
    return nn.Parameter(torch.tensor(value))


def omega(name, **hyper):
    return regmax.regularizer(name, **hyper)


def layers():
    """By name, an object and what its forward takes."""
    for name in regmax.available():
        yield name, RegularizedMax(omega(name), 0.5), (X,)
        key = omega(name).hyperparameters
        if key:
            yield f"{name}, learning", RegularizedMax(omega(name, **{key[0]: learnt([1.2])})), (X,)
    for name in regmax.available("penalty"):
        given = {"weights": torch.tensor([0.5, 2, 1, 0.3])} if name == "graph_tv" else {}
        r = penalty_of(name, **given)
        yield f"penalty {name}", RegularizedMax(omega("gini") + 0.1 * r), (X,)
    expression = learnt(0.5) * omega("tsallis", alpha=learnt(1.3)) + omega("gini")
    yield "expression", RegularizedMax(expression + 0.1 * regmax.penalty("tv"), learnt(2.0)), (X,)
    for name in regmax.available("solver"):
        base = omega("gini") + 0.1 * regmax.penalty("tv") if name == "fista" else omega("gini")
        layer = RegularizedMax(base, solver=registry().get("solver", name)(), tol=1e-4)
        yield f"solver {name}", layer, (X,)
    for name in dir(losses):
        if not name.endswith("FenchelYoungLoss"):
            yield name, getattr(losses, name)(weight=torch.arange(1.0, 7)), (X, INDEX)
    yield "loss", regmax.FenchelYoungLoss(omega("tv"), learnt(0.7), reduction="none"), (X, INDEX)
    for learns in (AdaptiveEntmax(2), Learnable(omega("tv"), lam=Positive((2, 1, 1), 0.1))):
        layer = MultiheadAttention(6, 2, omega=learns, gamma=Positive())
        yield f"attention, {type(learns).__name__}", layer.eval(), (X, X, X)


EVERY = [*layers()]
every = pytest.mark.parametrize(
    ("item", "inputs"), [c[1:] for c in EVERY], ids=[c[0] for c in EVERY]
)


def same(a, b, inputs):
    assert type(a) is type(b)
    assert repr(a) == repr(b)
    assert list(a.state_dict()) == list(b.state_dict())
    for left, right in zip(results(a, inputs), results(b, inputs), strict=True):
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


def results(item, inputs):
    x = inputs[0].clone().requires_grad_()
    out = item(x, *inputs[1:])
    out = out[0] if isinstance(out, tuple) else out
    wanted = [x, *item.parameters()]
    return [out, *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)]


def saved(item, **options):
    file = io.BytesIO()
    torch.save(item, file)
    file.seek(0)
    return torch.load(file, **options)


@every
def test_copies_are_the_same(item, inputs):
    """What a call leaves behind, kernels and graphs among it, is no part of an object."""
    item(*inputs)
    results(copy.deepcopy(item), inputs)  # the first call of an Ω rounds otherwise than a kernel
    same(item, copy.deepcopy(item), inputs)
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        same(item, pickle.loads(pickle.dumps(item, protocol)), inputs)
    same(item, saved(item, weights_only=False), inputs)
    with torch.serialization.safe_globals(regmax.safe_globals()):
        same(item, saved(item, weights_only=True), inputs)


def test_whole_layers_are_refused_unless_asked_for():
    """Importing regmax and loading its plugins does not change what torch.load accepts."""
    layer = RegularizedMax(omega("gini"))
    layer(X)
    with pytest.raises(pickle.UnpicklingError, match=r"regmax.nn.layer.RegularizedMax"):
        saved(layer, weights_only=True)


def test_a_class_of_ones_own_is_named():
    layer = RegularizedMax(Weighted(torch.ones(6)))
    with (
        torch.serialization.safe_globals(regmax.safe_globals()),
        pytest.raises(pickle.UnpicklingError, match=r"omegas\.Weighted"),
    ):
        saved(layer, weights_only=True)
    with torch.serialization.safe_globals([*regmax.safe_globals(), Weighted]):
        same(layer, saved(layer, weights_only=True), (X,))


def test_in_a_new_process(tmp_path):
    """Nothing but ``import regmax`` is needed, before any plugin is loaded."""
    expected = {}
    for name, item, inputs in EVERY:
        out = item(*inputs)
        expected[name] = (inputs, (out[0] if isinstance(out, tuple) else out).detach())
    torch.save({name: item for name, item, _ in EVERY}, tmp_path / "layers.pt")
    torch.save(expected, tmp_path / "expected.pt")
    script = (
        "import torch, regmax\n"
        "torch.set_num_threads(1)\n"
        "with torch.serialization.safe_globals(regmax.safe_globals()):\n"
        "    layers = torch.load('layers.pt')\n"
        "for name, (inputs, right) in torch.load('expected.pt').items():\n"
        "    out = layers[name](*inputs)\n"
        "    assert torch.equal(out[0] if isinstance(out, tuple) else out, right), name\n"
        "print(len(layers))\n"
    )
    found = python(script, cwd=tmp_path)
    assert found.stderr == ""
    assert found.stdout.strip() == str(len(EVERY))


def test_answers_and_reports():
    layer = RegularizedMax(omega("gini") + 0.1 * regmax.penalty("tv"), solver=solvers.Fista())
    solution = layer.solve(X.double(), trace=True)
    twin = pickle.loads(pickle.dumps(solution))
    assert torch.equal(twin.y, solution.y)
    assert torch.equal(twin.trace.gap, solution.trace.gap)
    assert repr(twin) == repr(solution)
    report = regmax.crosscheck(omega("gini"), X.double(), against=("generic",))
    assert pickle.loads(pickle.dumps(report)).table() == report.table()
    with pytest.raises(regmax.ConvergenceError) as caught:
        RegularizedMax(Weighted(torch.arange(1.0, 7)), max_iter=1, tol=1e-30, on_failure="raise")(X)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# -- Ω as a text ----------------------------------------------------------------------------------


def texts():
    """Every Ω and penalty of :func:`layers`, Ω that learn, and some of more entries than a repr."""
    for _, layer, _ in layers():
        for part in layer.modules():
            if isinstance(part, regmax.Regularizer | Learnable):
                yield part
    yield Learnable(2 * omega("tsallis"), **{"base.alpha": Positive((96, 1, 1)), "c": Positive()})
    yield omega("tsallis", alpha=learnt([[1.3]] * 96))
    yield omega("tsallis", alpha=torch.tensor(1.3, dtype=torch.float64))
    edges = [(i, i + 1) for i in range(99)]
    yield omega("gini") + regmax.penalty("graph_tv", edges=edges, weights=torch.rand(99), nodes=100)


@pytest.mark.parametrize("item", [pytest.param(item, id=repr(item)[:60]) for item in texts()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_text_makes_omega_again(item, dtype):
    """Under whatever default dtype and device it is written and read."""
    text = saving.text_of(item)
    torch.set_default_dtype(dtype)
    try:
        assert saving.text_of(item) == text
        with torch.device("meta"):
            twin = saving.made(text)
    finally:
        torch.set_default_dtype(torch.float32)
    assert type(twin) is type(item)
    assert saving.text_of(twin) == text
    assert not any(p.is_meta for p in twin.parameters())


class Hidden(regmax.Regularizer):
    def __init__(self, w=1.0):
        self._w = w


class Doubling(regmax.Regularizer):
    def __init__(self, w=1.0):
        self.w = 2 * w


class Unbounded(regmax.Regularizer):
    def __init__(self, w=1.0):
        self.w = w


class Picky(regmax.Regularizer):
    def __init__(self, w=1.0):
        if w > 1:
            raise RuntimeError("too large")
        self.w = w


def test_an_omega_that_its_text_does_not_make_again(monkeypatch):
    with pytest.raises(TypeError, match=r"^omegas\.Weighted is no class that regmax or a plugin"):
        saving.text_of(omega("gini") + Weighted(torch.ones(6)))
    classes = {cls.__name__: cls for cls in (Hidden, Doubling, Unbounded, Picky)}
    monkeypatch.setattr(saving, "_known", lambda: classes)
    assert saving.made(saving.text_of(Unbounded(-torch.inf))).w == -torch.inf
    with pytest.raises(TypeError, match=r"Hidden cannot be made again .*: w is no attribute$"):
        saving.text_of(Hidden())
    with pytest.raises(TypeError, match=r"from 'Doubling\(w=2.0\)': that is another Ω$"):
        saving.text_of(Doubling())
    item = Picky()
    item.w = 2.0
    with pytest.raises(TypeError, match=r"from 'Picky\(w=2.0\)': too large$"):
        saving.text_of(item)


def test_a_name_of_two_classes_says_nothing(monkeypatch):
    class Gini(regmax.Regularizer):
        """Another plugin's."""

    offer = Offer("other", Gini, "other", "regmax 0.1.0")
    monkeypatch.setitem(registry()._offers["regularizer"], "other", [offer])
    with pytest.raises(TypeError, match="Gini is no class that regmax or a plugin offers"):
        saving.text_of(omega("gini"))
    with pytest.raises(regmax.PluginError, match="no regularizer or penalty is named 'Gini'"):
        saving.made("Gini()")


@pytest.mark.parametrize(
    "text",
    [
        "g" * 10**6,
        "Tsallis(alpha='" + "a" * 10**6 + "')",
        "Gini()" + " + Gini()" * 2000,
        "(" * 10**6,
    ],
    ids=["name", "value", "terms", "depth"],
)
def test_messages_of_long_texts_are_short(text):
    with pytest.raises((ValueError, TypeError, regmax.PluginError)) as caught:
        saving.made(text)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Gini(", "cannot read"),
        ("7", "cannot read Ω from '7': that is int"),
        ("ChainTV()", "that is ChainTV"),
        ("Gini() - Gini()", "cannot read"),
        ("Gini().value", "cannot read"),
        ("Gini()[0]", "cannot read"),
        ("(lambda: Gini())()", "cannot read"),
        ("__import__('os').getcwd()", "cannot read"),
        ("torch.load('file')", r"cannot read"),
        ("torch.classes", "cannot read"),
        ("RegularizedMax(Gini())", "no regularizer or penalty is named 'RegularizedMax'"),
        ("Learnable(Gini(), **x)", "cannot read"),
        ("Tsallis(alpha=open)", "cannot read 'open'"),
        ("Tsallis(alpha=1.5, alpha=2.0)", "cannot read"),
        ("my_norms.Cubic()", "no regularizer or penalty is named 'my_norms.Cubic'"),
        ("Learnable(Tsallis(), alpha=Between(1, 2, (30000, 30000)))", "at most 4194304 entries"),
    ],
)
def test_a_text_is_read_and_not_executed(text, reason):
    with pytest.raises((ValueError, regmax.PluginError), match=reason):
        saving.made(text)
