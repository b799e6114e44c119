"""Tensors that are not what they seem: right, or refused by name; never an address that a kernel
cannot read."""

import copy
import itertools
import tempfile

import pytest
import torch
from mapping_checks import normal
from torch import nn

import regmax
from regmax import functional
from regmax.nn import AdaptiveEntmax, attention

F64 = torch.float64
X, K = normal(4, 7), torch.tensor([0, 1, 2, 3])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # prototypes of PyTorch


class Value(regmax.Regularizer):
    """Given by its value."""

    def __init__(self, w=None):
        self.w = torch.zeros(7, dtype=F64) if w is None else w

    def value(self, y):
        return (y.square() / 2 + self.w.exp() * y.pow(3)).sum(-1)


def layer(omega="gini", **keywords):
    omega = regmax.regularizer(omega) if isinstance(omega, str) else omega
    return regmax.RegularizedMax(omega, **keywords)


def same(got, expected, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


# -- what has no numbers of its own is refused, and named ----------------------------------------

PLACES = {
    "x": lambda make: functional.sparsemax(make(X)),
    "x of dim 0": lambda make: functional.sparsemax(make(X), dim=0),
    "x in half": lambda make: functional.sparsemax(make(X.half())),
    "x of a solver": lambda make: layer(Value())(make(X)),
    "x of max": lambda make: layer().max(make(X)),
    "x of solve": lambda make: layer().solve(make(X)),
    "x of explain": lambda make: layer().explain(make(X)),
    "input": lambda make: regmax.SparsemaxLoss()(make(X), K),
    "mask": lambda make: functional.sparsemax(X, mask=make(X > 0)),
    "gamma": lambda make: functional.sparsemax(X, gamma=make(X[:, :1].exp())),
    "gamma of a solver": lambda make: layer(Value(), gamma=make(X[:, :1].exp()))(X),
    "alpha": lambda make: functional.entmax(X, alpha=make(1 + X[:, :1].sigmoid())),
    "lam": lambda make: functional.fusedmax(X, lam=make(X[:, :1].exp())),
    "w": lambda make: layer(Value(make(X[0])))(X),
    "target": lambda make: regmax.SparsemaxLoss()(X, make(X.exp())),
    "target of indices": lambda make: regmax.SparsemaxLoss()(X, make(K)),
    "weight": lambda make: regmax.SparsemaxLoss(weight=make(X[0].exp()))(X, K),
    "y0": lambda make: layer(Value()).solve(X, y0=make(X.exp())),
}


def nested(t):
    return torch.nested.nested_tensor(list(t))


def jagged(t):
    return torch.nested.nested_tensor(list(t), layout=torch.jagged)


def mkldnn(t):
    if not t.is_floating_point():
        raise RuntimeError("there is none")
    return t.float().to_mkldnn()


def masked(t):
    return torch.masked.masked_tensor(t, torch.ones_like(t, dtype=torch.bool))


def two(t):
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(t, t)


def fake(t):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(t)


def without_memory(t):
    """As sharded training leaves a tensor between uses."""
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


KINDS = {
    nested: r"nested tensor.*unbind",
    jagged: r"nested tensor.*unbind",
    torch.Tensor.to_sparse: r"layout torch\.sparse_coo.*to_dense",
    torch.Tensor.to_sparse_csr: r"layout torch\.sparse_csr.*to_dense",
    mkldnn: r"layout torch\._mkldnn.*to_dense",
    masked: r"MaskedTensor.*get_data",
    two: r"TwoTensor.*inside",
    fake: r"FakeTensor.*fake_mode",
    without_memory: r"memory was freed.*unshard",
}


TAKEN = {"x", "x of dim 0", "x in half", "x of a solver"}  # as tests/mapping/test_jagged.py has it


@pytest.mark.parametrize(
    ("place", "make"),
    [(p, f) for p, f in itertools.product(PLACES, KINDS) if f is not jagged or p not in TAKEN],
)
def test_what_has_no_numbers_of_its_own(place, make):
    def made(t):
        try:
            return make(t)
        except (RuntimeError, IndexError, TypeError):
            pytest.skip("there is no such tensor")

    name = place.split(" ")[0]
    with pytest.raises(TypeError, match=f"{name} must be a dense tensor.*{KINDS[make]}"):
        PLACES[place](made)


@pytest.mark.parametrize("shape", [(4, 7), (2, 4, 7)])
def test_memory_that_is_given_back_before_backward(shape):
    x = torch.randn(shape, requires_grad=True)
    y = functional.sparsemax(x * 1)
    total = y.sum()
    y.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="tensor without memory"):
        total.backward()
    y = functional.sparsemax(x)
    with pytest.raises(RuntimeError, match="tensor without memory"):
        torch.autograd.grad(y, x, without_memory(torch.ones(shape)))


def test_a_gradient_that_is_known_to_be_zero():
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(
        functional.sparsemax(x), x, torch._efficientzerotensor((4, 7)).double()
    )
    assert (g == 0).all()


