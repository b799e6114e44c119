"""What is printed is the Python that makes the object again."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from omegas import penalty_of
from torch import nn

import regmax
from regmax import RegularizedMax, kernels, losses, solvers
from regmax.nn import AdaptiveEntmax, Between, Learnable, MultiheadAttention, Positive
from regmax.regularizers import algebra, curvature
from regmax.regularizers.curvature import Dense, Diagonal, DiagonalPlusRankOne
from regmax.regularizers.printing import LIMIT, show
from regmax.regularizers.registry import registry

F64 = torch.float64
X = torch.randn(3, 6, dtype=F64, generator=torch.Generator().manual_seed(0))


class Priced(regmax.Regularizer):
    """Ω(y) = ½ Σ wᵢ yᵢ², with a name."""

    def __init__(self, w, name="prices"):
        self.w, self.name = w, name

    def value(self, y):
        return (torch.as_tensor(self.w) * y.square()).sum(-1) / 2


@dataclasses.dataclass
class Mixed(regmax.Regularizer):
    """A dataclass, whose ``eq`` would take its hash away."""

    mu: float = 1.0
    hyperparameters = ("mu",)

    def value(self, y):
        return self.mu * y.square().sum(-1) - torch.special.entr(y).sum(-1)


def names():
    """What a reader of these texts has imported."""
    modules = (regmax, algebra, curvature, kernels, losses, regmax.nn, solvers)
    found = {"torch": torch, "Priced": Priced, "Mixed": Mixed}
    for module in modules:
        found |= {k: v for k, v in vars(module).items() if inspect.isclass(v)}
    found |= {name: getattr(losses, name) for name in dir(losses)}
    for kind in ("regularizer", "penalty", "solver"):
        found |= {cls.__name__: cls for cls in registry().names(kind).values()}
    return found


def again(item):
    return eval(repr(item), names())


def same(a, b):
    """Equal in type, and in every number, to the bit and with its dtype and gradient."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.requires_grad == b.requires_grad
        assert torch.equal(a, b)
    elif isinstance(a, nn.Module):
        inside = [{**vars(m), **m._parameters, **m._buffers} for m in (a, b)]
        assert sorted(inside[0]) == sorted(inside[1])
        assert list(a._modules) == list(b._modules)
        for name, item in inside[0].items():
            if not name.startswith("_"):
                same(item, inside[1][name])
        for name, module in a._modules.items():
            same(module, b._modules[name])
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    elif type(a).__module__.startswith("regmax"):
        assert repr(a) == repr(b)
    else:
        assert a == b


def number(value, dtype=F64):
    return torch.tensor(value, dtype=dtype)


def learnt(value, dtype=torch.float32):
    return nn.Parameter(torch.tensor(value, dtype=dtype))


HEADS = torch.tensor([1.1, 1.5, 1.9]).reshape(3, 1, 1)


def regularizers():
    for name, cls in registry().names("regularizer").items():
        yield regmax.regularizer(name)
        for key in cls.hyperparameters or ():
            for value in (1 + 1 / 3, 1 / 3 + 1e-12, number(1.7), learnt(1.1), HEADS, learnt([1.3])):
                if cls.ranges[key][1](torch.as_tensor(value)).all():
                    yield regmax.regularizer(name, **{key: value})
    yield regmax.regularizer("oscar", exact=False)
    yield Priced([1.0, 2.0])
    yield Priced(number([1, 2.5, torch.inf]).requires_grad_(), name="other")
    yield Priced(learnt([0.1, 0.7], torch.bfloat16).requires_grad_(False))
    yield Mixed(0.1)


def penalties():
    for name in regmax.available("penalty"):
        yield penalty_of(name)
    yield regmax.penalty("owl", weights=learnt([2.0, 1.0]))
    yield regmax.penalty("graph_tv", edges=[(0, 1)], weights=number([0.3]))
    yield regmax.penalty("graph_tv", edges=[(0, 1), (1, 3)], weights=(0.5, 2.0), nodes=6)


def expressions():
    tsallis, entropy = (lambda: regmax.regularizer("tsallis", alpha=1.3)), regmax.regularizer
    tv = regmax.penalty("tv")
    yield 0.1 * tsallis() + 0.3 * tv
    yield learnt(0.5) * tsallis() + learnt(0.1) * tv
    yield 2 * (entropy("entropy") + 0.5 * entropy("gini"))
    yield learnt(2.0) * (entropy("entropy") + learnt(0.5) * entropy("gini"))
    yield HEADS * (number(0.3) * entropy("gini"))
    yield learnt(0.3) * (2 * entropy("gini"))
    yield number(0.5) * entropy("tv", lam=number(0.1)) + entropy("entropy")
    yield entropy("gini") + tv
    yield number(0.2) * (number(0.1) * tv)
    yield 0.2 * (number(0.1) * tv)
    yield 1e-17 * tv


