"""Plugins: found through entry points, isolated when at fault."""

import functools
import json
import textwrap
import warnings
from importlib.metadata import entry_points

import pytest
from processes import python, with_modules

import regmax
from regmax import PluginError, PluginWarning
from regmax.regularizers import registry as module
from regmax.regularizers.registry import Registry

GOOD = """
import regmax


class {cls}(regmax.Regularizer):
    name = {name!r}
    mapping = {mapping!r}
    presets = {presets!r}

    def __init__(self, a=1.0):
        self.a = a

    def value(self, y):
        return self.a * y.square().sum(-1) / 2 + y.pow(3).sum(-1) / 3


@regmax.hookimpl
def regmax_regularizers():
    return [{cls}]
"""


def good(name="toy", mapping="toymax", presets=None, cls="Toy"):
    return GOOD.format(cls=cls, name=name, mapping=mapping, presets=presets or {})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Write a distribution with one entry point; its modules have names of their own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(distribution, module, source, entry=None, version="1.2"):
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[regmax]\n{entry or module} = {module}\n")
        return tmp_path

    return write


def registry(recorded=False):
    points = list(entry_points(group="regmax"))
    if not recorded:
        return Registry(points)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = Registry(points)
        made.report()
    return made, [str(w.message) for w in caught if issubclass(w.category, PluginWarning)]


def test_built_ins():
    names = ["entropy", "gini", "oscar", "pnorm", "tsallis", "tv"]
    names += ["divergence", "fermi_dirac", "jensen_shannon"]
    assert set(names) <= set(regmax.available())
    assert regmax.available() == sorted(regmax.available())
    mappings = {"softmax", "sparsemax", "pnormmax", "entmax", "entmax15", "fusedmax", "oscarmax"}
    assert mappings <= set(dir(regmax.functional))
    made = registry()
    assert {"clique_tv", "oscar", "owl", "tv"} <= set(made.names("penalty"))
    assert {"fista", "interior", "newton"} <= set(made.names("solver"))
    assert {"generic", "cvxpylayers", "cvxpy"} <= set(made.names("backend"))
    assert made.faults == []


def test_a_third_party_is_seen_everywhere(install):
    folder = install("regmax-toy", "toy_seen_everywhere", good())
    script = """
        import json, sys, torch, regmax
        from regmax.functional import toymax
        x = torch.tensor([[0.3, -0.1, 0.5]], dtype=torch.float64, requires_grad=True)
        y = toymax(x, a=2.0, dim=-1)
        y[0, 0].backward()
        report = regmax.crosscheck(regmax.regularizer("toy", a=2.0), x.detach(), ("generic",))
        print(json.dumps({
            "available": "toy" in regmax.available(),
            "listed": "toymax" in dir(regmax.functional),
            "sum": float(y.detach().sum()), "grad": float(x.grad.sum()),
            "same": bool((y == regmax.RegularizedMax(regmax.regularizer("toy", a=2.0))(x)).all()),
            "ok": report.ok, "doc": toymax.__name__,
        }))
    """
    run = python(script, PYTHONWARNINGS="error::UserWarning", **with_modules(folder))
    got = json.loads(run.stdout.splitlines()[-1])
    assert got["available"]
    assert got["listed"]
    assert got["same"]
    assert got["ok"]
    assert got["doc"] == "toymax"
    assert got["sum"] == pytest.approx(1, abs=1e-15)
    assert got["grad"] == pytest.approx(0, abs=1e-12)


def hooked(returned, before="", hook="regmax_regularizers()"):
    """A plugin whose hook returns this, or fails."""
    returned = returned if returned.startswith("raise") else f"return {returned}"
    return f"import regmax\n{before}@regmax.hookimpl\ndef {hook}:\n    {returned}"


def named(body, base="regmax.Regularizer"):
    """A plugin that offers one class."""
    return hooked("[A]", f"class A({base}):\n    {body}\n")