@pytest.mark.parametrize(
    "place", [place for place in PLACES if not place.startswith(("x", "input"))]
)
def test_meta_beside_scores(place):
    with pytest.raises(TypeError, match=r"must be on a device with memory.*meta beside cpu"):
        PLACES[place](lambda t: t.to("meta"))


def test_meta_scores_have_shapes():
    x = X.to("meta")
    q = torch.randn(2, 3, 5, 8, device="meta")
    own = layer(Value(torch.zeros(7, dtype=F64, device="meta")))
    for y in (functional.sparsemax(x, mask=X > 0), own(x), layer(solver="newton")(x)):
        assert y.is_meta
        assert y.shape == x.shape
    assert layer().max(x).shape == own.max(x).shape == (4,)
    assert regmax.SparsemaxLoss()(x, K.to("meta")).shape == ()
    assert attention(q, q, q, "sparsemax").shape == q.shape
    with pytest.raises(NotImplementedError, match="meta device hide"):
        own.solve(x)


# -- what holds its numbers is taken as it is ----------------------------------------------------


class Named(torch.Tensor):
    pass


class Weight(nn.Parameter):
    pass


def test_subclasses_with_their_own_memory():
    alpha, mask = torch.tensor(1.4, dtype=F64), X > -1
    expected = functional.entmax(X, alpha=alpha, mask=mask)
    named = [t.as_subclass(Named) for t in (X, alpha, mask)]
    for x, a, m in ((X, *named[1:]), (named[0], alpha, mask), named):
        same(functional.entmax(x, alpha=a, mask=m).as_subclass(torch.Tensor), expected)
    same(functional.entmax(nn.Buffer(X), alpha=nn.Buffer(alpha), mask=mask), expected)
    leaf = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(functional.entmax(leaf, alpha=alpha, mask=mask).pow(2).sum(), leaf)
    weight = Weight(X.clone())
    functional.entmax(weight, alpha=alpha, mask=mask).pow(2).sum().backward()
    same(weight.grad, g)
    loss = regmax.SparsemaxLoss()
    same(loss(named[0], K.as_subclass(Named)).as_subclass(torch.Tensor), loss(X, K))
    w = torch.zeros(7, dtype=F64)
    same(layer(Value(w.as_subclass(Named)))(X).as_subclass(torch.Tensor), layer(Value(w))(X))


def test_views_of_other_numbers():
    negative = torch.complex(X, X).conj().imag
    assert negative.is_neg()
    one = torch.ones(1, dtype=F64).expand(4, 7)
    for x in (negative, negative[:, ::2], torch._neg_view(X), one, X[:1].expand(4, 7)):
        plain = x.resolve_neg().clone(memory_format=torch.contiguous_format)
        v = torch._neg_view(plain)
        for f in (functional.sparsemax, functional.entmax15, layer(solver="newton")):
            leaf, other = x.detach().requires_grad_(), plain.clone().requires_grad_()
            got, expected = f(leaf), f(other)
            assert torch.equal(got, expected)
            same(torch.autograd.grad(got, leaf, v), torch.autograd.grad(expected, other, -plain))
    gamma = torch.complex(X, -X.abs() - 0.5).conj().imag[:, :1]
    assert gamma.is_neg()
    same(functional.sparsemax(X, gamma=gamma), functional.sparsemax(X, gamma=gamma.resolve_neg()))


# -- DTensor -------------------------------------------------------------------------------------