def layers():
    omega = regmax.regularizer("tsallis", alpha=learnt(1.4))
    yield RegularizedMax(omega)
    yield RegularizedMax(
        Mixed(), learnt([[0.3]]), 0, "newton", tol=1e-9, max_iter=7, on_failure="raise"
    )
    yield RegularizedMax(Mixed(), 1 / 3, solver=solvers.Fista())
    yield regmax.FenchelYoungLoss(omega, 0.1, dim=-1, weight=number([1.0, 0.3]), ignore_index=3)
    yield regmax.LinearFenchelYoungLoss(omega, soft_cap=30.0, chunk=64, reduction="sum")
    yield losses.FusedmaxLoss(0.3, reduction="sum", label_smoothing=0.1, tol=1e-7)
    yield losses.EntmaxLoss(learnt(1.3), learnt(2.0), solver="newton")
    yield from (
        getattr(losses, name)() for name in dir(losses) if not name.endswith("FenchelYoungLoss")
    )


def modules():
    yield Between(1, 2)
    yield Between(0.5, 2.5, (4, 1, 1), 0.7)
    yield Positive()
    yield Positive((2,), 0.1)
    yield AdaptiveEntmax(3)
    yield AdaptiveEntmax(3, 1.2)
    yield Learnable(regmax.regularizer("tv"), lam=Positive((2, 1, 1), 0.1))
    yield Learnable(
        2 * regmax.regularizer("tsallis"), **{"base.alpha": Between(1, 2)}, c=Positive()
    )
    yield MultiheadAttention(8, 2, omega="entmax15")
    yield MultiheadAttention(
        8, 2, 0.1, False, True, True, 4, 6, True, dtype=F64, omega=AdaptiveEntmax(2), gamma=0.5
    )
    yield MultiheadAttention(8, 2, omega=Mixed(), gamma=Positive((2, 1, 1)))


def others():
    for cls in registry().names("solver").values():
        yield cls()
    yield Diagonal(X[:1])
    yield DiagonalPlusRankOne(X[0], X[1], 0.1)
    yield Dense(X[:, :3])
    yield kernels.Lazy(cpu="regmax_gini._cpu")


EVERY = [*regularizers(), *penalties(), *expressions(), *layers(), *others()]


@pytest.mark.parametrize("item", EVERY, ids=lambda item: str(item)[:60])
def test_repr_makes_the_object_again(item):
    same(again(item), item)
    assert repr(again(item)) == repr(item)


@pytest.mark.parametrize("item", [*modules()], ids=lambda item: str(item)[:60])
def test_repr_makes_the_module_again(item):
    """Its structure, and what it began with; what is drawn at random is in the state dict."""
    twin = again(item)
    assert repr(twin) == repr(item)
    assert "\n" not in repr(item)
    if any(isinstance(m, MultiheadAttention) for m in item.modules()):
        twin.load_state_dict(item.state_dict())
    same(twin, item)


def test_formulas_for_people():
    omega = learnt(0.5) * regmax.regularizer("tsallis", alpha=HEADS) + 0.1 * regmax.penalty("tv")
    assert str(omega) == "0.5*Tsallis(alpha=tensor(shape=(3, 1, 1))) + 0.1*ChainTV()"
    assert f"{omega}" == str(omega)
    assert str(RegularizedMax(omega)) == f"RegularizedMax({omega})"
    assert repr(omega).startswith("torch.nn.Parameter(torch.tensor(0.5))*Tsallis(alpha=torch.te")
    assert str(omega) in RegularizedMax(omega).explain(X.expand(2, 3, 3, 6))


def test_what_is_too_large_is_described():
    many = torch.ones(LIMIT + 1)
    assert show(many) == f"<tensor of shape=({LIMIT + 1},), torch.float32>"
    assert "..." not in show(many[:LIMIT])
    chain = [(i, i + 1) for i in range(LIMIT + 1)]
    text = repr(regmax.penalty("graph_tv", edges=chain))
    assert text.startswith(f"GraphTV(edges=<{LIMIT + 1} entries>, weights=<{LIMIT + 1} entries>")
    assert show(torch.ones(2, device="meta")) == "<tensor of shape=(2,), torch.float32>"


