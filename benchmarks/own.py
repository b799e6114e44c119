"""Regularizers that nobody named, each as a user writes it: its value, and nothing else.

And compositions of a base with a penalty, beside the same two steps put together by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.regularizers.curvature import DENSE_LIMIT

from .inputs import Case
from .peers import Candidate, conic_layer, regmax_candidate

DENSE = DENSE_LIMIT
"""Up to this d the Hessian of an Ω that is not separable is a matrix; beyond, it is products."""


class Tsallis15(regmax.Regularizer):
    """(Σ y^α − 1) / (α(α − 1)), α = 3/2."""

    def value(self, y: Tensor) -> Tensor:
        return (y.pow(1.5).sum(-1) - 1) / 0.75


class Quadratic(regmax.Regularizer):
    """½ yᵀQy + Σ y³: neither separable nor permutation-invariant."""

    def __init__(self, q: Tensor) -> None:
        self.q = q

    def value(self, y: Tensor) -> Tensor:
        return ((y @ self.q) * y).sum(-1) / 2 + y.pow(3).sum(-1)


class Quartic(regmax.Regularizer):
    """Σ y log y + Σ y⁴."""

    def value(self, y: Tensor) -> Tensor:
        entropy: Tensor = torch.special.entr(y).sum(-1)
        return y.pow(4).sum(-1) - entropy


def drawn(d: int) -> Tensor:
    """Q = AAᵀ/d + 0.1·I, with A drawn from N(0, 1)."""
    a = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    return a @ a.mT / d + 0.1 * torch.eye(d, dtype=torch.float64)


@dataclass(frozen=True)
class Own:
    """An Ω by its value; ``program``: the same in cvxpy's words, of a variable of d entries."""

    label: str
    make: Callable[[int], regmax.Regularizer]
    program: Callable[[Any, Any, int], Any]
    faster: float
    """How many times faster than cvxpylayers it should be, per row."""
    separable: bool = True
    closed: str = ""
    """The mapping that computes it in closed form, if one does."""

    def layer(self, d: int) -> regmax.RegularizedMax:
        """A miss of the tolerance shows in the certified error, so nobody warns of it."""
        return regmax.RegularizedMax(self.make(d), on_failure="ignore")


OWN = {
    "tsallis15": Own(
        "Tsallis, α = 1.5",
        lambda d: Tsallis15(),
        lambda cp, y, d: (cp.sum(cp.power(y, 1.5)) - 1) / 0.75,
        faster=300.0,
        closed="entmax15",
    ),
    "quadratic": Own(
        "½yᵀQy + Σy³",
        lambda d: Quadratic(drawn(d)),
        lambda cp, y, d: (
            cp.sum_squares(torch.linalg.cholesky(drawn(d)).mT.numpy() @ y) / 2
            + cp.sum(cp.power(y, 3))
        ),
        faster=100.0,
        separable=False,
    ),
    "quartic": Own(
        "Σy log y + Σy⁴",
        lambda d: Quartic(),
        lambda cp, y, d: cp.sum(cp.power(y, 4)) - cp.sum(cp.entr(y)),
        faster=300.0,
    ),
}


def own_candidate(name: str, d: int) -> Candidate:
    """What a user's class gives, with nothing else said."""
    layer = OWN[name].layer(d)
    return Candidate("regmax", name, lambda x, a: layer(x))


def reference(name: str, d: int) -> Candidate:
    """What errors are measured against: the closed form, else the certified solution."""
    closed = OWN[name].closed
    return regmax_candidate(closed) if closed else own_candidate(name, d)


def own_conic(name: str, d: int) -> Candidate:
    """The same problem in cvxpylayers."""
    cp: Any = importlib.import_module("cvxpy")
    return conic_layer(name, lambda y: OWN[name].program(cp, y, d), d)


def certified(name: str, case: Case) -> dict[str, Any]:
    """The worst certified error, the iterations and the road of one solve."""
    found = OWN[name].layer(case.x.shape[-1]).solve(case.x)
    steps = found.iterations.double()
    bound = found.error_bound.nan_to_num(nan=2.0).clamp(max=2.0)  # Δ is no wider
    return {
        "certified": float(bound.max()),
        "iterations": float(steps.median()),
        "most": float(steps.max()),
        "path": found.path,
    }


@dataclass(frozen=True)
class Composed:
    """base + lam · penalty; ``penalty`` is made for d entries."""

    base: Callable[[], regmax.Regularizer]
    penalty: Callable[[int], regmax.Penalty]
    lam: float

    def omega(self, d: int) -> regmax.Regularizer:
        total: regmax.Regularizer = self.base() + self.lam * self.penalty(d)
        return total


COMPOSED = {
    "tsallis + tv": Composed(
        lambda: regmax.regularizer("tsallis", alpha=1.5), lambda d: regmax.penalty("tv"), 0.1
    ),
    "entropy + oscar": Composed(
        lambda: regmax.regularizer("entropy"), lambda d: regmax.penalty("oscar"), 0.02
    ),
    "pnorm + grid_tv": Composed(
        lambda: regmax.regularizer("pnorm", p=1.5),
        lambda d: regmax.penalty("grid_tv", shape=(8, d // 8)),
        0.1,
    ),
}


class _Prox(torch.autograd.Function):
    """The prox of a penalty, and its Jacobian: averages over its groups."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, penalty: regmax.Penalty, lam: float) -> Tensor:
        z = penalty.prox(x, lam)
        ctx.penalty = penalty
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        return ctx.penalty.average(grads[0], z), None, None


def composed_candidates(name: str, d: int) -> list[Candidate]:
    """The sum as it is written, and prox and base put together by hand."""
    own = COMPOSED[name]
    layer, base = regmax.RegularizedMax(own.omega(d)), regmax.RegularizedMax(own.base())
    penalty = own.penalty(d)

    def by_hand(x: Tensor, a: Tensor) -> Tensor:
        y: Tensor = base(_Prox.apply(x, penalty, own.lam))  # type: ignore[no-untyped-call]
        return y

    return [Candidate("regmax", name, lambda x, a: layer(x)), Candidate("by hand", name, by_hand)]
