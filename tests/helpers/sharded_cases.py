"""Sharded against whole: values and gradients of mappings, losses and layers on DTensors."""

import itertools
import os
import random
import warnings

import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

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
    assert torch.equal(got[strange].nan_to_num(nan=7.0), expected[strange].nan_to_num(nan=7.0)), what
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
        y = getattr(functional, name)(
            x[i], **keywords, gamma=gamma[i], dim=d.dim, mask=mask[i]
        )
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
