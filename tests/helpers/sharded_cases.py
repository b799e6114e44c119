"""Sharded against whole: values and gradients of mappings, losses and layers on DTensors."""

import contextlib
import copy
import itertools
import os
import random
import tempfile
import warnings

import pytest
import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import regmax
from regmax import functional
from regmax.nn import AdaptiveEntmax, Between, Learnable, Positive, attention

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F64: 1e-12, F32: 1e-6}
CASES = {}
DRAWS = int(os.environ.get("SHARDED_DRAWS", "8"))
MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax", "pnormmax", "fusedmax", "oscarmax")
_MESHES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mesh_of(*shape):
    if shape not in _MESHES:
        _MESHES[shape] = init_device_mesh("cpu", shape)
    return _MESHES[shape]


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def same(got, expected, tolerance, what=""):
    """Equal up to ``tolerance`` of the largest entry; equally infinite, NaN and exactly 0."""
    got, expected = whole(got).detach(), whole(expected).detach()
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    assert got.dtype == expected.dtype, (what, got.dtype, expected.dtype)
    finite = expected.isfinite()
    assert torch.equal(finite, got.isfinite()), (what, got, expected)
    strange = ~finite
    assert torch.equal(got[strange].nan_to_num(nan=7.0), expected[strange].nan_to_num(nan=7.0)), (
        what
    )
    if finite.any():
        error = (got - expected)[finite].abs().max().item()
        assert error <= tolerance * (1 + expected[finite].abs().max().item()), (what, error)


def gradients(y, v, given):
    """The gradients of ⟨y, v⟩ in what of ``given`` learns."""
    found = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    total = (y * v).sum()
    total.backward()
    return [t.grad for t in found]


def distributed(t, mesh, placements):
    return distribute_tensor(t, mesh, placements)


def agree(f, inputs, placements, mesh, tolerance=1e-12, what="", more=(), total=torch.square):
    """f of the inputs, whole and placed so (None: plain), and the gradients of Σ f², or of another
    ``total``, in them and in ``more``. Returns f of those that are placed."""
    results = []
    for sharded in (False, True):
        given = [
            (
                t.clone() if at is None or not sharded else distributed(t, mesh, [at])
            ).requires_grad_()
            for t, at in zip(inputs, placements, strict=True)
        ]
        y = f(*given)
        results.append([y, *torch.autograd.grad(total(y).sum(), [*given, *more])])
    for expected, got in zip(*results, strict=True):
        same(got, expected, tolerance, what)
    return y


class Draw:
    """One random problem, the same in every process."""

    def __init__(self, seed, size):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        pick = self.random.choice
        meshes = [(size,)] if size == 2 else [(4,), (2, 2)]
        self.mesh = mesh_of(*pick(meshes))
        self.ndim = pick([1, 2, 3])
        self.dim = self.random.randrange(self.ndim)
        length = pick([1, 2, 3, 4, 5, 7, 16, 33])
        self.shape = [pick([1, 2, 3, 4]) for _ in range(self.ndim)]
        self.shape[self.dim] = length
        self.dtype = pick([F32, F64])
        self.tolerance = TOLERANCE[self.dtype]
        dims = [*range(self.ndim), self.dim, self.dim, None]
        self.placements = [
            Replicate() if (d := pick(dims)) is None else Shard(d) for _ in range(self.mesh.ndim)
        ]
        self.x = torch.randn(self.shape, dtype=self.dtype) * pick([0.1, 1, 5])
        if pick([True, False]) and self.x.numel() > 3:
            self.x.view(-1)[self.random.randrange(self.x.numel())] = pick(
                [-torch.inf, torch.inf, torch.nan, 1e4]
            )
        row = [1 if i == self.dim else n for i, n in enumerate(self.shape)]
        self.row = row
        self.gamma = pick([0.7, torch.tensor(1.3), torch.rand(row) + 0.4])
        self.mask = pick([None, torch.rand(self.shape) < 0.7, torch.rand(row) < 0.7])

    def hyper(self, name):
        pick = self.random.choice
        if name == "entmax":
            alpha = pick([1.0, 1.2, 2.0, torch.rand(self.row) * 0.98 + 1.01, torch.tensor(1.4)])
            return {"alpha": pick([alpha, alpha, alpha, 2.5])}
        if name == "pnormmax":
            return {"p": pick([1.5, torch.tensor(1.3), torch.rand(self.row) * 0.8 + 1.2])}
        if name in ("fusedmax", "oscarmax"):
            return {"lam": pick([0.1, torch.tensor(0.2)])}
        return {}

    def given(self, t):
        """As the whole problem and the sharded one take it."""
        if not isinstance(t, torch.Tensor):
            return t, t
        t = t.to(self.dtype) if t.is_floating_point() else t
        placements = [Replicate()] * self.mesh.ndim
        whole_, own = t.clone(), self.random.choice([t, distributed(t, self.mesh, placements)])
        own = own.clone()
        if t.is_floating_point():
            whole_, own = whole_.requires_grad_(), own.detach().requires_grad_()
        return whole_, own

    def __repr__(self):
        return (
            f"{self.shape} dim {self.dim} {self.dtype} {self.placements} on {self.mesh.shape}, "
            f"mask {None if self.mask is None else list(self.mask.shape)}, gamma {self.gamma}"
        )


