"""A kernel from the value of Ω: its graph, its source, its rows, and what is not made into one."""

import gc
import math
import types
import warnings
import weakref

import pytest
import torch
from devices import need_triton
from omegas import omega_of

import regmax
from regmax.mapping.methods import base, traced
from regmax.regularizers.identity import state

pytest.importorskip("numba")
from regmax.kernels.from_value import Unknown, entrywise
from regmax.kernels.from_value import kernel as kernel_module
from regmax.kernels.from_value.compiled import Function
from regmax.kernels.from_value.kernel import NumbaKernel

F = torch.nn.functional
F64 = torch.float64
D = 6


def made(value, tensors=(), d=D):
    """The entry function, its inputs and the kernel of a value."""
    y = torch.linspace(0.05, 0.3, d, dtype=F64).unsqueeze(0)
    entry = entrywise(value, y, list(tensors))
    inputs = entry.inputs(tensors)
    return entry, inputs, NumbaKernel(entry, inputs, d)


def hyper(inputs):
    return tuple(traced.hyper(t) for t in inputs)


def check_slopes(kernel, inputs, function, d=D):
    """Beside autograd's, at a y in which none is special; and what the function gives there."""
    y = torch.tensor([[0.03, 0.11, 0.27, 0.31, 0.5, 0.9]], dtype=F64)
    y = (y if d == D else torch.linspace(0.03, 0.4, d, dtype=F64).unsqueeze(0)).requires_grad_()
    value = function(y)
    (slope,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    (bent,) = torch.autograd.grad(slope.sum(), y)
    got = kernel.slopes_at(y.detach(), hyper(inputs))
    torch.testing.assert_close(got[0], slope.detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(got[1], bent, rtol=1e-11, atol=1e-12)
    return y.detach(), value.detach()


METHODS = {
    lambda y, f: f(y): "square exp exp2 expm1 tan sinh cosh erfc",
    lambda y, f: -f(y): "sqrt log1p sin cos atan tanh asinh erf sigmoid",
    lambda y, f: f(y + 1): "rsqrt reciprocal",
    lambda y, f: f(y / 2): "asin atanh",
    lambda y, f: -f(y / 2): "acos",
    lambda y, f: -f(y + 2): "acosh",
}
POINTWISE = {
    **{
        name: lambda y, of=of, name=name: of(y, getattr(torch, name))
        for of, names in METHODS.items()
        for name in names.split()
    },
    "mul": lambda y: y * y,
    "add": lambda y: y * y + y + 2,
    "sub": lambda y: y * y - y,
    "rsub": lambda y: (1 - y) ** 2,
    "add alpha": lambda y: torch.add(y, y * y, alpha=3),
    "div": lambda y: y * y / 7,
    "neg": lambda y: y - (-(y**2)),
    "pow 2": lambda y: y**2,
    "pow 3": lambda y: y**3,
    "pow 1.5": lambda y: y**1.5,
    "pow 2.5": lambda y: y.pow(2.5),
    "pow 1.37": lambda y: y**1.37,
    "pow -1": lambda y: (y + 0.1) ** -1,
    "pow -0.5": lambda y: (y + 0.1) ** -0.5,
    "pow of a number": lambda y: 3**y,
    "log": lambda y: y * y.log(),
    "log2": lambda y: y * y.log2(),
    "log10": lambda y: y * y.log10(),
    "entr": lambda y: -torch.special.entr(y),
    "xlogy": lambda y: torch.xlogy(y, y),
    "xlog1py": lambda y: torch.special.xlog1py(y, y),
    "softplus": lambda y: F.softplus(5 * y - 1),
    "softplus beta": lambda y: F.softplus(y, beta=3.0, threshold=10.0),
    "abs": lambda y: (y + 1).abs() * y,
    "sign": lambda y: y * y * (y + 1).sign(),
    "relu": lambda y: F.relu(y + 1) * y,
    "huber": lambda y: F.huber_loss(y, torch.zeros_like(y), reduction="none", delta=2.0),
    "where": lambda y: torch.where(y > 0.2, y * y, 0.4 * y - 0.04 + y**3),
    "masked_fill": lambda y: (y * y).masked_fill(y < 0, 0.0),
    "clamp": lambda y: y.clamp(1e-9, 2.0) ** 2,
    "clamp_min": lambda y: y * y.clamp_min(1e-30).log(),
    "clamp_max": lambda y: y.clamp_max(9.0) ** 2,
    "maximum": lambda y: torch.maximum(y, y - 1) ** 2,
    "minimum": lambda y: torch.minimum(y, y + 1) ** 2,
    "logical": lambda y: torch.where((y > 0) & ~(y > 2) | (y < -1), y * y, y),
    "logaddexp": lambda y: torch.logaddexp(y, 2 * y),
    "hypot": lambda y: torch.hypot(y, y + 1),
    "atan2": lambda y: -torch.atan2(y, y + 1),
    "clone": lambda y: y.clone() * y,
    "double": lambda y: y * (y > 0).double() * y,
}


def test_sixteen_logarithms_and_exponentials_of_any_numbers():
    source = """def values(n, y, numbers, vectors, stride, out):
    for i in range(0, n, 16):
        t = common.piece(y, i, n, 1.0)
        common.store_piece(out, i, n, elementary.any_log(t))
        common.store_piece(out, stride + i, stride + n, elementary.any_exp(t))
        common.store_piece(out, 2 * stride + i, 2 * stride + n, elementary.any_log1p(t))
"""
    special = [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310, 2.3e-308, 1e308]
    near = [-707.0, 708.5, 709.0, 709.5, 709.78, 709.79, 1.0, 0.5, 2.0, 1e-9, -1e-9]
    y = torch.tensor([*special, *near], dtype=F64)
    out = y.new_empty(3, len(y))
    Function(source)(len(y), y, y, y, len(y), out)
    log1p = y.new_tensor([math.log1p(t) if t > -1 else math.nan for t in y.tolist()])
    log1p[y == -1] = -math.inf  # not by torch, which rounds subnormal numbers
    for got, right in zip(out, (y.log(), y.exp(), log1p), strict=True):
        torch.testing.assert_close(got, right, rtol=4e-16, atol=0, equal_nan=True)


def by_triton(value):
    """The inputs and the kernel of a value in Triton's interpreter."""
    need_triton(interpreter=True)
    from regmax.kernels.from_value.triton_kernel import TritonKernel

    entry, inputs, _ = made(value)
    return entry, inputs, TritonKernel(entry, inputs, D, torch.device("cpu"))


SIXTEEN = [
    *("exp", "log", "log1p", "entr", "xlogy", "xlog1py", "sigmoid", "softplus", "softplus beta"),
    *("abs", "sign", "relu", "huber", "where", "masked_fill", "clamp", "clamp_min", "clamp_max"),
    *("maximum", "minimum", "logaddexp", "clone", "double"),
]
"""Those that are written for sixteen entries at a time."""
OTHERS = [name for name in POINTWISE if name not in SIXTEEN]


@pytest.mark.parametrize("maker", [made, by_triton])
@pytest.mark.parametrize("names", [SIXTEEN[::2], SIXTEEN[1::2], *(OTHERS[k::6] for k in range(6))])
def test_each_operation_has_the_derivatives_of_autograd(names, maker):
    """Some in one kernel."""

    def function(y):
        return sum(k * POINTWISE[name](y) for k, name in enumerate(names, 1))

    _, inputs, kernel = maker(lambda y: function(y).sum(-1))
    y, value = check_slopes(kernel, inputs, function)
    if maker is made:
        assert ("simd." in kernel.path.read_text()) == (names[0] in SIXTEEN)
        given, out = kernel.laid_out(hyper(inputs), D), torch.empty(1, D, dtype=F64)
        kernel.slopes(-D, y, given.numbers, given.vectors, D, out)
        torch.testing.assert_close(out, value, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (D,)])
def test_a_condition_on_a_learned_number_joins_one_on_entries(shape):
    """The derivative of w·xlogy is 0 where w = 0 and y ≤ 0."""
    x = torch.randn(2, D, dtype=F64, generator=torch.Generator().manual_seed(3))
    given = x.requires_grad_(), torch.full(shape, 1.3, dtype=F64, requires_grad=True)
    omega = omega_of(lambda y, w: (w * torch.xlogy(y, y)).sum(-1), w=given[1])

    def multiple(x, w):
        return regmax.RegularizedMax(omega.with_tensors({"w": w}))(x)

    assert torch.autograd.gradgradcheck(multiple, given, atol=1e-4)


Q = torch.randn(D, D, dtype=F64, generator=torch.Generator().manual_seed(0))
A = torch.randn(D, 9, dtype=F64, generator=torch.Generator().manual_seed(1))
SHIFT, SCALE = A[0] + 1, A[1].exp()
PAIRS = torch.tensor([[0, 1, 2], [3, 3, 5]])
ROWS = {
    "logsumexp": lambda y: torch.logsumexp(y @ A + SHIFT, -1) + F.softplus(y @ A).sum(-1),
    "softmax": lambda y: (F.log_softmax(3 * y, -1) * y).sum(-1) + F.softmax(y, -1).pow(2).sum(-1),
    "norms": lambda y: torch.linalg.vector_norm(y @ A, 3, dim=-1) + (y @ A).norm(dim=-1),
    "moments": lambda y: (y @ A).var(-1) + y.std(-1) + (y @ A).mean(-1) ** 3 + y.sum(-1) ** 4,
    "neighbours": lambda y: (
        (y - y.roll(1, -1)).pow(4).sum(-1) + (y[..., 1:] - y[..., :-1]).cosh().sum(-1)
    ),
    "moved": lambda y: (
        (torch.cat([y, 2 * y.flip(-1)], -1).diff(dim=-1).pow(4)).sum(-1)
        + torch.stack([y, y * y], -1).mean(-1).cumsum(-1).exp().sum(-1)
    ),
    "indices": lambda y: (
        (y[..., PAIRS[0]] * y[..., PAIRS[1]]).exp().sum(-1)
        + torch.gather(y, -1, PAIRS[:1].expand(len(y), -1)).exp().sum(-1)
        + y[..., 0] ** 3
    ),
    "windows": lambda y: F.pad(y, (1, 1)).unfold(-1, 3, 1).mean(-1).pow(3).sum(-1),
    "matrices": lambda y: (
        torch.einsum("...i,ij,...j->...", y, Q @ Q.T, y).exp()
        + torch.tril(y.unsqueeze(-1) * y.unsqueeze(-2)).pow(2).sum((-1, -2))
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_function_of_the_row_has_the_derivatives_of_autograd(name):
    def function(y):
        return ROWS[name](y) + (y**3).sum(-1)

    entry, inputs, kernel = made(function)
    assert entry.rest is not None
    y, value = check_slopes(kernel, inputs, function)
    torch.testing.assert_close(traced.terms(entry, y, inputs).sum(-1), value)


SUMS = {
    "sum": lambda y: (y * y).sum(-1),
    "mean": lambda y: (y * y).mean(-1),
    "two sums": lambda y: 2 * (y * y).sum(-1) - (y**0.5).sum(-1) / 3,
    "a constant": lambda y: 1 - (y**0.5).sum(-1),
    "norm": lambda y: y.norm(dim=-1) ** 2 / 2,
    "weights": lambda y: (y * y * torch.arange(1, D + 1)).sum(-1),
}


FORMS = {
    "yᵀQy": lambda y: ((y @ Q) * y).sum(-1) / 2 + y.pow(3).sum(-1),
    "least squares": lambda y: ((y @ A - SHIFT) ** 2).sum(-1),
    "weighted": lambda y: (SCALE * (y @ A - SHIFT) ** 2).mean(-1) + 0.1 * (y * y).sum(-1),
    "norm": lambda y: (y @ A).norm(dim=-1) ** 2 / 2 - torch.special.entr(y).sum(-1),
    "with y": lambda y: ((y @ Q + y) * (1 - (y - y @ Q))).sum(-1),
    "signs": lambda y: -(-(y @ A).square()).sum(-1) + (1 - (y * y).sum(-1)),
    "differences": lambda y: 3 - ((y @ A).square().sum(-1) - 2 * (y @ A).square().sum(-1)),
}


@pytest.mark.parametrize("name", SUMS | FORMS)
def test_a_sum_over_entries_and_a_quadratic_form_are_found(name):
    value, y = (SUMS | FORMS)[name], torch.rand(2, 3, D, dtype=F64)
    entry = entrywise(value, y, [])
    each = traced.terms(entry, y, entry.inputs([]))
    torch.testing.assert_close(each.sum(-1), value(y))
    assert entry.rest is None
    assert bool(entry.coupled) == (name in FORMS)


COUPLED = {
    "a kink of a map": (lambda y: (y @ A).relu().sum(-1), "not quadratic, and aten.relu.* kink"),
    "a 1-norm of a map": (lambda y: torch.linalg.vector_norm(y @ A, 1, -1), "norm.* kink"),
    "a sort": (lambda y: (y.sort(-1).values * torch.arange(6)).sum(-1), "sort"),
    "the largest": (lambda y: y.amax(-1), "amax.* kink"),
    "a selection": (lambda y: (y * y)[y > 0.1].sum(-1, keepdim=True), "shape"),
    "randomness": (lambda y: (y * y).sum(-1) + torch.rand(1), "random"),
    "writing": (lambda y: y.clone().mul_(2).square().sum(-1), "writes"),
    "a detached part": (lambda y: (y * y.detach()).sum(-1), "detach"),
    "float32": (lambda y: (y.float() ** 2).sum(-1).double(), "_to_copy"),
    "all rows": (lambda y: (y * y).sum(), "one number per row"),
    "no translation": (lambda y: torch.lgamma(y + 1).sum(-1), r"lgamma|digamma|polygamma"),
}


@pytest.mark.parametrize("name", COUPLED)
def test_what_is_not_translated_is_named(name):
    value, said = COUPLED[name]
    with pytest.raises(Unknown, match=said):
        made(value)


SHARED = {
    "coefficient": lambda y, c: (c * y**2 + y**1.7).sum(-1),
    "exponent": lambda y, c: (y**2 + y ** (c / 1.7)).sum(-1),
    "logsumexp": lambda y, c: c * torch.logsumexp(c * y, -1) + (y * y).sum(-1),
    "groups": lambda y, c: (
        c * (y.unflatten(-1, (3, -1)).sum(-1) + 0.1).log().square().sum(-1) + (y**3).sum(-1)
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_numbers_and_lengths_are_arguments_of_the_source_not_part_of_it(name):
    codes = []
    for c, d in ((2.5, 9), (7.25, 9), (2.5, 12), (0.3, 15)):
        entry, inputs, kernel = made(lambda y, c=c: SHARED[name](y, c), d=d)
        codes.append(kernel.code)
        check_slopes(kernel, inputs, lambda y, c=c: SHARED[name](y, c), d)
        assert (entry.rest is None) == (name in ("coefficient", "exponent"))
    assert len(set(codes)) == 1


class Weighted(regmax.Regularizer):
    """Weights by entry, a number, and one number per row."""

    def __init__(self, d, rows=None):
        generator = torch.Generator().manual_seed(d)
        self.w = torch.nn.Parameter(torch.randn(d, dtype=F64, generator=generator))
        self.a = torch.nn.Parameter(torch.tensor(0.3, dtype=F64))
        shape = (1,) if rows is None else (rows, 1)
        self.c = torch.nn.Parameter(torch.rand(shape, dtype=F64, generator=generator))

    def value(self, y):
        w, c = F.softplus(self.w), self.c.squeeze(-1)
        return (w * y * y).sum(-1) + self.a.exp() * y.pow(1.5).sum(-1) + c * (y**3).sum(-1)


class Quadratic(regmax.Regularizer):
    """½ yᵀQᵀQy/d and a sum over entries, with learnt tensors."""

    def __init__(self, d, kind):
        generator = torch.Generator().manual_seed(d)
        self.q = torch.nn.Parameter(torch.randn(d, d, dtype=F64, generator=generator))
        self.w = torch.nn.Parameter(torch.rand(d, dtype=F64, generator=generator))
        self.kind = kind

    def value(self, y):
        form = (y @ self.q.T).square().sum(-1) / 2 / y.shape[-1]
        w = self.w + 0.1
        if self.kind == "square":
            return form + (w * y * y).sum(-1)
        if self.kind == "entropy":
            return form - (w * torch.special.entr(y)).sum(-1)
        if self.kind == "power":
            return form + (w * y.pow(1.3)).sum(-1)
        return form - (w * y.log()).sum(-1) / 100


RESTS = {
    "logsumexp": lambda z, y: torch.logsumexp(z, -1) - torch.special.entr(y).sum(-1),
    "norm": lambda z, y: (z + 1).norm(dim=-1),
    "power of a norm": lambda z, y: y.pow(1.5).sum(-1) ** (1 / 1.5) + z.square().sum(-1),
}


class Joined(Quadratic):
    """A sum over entries and a function of the row."""

    def value(self, y):
        rest = RESTS[self.kind](y @ self.q.T, y)
        return (self.w * y * y).sum(-1) / 9 + self.w.mean() * rest


@pytest.mark.parametrize("kind", ["square", "entropy", "power", "barrier", *RESTS])
def test_a_coupled_layer_and_its_gradients_are_those_of_the_solver(kind):
    layer = regmax.RegularizedMax((Joined if kind in RESTS else Quadratic)(7, kind))
    generator = torch.Generator().manual_seed(3)
    scale = torch.tensor([[2.0]] * 9 if kind in RESTS else [[0.1], [1], [10]] * 3, dtype=F64)
    x = scale * torch.randn(9, 7, dtype=F64, generator=generator)
    x.requires_grad_()
    mask = torch.rand(9, 7, generator=generator) < 0.7
    mask[::2] = True
    v = torch.randn(9, 7, dtype=F64, generator=generator)
    wanted = [x, *layer.parameters()]

    def results():
        y = layer(x, mask)
        first = torch.autograd.grad(y, wanted, v, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), wanted)
        return [y, *first, *second]

    found = results()
    assert "kernel from the value: its source" in layer.explain(x.detach(), mask)
    with regmax.kernels.reference():
        expected = results()
    for k, (got, right) in enumerate(zip(found, expected, strict=True)):
        tol = 1e-9 if k <= len(wanted) else 1e-7
        torch.testing.assert_close(got, right, rtol=tol, atol=tol * (1 + right.abs().max().item()))
    assert torch.equal(found[0] < 1e-30, expected[0] < 1e-30)


def test_a_function_that_is_not_convex_is_refused():
    class Concave(Quadratic):
        def value(self, y):
            return super().value(y) - 9 * torch.logsumexp(y @ self.q, -1)

    with pytest.raises(regmax.RegularizerError, match="not strictly convex"):
        regmax.RegularizedMax(Concave(6, "square"))(torch.randn(3, 6, dtype=F64))


def test_no_entry_enters_and_leaves_the_support_for_ever():
    x = torch.randn(4000, 10, dtype=F64, generator=torch.Generator().manual_seed(0))
    layer = regmax.RegularizedMax(Quadratic(10, "cube"))
    assert layer.solve(x).path == "kernel from the value"


def test_no_row_of_a_function_that_is_not_convex_is_certified():
    """At the barycentre it is convex, and at a vertex the optimality condition holds."""
    _, inputs, kernel = made(
        lambda y: (y * y).sum(-1) / 2 - 0.2 * (y - y.roll(1, -1)).pow(4).sum(-1), d=3
    )
    x = torch.tensor([[1.5, 0, 0], [0.8, 0, -0.2], [3, 0, 0], [0.2, 0.1, 0]], dtype=F64)
    _, bound = kernel.solve(x, torch.ones(1, dtype=F64), hyper(inputs), None)
    assert bool(bound.isinf().all())


@pytest.mark.parametrize(
    ("make", "name", "number"),
    [
        (lambda: Scaled(), "c", -1.7),
        (lambda: Sign(), "w", torch.tensor(-1.0, dtype=F64)),
        (lambda: Quadratic(4, "square"), "w", torch.nn.Parameter(-torch.ones(4, dtype=F64))),
    ],
)
def test_an_omega_that_is_no_longer_convex_is_refused(make, name, number):
    """One number, a tensor, a form that becomes indefinite: replaced, or written over."""
    for written in (False, True):
        omega, x = make(), torch.randn(3, 4, dtype=F64)
        layer = regmax.RegularizedMax(omega)
        layer(x)
        if written and isinstance(number, torch.Tensor):
            getattr(omega, name).data.copy_(number)
        else:
            setattr(omega, name, number)
        with pytest.raises(regmax.RegularizerError, match="not strictly convex"):
            layer(x)


HARD = {
    "two entropies": lambda y: torch.xlogy(y, y).sum(-1) + ((1 - y) * (1 - y).log()).sum(-1),
    "entropy": lambda y: torch.xlogy(y, y).sum(-1) + 30 * (y * y).sum(-1),
    "power": lambda y: y.pow(1.05).sum(-1) + 50 * (y * y).sum(-1),
    "cube": lambda y: y.pow(3).sum(-1),
    "barrier": lambda y: -y.log().sum(-1) * 1e-3,
    "flat": lambda y: y.pow(6).sum(-1) + 1e-3 * (y * y).sum(-1),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_rows_satisfy_the_optimality_condition(name, scale):
    if name == "two entropies" and scale > 1:
        pytest.skip("y is next to 1, where the slope is infinite")
    _, _, kernel = made(HARD[name], d=20)
    x = scale * torch.randn(200, 20, dtype=F64, generator=torch.Generator().manual_seed(1))
    x[:20] = x[:20].round()
    y, bound = kernel.solve(x, torch.ones(1, dtype=F64), (), None)
    solved = bound <= 1e-8
    assert solved.double().mean() > 0.9
    torch.testing.assert_close(y.sum(-1), torch.ones(200, dtype=F64), rtol=0, atol=1e-14)
    slope, _ = kernel.slopes_at(y.clamp_min(1e-31), ())
    r = x - slope
    tau = (y * r).sum(-1, keepdim=True)
    size = 1 + x.abs().amax(-1, keepdim=True) + slope.abs()
    on = (y > 1e-30) & solved.unsqueeze(-1)
    # the error of a row, times the curvature
    assert bool((torch.where(on, (r - tau).abs() / size, 0) <= 1e-6).all())
    off = (y == 0) & solved.unsqueeze(-1)
    assert bool((torch.where(off, (r - tau) / size, -1) <= 1e-6).all())


class Scaled(regmax.Regularizer):
    """An attribute, and a global number, that may change between calls."""

    factor = (1.0,)

    def __init__(self):
        self.c = 1.0

    def value(self, y):
        return self.c * self.factor[0] * (y * y).sum(-1) + y.pow(3).sum(-1)


class Changing(Scaled):
    pass


STATE = {"factor": 1.0}


def factor():
    return STATE["factor"]


class Distant(regmax.Regularizer):
    """A function that it calls reads a number from outside."""

    def value(self, y):
        return factor() * (y * y).sum(-1) + y.pow(3).sum(-1)


@pytest.mark.parametrize(
    ("changed", "scale", "rows"),
    [(3.0, 1.0, 1), (3.0, 1e-10, 3), (torch.tensor([3.0], dtype=F64), 1.0, 50)],
)
@pytest.mark.parametrize("cls", [Changing, Distant])
def test_a_change_that_no_attribute_shows_is_noticed(cls, changed, scale, rows, monkeypatch):
    """Of a mapping, under a transform too, and of a loss."""

    def set_to(number):
        monkeypatch.setattr(Changing, "factor", (number,))
        monkeypatch.setitem(STATE, "factor", number)

    layer, loss = regmax.RegularizedMax(cls()), regmax.FenchelYoungLoss(cls())
    x, k = scale * torch.randn(rows, 5, dtype=F64), torch.zeros(rows, dtype=torch.int64)
    set_to(scale)
    before = layer(x), loss(x, k)
    set_to(changed * scale)
    found = torch.func.vmap(layer)(x), layer(x), loss(x, k)
    with regmax.kernels.reference():
        expected = layer(x), layer(x), loss(x, k)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    assert scale < 1 or not torch.allclose(found[1], before[0])
    assert scale < 1 or not torch.allclose(found[2], before[1])


def test_a_number_that_becomes_one_to_learn_is_refused(monkeypatch):
    layer, x = regmax.RegularizedMax(Distant()), torch.randn(3, 5, dtype=F64)
    layer(x)
    monkeypatch.setitem(STATE, "factor", torch.tensor(1.0, dtype=F64, requires_grad=True))
    with pytest.raises(regmax.RegularizerError, match="not one of its attributes"):
        layer(x)


class Listed(regmax.Regularizer):
    """A reader of the numbers of ``b``: a list, or a tensor whose version does not tell."""

    def __init__(self, b, read):
        self.b, self.read = b, read

    def value(self, y):
        return (self.read(self.b) * y).sum(-1) + y.square().sum(-1)


READS = {
    "a list": lambda t: torch.tensor(t, dtype=F64),
    "its data": lambda t: t + 0,
    "tolist": lambda t: torch.tensor(t.tolist(), dtype=F64),
    "another tensor from outside": lambda _: factor(),
}


@pytest.mark.parametrize(
    ("kind", "rows"), [*((kind, 20) for kind in READS), *((kind, 1) for kind in list(READS)[:3])]
)
def test_a_change_outside_of_the_support_is_noticed(kind, rows, monkeypatch):
    """Of many rows in one that is not among those that are compared."""
    numbers = 0.01 * torch.arange(float(rows), dtype=F64)[:, None] + torch.zeros(rows, 3).double()
    monkeypatch.setitem(STATE, "factor", numbers)
    b = {"a list": numbers.tolist(), "another tensor from outside": None}.get(kind, numbers)
    layer = regmax.RegularizedMax(Listed(b, READS[kind]))
    x = torch.tensor([3.0, 0.0, 0.0], dtype=F64).expand(rows, 3).contiguous()
    layer(x)
    assert kind == "tolist" or "kernel from the value" in layer.explain(x)
    monkeypatch.setitem(STATE, "factor", numbers.clone())
    changed = {"a list": b, "another tensor from outside": STATE["factor"]}.get(kind, numbers.data)
    changed[rows // 4][1] = -9.0
    assert layer(x)[:, 1].nonzero().tolist() == [[rows // 4]]


@pytest.mark.parametrize(
    "count", [lambda w: w.tolist()[0], lambda w: w[w > 0].numel()], ids=["tolist", "nonzero"]
)
def test_a_number_read_from_a_tensor_is_no_constant(count):
    class Reads(Sign):
        def value(self, y):
            return count(self.w.view(1)) * (y * y).sum(-1)

    layer, x = regmax.RegularizedMax(Reads()), torch.randn(3, 5, dtype=F64)
    note = layer.explain(x)
    assert "reads the numbers" in note or "the shape of a result depends on numbers" in note


class Branches(regmax.Regularizer):
    """½‖y‖², or ‖y‖² − 0.2 where that is more: a branch in a batch of one row."""

    def __init__(self, c=1.0):
        self.c = c

    def value(self, y):
        one, other = self.c * y.square().sum(-1) / 2, y.square().sum(-1) - 0.2
        if len(y) == 1:
            return other if bool(other > one) else one
        return torch.maximum(one, other)


def test_a_value_that_branches_goes_to_the_solver():
    class Reads(regmax.Regularizer):
        def __init__(self, c):
            self.c = c

        def value(self, y):
            total = self.c.item() * y.square().sum(-1) + y.pow(3).sum(-1)
            return total if bool((y >= 0).all()) else total + torch.inf

    layer, x = regmax.RegularizedMax(Reads(torch.tensor(0.6).double())), torch.randn(3, D).double()
    for c in (0.6, 0.7, 1.1):
        layer.omega.c.fill_(c)
        found = [layer.jacobian(x), layer(x)]
        assert "it reads the numbers of a tensor" in layer.explain(x)
        with regmax.kernels.reference():
            for got, expected in zip(found, (layer.jacobian(x), layer(x)), strict=True):
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


def test_a_branch_that_was_not_traced_goes_to_the_solver():
    layer = regmax.RegularizedMax(Branches())
    for scale in (0.1, 3.0, 0.1, 3.0, 0.1, 3.0):
        x = scale * torch.tensor([[1.0, 0.9, 0.4, 0.0]], dtype=F64)
        y = layer(x)
        with regmax.kernels.reference():
            torch.testing.assert_close(y, layer(x), rtol=0, atol=1e-8)


def test_the_slope_at_0_may_become_finite():
    omega = omega_of(
        lambda y, a: (y * y - a * torch.special.entr(y)).sum(-1), a=torch.ones(5, dtype=F64)
    )
    x = 5 * torch.randn(20, 5, dtype=F64)
    layer, v = regmax.RegularizedMax(omega), torch.randn(20, 5, dtype=F64)
    layer(x)
    x.requires_grad_()
    for a in ([1.0, 0.0, 0.0, 1.0, 0.0], [0.0] * 5, [1.0] * 5):
        omega.a.copy_(torch.tensor(a))
        found = layer(x)
        with regmax.kernels.reference():
            expected = layer(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert torch.equal(found == 0, expected == 0)
        pair = [torch.autograd.grad(y, x, v)[0] for y in (found, expected)]
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-11)


def test_no_certificate_where_the_slope_at_0_is_nan():
    x = torch.tensor([[0.0, 0, 0, 0, -3]], dtype=F64)
    _, _, kernel = made(
        lambda y: torch.where(y > 1e-10, (y - 1e-10) ** 1.5, 0).sum(-1) + (y * y).sum(-1), d=5
    )
    assert kernel.solve(x, torch.ones(1, dtype=F64), (), None)[1].isinf().all()


@pytest.mark.parametrize(
    "value",
    [
        lambda y: torch.where(y < 0.3, y * y, y * y - 0.2 * (y - 0.3)),
        lambda y: 2 * y * y - 0.003 * torch.exp(-20000 * (y - 0.3) ** 2),
    ],
)
def test_an_omega_that_is_not_convex_somewhere_gets_no_kernel(value):
    layer = regmax.RegularizedMax(omega_of(lambda y: value(y).sum(-1)))
    x = torch.zeros(1, 4, dtype=F64)  # Ω is convex there
    assert "may not be convex" in layer.explain(x)


def test_an_entry_without_a_slope_at_0_is_not_left_out():
    """A where whose other branch has no slope below c: autograd makes NaN of it."""

    def value(y, c):
        return torch.where(y > c, (y - c) ** 1.5, 0 * y).sum(-1) + (y * y).sum(-1) / 2

    omega = omega_of(value, c=torch.full((4,), -0.1, dtype=F64))
    layer, x = regmax.RegularizedMax(omega), torch.tensor([[0.3, 0.2, 0.1, 0.0]], dtype=F64)
    layer(x)
    omega.c[0] = 0.1
    found = layer(x)
    with regmax.kernels.reference():
        torch.testing.assert_close(found, layer(x))


class Sign(regmax.Regularizer):
    def __init__(self):
        self.w = torch.tensor(1.0, dtype=F64)

    def value(self, y):
        return self.w * (y * y).sum(-1)


def test_rows_that_are_not_certified_go_to_the_solver():
    layer = regmax.RegularizedMax(Scaled(), tol=1e-30, on_failure="ignore")
    assert ", then solver" in layer.explain(torch.randn(3, 5, dtype=F64))


@pytest.fixture
def new_objects():
    """Of all objects the collector looks at those that the test makes."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("new_objects")
def test_code_is_freed_with_the_last_that_may_call_it():
    base.METHODS.clear()
    x = torch.randn(3, 5, dtype=F64, requires_grad=True)
    layer = regmax.RegularizedMax(Scaled())
    want = torch.autograd.grad(layer(x)[:, 0].sum(), x)[0]
    y = layer(x)
    (plan,) = base.METHODS.values()
    engine = weakref.ref(plan.kernel.slopes.address.engine)
    del plan
    base.METHODS.clear()
    kernel_module._function.cache_clear()
    gc.collect()
    assert engine() is not None
    torch.testing.assert_close(torch.autograd.grad(y[:, 0].sum(), x)[0], want)
    del y
    gc.collect()
    assert engine() is None


def tensors_alive():
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if type(t) is torch.Tensor)


@pytest.mark.usefixtures("new_objects")
@pytest.mark.parametrize("learns", [False, True])
def test_a_call_leaves_no_tensors_behind(learns):
    omega = Weighted(5) if learns else Scaled()
    layer, loss = regmax.RegularizedMax(omega), regmax.FenchelYoungLoss(omega)
    alive = []
    for rows in (3, 3, 3, 4, 5, 6, 7, 3):
        x = torch.randn(rows, 5, dtype=F64, requires_grad=True)
        mask = torch.ones(rows, 5, dtype=torch.bool)
        layer(x, mask=mask).sum().backward()
        layer(x).sum().backward()
        loss(x, torch.zeros(rows, dtype=torch.int64)).backward()
        del x, mask
        alive.append(tensors_alive())
    assert alive[-1] == alive[2]


def test_many_omegas_do_not_leak():
    x = torch.randn(1, 4, dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(20):
            omega = Scaled()
            omega.c = 1 + k / 7
            regmax.RegularizedMax(omega)(x)
    assert len(base.METHODS) <= 2 * base._MOST


# -- what a value may depend on --------------------------------------------------------------------

NUMBER, CONSTANTS = 2.0, types.ModuleType("constants")
CONSTANTS.number = 2.0


def squares(t):
    return NUMBER * t * t


def cubes(t):
    return NUMBER * t**3 + t * t


class Mixed:
    def part(self, y):
        return squares(y)


class Inner(regmax.Regularizer):
    def value(self, y):
        return (lambda t: NUMBER * t * t)(y).sum(-1)


class Calls(regmax.Regularizer, Mixed):
    def value(self, y):
        return self.part(y).sum(-1)


class Own(regmax.Regularizer):
    def value(self, y):
        return (2.0 * y**2).sum(-1)


class Replaced(Own):
    def value(self, y):
        return (2.0 * y**2).sum(-1)


class Property(regmax.Regularizer):
    @property
    def factor(self):
        return NUMBER

    def value(self, y):
        return self.factor * (y * y).sum(-1)


class Default(regmax.Regularizer):
    def value(self, y, factor=2.0):
        return factor * (y * y).sum(-1)


class Rounded(regmax.Regularizer):
    def value(self, y):
        return torch.tensor(0.1).double() * (y * y).sum(-1)


class OfModule(regmax.Regularizer):
    def value(self, y):
        return CONSTANTS.number * (y * y).sum(-1)


class Flag(regmax.Regularizer):
    def value(self, y):
        return (1.0 + torch.is_warn_always_enabled()) * (y * y).sum(-1)


class Named(regmax.Regularizer):
    def value(self, y):
        return vars(CONSTANTS)["number"] * (y * y).sum(-1)


CHANGES = {
    "a global": (Inner, lambda m: m.setitem(globals(), "NUMBER", 3.0), True),
    "a global of a called one": (Calls, lambda m: m.setitem(globals(), "NUMBER", 3.0), True),
    "a called function": (Calls, lambda m: m.setitem(globals(), "squares", cubes), True),
    "a method": (Own, lambda m: m.setattr(Own, "value", Inner.value), True),
    "its code": (Replaced, lambda m: m.setattr(Replaced.value, "__code__", cube.__code__), True),
    "a property": (Property, lambda m: m.setitem(globals(), "NUMBER", 3.0), True),
    "a default": (Default, lambda m: m.setattr(Default.value, "__defaults__", (3.0,)), True),
    "the default dtype": (Rounded, lambda m: torch.set_default_dtype(F64), False),
    "a flag of PyTorch": (Flag, lambda m: torch.set_warn_always(True), False),
    "a module's number": (OfModule, lambda m: m.setattr(CONSTANTS, "number", 3.0), False),
    "an object's number": (Named, lambda m: m.setattr(CONSTANTS, "number", 3.0), False),
}


def cube(self, y):
    return (y**3 + y**2).sum(-1)


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_is_compared_unless_its_state_determines_it(change, monkeypatch):
    cls, make, determined = CHANGES[change]
    layer, x = regmax.RegularizedMax(cls()), torch.randn(3, 5, dtype=F64)
    assert torch.equal(layer(x), layer(x))
    known = [t.determined for t in base.METHODS.values() if type(t).__name__ == "TracedValue"]
    assert known[-1:] == [determined]
    try:
        make(monkeypatch)
        with regmax.kernels.reference():
            expected = layer(x)
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(torch.func.vmap(layer)(x), expected, rtol=0, atol=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_warn_always(False)


def test_a_global_of_an_inner_function_is_part_of_the_state(monkeypatch):
    before = state(Inner(), [])
    assert state(Inner(), []) == before
    monkeypatch.setitem(globals(), "NUMBER", 3.0)
    assert state(Inner(), []) != before