HOOK = "regmax_regularizers"
FAULTS = {
    "import error": ("import no_such_module_here", ["no_such_module_here"]),
    "raising hook": (hooked("raise OSError('boom')"), ["boom", HOOK]),
    "no list": (hooked("7"), [HOOK, "int"]),
    "no classes": (hooked("[3]"), [HOOK, "class", "3"]),
    "a class of another kind": (
        named("name, mapping = 'aaa', 'aaamax'", "object"),
        [HOOK, "Regularizer"],
    ),
    "no name": (named("pass"), [HOOK, "name"]),
    "a mapping that is no name": (named("name, mapping = 'aaa', 5"), [HOOK, "mapping"]),
    "a name of many lines": (named("name = 'a\\nb'"), [HOOK, "printable"]),
    "a mapping called torch": (named("name, mapping = 'aaa', 'torch'"), [HOOK, "'torch'"]),
    "a solver called auto": (
        hooked(
            "[A]",
            "from regmax.solvers import Solver\nclass A(Solver):\n    name = 'auto'\n",
            "regmax_solvers()",
        ),
        ["regmax_solvers", "auto"],
    ),
    "misspelt hook": (hooked("[]", hook="regmax_regularisers()"), ["regmax_regularisers", HOOK]),
    "unknown argument": (hooked("[]", hook="regmax_regularizers(config)"), [HOOK, "config"]),
    "exit": ("import sys\nprint('bye')\nsys.exit(0)", ["SystemExit: 0"]),
    "interrupt": ("raise KeyboardInterrupt", ["import: KeyboardInterrupt"]),
    "an error without a text": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(3)\nraise E",
        ["E: (no text: its __str__ raises SystemExit)"],
    ),
    "an endless error": ("raise ValueError('x' * 5_000_000)", ["ValueError: xxx", "5000000"]),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_one_warning_and_the_rest_works(install, fault):
    source, words = FAULTS[fault]
    install("bad-dist", f"bad_{fault.replace(' ', '_')}", source, entry="badplug")
    install("good-dist", f"good_{fault.replace(' ', '_')}", good())
    made, messages = registry(recorded=True)
    assert len(messages) == 1, messages
    assert len(messages[0]) < 1500
    for word in ["badplug", "bad-dist", *words]:
        assert word in messages[0], messages[0]
    assert {"toy", "gini", "tv"} <= set(made.names("regularizer"))
    assert made.get("mapping", "toymax") is made.get("regularizer", "toy")
    assert made.get("mapping", "sparsemax").name == "gini"