def drawn_mapping(seed, size):
    d = Draw(seed, size)
    name = d.random.choice(MAPPINGS)
    hyper = {k: d.given(t) for k, t in d.hyper(name).items()}
    gamma, mask = d.given(d.gamma), d.given(d.mask)
    x = d.x.clone().requires_grad_(), distributed(d.x, d.mesh, d.placements).requires_grad_()
    v = torch.randn(d.shape, dtype=d.dtype)
    results = []
    for i in (0, 1):
        keywords = {k: pair[i] for k, pair in hyper.items()}
        y = getattr(functional, name)(x[i], **keywords, gamma=gamma[i], dim=d.dim, mask=mask[i])
        weight = distributed(v, d.mesh, d.placements) if i else v
        grads = gradients(y, weight, [x[i], gamma[i], *keywords.values()])
        results.append([y, *grads])
    expected, got = results
    what = (seed, name, hyper, d)
    assert tuple(got[0].placements) == tuple(d.placements), what
    assert torch.equal(whole(got[0]) == 0, expected[0] == 0), what
    for a, b in zip(got, expected, strict=True):
        same(a, b, 10 * d.tolerance if b is not expected[0] else d.tolerance, what)


def drawn_loss(seed, size):
    d = Draw(seed, size)
    pick = d.random.choice
    name = pick(MAPPINGS)
    classes = d.shape[d.dim]
    rows = d.shape[: d.dim] + d.shape[d.dim + 1 :]
    hyper = {k: d.given(t) for k, t in d.hyper(name).items()}
    gamma, mask = d.given(d.gamma), d.given(d.mask)
    options = {
        "dim": d.dim,
        "reduction": pick(["mean", "sum", "none"]),
        "label_smoothing": pick([0.0, 0.0, 0.1]),
        "ignore_index": pick([-100, 0]),
    }
    weight = pick([None, (torch.rand(classes, dtype=d.dtype) - 0.3).clamp_min(0)])
    target = torch.randint(classes, rows)
    if pick([True, False]):
        target = torch.rand(d.shape, dtype=d.dtype).softmax(d.dim)
        target = torch.where(target < 0.8 / classes, 0, target)
        target = target / target.sum(d.dim, keepdim=True).clamp_min(1e-3)
    x = d.x.clone().requires_grad_(), distributed(d.x, d.mesh, d.placements).requires_grad_()
    cls = getattr(regmax.losses, "".join(p.capitalize() for p in name.split("_")) + "Loss")
    own_target = target
    if pick([True, False]):
        own_target = distributed(target, d.mesh, [Replicate()] * d.mesh.ndim)
    v, results = torch.randn(rows, dtype=d.dtype), []
    for i in (0, 1):
        keywords = {k: pair[i] for k, pair in hyper.items()}
        loss = cls(**keywords, gamma=gamma[i], weight=weight, **options)
        value = loss(x[i], (target, own_target)[i], mask[i])
        scale = v if value.ndim == len(rows) and rows else torch.ones_like(value)
        if i and not isinstance(scale, DTensor):
            scale = distributed(scale, d.mesh, value.placements)
        finite = torch.isfinite(whole(value).detach())
        if finite.all():
            grads = gradients(value, scale, [x[i], gamma[i], *keywords.values()])
        else:
            grads = []
        results.append([value, *grads])
    expected, got = results
    what = (seed, name, hyper, options, target.is_floating_point(), d)
    for a, b in zip(got, expected, strict=True):
        same(a, b, 10 * d.tolerance, what)


