"""The functions of the grid: each takes tensors that learn, at a point away from its kinks.

A mapping, its maximum, a loss, a loss of a linear layer and attention are all
functions of scores, γ and whatever Ω depends on. ``modes`` holds each against reverse mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from mapping_checks import away_from_kinks, normal
from torch import Tensor

import regmax
from regmax import FenchelYoungLoss, LinearFenchelYoungLoss, RegularizedMax
from regmax.nn import attention

F64 = torch.float64


@dataclass(frozen=True)
class Point:
    """f of the tensors ``inputs``, of which the first are scores."""

    f: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    @functools.cached_property
    def y(self) -> Tensor:
        return self.f(*self.inputs)

    @functools.cached_property
    def v(self) -> Tensor:
        return normal(*self.y.shape, 1, seed=9).squeeze(-1)

    def loss(self, *inputs: Tensor) -> Tensor:
        return (self.f(*inputs).pow(3) * self.v).sum()


def number(*values: float) -> Tensor:
    found = torch.tensor(values, dtype=F64)
    return found.squeeze(0) if len(values) == 1 else found


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64).unsqueeze(-1)


class Weighted(regmax.Regularizer):
    """A sum over entries, by its value: weights by entry, an exponent."""

    def __init__(self, w: Tensor, a: Tensor):
        self.w, self.a = w, a

    def value(self, y: Tensor) -> Tensor:
        return (self.w * y * y).sum(-1) + y.pow(self.a).sum(-1)


class Coupled(regmax.Regularizer):
    """A quadratic form and the entropy or a cube of each entry, by its value."""

    def __init__(self, b: Tensor, w: Tensor, steep: bool = False):
        self.b, self.w, self.steep = b, w, steep

    def value(self, y: Tensor) -> Tensor:
        own = torch.xlogy(y, y) if self.steep else y.square() / 2 + y.pow(3)
        return (self.w * (y @ self.b.mT)).square().sum(-1) / 2 + own.sum(-1)


MAP = normal(5, 4, seed=2)


class Joined(regmax.Regularizer):
    """A function of the row that is not quadratic, and neighbours, by its value."""

    def __init__(self, w: Tensor):
        self.w = w

    def value(self, y: Tensor) -> Tensor:
        near = (y * y.roll(1, -1)).sum(-1) / 4
        return torch.logsumexp(y @ MAP * self.w, -1) + y.square().sum(-1) / 2 + near


class Norm(regmax.Regularizer):
    """½‖y‖_p² by its value."""

    def __init__(self, p: Tensor):
        self.p = p

    def value(self, y: Tensor) -> Tensor:
        return y.pow(self.p).sum(-1).pow(2 / self.p) / 2


def pnorm(p: Tensor) -> Any:
    return regmax.regularizer("pnorm", p=p)


def entmax(a: Tensor) -> Any:
    return regmax.regularizer("tsallis", alpha=a)


def penalized(base: str, penalty: str, key: str, **fixed: Any) -> Callable[..., Any]:
    """Ω of λ and of the numbers ``key`` of the penalty."""
    return lambda lam, w: (
        regmax.regularizer(base) + lam * regmax.penalty(penalty, **{key: w}, **fixed)
    )


EDGES = [(0, 1), (1, 2), (3, 4), (0, 3), (2, 0)]
MATRIX = torch.eye(5, dtype=F64) + normal(5, 5, seed=3) / 4
OMEGAS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "entropy": (lambda: regmax.regularizer("entropy"), ()),
    "gini": (lambda: regmax.regularizer("gini"), ()),
    "pnorm": (pnorm, (number(1.4),)),
    "pnorm, rows": (pnorm, (column(1.5, 1.3, 1.8),)),
    "tsallis 1.5": (lambda: regmax.regularizer("tsallis"), ()),
    "tsallis": (entmax, (number(1.3),)),
    "tsallis, rows": (entmax, (column(1.4, 1.9, 0.8),)),
    "tv": (lambda lam: regmax.regularizer("tv", lam=lam), (number(0.1),)),
    "oscar, rows": (lambda lam: regmax.regularizer("oscar", lam=lam), (column(0.05, 0.02, 0.1),)),
    "tsallis + tv": (
        lambda a, lam: entmax(a) + lam * regmax.penalty("tv"),
        (number(1.4), number(0.1)),
    ),
    "c (pnorm + oscar)": (
        lambda c, p, lam: c * (pnorm(p) + lam * regmax.penalty("oscar")),
        (number(1.3), number(1.5), number(0.05)),
    ),
    "divergence": (
        lambda a, q: regmax.regularizer("divergence", alpha=a, prior=q),
        (number(0.7), number(0.2, 0.5, 0.1, 0.4, 0.3)),
    ),
    "jensen_shannon": (
        lambda q: regmax.regularizer("jensen_shannon", prior=q),
        (number(0.2, 0.5, 0.1, 0.4, 0.3),),
    ),
    "c entropy": (lambda c: c * regmax.regularizer("entropy"), (number(2.0),)),
    "gini + graph": (
        penalized("gini", "graph_tv", "weights", edges=EDGES),
        (number(0.1), number(1, 0.5, 0.2, 1.3, 0.7)),
    ),
    "entropy + owl": (
        penalized("entropy", "owl", "weights"),
        (number(0.2), number(2, 1.5, 1, 0.3, -0.4)),
    ),
    "weighted": (Weighted, (number(0.7, 1.0, 1.5, 0.4, 2.0), number(1.6))),
    "matrix": (lambda b: Coupled(b, number(1.0), steep=True), (MATRIX,)),
    "coupled": (functools.partial(Coupled, MATRIX), (number(1, 0.9, 1.2, 0.8, 1.1),)),
    "joined": (Joined, (number(1, 0.9, 1.2, 0.8),)),
    "norm": (Norm, (number(1.5),)),
    "weighted + c entropy": (
        lambda w, c: Weighted(w, number(2.0)) + c * regmax.regularizer("entropy"),
        (number(0.7, 1.0, 1.5, 0.4, 2.0), number(0.7)),
    ),
    "weighted + tv": (
        lambda w, lam: Weighted(w, number(2.0)) + lam * regmax.penalty("tv"),
        (number(0.7, 1.0, 1.5, 0.4, 2.0), number(0.05)),
    ),
}
OWN = ("weighted", "matrix", "coupled", "joined", "norm", "weighted + tv")
"""By a user, with its value alone: compilers take no such Ω."""
GAMMA = column(0.8, 1.0, 1.2)


def omega_of(name: str) -> Any:
    make, theta = OMEGAS[name]
    return make(*theta)


def mapping(name: str) -> Point:
    make, theta = OMEGAS[name]
    scale = 0.5 if name in OWN else 1.0

    def f(x: Tensor, gamma: Tensor, *theta: Tensor) -> Tensor:
        return RegularizedMax(make(*theta), gamma=gamma)(x)

    x = away_from_kinks(lambda x: f(x, GAMMA, *theta).detach(), 3, 5, scale=scale)
    return Point(f, (x, GAMMA, *theta))


def maximum(name: str) -> Point:
    make, _ = OMEGAS[name]
    inputs = mapping(name).inputs
    return Point(lambda x, g, *t: RegularizedMax(make(*t), gamma=g).max(x), inputs)


INDEX = torch.tensor([2, 1, 4])
MASK = torch.tensor([[1, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 0, 1]], dtype=torch.bool)
SOFT = torch.where(MASK, normal(3, 5, seed=4).softmax(-1), 0)
LOSSES: dict[str, tuple[Tensor, Tensor | None, dict[str, Any]]] = {
    "indices": (INDEX, None, {}),
    "distributions, mask": (SOFT, MASK, {}),
    "indices, mask, smoothing": (INDEX, MASK, {"label_smoothing": 0.2}),
    "distributions, smoothing, weights": (
        SOFT,
        None,
        {"label_smoothing": 0.2, "weight": number(0.5, 1, 2, 0.7, 1.1)},
    ),
}


CAPS = torch.linspace(0.5, 0.8, 5, dtype=F64)
LIMITS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "simplex": (
        regmax.Simplex,
        (column(1.7, 2.2, 0.9), torch.linspace(0.02, 0.1, 15, dtype=F64).view(3, 5), CAPS),
    ),
    "even simplex": (regmax.Simplex, (column(1.7, 2.2, 0.9), number(0.02), number(0.7))),
    "at most": (regmax.AtMost, (column(1.7, 2.2, 0.9), CAPS)),
    "box": (regmax.Box, (torch.linspace(0.02, 0.1, 5, dtype=F64), CAPS)),
}
"""Domains, and what they learn."""


def on_domain(name: str, domain: str, maximum: bool = False) -> Point:
    make, theta = OMEGAS[name]
    limited, limits = LIMITS[domain]

    def f(x: Tensor, gamma: Tensor, *given: Tensor) -> Tensor:
        own = limited(*given[: len(limits)])
        settings: dict[str, Any] = {"tol": 1e-12, "on_failure": "ignore"}
        layer = RegularizedMax(make(*given[len(limits) :]), gamma, domain=own, **settings)
        return layer.max(x) if maximum else layer(x)

    x = away_from_kinks(lambda x: f(x, number(0.8), *limits, *theta).detach(), 3, 5)
    return Point(f, (x, number(0.8), *limits, *theta))


def plans(name: str, maximum: bool = False) -> Point:
    """Two plans of 2 × 3, with sums that learn."""
    make, theta = OMEGAS[name]

    def f(x: Tensor, gamma: Tensor, rows: Tensor, columns: Tensor, *theta: Tensor) -> Tensor:
        total = rows.sum(-2, keepdim=True)
        domain = regmax.Transport(rows, columns.softmax(-1) * total)
        layer = RegularizedMax(make(*theta), gamma, domain=domain)
        return layer.max(x) if maximum else layer(x)

    rows, gamma = (normal(2, 2, 1, seed=3) / 2).exp(), number(0.8, 1.1).view(2, 1, 1)
    return Point(f, (1.5 * normal(2, 2, 3, seed=2), gamma, rows, normal(3, seed=4), *theta))


def loss(name: str, how: str) -> Point:
    make, theta = OMEGAS[name]
    target, mask, settings = LOSSES[how]

    def f(x: Tensor, gamma: Tensor, *theta: Tensor) -> Tensor:
        return FenchelYoungLoss(make(*theta), gamma, reduction="none", **settings)(x, target, mask)

    gamma = number(0.8) if how == "indices" else GAMMA
    return Point(f, (1.5 * normal(3, 5, seed=1), gamma, *theta))


def learnt_target(name: str) -> Point:
    made = FenchelYoungLoss(omega_of(name), 0.8, reduction="none")
    return Point(lambda x, z: made(x, z.softmax(-1)), (normal(3, 5, seed=1), normal(3, 5, seed=2)))


def linear(name: str, **settings: Any) -> Point:
    make, theta = OMEGAS[name]

    def f(hidden: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, *theta: Tensor) -> Tensor:
        made = LinearFenchelYoungLoss(make(*theta), gamma, chunk=2, **settings)
        return made(hidden, weight, INDEX, bias)

    inputs = normal(3, 4, seed=5), normal(5, 4, seed=6), normal(5, seed=7), number(0.7)
    return Point(f, (*inputs, *theta))


def attended(name: str, chunk: int | None = None, **settings: Any) -> Point:
    """Two heads of four queries and five keys; γ and a sink of each head learn."""
    make, theta = OMEGAS[name]

    def f(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, sink: Tensor, *theta: Tensor) -> Tensor:
        more = {} if name in OWN or "+" in name else {"sink": sink}
        out = attention(q, k, v, make(*theta), gamma=gamma, chunk=chunk, **more, **settings)
        return out if more else out + 0 * sink

    shapes = (2, 4, 3), (2, 5, 3), (2, 5, 2)
    heads = number(0.8, 1.1).view(2, 1, 1), number(0.1, -0.4).view(2, 1, 1)
    inputs = [normal(*shape, seed=11 + i) for i, shape in enumerate(shapes)]
    return Point(f, (*inputs, *heads, *theta))


def module(name: str, what: str = "mapping") -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    """A function of scores (or queries) alone, of a module or an Ω that is made, for a compiler;
    and scores and parameters."""
    make, theta = OMEGAS[name]
    learnt = [torch.nn.Parameter(t.clone()) for t in theta]
    omega, gamma = make(*learnt), torch.nn.Parameter(number(0.9))
    x = mapping(name).inputs[0]
    f: Callable[[Tensor], Tensor]
    if what == "loss":
        weights = number(0.5, 1, 2, 0.7, 1.1)
        made = FenchelYoungLoss(omega, gamma, label_smoothing=0.1, weight=weights)
        f = lambda x: made(x, INDEX)  # noqa: E731
    elif what == "attention":
        x, k, v = attended(name).inputs[:3]
        f = lambda q: attention(q, k, v, omega, is_causal=True, gamma=gamma)  # noqa: E731
    else:
        f = RegularizedMax(omega, gamma=gamma)
    return f, [x, gamma, *learnt]


def named(names: tuple[str, ...]) -> Any:
    return {name: functools.partial(mapping, name) for name in names}


POINTS: dict[str, Callable[[], Point]] = {
    **named(tuple(OMEGAS)),
    **{
        f"max of {name}": functools.partial(maximum, name)
        for name in ("entropy", "gini", "pnorm", "tsallis", "tv", "gini + graph", "coupled")
    },
    **{
        f"{name} on {domain}": functools.partial(on_domain, name, domain)
        for name in ("entropy", "gini", "tsallis", "divergence", "jensen_shannon", "weighted")
        for domain in ("simplex", "at most", "box")
    },
    "tv on even simplex": functools.partial(on_domain, "tv", "even simplex"),
    **{
        f"max of {name} on {domain}": functools.partial(on_domain, name, domain, True)
        for name, domain in (
            ("gini", "simplex"),
            ("entropy", "at most"),
            ("tsallis", "box"),
        )
    },
    **{
        f"plans of {name}": functools.partial(plans, name)
        for name in ("entropy", "gini", "tsallis", "c entropy")
    },
    "max of plans of tsallis": functools.partial(plans, "tsallis", True),
    **{
        f"loss of {name}: {how}": functools.partial(loss, name, how)
        for name, how in (
            ("entropy", "indices, mask, smoothing"),
            ("entropy", "distributions, smoothing, weights"),
            ("pnorm", "indices"),
            ("pnorm, rows", "distributions, mask"),
            ("tsallis", "distributions, smoothing, weights"),
            ("tsallis", "indices, mask, smoothing"),
            ("tsallis, rows", "indices"),
            ("tv", "indices, mask, smoothing"),
            ("tv", "distributions, mask"),
            ("oscar, rows", "indices"),
            ("oscar, rows", "distributions, smoothing, weights"),
            ("tsallis + tv", "distributions, mask"),
            ("tsallis + tv", "indices, mask, smoothing"),
            ("c entropy", "indices"),
            ("weighted", "indices, mask, smoothing"),
            ("coupled", "distributions, smoothing, weights"),
        )
    },
    **{
        f"learnt target of {name}": functools.partial(learnt_target, name)
        for name in ("entropy", "tsallis 1.5", "tv")
    },
    "linear loss of entropy": functools.partial(linear, "entropy"),
    "linear loss of tsallis": functools.partial(linear, "tsallis"),
    "attention of entropy": functools.partial(attended, "entropy"),
    "attention of tsallis": functools.partial(attended, "tsallis", is_causal=True),
    "attention of tv": functools.partial(attended, "tv", attn_mask=MASK[:1].expand(4, 5)),
    "attention of tsallis + tv": functools.partial(attended, "tsallis + tv"),
    "attention of weighted": functools.partial(attended, "weighted"),
    "attention of tsallis, chunks": functools.partial(attended, "tsallis", 3),
    "attention of entropy, chunks": functools.partial(attended, "entropy", 2),
}
SOLVED = {
    f"{name} on {domain}": functools.partial(on_domain, name, domain)
    for name, domain in (
        ("coupled", "simplex"),
        ("coupled", "at most"),
        ("coupled", "box"),
        ("pnorm", "at most"),
    )
}
"""Where a solver is called for each difference."""


@functools.cache
def point(name: str) -> Point:
    return (POINTS | SOLVED)[name]()