THIEF = """
import regmax


def made(cls, name, mapping):
    def value(self, y):
        return y.pow(3).sum(-1)

    def init(self, weight=1.0):
        self.weight = weight

    inside = {"name": name, "mapping": mapping, "value": value, "__init__": init}
    return type(cls, (regmax.Regularizer,), inside)


class Zero(regmax.Penalty):
    name = "gini"

    def value(self, y, mask=None): return 0 * y.sum(-1)
    def prox(self, v, step, mask=None): return v


@regmax.hookimpl
def regmax_regularizers():
    return [
        made("Tsallis", "tsallis", "sparsemax"), made("Gini", "gini", "entmax"),
        made("TV", "grid_tv", "Softmax"), made("nan", "one", "tv"),
        made("tv", "two", "two_max"), made("Positive", "pnormmax", "xymax"),
    ]


@regmax.hookimpl
def regmax_penalties():
    return [Zero, type("Scaled", (Zero,), {"name": "oscar"})]
"""
WITH_A_THIEF = """
import torch, regmax
from regmax import functional, losses
from regmax.cli.names import named
from regmax.integrations import saving
from regmax.nn import AdaptiveEntmax, Learnable, Positive, attention

def said(call, *given, **also):
    try:
        call(*given, **also)
    except Exception as error:
        assert "thief 1.2" in str(error) and "(regmax " in str(error), str(error)
        return type(error)

def star():
    exec("from regmax.functional import *")

x = torch.tensor([[0.3, 1.1, -0.4]], dtype=torch.float64)
star(), [functional.fusedmax(x), functional.oscarmax(x), functional.oscarmax(x, exact=False)]
for name in ("entropy", "pnorm", "tv", "oscar"):
    regmax.RegularizedMax(regmax.regularizer(name))(x)
for name in ("softmax", "fusedmax", "oscarmax", "entmax15"):
    attention(x, x, x, name)
for kind, name in (("regularizer", "gini"), ("regularizer", "tsallis"), ("penalty", "oscar")):
    assert said(getattr(regmax, kind), name) is regmax.PluginError
    getattr(regmax, kind)("regmax." + name), getattr(regmax, kind)("thief." + name)
for name in ("sparsemax", "entmax"):
    assert said(exec, f"from regmax.functional import {name}") is regmax.PluginError
    assert said(attention, x, x, x, name) is regmax.PluginError
    assert not {name, name.capitalize() + "Loss"} & {*dir(functional), *dir(losses)}
assert said(attention, x, x, x, "tv") is regmax.PluginError
for text in ("gini", "gini + 0.1*tv", "grid_tv(shape=(2, 2))", "pnormmax"):
    assert said(named, text), text
named("regmax.gini + 0.1*regmax.tv"), named("Tsallis(alpha=1.3) + 0.1*ChainTV()")
assert said(lambda: losses.SoftmaxLoss) is regmax.PluginError
regmax.Entmax15Loss(), AdaptiveEntmax(2)
offered = {cls.__module__ for cls in regmax.safe_globals()}
assert {"regmax_tsallis", "thief_module"} <= offered
ours, theirs = regmax.regularizer("regmax.tsallis"), regmax.regularizer("thief.tsallis")
two, gini = regmax.regularizer("two"), regmax.regularizer("regmax.gini")
learns = Learnable(regmax.regularizer("tv"), lam=Positive())
for omega, text in (
    (ours, "Tsallis(alpha=1.5)"), (theirs, "thief.Tsallis()"),
    (learns, "Learnable(TV(lam=0.1), lam=Positive())"),
    (two + 0.5 * gini, "thief.tv() + 0.5*Gini()"),
):
    assert saving.text_of(omega) == text, saving.text_of(omega)
    assert type(saving.made(text)) is type(omega)
assert type(saving.made("nan()")).__module__ == "thief_module"  # nothing else has this name
for omega in (ours, regmax.regularizer("tv"), gini):
    layer = regmax.RegularizedMax(omega)
    y = layer(x)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x), y)
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), y)
layer.explain(x), regmax.RegularizedMax(regmax.regularizer("tv")).explain(x)
assert regmax.regularizers.registry.registry().faults == []
print("done")
"""


def test_names_of_a_third_party_break_no_others(install):
    folder = install("thief", "thief_module", THIEF)
    run = python(WITH_A_THIEF, PYTHONWARNINGS="error::UserWarning", **with_modules(folder))
    assert run.stdout == "done\n"


INTERRUPTED = """
import os, signal, sys, threading, time
import regmax
try:
    print(regmax.available())
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    del os.environ["SLOW"]
    assert "gini" in regmax.available()
    print("stopped")
"""


def test_ctrl_c_while_a_plugin_loads_is_heard(install):
    source = "import os, signal\nif 'SLOW' in os.environ:\n    signal.raise_signal(signal.SIGINT)\n"
    folder = install("slow", "slow_module", source)
    run = python(INTERRUPTED, SLOW=1, **with_modules(folder))
    assert (run.stdout, run.stderr) == ("stopped\n", "")


def test_a_warning_that_is_an_error_comes_once(install, monkeypatch):
    install("bad-dist", "bad_once", "raise OSError('boom')")
    monkeypatch.setattr(module, "_loaded", functools.cache(module._loaded.__wrapped__))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PluginWarning, match="boom"):
            regmax.available()
        assert "gini" in regmax.available()


def test_a_plugin_that_uses_regmax_while_it_loads(install, monkeypatch):
    install("bad-dist", "bad_beside", "raise OSError('boom')")
    source = "from regmax.functional import sparsemax\nassert 'gini' in regmax.available()\n"
    install("early", "early_module", good() + source)
    monkeypatch.setattr(module, "_loaded", functools.cache(module._loaded.__wrapped__))
    with pytest.warns(PluginWarning, match="boom") as seen:
        assert {"toy", "gini"} <= set(regmax.available())
    assert [w.filename for w in seen] == [__file__]