def draws(function, count, first=0):
    def many(size):
        for seed in range(first, first + count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    function(seed, size)
                except Exception as error:
                    raise AssertionError(f"seed {seed}") from error

    return many


CASES["mappings"] = draws(drawn_mapping, DRAWS)
CASES["losses"] = draws(drawn_loss, DRAWS)


def drawn_linear(seed, size):
    """A linear layer whose classes, whose rows, or both are sharded."""
    d = Draw(seed, size)
    pick = d.random.choice
    name = pick(MAPPINGS[:5])
    classes, features, rows = pick([1, 3, 7, 40]), 5, pick([[1], [6], [2, 3]])
    d.row = [1, 1]
    hyper = {k: d.given(t) for k, t in d.hyper(name).items()}
    gamma = d.given(pick([0.7, torch.tensor(1.3)]))
    hidden = torch.randn(*rows, features, dtype=d.dtype)
    weight, bias = torch.randn(classes, features, dtype=d.dtype), torch.randn(classes).to(d.dtype)
    target, options = torch.randint(classes, rows), {"ignore_index": 0}
    if pick([True, False]):
        target = torch.randn(*rows, classes, dtype=d.dtype).softmax(-1)
    if name == "entmax":
        options["label_smoothing"] = 0.1
    options["reduction"] = pick(["mean", "sum"])
    options["chunk"], options["soft_cap"] = pick([None, 2]), pick([None, 3.0])
    mask = d.given(pick([None, torch.rand(*rows, classes) < 0.8]))
    if len(rows) > 1:
        hyper = {
            k: t for k, t in hyper.items() if not isinstance(t[0], torch.Tensor) or t[0].ndim == 0
        }
    where = [pick(["rows", "classes", "whole"]) for _ in range(d.mesh.ndim)]
    placed = [
        [Shard(0) if w == kind else Replicate() for w in where] for kind in ("rows", "classes")
    ]
    v, results = torch.rand(1, dtype=d.dtype).item() + 0.5, []
    for i in (0, 1):
        h, w, b = (
            (distributed(t, d.mesh, p) if i else t.clone()).requires_grad_()
            for t, p in ((hidden, placed[0]), (weight, placed[1]), (bias, placed[1]))
        )
        keywords = {k: pair[i] for k, pair in hyper.items()}
        omega = getattr(regmax.losses, name.capitalize() + "Loss")(**keywords).omega
        loss = regmax.LinearFenchelYoungLoss(omega, gamma[i], **options)
        value = loss(h, w, target, b, mask[i])
        found = [value]
        if torch.isfinite(whole(value.detach())):
            learns = [t for t in (gamma[i], *keywords.values()) if isinstance(t, torch.Tensor)]
            (value * v).backward()
            found += [t.grad for t in (h, w, b, *learns)]
        results.append(found)
    what = (seed, name, hyper, options, where, rows, classes, target.is_floating_point(), d.mesh)
    for got, expected in zip(results[1], results[0], strict=True):
        same(got, expected, 10 * d.tolerance, what)


@case
def linear(size):
    draws(drawn_linear, DRAWS)(size)


def message_of(call):
    with pytest.raises(ValueError, match="target") as caught:
        call()
    return str(caught.value)


@case
def wrong_targets(size):
    """All devices raise what one process raises, also those that have no part of the target."""
    torch.manual_seed(0)
    rows, classes = 6, 9
    x, hidden = torch.randn(rows, classes), torch.randn(rows, 3)
    weight = torch.randn(classes, 3)
    index = torch.arange(rows)
    index[-1] = classes
    distribution = torch.full((rows, classes), 1 / classes)
    distribution[-1, -1] = -0.5
    meshes = [mesh_of(size), mesh_of(2, 2)] if size == 4 else [mesh_of(size)]
    for name, mesh, target, reduction in itertools.product(
        ("sparsemax", "fusedmax"), meshes, (index, distribution), ("mean", "sum", "none")
    ):
        loss = getattr(regmax.losses, name.capitalize() + "Loss")(reduction=reduction)
        expected = message_of(lambda loss=loss, target=target: loss(x, target))
        plans = [(Shard(1),), (Shard(0),)] if mesh.ndim == 1 else [(Shard(0), Shard(1))]
        for plan in plans:
            if reduction == "none" and Shard(0) in plan:  # devices without the row do not see it
                continue
            where = (
                plan
                if target.ndim == 2
                else [Shard(0) if p.dim == 0 else Replicate() for p in plan]
            )
            for given in (target, distributed(target, mesh, where)):
                own = distributed(x, mesh, plan)
                got = message_of(lambda loss=loss, own=own, given=given: loss(own, given))
                assert got == expected, (name, plan, reduction, got, expected)
                if name == "fusedmax":
                    continue
                h = distributed(hidden, mesh, [p if p.dim == 0 else Replicate() for p in plan])
                linear = regmax.LinearFenchelYoungLoss(loss.omega, reduction=reduction)
                w = distributed(weight, mesh, [Shard(0) if p.dim else Replicate() for p in plan])
                got = message_of(lambda linear=linear, h=h, w=w, given=given: linear(h, w, given))
                assert got == expected, (name, plan, reduction, got, expected)
    strange = x.clone()
    strange[2, 3] = torch.nan  # not a fault of the target
    assert whole(
        regmax.losses.SparsemaxLoss()(
            distributed(strange, mesh_of(size), [Shard(1)]), index % classes
        )
    ).isnan()


class Cubed(regmax.Regularizer):
    """½‖y‖² and a weighted cube, by its value; or its tensor out of sight."""

    def __init__(self, w, hidden=False):
        self.held = {"w": w} if hidden else None
        if not hidden:
            self.w = w

    def value(self, y):
        w = self.w if self.held is None else self.held["w"]
        return (y.square() / 2 + w.exp() * y.pow(3)).sum(-1)


@case
def numbers_that_are_sharded(size):
    """With the rows, replicated or plain; scores that are partial sums; a device without rows."""
    torch.manual_seed(0)
    mesh = mesh_of(size)
    x, rows = torch.randn(5, 7, dtype=F64), (torch.rand(5, 1) + 0.5).double()
    for f, theta in (
        (lambda x, g, a: functional.entmax(x, alpha=a, gamma=g), torch.tensor(1.4)),
        (lambda x, g, a: functional.fusedmax(x, lam=a / 9, gamma=g), rows / 9),
        (lambda x, g, w: regmax.RegularizedMax(Cubed(w), g)(x), torch.randn(7)),
    ):
        for placement, how in itertools.product((Replicate(), Shard(0), Partial()), range(3)):
            if theta.shape == (7,) and (placement != Shard(0) or how):
                continue
            of_rows = Shard(0) if placement == Shard(0) else Replicate()
            at = (None, Replicate(), of_rows)[how]
            own = at if theta.shape[:1] == (5,) or how < 2 else Replicate()
            given = [x, rows, theta.double()]
            agree(f, given, [placement, at, own], mesh, 1e-11, (placement, how))
    few = distributed(x[:1], mesh, [Shard(0)])
    same(functional.sparsemax(few), functional.sparsemax(x[:1]), 1e-12)
    with torch.no_grad():  # beside plain scores
        got = functional.entmax(x, alpha=distributed(rows + 0.6, mesh, [Shard(0)]))
    same(got, functional.entmax(x, alpha=rows + 0.6), 1e-12)


@case
def what_is_refused(size):
    mesh = mesh_of(size)
    x, w = torch.randn(4, 7, dtype=F64), torch.randn(7, dtype=F64)
    alpha = distributed(torch.tensor([1.4], dtype=F64), mesh, [Shard(0)]).requires_grad_()
    with pytest.raises(TypeError, match=f"alpha is a DTensor that requires grad, on {size} dev"):
        functional.entmax(x, alpha=alpha)
    with pytest.raises(TypeError, match=f"w is a DTensor that requires grad, on {size} devices"):
        regmax.RegularizedMax(Cubed(distributed(w, mesh, [Replicate()]).requires_grad_()))(x)
    own = distributed(x, mesh, [Shard(0)])
    with pytest.raises(ValueError, match=r"gamma must broadcast to x.*\(2, 1\), x \(4, 7\)"):
        functional.sparsemax(own, gamma=torch.ones(2, 1))
    held = regmax.RegularizedMax(Cubed(w, hidden=True))
    same(held(own), held(x), 1e-12)
    held = regmax.RegularizedMax(Cubed(w.requires_grad_(), hidden=True))
    for scores in (own, distributed(x, mesh, [Replicate()])):
        with pytest.raises(regmax.RegularizerError, match="is not one of its attributes"):
            held(scores)
    if torch.distributed.get_rank() == 0:  # printing does not wait for the others
        assert "alpha=<DTensor" in repr(regmax.regularizer("tsallis", alpha=alpha))


@case
def maxima_and_explanations(size):
    torch.manual_seed(0)
    mesh, x = mesh_of(size), torch.randn(3, 9, dtype=F64)
    x[1] = -torch.inf
    for name, placement in itertools.product(
        ("entropy", "gini", "tsallis", "pnorm", "tv"), (Shard(0), Shard(1))
    ):
        layer = regmax.RegularizedMax(regmax.regularizer(name), gamma=0.8)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            agree(layer.max, [x], [placement], mesh, what=name, total=torch.clone)
        gathers = placement == Shard(1) and name == "tv"
        assert any("gathers whole rows" in str(w.message) for w in seen) == gathers
        said = layer.explain(distributed(x, mesh, [placement]))
        word = "own rows" if placement == Shard(0) else "all-reduced sums"
        assert ("gathers whole rows" if gathers else word) in said, said


@case
def second_derivatives(size):
    torch.manual_seed(0)
    mesh, x, index = mesh_of(size), torch.randn(3, 9, dtype=F64), torch.tensor([0, 4, 8])
    for name in ("softmax", "entmax", "pnormmax"):
        mapping = getattr(functional, name)
        loss = getattr(regmax.losses, name.capitalize() + "Loss")(reduction="sum")
        for f in (lambda x, f=mapping: f(x).square(), lambda x, f=loss: f(x, index)):

            def slope(x, f=f):
                (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
                assert g.requires_grad
                return g

            agree(slope, [x], [Shard(1)], mesh, 1e-10, name)


@case
def heads_in_dtensors(size):
    mesh = mesh_of(size)
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 6, 3, dtype=F64) for _ in range(3)]
    given += [torch.randn(4, 1, 1, dtype=F64) for _ in range(2)]

    def f(q, k, v, a, sink=None):
        omega = regmax.regularizer("tsallis").with_tensors({"alpha": 1 + a.sigmoid()})
        return attention(q, k, v, omega, sink=sink)

    for sinks, at in itertools.product((True, False), (Shard(0), Replicate())):
        placements = [Shard(1)] * 3 + [at] * (1 + sinks)
        agree(f, given[: 4 + sinks], placements, mesh, 1e-11, (sinks, at))


