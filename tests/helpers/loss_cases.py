"""Fenchel–Young losses to test: each Ω with its value and Π_Ω in numpy, targets, assertions."""

from functools import partial

import numpy as np
import references
import torch
from mapping_checks import normal
from omegas import Cubic, Weighted
from references import rows
from scipy.special import xlogy

import regmax
from regmax.losses import FenchelYoungLoss

F64 = torch.float64


def prices(d):
    return torch.linspace(1, 3, d, dtype=F64)


def tsallis(y, alpha):
    return ((y**alpha).sum() - 1) / (alpha * (alpha - 1))


def gini(y):
    return (y * y).sum() / 2


def fused_entmax(z):
    return references.tsallis(references.prox_tv(z, 0.1), 1.5)


make = regmax.regularizer
FORMULAS = {  # Ω for d entries, its value, Π_Ω of a row of x/γ
    "entropy": (lambda d: make("entropy"), lambda y: xlogy(y, y).sum(), references.entropy),
    "gini": (lambda d: make("gini"), gini, references.sparsemax),
    "pnorm": (
        lambda d: make("pnorm", p=1.5),
        lambda y: (y**1.5).sum() ** (4 / 3) / 2,
        partial(references.pnorm, p=1.5),
    ),
    **{
        f"tsallis {alpha}": (
            lambda d, alpha=alpha: make("tsallis", alpha=alpha),
            partial(tsallis, alpha=alpha),
            partial(references.tsallis, alpha=alpha),
        )
        for alpha in (1.3, 1.5, 3.0)
    },
    "tv": (
        lambda d: make("tv", lam=0.1),
        lambda y: gini(y) + 0.1 * references.tv_value(y),
        partial(references.fusedmax, lam=0.1),
    ),
    "oscar": (
        lambda d: make("oscar", lam=0.01),
        lambda y: gini(y) + 0.01 * (np.sort(y)[::-1] * (len(y) - 1 - np.arange(len(y)))).sum(),
        partial(references.oscarmax, lam=0.01),
    ),
    "fused entmax": (
        lambda d: make("tsallis", alpha=1.5) + 0.1 * regmax.penalty("tv"),
        lambda y: tsallis(y, 1.5) + 0.1 * references.tv_value(y),
        fused_entmax,
    ),
    "twice entropy": (
        lambda d: 2 * make("entropy"),
        lambda y: 2 * xlogy(y, y).sum(),
        lambda z: references.entropy(z / 2),
    ),
}
SOLVED = {  # found by a solver that knows the value of Ω
    "entropy + gini": (
        lambda d: make("entropy") + make("gini"),
        lambda y: xlogy(y, y).sum() + gini(y),
        None,
    ),
    "cubic": (lambda d: Cubic(), lambda y: (y * y / 2 + y**3 / 6).sum(), None),
    "priced": (
        lambda d: Weighted(prices(d)),
        lambda y: (prices(len(y)).numpy() * y * y).sum() / 2,
        None,
    ),
    "priced + tv": (
        lambda d: Weighted(prices(d)) + 0.1 * regmax.penalty("tv"),
        lambda y: (prices(len(y)).numpy() * y * y).sum() / 2 + 0.1 * references.tv_value(y),
        None,
    ),
}
OMEGAS = FORMULAS | SOLVED


def indices(n, d, seed=2):
    return torch.randint(0, d, (n,), generator=torch.Generator().manual_seed(seed))


def distributions(n, d, seed=4):
    """Rows of Δ with zeros among them."""
    t = (2 * normal(n, d, seed=seed)).softmax(-1)
    t = torch.where(t < 0.3 / d, 0, t)
    return t / t.sum(-1, keepdim=True)


def by_definition(name, x, t, gamma):
    """max_Ω(x) + γΩ(t) − ⟨t, x⟩ and Π_Ω(x) − t of rows, in numpy."""
    omega, value, pi = OMEGAS[name]
    if pi is None:
        y = regmax.RegularizedMax(omega(x.shape[-1]), gamma)(x).numpy()
    else:
        y = rows(pi, x, gamma)
    x, t = x.numpy(), t.numpy()
    found = [((y - t) @ x + gamma * (value(t) - value(y))) for x, y, t in zip(x, y, t, strict=True)]
    return torch.tensor(np.array(found)), torch.tensor(y - t)


def value_and_gradient(loss, x, *target):
    leaf = x.detach().clone().requires_grad_()
    value = loss(leaf, *target)
    (g,) = torch.autograd.grad(value, leaf, normal(*value.shape, 1, seed=9).squeeze(-1).to(value))
    return value.detach(), g


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def loss_of(name, d=5, **keywords):
    return FenchelYoungLoss(OMEGAS[name][0](d), **keywords)


def gradient(loss, x, *target):
    """That of the sum of the losses."""
    leaf = x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(leaf, *target).sum(), leaf)
    return g


def number(*value):
    return torch.tensor(value, dtype=F64).reshape(-1, 1).squeeze().requires_grad_()
