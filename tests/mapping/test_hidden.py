"""Tensors that Ω depends on and that are not its attributes: constants, or refused; and
differentiated by ``torch.func`` and forward mode."""

import functools

import pytest
import torch
import torch._dynamo
from mapping_checks import normal
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.regularizers.identity import may_hide

F64 = torch.float64
# forward mode warns that it is in beta
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def same(got, expected, atol=1e-10):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=atol)


def jacobian(f, inputs):
    return torch.autograd.functional.jacobian(f, tuple(inputs))


def moved(w, y):
    return (w * y.square() / 2 + w * y.pow(3)).sum(-1)


class Shown(Regularizer):
    """Its tensor is its attribute."""

    def __init__(self, w):
        self.w = w

    def value(self, y):
        return moved(self.w, y)


class Holding(Regularizer):
    """Its tensor is in something that it holds."""

    def __init__(self, held):
        self.held = held

    def value(self, y):
        return self.held(y) if callable(self.held) else moved(self.held[0], y)


class Own(Regularizer):
    """It keeps a function of itself, which a copy with other tensors does not follow."""

    def __init__(self, w):
        self.w = w
        self.f = lambda y: moved(self.w, y)

    def value(self, y):
        return self.f(y)


class Shifted(Regularizer):
    """Its minimum alone depends on the tensor."""

    def __init__(self, w):
        self.held = [w]

    def value(self, y):
        return y.square().sum(-1) + self.held[0].sum()


def in_global(w):
    class InGlobal(Regularizer):
        def value(self, y):
            return moved(WEIGHTS, y)

    global WEIGHTS
    WEIGHTS = w
    return InGlobal()


def in_class(w):
    return type("InClass", (Regularizer,), {"w": w, "value": lambda self, y: moved(self.w, y)})()


class Declared(Holding):
    hyperparameters = ()

    def grad(self, y):
        return self.held[0] * (y + 3 * y.square())


HIDDEN = {
    "beside declarations": lambda w: Declared([w]),
    "list": lambda w: Holding([w]),
    "function": lambda w: Holding(lambda y: moved(w, y)),
    "global": in_global,
    "class": in_class,
    "function of itself": Own,
    "constant term": Shifted,
    "term": lambda w: Holding([w]) + 0.5 * regmax.regularizer("gini"),
    "multiple": lambda w: torch.tensor(2.0, dtype=F64, requires_grad=True) * Holding([w]),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_hidden_tensor_that_requires_grad_is_refused(how):
    w, x = torch.tensor([0.7, 1.0, 1.5, 2.0], dtype=F64), normal(3, 4) / 2
    targets = torch.tensor([0, 1, 2])
    for f in (
        lambda omega: RegularizedMax(omega)(x),
        lambda omega: RegularizedMax(omega, certify=True)(x),
        lambda omega: RegularizedMax(omega, solver="fista")(x),
        lambda omega: RegularizedMax(omega).max(x),
        lambda omega: regmax.FenchelYoungLoss(omega, reduction="none")(x, targets),
    ):
        omega = HIDDEN[how](w.clone().requires_grad_())
        with pytest.raises(regmax.RegularizerError, match=r"requires grad and is not one of its"):
            f(omega)
        with torch.no_grad():
            expected = f(omega)
        assert torch.equal(f(HIDDEN[how](w)), expected)


def twins(make):
    """The mapping, its maximum and its loss, as functions of w and x."""
    index = torch.tensor([0, 1, 2])
    return (
        lambda w, x: RegularizedMax(make(w))(x),
        lambda w, x: RegularizedMax(make(w)).max(x),
        lambda w, x: regmax.FenchelYoungLoss(make(w), reduction="none")(x, index[: len(x)]),
    )


# those that hide w, and those that show it
PAIRS = {
    "list": (HIDDEN["list"], Shown),
    "under a penalty": (
        lambda w: Holding([w]) + 0.1 * regmax.penalty("tv"),
        lambda w: Shown(w) + 0.1 * regmax.penalty("tv"),
    ),
}


@pytest.fixture(params=PAIRS)
def hidden(request):
    """A tensor w, scores, and functions of w that hide it, each with its twin that does not."""
    w = torch.rand(5, dtype=F64, generator=torch.Generator().manual_seed(0)) + 0.2
    functions = tuple(zip(*map(twins, PAIRS[request.param]), strict=True))
    few = functions if request.param == "list" else functions[:1]  # a penalty takes its time
    return w, normal(3, 5) / 2, few


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
    hides, shows = (RegularizedMax(make(leaf)) for make in PAIRS[where])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * hides(2 * x), backend="aot_eager")
    with pytest.raises(regmax.RegularizerError, match=REFUSED):
        compiled(x)
    with torch.no_grad():
        same(compiled(x), 2 * shows(2 * x))


def test_hidden_tensors_that_are_mapped_over_are_refused(hidden):
    w, x, functions = hidden
    many = torch.stack([w, 1.3 - w, w / 2])
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


def test_a_tensor_of_the_computation_is_not_hidden():
    """Autograd inside of ``value``, and an attribute that is a function of a parameter."""

    class Bregman(Regularizer):
        def __init__(self, w):
            self.inner = Shown(w)

        def value(self, y):
            return (self.inner.grad(y) * y).sum(-1) / 2

    class Halved(Shown):
        """The same by hand."""

        def value(self, y):
            return (self.w * (y.square() + 3 * y.pow(3))).sum(-1) / 2

    w = torch.tensor([0.7, 1.0, 1.5, 2.0], dtype=F64, requires_grad=True)
    for dtype in (F64, torch.float32):
        x = normal(3, 4).to(dtype) / 2
        got, expected = (
            torch.autograd.grad(RegularizedMax(omega)(x).pow(3).sum(), w)[0]
            for omega in (Bregman(2 * w), Halved(2 * w))
        )
        assert (expected != 0).any()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 if dtype == F64 else 1e-5)


def test_what_cannot_hide_a_tensor_is_not_evaluated():
    """The classes of the plugins that define kernels, and what is made of them."""
    a, tv = torch.tensor(1.3, requires_grad=True), regmax.penalty("tv")
    entmax = regmax.regularizer("tsallis", alpha=a)
    for omega in (entmax, 2 * entmax, entmax + a * tv, type("Mine", (type(entmax),), {})()):
        assert not may_hide(omega)
    cls = type(entmax)
    mine = type("Mine", (cls,), {"alpha": property(lambda self: a), "__init__": lambda self: None})
    x = normal(2, 3)
    (expected,) = torch.autograd.grad(RegularizedMax(entmax)(x).pow(3).sum(), a)
    (got,) = torch.autograd.grad(RegularizedMax(mine())(x).pow(3).sum(), a)
    torch.testing.assert_close(got, expected)
    with (
        regmax.kernels.reference(),
        pytest.raises(regmax.RegularizerError, match="is not one of its attributes"),
    ):
        RegularizedMax(mine())(x)