@case
def sequences_by_all_to_all(size):
    """The recipe of the docs: a process has a part of the sequence, then of the heads."""
    mesh = mesh_of(size)
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 7, 3, dtype=F64) for _ in range(3)]
    omega = AdaptiveEntmax(4).double()
    nn.init.normal_(omega.a)

    def moved(t, dim):
        return t.redistribute(placements=[Shard(dim)]) if isinstance(t, DTensor) else t

    for causal in (False, True):
        agree(
            lambda *t, causal=causal: moved(
                attention(*(moved(each, 1) for each in t), omega, is_causal=causal), 2
            ),
            *(given, [Shard(2)] * 3, mesh, 1e-11),
            more=[omega.a],
        )


@case
def beside_loss_parallel(size):
    """Beside cross-entropy, in loss_parallel and outside; and a layer that shards classes."""
    mesh = mesh_of(size)
    torch.manual_seed(0)
    x, target = torch.randn(6, 11, dtype=F64), torch.randint(11, (6,))
    target[2] = 3
    options = {"ignore_index": 3}
    leaf, made = x.clone().requires_grad_(), regmax.losses.SoftmaxLoss(**options)
    expected = nn.functional.cross_entropy(leaf, target, **options)
    expected.backward()
    for inside in (True, False):
        own = distributed(x, mesh, [Shard(1)]).requires_grad_()
        with loss_parallel() if inside else contextlib.nullcontext():
            loss = made(own, target)
            if inside:
                entropy = nn.functional.cross_entropy(own, target, **options)
                same(entropy, expected, 1e-12)
                assert loss.placements == entropy.placements
            loss.backward()
        same(loss, expected, 1e-12)
        same(own.grad, leaf.grad, 1e-12)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 11)).double()
    h, results = torch.randn(6, 5, dtype=F64), []
    for sharded in (False, True):
        own = copy.deepcopy(model)
        if sharded:
            plan = {"1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
            parallelize_module(own, mesh, plan)
        alpha = torch.tensor(1.4, dtype=F64, requires_grad=True)
        logits = own(h)
        loss = regmax.losses.EntmaxLoss(alpha=alpha)(logits, target)
        loss.backward()
        y = functional.entmax(logits, alpha=1.4)
        results.append([loss, y, alpha.grad, *(p.grad for p in own.parameters())])
    for got, expected in zip(results[1], results[0], strict=True):
        same(got, expected, 1e-11)


@case
def compiled(size):
    mesh = mesh_of(size)
    torch.manual_seed(0)
    x = torch.randn(4, 9, dtype=F64)
    loss = regmax.losses.EntmaxLoss(alpha=1.3)
    for placement, f in itertools.product(
        (Shard(0), Shard(1)),
        (
            lambda x: functional.entmax(x, alpha=1.3),
            lambda x: functional.sparsemax(x, gamma=0.7),
            lambda x: loss(x, torch.tensor([0, 1, 2, 8])),
        ),
    ):
        torch._dynamo.reset()
        whole_graph = placement == Shard(0) and f(x).ndim > 0  # losses are outside
        run = torch.compile(f, backend="aot_eager", fullgraph=whole_graph)
        agree(
            lambda t, f=f, run=run: (run if isinstance(t, DTensor) else f)(t),
            *([x], [placement], mesh, 1e-11),
        )


@case
def exported(size):
    """The recipe of the docs: a program maps the rows of each device."""
    mesh = mesh_of(size)
    torch.manual_seed(0)
    layer, x = regmax.RegularizedMax(regmax.regularizer("tsallis", alpha=1.3)), torch.randn(8, 9)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    rows = local_map(program.module(), [Shard(0)], ([Shard(0)],), device_mesh=mesh)
    same(rows(distributed(x, mesh, [Shard(0)])), layer(x), 1e-6)


@case
def heads_of_a_tp_plan(size):
    """Hugging Face models that are loaded with ``tp_plan``, with Ω that all heads share and with
    one for each: logits, gradients, files."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # transformers loads with it
    from tiny_models import HEADS, llama

    from regmax.integrations.transformers import attach, register

    register()
    rank = str(torch.distributed.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(size))
    ids = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(1))
    shared = Learnable(regmax.regularizer("tsallis"), alpha=Between(1, 2))
    load = transformers.LlamaForCausalLM.from_pretrained
    for omega, per_layer in ((shared, False), (AdaptiveEntmax(HEADS), True)):
        torch.manual_seed(2)
        single = attach(llama(), omega, per_layer)
        for name, p in single.named_parameters():
            if "regmax" in name:
                nn.init.normal_(p)
        with tempfile.TemporaryDirectory() as folder:
            held = [folder]
            torch.distributed.broadcast_object_list(held)
            if rank == "0":
                single.save_pretrained(held[0])
            torch.distributed.barrier()
            model = load(held[0], tp_plan="auto")
            assert isinstance(model.model.layers[0].self_attn.q_proj.weight, DTensor)
            found, expected = (m(input_ids=ids, labels=ids) for m in (model, single))
            same(found.logits, expected.logits, 1e-5)
            found.loss.backward()
            expected.loss.backward()
            for (name, p), e in zip(model.named_parameters(), single.parameters(), strict=True):
                same(p.grad, e.grad, 1e-4, name)
            model.save_pretrained(held[0] + "/again")
            torch.distributed.barrier()
            same(load(held[0] + "/again")(input_ids=ids).logits, expected.logits, 0)
            torch.distributed.barrier()


class Learns(nn.Module):
    """α, γ and λ as numbers, and weights."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.gamma = Positive(init=0.7)
        entmax, fused = regmax.regularizer("tsallis"), regmax.regularizer("tv")
        self.omega = Learnable(entmax, alpha=Between(1, 2))
        self.fused = Learnable(fused, lam=Positive(init=0.1))

    def forward(self, x, target):
        h = self.linear(x)
        y = regmax.RegularizedMax(self.fused(), gamma=self.gamma())(h)
        loss = regmax.FenchelYoungLoss(self.omega(), gamma=self.gamma())
        return loss(h + y, target), y


@case
def fully_sharded(size):
    """Three steps of FSDP2, checkpoints, printing and the policy for bfloat16."""
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def made():
        torch.manual_seed(0)
        return Learns()

    mesh = mesh_of(size)
    single, model = made(), fully_shard(made(), mesh=mesh)
    rank = torch.distributed.get_rank()
    torch.manual_seed(1)
    x, target = torch.randn(3, size, 4, 6), torch.randint(8, (3, size, 4))
    optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (single, model)]
    for step in range(3):
        for m, optimizer, ranks in zip(
            (single, model), optimizers, (range(size), [rank]), strict=True
        ):
            optimizer.zero_grad()
            for r in ranks:
                loss, y = m(x[step, r], target[step, r])
                ((loss + y.square().sum()) / len(ranks)).backward()
            optimizer.step()
    for (name, p), e in zip(model.named_parameters(), single.parameters(), strict=True):
        assert not torch.equal(e, dict(made().named_parameters())[name]), name
        same(p, e, 1e-5, name)
    assert "Learnable" in repr(model)
    full = states.get_model_state_dict(model, options=states.StateDictOptions(full_state_dict=True))
    for name, t in full.items():
        same(t, single.state_dict()[name], 1e-5, name)
    with tempfile.TemporaryDirectory() as folder:
        held = [folder]
        torch.distributed.broadcast_object_list(held)
        torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id=held[0])
        again = fully_shard(Learns(), mesh=mesh)
        state = again.state_dict()
        torch.distributed.checkpoint.load(state, checkpoint_id=held[0])
        again.load_state_dict(state)
        for p, e in zip(again.parameters(), model.parameters(), strict=True):
            same(p, e, 0)
        torch.distributed.barrier()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=F32)
    half, single = fully_shard(made(), mesh=mesh, mp_policy=policy), made()
    loss, _ = half(x[0, rank], target[0, rank])
    expected, _ = single(x[0, rank], target[0, rank])
    assert loss.dtype == F32
    same(loss, expected, 2e-2)
    loss.backward()
    for name, p in half.named_parameters():
        assert whole(p.grad).isfinite().all(), name
        assert p.grad.dtype == F32, name