def test_entry_points_that_cannot_be_read_are_left_out(install, tmp_path, monkeypatch):
    install("odd-dist", "odd_points", "")
    (tmp_path / "odd_dist-1.2.dist-info" / "entry_points.txt").write_text("[console_scripts]\nx\n")
    install("good-dist", "good_points", good())
    monkeypatch.setattr(module, "_loaded", functools.cache(module._loaded.__wrapped__))
    assert {"toy", "gini"} <= set(regmax.available())


def test_a_built_in_name_cannot_be_taken(install):
    install("thief", "thief_module", good("gini", "sparsemax"))
    made, _ = registry(recorded=True)
    with pytest.raises(PluginError, match=r"thief"):
        made.get("regularizer", "gini")
    with pytest.raises(PluginError, match=r"regmax .* and .*thief|thief.* and .*regmax "):
        made.get("mapping", "sparsemax")
    assert made.get("mapping", "softmax").name == "entropy"


OTHERS = """
import regmax
from regmax.solvers import Solver
from regmax.testing.backends import Backend


class Range(regmax.Penalty):
    name = "range"

    def __init__(self, weight=1.0):
        self.weight = weight

    def value(self, y, mask=None): raise NotImplementedError
    def prox(self, v, step, mask=None): raise NotImplementedError


class Mine(Solver):
    name = "mine"
    def unsuitable(self, problem): return None
    def run(self, problem, tol, max_iter): raise NotImplementedError


class Road(Backend):
    name = "road"
    def missing(self): return "road is not installed"
    def unsuitable(self, omega): return None
    def answers(self, task): return []


regmax_penalties = regmax.hookimpl(lambda: [Range], specname="regmax_penalties")
regmax_solvers = regmax.hookimpl(lambda: [Mine], specname="regmax_solvers")
regmax_backends = regmax.hookimpl(lambda: [Road], specname="regmax_backends")
"""


def test_a_third_partys_penalty_solver_and_backend(install, monkeypatch):
    install("range-dist", "others_module", OTHERS)
    made = registry()
    for kind, name in (("penalty", "range"), ("solver", "mine"), ("backend", "road")):
        assert made.origin(kind, name) == "range-dist 1.2"
    assert made.get("solver", "mine").name == "mine"
    assert made.get("backend", "road")().missing() == "road is not installed"
    monkeypatch.setattr(regmax, "registry", lambda: made)
    assert "range" in regmax.available("penalty")
    assert "range" not in regmax.available()
    assert regmax.penalty("range", weight=2.0).weight == 2.0


def test_a_penalty_by_name():
    assert isinstance(regmax.penalty("tv"), type(regmax.regularizer("tv").penalty))
    with pytest.raises(PluginError, match=r"no penalty is named 'nosuch'; .*oscar, owl"):
        regmax.penalty("nosuch")
    with pytest.raises(
        PluginError, match=r"accepted: .*tsallis.*regmax.penalty\(name\) makes .*owl"
    ):
        regmax.regularizer("group_lasso")
    with pytest.raises(TypeError, match=r"penalty 'owl' has no hyperparameter 'w'; .* weights"):
        regmax.penalty("owl", w=1)
    with pytest.raises(TypeError, match="name must be a str; got int"):
        regmax.penalty(3)
    with pytest.raises(ImportError, match="nosuchmax"):
        exec("from regmax.functional import nosuchmax")
    with pytest.raises(ValueError, match=r"kind must be one of .*'penalty'.*; got 'penalties'"):
        regmax.available("penalties")


def test_several_mappings_and_presets(install):
    install("many", "many_names", good("many", ("manymax", "many3"), {"many3": {"a": 3.0}}))
    made = registry()
    assert {"manymax", "many3"} <= set(made.names("mapping"))
    assert made.get("mapping", "many3") is made.get("mapping", "manymax")
    import torch

    f = regmax.functional
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(f.entmax15(x), f.entmax(x, alpha=1.5))
    with pytest.raises(TypeError, match="alpha"):
        f.entmax15(x, alpha=2.0)


def test_empty_registry():
    empty = Registry([])
    assert not empty.names("mapping")
    with pytest.raises(PluginError, match=r"(?i)no plugin is installed"):
        empty.get("regularizer", "gini")
    with pytest.raises(PluginError, match=r"(?i)no plugin is installed"):
        empty.get("mapping", "softmax")
