"""Sharded against whole: values and gradients of mappings, losses and layers on DTensors."""

import os
import random
import warnings

import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import regmax
from regmax import functional

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F64: 1e-12, F32: 1e-6}
CASES = {}
DRAWS = int(os.environ.get("SHARDED_DRAWS", "25"))
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


def leaves(*tensors):
    return [t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for t in tensors]


def gradients(y, v, given):
    """The gradients of ⟨y, v⟩ in what of ``given`` learns."""
    found = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    total = (y * v).sum()
    total.backward()
    return [t.grad for t in found]


def distributed(t, mesh, placements):
    return distribute_tensor(t, mesh, placements)


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
    weight = pick([None, torch.rand(classes, dtype=d.dtype)])
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
        value = loss(h, w, b, target, mask[i])
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


@case
def maxima_and_explanations(size):
    torch.manual_seed(0)
    mesh = mesh_of(size)
    x = torch.randn(3, 9, dtype=F64)
    x[1] = -torch.inf
    for omega in ("entropy", "gini", "tsallis", "pnorm", "tv"):
        layer = regmax.RegularizedMax(regmax.regularizer(omega), gamma=0.8)
        for placement in (Shard(0), Shard(1)):
            leaf, own = (
                x.clone().requires_grad_(),
                distributed(x, mesh, [placement]).requires_grad_(),
            )
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                got, expected = layer.max(own), layer.max(leaf)
            gathers = placement == Shard(1) and omega == "tv"
            assert any("gathers whole rows" in str(w.message) for w in seen) == gathers
            same(got, expected, 1e-12, omega)
            got.sum().backward()
            expected.sum().backward()
            same(own.grad, leaf.grad, 1e-12, omega)
            said = layer.explain(own)
            word = "own rows" if placement == Shard(0) else "all-reduced sums"
            assert ("gathers whole rows" if gathers else word) in said, said


@case
def second_derivatives(size):
    torch.manual_seed(0)
    mesh = mesh_of(size)
    x, v = torch.randn(3, 9, dtype=F64), torch.randn(3, 9, dtype=F64)
    for name in ("softmax", "entmax", "pnormmax"):
        for loss in (False, True):
            results = []
            for sharded in (False, True):
                leaf = (distributed(x, mesh, [Shard(1)]) if sharded else x.clone()).requires_grad_()
                u = distributed(v, mesh, [Shard(1)]) if sharded else v
                if loss:
                    cls = getattr(regmax.losses, name.capitalize() + "Loss")
                    value = cls(reduction="sum")(leaf, torch.tensor([0, 4, 8]))
                else:
                    value = (getattr(functional, name)(leaf) * u).sum()
                (g,) = torch.autograd.grad(value, leaf, create_graph=True)
                assert g.requires_grad, (name, loss, sharded)
                (h,) = torch.autograd.grad((g * u).square().sum(), leaf)
                results.append(h)
            same(results[1], results[0], 1e-10, (name, loss))