@case
def communication(size):
    """The table of docs/parallel.md: all-reduces, and numbers in them per row."""
    mesh, rows = mesh_of(size), 8
    torch.manual_seed(0)
    x, target = torch.randn(rows, 4096), torch.randint(4096, (rows,))

    def counted(call):
        own = distributed(x, mesh, [Shard(1)]).requires_grad_()
        with CommDebugMode() as forward:
            out = call(own)
        out = (out * out.detach()).sum() if out.ndim else out
        with CommDebugMode() as backward:
            out.backward()
        return [
            {str(k).rsplit(".", 1)[-1]: n for k, n in mode.get_comm_counts().items()}
            for mode in (forward, backward)
        ]

    for name, most in (("softmax", 2), ("sparsemax", 8), ("entmax15", 9), ("pnormmax", 10)):
        forward, backward = counted(getattr(functional, name))
        assert set(forward) == {"all_reduce"}, (name, forward)
        assert forward["all_reduce"] <= most, (name, forward)
        assert backward == {"all_reduce": 3 if name == "pnormmax" else 1}, (name, backward)
        loss = getattr(regmax.losses, name.capitalize() + "Loss")()
        forward, backward = counted(lambda x, loss=loss: loss(x, target))
        assert set(forward) == {"all_reduce"}, (name, forward)
        assert forward["all_reduce"] <= most + 1 + (name == "pnormmax"), (name, forward)
        assert not backward, (name, backward)