@pytest.fixture
def d():
    """One process: ``d(t, *placements)`` distributes a tensor."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch.distributed with gloo is not available")
    with tempfile.TemporaryDirectory() as folder:
        method = f"file://{folder}/rendezvous"
        torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
        from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

        mesh = init_device_mesh("cpu", (1,))
        yield lambda t, at=None: distribute_tensor(t, mesh, [at or Replicate()])
        torch.distributed.destroy_process_group()


def shard(dim):
    from torch.distributed.tensor import Shard

    return Shard(dim)


def test_dtensors_beside_plain_scores(d):
    """All of their entries count, and what learns is learnt."""
    alpha, gamma, lam = (torch.tensor(v, dtype=F64) for v in (1.4, 0.7, 0.1))
    per_row, mask, w = torch.tensor([[0.5], [1], [2], [3]], dtype=F64), X > -1, normal(7)
    q = torch.randn(2, 3, 5, 8)
    heads = AdaptiveEntmax(3)

    def learnt(a):
        module = copy.deepcopy(heads)
        module.learned["alpha"].a = nn.Parameter(a)
        return module

    calls = [
        (lambda t: functional.entmax(X, alpha=t), alpha),
        (lambda t: functional.entmax15(X, gamma=t), per_row),
        (lambda t: functional.fusedmax(X, lam=t), lam),
        (lambda t: functional.sparsemax(X, mask=t), mask),
        (lambda t: layer(t * regmax.regularizer("gini"))(X), gamma),
        (lambda t: layer(regmax.regularizer("tsallis") + t * regmax.penalty("tv"))(X), lam),
        (lambda t: layer(regmax.regularizer("tsallis", alpha=t)).max(X), alpha),
        (lambda t: layer(regmax.regularizer("tsallis", alpha=t)).solve(X).y, alpha),
        (lambda t: layer(Value(t))(X), w),
        (lambda t: layer(Value(t), gamma=per_row).max(X), w),
        (lambda t: layer(Value()).solve(X, y0=t).y, X.exp()),
        (lambda t: regmax.EntmaxLoss(alpha=t)(X, K), alpha),
        (lambda t: regmax.SparsemaxLoss(gamma=t)(X, K), gamma),
        (lambda t: regmax.FenchelYoungLoss(Value(t))(X, K), w),
        (lambda t: regmax.SparsemaxLoss()(X, t), K),
        (lambda t: regmax.SparsemaxLoss()(X, t), X.softmax(-1)),
        (lambda t: regmax.SparsemaxLoss()(X, K, t), mask),
        (lambda t: regmax.SparsemaxLoss(weight=t)(X, K), w.exp()),
        (lambda t: attention(q, q, q, learnt(t)), heads.a.detach()),
        (lambda t: attention(q, q, q, "sparsemax", attn_mask=t), torch.rand(5, 5) < 0.7),
    ]
    for i, (call, t) in enumerate(calls):
        for placement in (None, shard(0)) if t.ndim else (None,):
            got, expected = call(d(t, placement)), call(t)
            assert type(got) is torch.Tensor, i
            same(got, expected, 1e-12 if got.dtype == F64 else 1e-6)
            if not t.is_floating_point() or i == 10:
                continue
            leaves = [t.clone().requires_grad_(), d(t, placement).requires_grad_()]
            if i == len(calls) - 2:  # it makes a parameter
                continue
            for leaf in leaves:
                call(leaf).pow(2).sum().backward()
            same(leaves[1].grad.full_tensor(), leaves[0].grad)


def test_scores_in_a_dtensor_that_are_refused(d):
    x = d(X, shard(0))
    for call in (layer().solve, layer().jacobian):
        with pytest.raises(TypeError, match=r"x must be a dense.*DTensor.*full_tensor.*to_local"):
            call(x)
    per_row = regmax.LinearFenchelYoungLoss(regmax.regularizer("gini"), torch.ones(6, 1))
    with pytest.raises(ValueError, match=r"hidden must have shape \(rows, F\).*\(2, 3, 7\)"):
        per_row(torch.ones(2, 3, 7), d(torch.ones(4, 7)), torch.zeros(2, 3, dtype=int))
    with pytest.raises(NotImplementedError, match="Value defines no sharded_form"):
        Value().sharded_form(X, 1.0, X > 0)
    y = layer(WithDense())(d(X, shard(1)).requires_grad_())
    same(y.full_tensor(), functional.sparsemax(X))
    with pytest.raises(regmax.RegularizerError, match=r"WithDense\.curvature must be Diagonal"):
        y.square().sum().backward()
    with pytest.raises(ValueError, match=r"gamma must broadcast to x.*\(2, 1\), x \(4, 7\)"):
        functional.sparsemax(x, gamma=torch.ones(2, 1))
    with pytest.raises(TypeError, match="dim must be an int"):
        functional.sparsemax(x, dim=1.0)
    other = torch.distributed.tensor.init_device_mesh("cpu", (1,), mesh_dim_names=("other",))
    elsewhere = torch.distributed.tensor.distribute_tensor(torch.tensor(1.0), other)
    with pytest.raises(TypeError, match="gamma must lie on the mesh of x"):
        functional.sparsemax(x, gamma=elsewhere)
    for call in (
        lambda: torch.vmap(functional.sparsemax)(x),
        lambda: torch.func.grad(lambda x: functional.sparsemax(x)[0, 0])(x),
        lambda: torch.autograd.grad(
            functional.sparsemax(leaf := X.clone().requires_grad_()), leaf, x
        ),
    ):
        with pytest.raises(RuntimeError, match="DTensor"):
            call()


class WithDense(regmax.Regularizer):
    """The Gini entropy, with its curvature entry by entry."""

    separable = ignores_zeros = True

    def value(self, y):
        return y.square().sum(-1) / 2

    def curvature(self, y):
        return regmax.regularizers.curvature.Dense(torch.diag_embed(torch.ones_like(y)))

    def sharded_form(self, x, gamma, mask):
        return regmax.regularizer("gini").sharded_form(x, gamma, mask)


def test_printing_what_has_no_numbers_to_print():
    for make, shown in (
        (nested, "<nested tensor, torch.float64>"),
        (torch.Tensor.to_sparse, "<tensor of layout torch.sparse_coo, torch.float64>"),
        (without_memory, "<tensor whose memory was freed, torch.float64>"),
        (two, "<TwoTensor of shape=(4, 7), torch.float64>"),
    ):
        omega = Value(make(X))
        assert repr(omega) == f"Value(w={shown})"
        assert str(omega)


# -- on two devices ------------------------------------------------------------------------------