def test_numbers_keep_their_digits():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, F64):
        g = torch.Generator().manual_seed(1)
        t = torch.randn(50, dtype=F64, generator=g).exp().to(dtype)
        same(eval(show(t), {"torch": torch}), t)
    assert show(torch.tensor(0.1)) == "torch.tensor(0.1)"
    assert show(number(0.1)) == "torch.tensor(0.1, dtype=torch.float64)"
    assert show(torch.tensor([torch.nan, -torch.inf])) == "torch.tensor([torch.nan, -torch.inf])"
    assert show(torch.tensor([True, False])) == "torch.tensor([True, False])"
    assert show(torch.tensor([[1, 2]])) == "torch.tensor([[1, 2]])"
    assert show((1, (0.1,))) == "(1, (0.1,))"
    assert repr(regmax.regularizer("tv", lam=0.1 + 0.2)) == "TV(lam=0.30000000000000004)"


def test_a_dataclass_is_a_regularizer():
    one, two = Mixed(2.0), Mixed(2.0)
    assert repr(one) == "Mixed(mu=2.0)"
    assert Mixed.arguments == ("mu",)
    assert one != two
    assert len({one, two}) == 2
    assert len([*nn.ModuleList([RegularizedMax(one), RegularizedMax(two)]).modules()]) == 5


def test_answers_are_summed_up():
    x = torch.cat([X, torch.full((1, 6), -torch.inf)])
    text = repr(RegularizedMax(Mixed()).solve(x))
    assert text.startswith("Solution(y of shape (4, 6) by ")
    assert "3 CONVERGED, 1 EMPTY, error_bound <= " in text
    empty = RegularizedMax(regmax.regularizer("gini")).solve(x[:0])
    assert repr(empty) == "Solution(y of shape (0, 6) by closed form: no rows)"


# -- constructors whose arguments have names of methods --------------------------------------------


class ByGrad(regmax.Regularizer):
    """Keeps its argument ``grad`` under another name."""

    def __init__(self, grad=2.0, half=1):
        self.slope, self.ratio = grad, half

    def value(self, y):
        return self.slope * y.square().sum(-1) / 2


class ByGroups(regmax.Penalty):
    """Total variation, with an argument ``groups`` that it keeps under another name."""

    def __init__(self, groups=()):
        self.members = groups
        self.inner = regmax.penalty("tv")

    def value(self, y, mask=None):
        return self.inner.value(y, mask)

    def prox(self, v, step, mask=None):
        return self.inner.prox(v, step, mask)

    def groups(self, z, mask=None):
        return self.inner.groups(z, mask)

    def subgradient(self, y, near, step, mask=None):
        return self.inner.subgradient(y, near, step, mask)


def test_an_argument_with_the_name_of_a_method():
    """The method is not the argument: nothing is known of that one."""
    assert repr(ByGrad(3.0)) == "ByGrad()"
    assert repr(ByGroups([(0, 1)])) == "ByGroups()"
    assert str(0.5 * ByGrad() + ByGroups()) == "0.5*ByGrad() + ByGroups()"
    assert repr(RegularizedMax(ByGrad())) == "RegularizedMax(ByGrad())"
    for omega in (ByGrad(), ByGrad() + 0.1 * ByGroups()):
        assert "ByG" in RegularizedMax(omega).explain(X)


@pytest.mark.parametrize(("base", "name"), [(ByGroups, "groups"), (ByGrad, "grad")])
@pytest.mark.parametrize("item", [2.0, None, torch.ones(3)], ids=str)
def test_an_attribute_that_hides_a_method_is_refused(base, name, item):
    """Where it is set, not where the core calls what is no method any more."""

    class Hides(base):
        def __init__(self, item):
            setattr(self, name, item)

    owner = "Penalty" if base is ByGroups else "Regularizer"
    with pytest.raises(TypeError, match=rf"Hides\.{name} is a method of regmax\.{owner}.*another"):
        Hides(item)


def test_a_class_attribute_that_hides_a_method_is_refused():
    with pytest.raises(TypeError, match=r"Hides\.groups is a method of regmax\.Penalty.*another"):
        type("Hides", (ByGroups,), {"groups": ((0, 1),)})
    fields = {"__annotations__": {"grad": float}, "value": Mixed.value}
    hides = dataclasses.dataclass(type("Hides", (regmax.Regularizer,), fields))
    with pytest.raises(TypeError, match=r"Hides\.grad is a method of regmax\.Regularizer"):
        hides(1.0)


def test_methods_may_be_given_by_other_methods():
    """A function in place of a method is a method; names of PyTorch's and one's own are free."""
    omega = ByGrad()
    omega.grad = lambda y: 2.0 * y
    omega.type, omega.half, omega.strength = "l2", 0.5, 1
    y = RegularizedMax(omega, solver="newton")(X)
    assert torch.allclose(y, regmax.functional.sparsemax(X / 2), atol=1e-8)
